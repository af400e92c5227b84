// The write side of a volume.
//
// State of one generation:
//   (Open, Freeze) --> active --Freeze--> frozen --FinishSeal--> gone
//   a journal found by Open ------------> frozen
// (PrepareNext makes the files of the next one ahead, unborn.)
//
// Space: before anything is written, what goes to the side log now and what the seal will write is
// set aside; the latter stays so until FinishSeal. A transaction that frees space is not asked.
//
// Locks: prepare_mutex_ (who makes files) -> commit_mutex_ (one record at a time: LSN, active
// generation, totals) -> chain_mutex_ (which layers there are) -> those of layers and deltas.
// sync_mutex_ guards only who syncs and how far; whoever is the syncer holds no lock over the
// fdatasync. Large payloads are encrypted and written before commit_mutex_ is taken, so big writes
// run side by side.
//
// Group commit: the first caller of Sync becomes the syncer and covers everything committed until
// it starts; callers that come meanwhile wait, and the first of them to wake syncs for all the
// others.
#include "volume/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <utility>

#include "store/base/check.h"
#include "store/base/high_water_mark.h"
#include "store/base/log.h"
#include "store/base/mutex.h"
#include "volume/chain_layer.h"
#include "volume/generation_files.h"
#include "volume/journal_reader.h"
#include "volume/journal_writer.h"
#include "volume/reply_log.h"

namespace cairn {
namespace {

constexpr uint64_t kFirstLsn = 1;

Error ReadOnlyError(std::string message) {
  return Error(ErrorCode::kPermissionDenied, std::move(message), EROFS);
}

// What a seal will write for an operation, at most: a frame for each window of the grid that data
// touches, an entry of the tree and its share of the nodes that change.
uint64_t SealedDataBytes(FileRange range) {
  constexpr uint64_t kFrameOverheadBytes = 1024;
  if (range.begin == range.end) return 0;
  const uint64_t windows = (range.end - 1) / kGridBytes - range.begin / kGridBytes + 1;
  return range.end - range.begin + windows * kFrameOverheadBytes;
}
uint64_t SealedEntryBytes(std::string_view key, const Entry& entry) {
  return 256 + key.size() + entry.payload.size();
}
uint64_t SealedBytes(const Transaction& transaction) {
  uint64_t bytes = 0;
  for (const Transaction::Op& op : transaction.ops()) {
    bytes += op.kind == Transaction::Op::Kind::kData
                 ? SealedDataBytes({op.offset, op.offset + op.data.size()})
                 : SealedEntryBytes(op.key, op.entry);
  }
  return bytes;
}
uint64_t SealedBytes(const std::vector<DeltaChange>& changes) {
  uint64_t bytes = 0;
  for (const DeltaChange& change : changes) {
    bytes += change.kind == DeltaChange::Kind::kData ? SealedDataBytes(change.range)
                                                     : SealedEntryBytes(change.key, change.entry);
  }
  return bytes;
}

class HeadImpl final : public Head {
 public:
  HeadImpl(FileSystem& fs, KeyRing& keys, BlockStore& store, const HeadOptions& options)
      : fs_(fs), keys_(keys), store_(store), options_(options) {}

  Status Recover();

  Status Commit(Transaction&& transaction) override;
  Status Sync() override;
  Result<std::shared_ptr<const Layer>> Freeze() override;
  Status PrepareNext() override;
  std::shared_ptr<const Layer> current() const override {
    ReaderLock lock(chain_mutex_);
    return current_;
  }
  std::vector<std::shared_ptr<const Layer>> unsealed() const override {
    ReaderLock lock(chain_mutex_);
    return {frozen_.begin(), frozen_.end()};
  }
  Status FinishSeal(uint64_t generation, std::shared_ptr<const TreeReader> tree) override;
  ActiveExtent active_extent() const override {
    const Generation active = Active();
    const JournalWriter::Extent extent = active.writer->extent();
    return {.generation = active.layer->generation(),
            .journal_bytes = extent.journal_bytes,
            .side_bytes = extent.side_bytes};
  }
  HeadState state() const override {
    MutexLock lock(commit_mutex_);
    return state_;
  }
  const std::vector<ReplyRecord>& recovered_replies() const override { return recovered_replies_; }
  void SetLiveConnection(const Id128& connection) override {
    MutexLock lock(commit_mutex_);
    replies_ = ReplyLog(connection);
  }
  uint64_t active_records() const override {
    MutexLock lock(commit_mutex_);
    return active_.writer->records() - active_.carried;
  }
  uint64_t active_payload_bytes() const override { return Active().writer->payload_bytes(); }
  uint64_t unsealed_bytes() const override;
  Status CheckRoom(SpaceUse use, uint64_t bytes) const override {
    CAIRN_TRY(Reserve(use, bytes, "an allocation"));
    return {};
  }
  bool failed() const override { return failed_.load(std::memory_order_acquire); }

 private:
  struct Generation {
    std::shared_ptr<JournalWriter> writer;
    std::shared_ptr<Delta> delta;
    std::shared_ptr<ChainLayer> layer;
    uint64_t carried = 0;  // records that only repeat replies
  };
  Generation Active() const {
    MutexLock lock(commit_mutex_);
    return active_;
  }
  // Of a head without a guard: a reservation that counts nothing.
  Result<SpaceReservation> Reserve(SpaceUse use, uint64_t bytes, std::string_view what) const {
    if (options_.space == nullptr) return SpaceReservation();
    return options_.space->Reserve(use, bytes, what);
  }
  Result<std::shared_ptr<JournalWriter>> CreateWriter(uint64_t number, SpaceUse use);
  // The next generation, with a writer that is unborn.
  Result<Generation> BeginGeneration(std::shared_ptr<JournalWriter> writer, uint64_t first_lsn,
                                     std::shared_ptr<const Layer> below);
  // Replays one journal into `layer`; returns how many records counted and advances *next_lsn.
  Result<uint64_t> RecoverGeneration(const GenerationLogs& logs,
                                     std::optional<uint64_t> durable_until_lsn, uint64_t marked_lsn,
                                     Delta& delta, uint64_t& next_lsn, uint64_t& sealed_bytes);
  // Repeats the replies that may not have reached the kernel in `generation`, which has no other
  // records yet, from `*next_lsn` on.
  Status CarryReplies(Generation& generation, uint64_t& next_lsn) REQUIRES(commit_mutex_);
  RecordFields FieldsOf(const HeadState& state, uint64_t generation, uint64_t lsn) const;
  // The syncer's work; sets synced_lsn_ through. Holds no lock.
  Status SyncActive();
  // Makes room in the journal while no writer waits for it. Only the syncer calls it.
  void ExtendAhead();
  // Waits until nobody syncs, then is the syncer. EIO when the head has failed.
  Status BecomeSyncer(std::optional<uint64_t> unless_synced_lsn, bool& became);
  void StopBeingSyncer();
  void Fail(const Error& error);

  FileSystem& fs_;
  KeyRing& keys_;
  BlockStore& store_;
  const HeadOptions options_;
  std::vector<ReplyRecord> recovered_replies_;  // filled by Recover
  std::unique_ptr<HighWaterMark> mark_;         // set by Recover; null: there was no space for one
  std::atomic<bool> failed_{false};

  mutable Mutex commit_mutex_;
  Generation active_ GUARDED_BY(commit_mutex_);
  HeadState state_ GUARDED_BY(commit_mutex_);
  uint64_t written_lsn_ GUARDED_BY(commit_mutex_) = 0;
  ReplyLog replies_ GUARDED_BY(commit_mutex_);
  std::vector<DeltaChange> changes_ GUARDED_BY(commit_mutex_);  // kept for its capacity
  SpaceReservation active_debt_ GUARDED_BY(commit_mutex_);      // for sealing the active generation

  Mutex sync_mutex_;
  CondVar sync_done_;
  bool syncing_ GUARDED_BY(sync_mutex_) = false;
  std::atomic<uint64_t> synced_lsn_{0};  // written by the syncer, under sync_mutex_

  mutable SharedMutex chain_mutex_;
  std::shared_ptr<const Layer> current_ GUARDED_BY(chain_mutex_);
  std::vector<std::shared_ptr<ChainLayer>> frozen_ GUARDED_BY(chain_mutex_);  // oldest first
  std::map<uint64_t, SpaceReservation> frozen_debts_ GUARDED_BY(chain_mutex_);

  Mutex prepare_mutex_;  // held over the creation of files; taken before commit_mutex_
  std::shared_ptr<JournalWriter> prepared_ GUARDED_BY(prepare_mutex_);  // of the next generation
};

Status HeadImpl::Recover() {
  const std::string& dir = options_.dir;
  CAIRN_TRY(fs_.MakeDir(dir));
  const size_t slash = dir.find_last_of('/');
  if (slash != std::string::npos && slash > 0) CAIRN_TRY(fs_.SyncDir(dir.substr(0, slash)));

  const JournalDirectory found = CAIRN_TRY(ListJournals(fs_, dir));
  const LogPosition marked = CAIRN_TRY(UnsealedMark(fs_, dir, options_.sealed_through_generation));
  if (const std::string damage = MissingJournal(marked, found); !damage.empty()) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("{}: {}", LogPath(dir, marked.generation, LogKind::kJournal), damage));
  }
  for (const std::string& name : found.unborn) {
    CAIRN_TRY(UnlinkIfThere(fs_, fmt::format("{}/{}", dir, name)));
  }
  for (const uint64_t generation : found.sides) {
    if (!std::binary_search(found.journals.begin(), found.journals.end(), generation)) {
      CAIRN_TRY(UnlinkIfThere(fs_, LogPath(dir, generation, LogKind::kSide)));
    }
  }
  std::vector<uint64_t> generations;
  for (const uint64_t generation : found.journals) {
    if (generation > options_.sealed_through_generation) {
      generations.push_back(generation);
    } else {
      CAIRN_TRY(UnlinkGeneration(fs_, dir, generation));
    }
  }
  std::vector<GenerationLogs> logs;
  for (size_t i = 0; i < generations.size(); i++) {
    const uint64_t expected = options_.sealed_through_generation + 1 + i;
    if (generations[i] != expected) {
      return Err(
          ErrorCode::kDataLoss,
          fmt::format("{} is missing, {} is there", LogPath(dir, expected, LogKind::kJournal),
                      LogPath(dir, generations[i], LogKind::kJournal)));
    }
    logs.push_back(
        CAIRN_TRY(OpenLogs(fs_, keys_, options_.realm, options_.volume, dir, generations[i])));
    if (logs.back().journal->header().first_lsn != kUnborn) continue;
    logs.pop_back();
    if (i + 1 < generations.size()) {
      return Err(ErrorCode::kDataLoss,
                 fmt::format("{} was never begun, {} is there",
                             LogPath(dir, generations[i], LogKind::kJournal),
                             LogPath(dir, generations[i + 1], LogKind::kJournal)));
    }
    CAIRN_TRY(UnlinkGeneration(fs_, dir, generations[i]));
  }

  MutexLock commit(commit_mutex_);
  replies_ = ReplyLog(options_.live_connection);
  state_ = {.next_ino = options_.next_ino,
            .total_inodes = options_.base_inodes,
            .total_bytes = options_.base_bytes};
  std::shared_ptr<const Layer> below = options_.base;
  std::vector<std::shared_ptr<ChainLayer>> frozen;
  std::map<uint64_t, SpaceReservation> debts;
  uint64_t next_lsn = logs.empty() ? kFirstLsn : logs[0].journal->header().first_lsn;
  uint64_t next_generation = options_.sealed_through_generation + 1;
  for (size_t i = 0; i < logs.size(); i++) {
    std::optional<uint64_t> durable_until_lsn;
    if (i + 1 < logs.size()) durable_until_lsn = logs[i + 1].journal->header().first_lsn;
    auto delta = std::make_shared<Delta>();
    uint64_t sealed_bytes = 0;
    const uint64_t records =
        CAIRN_TRY(RecoverGeneration(logs[i], durable_until_lsn, MarkedLsn(marked, generations[i]),
                                    *delta, next_lsn, sealed_bytes));
    if (records == 0 && !durable_until_lsn) break;  // never frozen: it begins again, below
    // What counted must be durable before a later generation builds on it.
    if (logs[i].side) CAIRN_TRY(logs[i].side->file().Sync());
    CAIRN_TRY(logs[i].journal->file().Sync());
    auto layer = std::make_shared<ChainLayer>(store_, options_.realm, generations[i],
                                              std::move(delta), below);
    layer->Freeze();
    below = layer;
    frozen.push_back(std::move(layer));
    debts[generations[i]] = CAIRN_TRY(Reserve(SpaceUse::kUnsealed, sealed_bytes, "a seal"));
    next_generation = generations[i] + 1;
  }
  CAIRN_TRY(UnlinkGeneration(fs_, dir, next_generation));
  replies_.MoveToOldLanes();
  recovered_replies_ = replies_.Undelivered();

  // Its name is durable with the directory, which making the next journal syncs.
  auto mark = HighWaterMark::Open(fs_, MarkPath(dir));
  if (mark) {
    mark_ = *std::move(mark);
  } else if (mark.error().code() != ErrorCode::kExhausted) {
    return std::unexpected(std::move(mark).error());
  } else {
    LogWarning("high_water_mark_not_made", {{"dir", dir}, {"error", mark.error().ToString()}});
  }

  active_ = CAIRN_TRY(BeginGeneration(CAIRN_TRY(CreateWriter(next_generation, SpaceUse::kFreeing)),
                                      next_lsn, std::move(below)));
  active_debt_ = CAIRN_TRY(Reserve(SpaceUse::kUnsealed, 0, "a seal"));
  synced_lsn_ = next_lsn - 1;
  CAIRN_TRY(CarryReplies(active_, next_lsn));
  written_lsn_ = next_lsn - 1;
  WriterLock chain(chain_mutex_);
  frozen_ = std::move(frozen);
  frozen_debts_ = std::move(debts);
  current_ = active_.layer;
  return {};
}

Result<uint64_t> HeadImpl::RecoverGeneration(const GenerationLogs& logs,
                                             std::optional<uint64_t> durable_until_lsn,
                                             uint64_t marked_lsn, Delta& delta, uint64_t& next_lsn,
                                             uint64_t& sealed_bytes) REQUIRES(commit_mutex_) {
  if (logs.journal->header().first_lsn != next_lsn) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("{}: begins at record {}, not {}", logs.journal->path(),
                           logs.journal->header().first_lsn, next_lsn));
  }
  HeadState state = state_;
  ReplyLog replies = replies_;
  const ReplayResult replay = CAIRN_TRY(ReplayJournal(
      logs.journal, logs.side, durable_until_lsn,
      [&](ReplayedRecord&& record) {
        sealed_bytes += SealedBytes(record.changes);
        delta.Apply(record.changes);
        state.next_ino = std::max(state.next_ino, record.fields.next_ino);
        state.total_inodes = record.fields.total_inodes;
        state.total_bytes = record.fields.total_bytes;
        replies.Add(record.fields.reply);
      },
      marked_lsn));
  state_ = state;
  replies_ = std::move(replies);
  next_lsn = replay.next_lsn;
  return replay.records;
}

RecordFields HeadImpl::FieldsOf(const HeadState& state, uint64_t generation, uint64_t lsn) const {
  RecordFields fields;
  fields.generation = generation;
  fields.transaction_id = lsn;
  fields.next_ino = state.next_ino;
  fields.total_inodes = state.total_inodes;
  fields.total_bytes = state.total_bytes;
  return fields;
}

Status HeadImpl::CarryReplies(Generation& generation, uint64_t& next_lsn) {
  Transaction nothing;
  nothing.SetSpaceUse(SpaceUse::kFreeing);  // the journal's last bytes are kept for such
  std::vector<PayloadPiece> no_pieces;
  for (const ReplyRecord& reply : replies_.Undelivered()) {
    RecordFields fields = FieldsOf(state_, generation.layer->generation(), next_lsn);
    fields.reply = reply;
    CAIRN_TRY(generation.writer->Append(nothing, fields,
                                        synced_lsn_.load(std::memory_order_acquire), no_pieces));
    ++generation.carried;
    ++next_lsn;
  }
  return {};
}

Result<std::shared_ptr<JournalWriter>> HeadImpl::CreateWriter(uint64_t number, SpaceUse use) {
  return JournalWriter::Create(fs_, keys_,
                               {.realm = options_.realm,
                                .volume = options_.volume,
                                .dir = options_.dir,
                                .generation = number,
                                .small_payload_limit_bytes = options_.small_payload_limit_bytes,
                                .chunk_bytes = options_.journal_chunk_bytes,
                                .space = options_.space,
                                .first_use = use});
}

Result<HeadImpl::Generation> HeadImpl::BeginGeneration(std::shared_ptr<JournalWriter> writer,
                                                       uint64_t first_lsn,
                                                       std::shared_ptr<const Layer> below) {
  // Once it has begun, records of the generation before it do not count any more: whether it has
  // must not stay open.
  const Status begun = writer->Begin(first_lsn);
  if (!begun) {
    if (begun.error().code() != ErrorCode::kExhausted) Fail(begun.error());
    return std::unexpected(begun.error());
  }
  Generation generation;
  generation.delta = std::make_shared<Delta>();
  generation.layer = std::make_shared<ChainLayer>(store_, options_.realm, writer->generation(),
                                                  generation.delta, std::move(below));
  generation.writer = std::move(writer);
  return generation;
}

Status HeadImpl::PrepareNext() {
  if (failed()) return std::unexpected(ReadOnlyError({}));
  MutexLock lock(prepare_mutex_);
  const uint64_t next = Active().layer->generation() + 1;
  if (prepared_ != nullptr && prepared_->generation() == next) return {};
  prepared_ = nullptr;
  prepared_ = CAIRN_TRY(CreateWriter(next, SpaceUse::kGrowing));
  return {};
}

uint64_t HeadImpl::unsealed_bytes() const {
  uint64_t bytes = 0;
  {
    MutexLock lock(commit_mutex_);
    bytes = active_debt_.bytes();
  }
  ReaderLock lock(chain_mutex_);
  for (const auto& [generation, debt] : frozen_debts_) bytes += debt.bytes();
  return bytes;
}

Status HeadImpl::Commit(Transaction&& transaction) {
  if (failed()) return std::unexpected(ReadOnlyError({}));
  if (transaction.empty()) return {};
  const std::shared_ptr<JournalWriter> writer = Active().writer;
  auto pieces = CAIRN_TRY(writer->Cut(transaction));
  const auto unless_fatal = [this](Status status) -> Status {
    if (!status && status.error().code() != ErrorCode::kExhausted &&
        status.error().code() != ErrorCode::kInvalidArgument) {
      Fail(status.error());
    }
    return status;
  };
  const uint64_t side_bytes = JournalWriter::SideBytes(pieces);
  const uint64_t sealed_bytes = SealedBytes(transaction);
  const bool freeing = transaction.space_use() == SpaceUse::kFreeing;
  SpaceReservation room =
      CAIRN_TRY(freeing ? Reserve(SpaceUse::kUnsealed, sealed_bytes, "a seal")
                        : Reserve(transaction.space_use(), side_bytes + sealed_bytes, "a write"));
  CAIRN_TRY(unless_fatal(writer->WriteSide(pieces)));
  if (!freeing) room.Use(side_bytes);

  MutexLock lock(commit_mutex_);
  if (failed()) return std::unexpected(ReadOnlyError({}));
  CAIRN_CHECK(writer == active_.writer);  // nobody commits while the owner freezes
  HeadState after = state_;
  after.next_ino = std::max(after.next_ino, transaction.next_ino());
  after.total_inodes += static_cast<uint64_t>(transaction.added_inodes());
  after.total_bytes += static_cast<uint64_t>(transaction.added_bytes());
  RecordFields fields = FieldsOf(after, active_.layer->generation(), written_lsn_ + 1);
  fields.reply = transaction.reply();
  fields.open_ino = transaction.open_ino();
  fields.open_change = transaction.open_change();
  CAIRN_TRY(unless_fatal(
      writer->Append(transaction, fields, synced_lsn_.load(std::memory_order_acquire), pieces)));
  replies_.Add(fields.reply);

  changes_.clear();
  size_t next_piece = 0;
  auto ops = std::move(transaction).TakeOps();
  for (size_t i = 0; i < ops.size(); i++) {
    Transaction::Op& op = ops[i];
    switch (op.kind) {
      case Transaction::Op::Kind::kPut:
        changes_.push_back({.kind = DeltaChange::Kind::kPut,
                            .key = std::move(op.key),
                            .entry = std::move(op.entry),
                            .ino = 0,
                            .range = {},
                            .payload = nullptr});
        break;
      case Transaction::Op::Kind::kDelete:
        changes_.push_back({.kind = DeltaChange::Kind::kDelete,
                            .key = std::move(op.key),
                            .entry = {},
                            .ino = 0,
                            .range = {},
                            .payload = nullptr});
        break;
      case Transaction::Op::Kind::kHole:
        if (op.length_bytes == 0) break;
        changes_.push_back({.kind = DeltaChange::Kind::kHole,
                            .key = {},
                            .entry = {},
                            .ino = op.ino,
                            .range = {op.offset, RangeEnd(op.offset, op.length_bytes)},
                            .payload = nullptr});
        break;
      case Transaction::Op::Kind::kData:
        for (; next_piece < pieces.size() && pieces[next_piece].op_index == i; next_piece++) {
          PayloadPiece& piece = pieces[next_piece];
          changes_.push_back({.kind = DeltaChange::Kind::kData,
                              .key = {},
                              .entry = {},
                              .ino = op.ino,
                              .range = {piece.offset, piece.offset + piece.data.size()},
                              .payload = std::move(piece.payload)});
        }
        break;
    }
  }
  active_.delta->Apply(changes_);
  active_debt_.TakeFrom(room, sealed_bytes);
  state_ = after;
  written_lsn_++;
  return {};
}

Status HeadImpl::BecomeSyncer(std::optional<uint64_t> unless_synced_lsn, bool& became) {
  became = false;
  MutexLock lock(sync_mutex_);
  while (true) {
    if (failed()) return ErrErrno(EIO, "volume has failed");
    if (unless_synced_lsn && synced_lsn_.load(std::memory_order_relaxed) >= *unless_synced_lsn) {
      return {};
    }
    if (!syncing_) break;
    sync_done_.Wait(sync_mutex_);
  }
  syncing_ = true;
  became = true;
  return {};
}

void HeadImpl::StopBeingSyncer() {
  MutexLock lock(sync_mutex_);
  syncing_ = false;
  sync_done_.NotifyAll();
}

Status HeadImpl::SyncActive() {
  std::shared_ptr<JournalWriter> writer;
  uint64_t through_lsn = 0;
  bool has_records = false;  // of those: a generation without any may go, and is not marked
  {
    MutexLock lock(commit_mutex_);
    writer = active_.writer;
    through_lsn = written_lsn_;
    has_records = writer->records() > 0;
  }
  const Status synced = writer->Sync();
  if (!synced) {
    Fail(synced.error());
    return ErrErrno(EIO, synced.error().message());
  }
  synced_lsn_.store(through_lsn, std::memory_order_release);
  if (mark_ != nullptr && has_records) mark_->Raise({writer->generation(), through_lsn});
  return {};
}

void HeadImpl::ExtendAhead() {
  const Status extended = Active().writer->ExtendAhead();
  if (!extended) Fail(extended.error());
}

Status HeadImpl::Sync() {
  uint64_t target_lsn = 0;
  {
    MutexLock lock(commit_mutex_);
    target_lsn = written_lsn_;
  }
  bool became = false;
  CAIRN_TRY(BecomeSyncer(target_lsn, became));
  if (!became) return {};
  const Status status = SyncActive();
  if (status) ExtendAhead();
  StopBeingSyncer();
  return status;
}

Result<std::shared_ptr<const Layer>> HeadImpl::Freeze() {
  bool became = false;
  CAIRN_TRY(BecomeSyncer(std::nullopt, became));
  const auto freeze = [this]() -> Result<std::shared_ptr<const Layer>> {
    CAIRN_TRY(SyncActive());
    Generation old = Active();
    uint64_t next_lsn = 0;
    {
      MutexLock lock(commit_mutex_);
      next_lsn = written_lsn_ + 1;
    }
    SpaceReservation debt = CAIRN_TRY(Reserve(SpaceUse::kUnsealed, 0, "a seal"));
    // Until the generation is the active one: PrepareNext must not make its files again.
    MutexLock prepare(prepare_mutex_);
    std::shared_ptr<JournalWriter> writer = std::exchange(prepared_, nullptr);
    const uint64_t number = old.layer->generation() + 1;
    if (writer == nullptr || writer->generation() != number) {
      writer = CAIRN_TRY(CreateWriter(number, SpaceUse::kFreeing));
    }
    Generation next = CAIRN_TRY(BeginGeneration(std::move(writer), next_lsn, old.layer));
    MutexLock lock(commit_mutex_);
    CAIRN_CHECK(next_lsn == written_lsn_ + 1);  // nobody commits while the owner freezes
    if (const Status carried = CarryReplies(next, next_lsn); !carried) {
      Fail(carried.error());  // the generation has begun: the one before takes no records any more
      return std::unexpected(carried.error());
    }
    written_lsn_ = next_lsn - 1;
    old.layer->Freeze();
    active_ = std::move(next);
    std::swap(active_debt_, debt);
    WriterLock chain(chain_mutex_);
    frozen_.push_back(old.layer);
    frozen_debts_[old.layer->generation()] = std::move(debt);
    current_ = active_.layer;
    return old.layer;
  };
  auto frozen = freeze();
  StopBeingSyncer();
  return frozen;
}

Status HeadImpl::FinishSeal(uint64_t generation, std::shared_ptr<const TreeReader> tree) {
  std::vector<std::shared_ptr<ChainLayer>> gone;  // the sealed one is the last
  {
    WriterLock lock(chain_mutex_);
    const auto sealed = std::ranges::find(frozen_, generation, &ChainLayer::generation);
    if (sealed == frozen_.end()) {
      return Err(ErrorCode::kFailedPrecondition,
                 fmt::format("generation {} is not an unsealed one", generation));
    }
    gone.assign(frozen_.begin(), sealed + 1);
    frozen_.erase(frozen_.begin(), sealed + 1);
  }
  gone.back()->BecomeSealed(std::move(tree));
  Status unlinked;
  for (const auto& layer : gone) {
    const Status status = UnlinkGeneration(fs_, options_.dir, layer->generation());
    if (!status && unlinked) unlinked = status;
  }
  // Only now is their space another's.
  WriterLock lock(chain_mutex_);
  for (const auto& layer : gone) frozen_debts_.erase(layer->generation());
  return unlinked;
}

void HeadImpl::Fail(const Error& error) {
  if (failed_.exchange(true, std::memory_order_acq_rel)) return;
  LogError("volume_failed", {{"volume", options_.volume.ToHex()}, {"error", error.ToString()}});
}

}  // namespace

Result<std::unique_ptr<Head>> Head::Open(FileSystem& fs, KeyRing& keys, BlockStore& store,
                                         const HeadOptions& options) {
  if (options.base == nullptr) return Err(ErrorCode::kInvalidArgument, "a head needs a base layer");
  auto head = std::make_unique<HeadImpl>(fs, keys, store, options);
  CAIRN_TRY(head->Recover());
  return head;
}

}  // namespace cairn
