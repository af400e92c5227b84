// A commit: data is cut at multiples of kStagedBlockBytes of its file, pages of zeros become holes,
// each piece becomes a StagedBlock, to which every window of the grid in it gets extents of its own
// -> the delta takes everything, so later calls see it -> a full batch of blocks goes to the store
// in the background while the next one is filled -> a full slice waits for its blocks, is frozen
// and published.
//
// Invariants
//   When a slice is frozen all its blocks are stored, put through the session that seals it, which
//   lives until the root is committed. So the sealer finds references only and reads no data.
//   After an error the head is failed for good and every call says why: the records of the slice
//   are gone with it.
//
// Lock: mutex_ is held over waits for the store; StagedBlock's and the delta's are taken under it,
// and the batch in the background takes StagedBlock's alone.
#include "volume/staged_head.h"

#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "volume/chain_layer.h"
#include "volume/journal_format.h"
#include "volume/staged_block.h"
#include "volume/window_ranges.h"

namespace cairn {
namespace {

// What a record takes in memory besides its key and payload: map nodes, strings, the staged block.
constexpr uint64_t kRecordOverheadBytes = 200;

using Batch = std::vector<std::shared_ptr<StagedBlock>>;

Status PutBatch(WriteSession& session, const Batch& batch, Compression compression) {
  std::vector<PutRequest> requests;
  requests.reserve(batch.size());
  for (const auto& block : batch) {
    requests.push_back(
        {.kind = BlockKind::kData, .plain = block->plain(), .compression = compression});
  }
  std::vector<BlockRef> refs(batch.size());
  CAIRN_TRY(session.PutMany(requests, refs, Durability::kVolatile));
  for (size_t i = 0; i < batch.size(); ++i) batch[i]->SetStored(refs[i]);
  return {};
}

class StagedHeadImpl final : public StagedHead {
 public:
  StagedHeadImpl(BlockStore& store, const StagedHeadOptions& options, Publish publish,
                 MayGoOn may_go_on)
      : store_(store),
        options_(options),
        publish_(std::move(publish)),
        may_go_on_(std::move(may_go_on)),
        state_(options.state) {
    MutexLock lock(mutex_);
    BeginSlice(options.generation, options.base);
  }

  Status Commit(Transaction&& transaction) override {
    MutexLock lock(mutex_);
    return UnlessFailed([&]() REQUIRES(mutex_) { return CommitLocked(std::move(transaction)); });
  }
  Status Finish() override {
    MutexLock lock(mutex_);
    return UnlessFailed(
        [&]() REQUIRES(mutex_) -> Status { return records_ == 0 ? Status() : PublishSlice(); });
  }
  // Durability comes with the slice.
  Status Sync() override { return {}; }
  Status PrepareNext() override { return {}; }
  Result<std::shared_ptr<const Layer>> Freeze() override {
    return Err(ErrorCode::kFailedPrecondition, "an import is not frozen from outside");
  }
  Status FinishSeal(uint64_t, std::shared_ptr<const TreeReader>) override {
    return Err(ErrorCode::kFailedPrecondition, "an import publishes its slices itself");
  }
  std::shared_ptr<const Layer> current() const override {
    MutexLock lock(mutex_);
    return layer_;
  }
  std::vector<std::shared_ptr<const Layer>> unsealed() const override { return {}; }
  ActiveExtent active_extent() const override {
    return {.generation = UINT64_MAX};  // no journal: nothing of its volume's is being written
  }
  HeadState state() const override {
    MutexLock lock(mutex_);
    return state_;
  }
  const std::vector<ReplyRecord>& recovered_replies() const override { return no_replies_; }
  void SetLiveConnection(const Id128&) override {}
  uint64_t active_records() const override {
    MutexLock lock(mutex_);
    return records_;
  }
  uint64_t active_payload_bytes() const override { return 0; }
  uint64_t unsealed_bytes() const override { return 0; }
  Status CheckRoom(SpaceUse, uint64_t) const override { return {}; }  // the session is asked
  bool failed() const override {
    MutexLock lock(mutex_);
    return failure_.has_value();
  }

 private:
  template <typename Do>
  Status UnlessFailed(const Do& act) REQUIRES(mutex_) {
    if (failure_) return std::unexpected(*failure_);
    Status done = act();
    if (!done) failure_ = done.error();
    return done;
  }

  void BeginSlice(uint64_t generation, std::shared_ptr<const Layer> below) REQUIRES(mutex_) {
    delta_ = std::make_shared<Delta>();
    layer_ =
        std::make_shared<ChainLayer>(store_, options_.realm, generation, delta_, std::move(below));
    records_ = record_bytes_ = 0;
  }

  Status CommitLocked(Transaction&& transaction) REQUIRES(mutex_) {
    state_.next_ino = std::max(state_.next_ino, transaction.next_ino());
    state_.total_inodes += static_cast<uint64_t>(transaction.added_inodes());
    state_.total_bytes += static_cast<uint64_t>(transaction.added_bytes());
    std::vector<DeltaChange> changes;
    for (Transaction::Op& op : std::move(transaction).TakeOps()) {
      record_bytes_ += op.key.size() + op.entry.payload.size();
      switch (op.kind) {
        case Transaction::Op::Kind::kPut:
        case Transaction::Op::Kind::kDelete: {
          DeltaChange& change = changes.emplace_back();
          const bool put = op.kind == Transaction::Op::Kind::kPut;
          change.kind = put ? DeltaChange::Kind::kPut : DeltaChange::Kind::kDelete;
          change.key = std::move(op.key);
          change.entry = std::move(op.entry);
          break;
        }
        case Transaction::Op::Kind::kHole:
          AddHole(changes, op.ino, {op.offset, RangeEnd(op.offset, op.length_bytes)});
          break;
        case Transaction::Op::Kind::kData:
          for (size_t done = 0; done < op.data.size();) {
            const uint64_t at = op.offset + done;
            const size_t n = std::min<uint64_t>(op.data.size() - done,
                                                kStagedBlockBytes - at % kStagedBlockBytes);
            StagePiece(changes, op.ino, at, op.data.substr(done, n));
            done += n;
          }
          break;
      }
    }
    records_ += changes.size();
    record_bytes_ += changes.size() * kRecordOverheadBytes;
    delta_->Apply(changes);
    if (batch_bytes_ >= options_.batch_bytes) CAIRN_TRY(StartPut());
    if (records_ < options_.slice_records && record_bytes_ < options_.slice_record_bytes) return {};
    return PublishSlice();
  }

  static void AddHole(std::vector<DeltaChange>& changes, InodeNumber ino, FileRange range) {
    if (range.begin == range.end) return;
    DeltaChange& change = changes.emplace_back();
    change.kind = DeltaChange::Kind::kHole;
    change.ino = ino;
    change.range = range;
  }

  // `data` becomes one block at most.
  void StagePiece(std::vector<DeltaChange>& changes, InodeNumber ino, uint64_t offset,
                  std::string_view data) REQUIRES(mutex_) {
    std::vector<WindowRange> stored = {{0, static_cast<uint32_t>(data.size())}};
    // Pages count from the file's start.
    if (offset % kPageBytes == 0) stored = DropZeroPages(data, stored);
    const bool whole = stored.size() == 1 && stored[0].end - stored[0].begin == data.size();
    if (!whole) AddHole(changes, ino, {offset, offset + data.size()});
    if (stored.empty()) return;
    std::string plain;
    for (const WindowRange& range : stored) {
      plain.append(data.substr(range.begin, range.end - range.begin));
    }
    const auto payload = std::make_shared<UnsealedPayload>();
    payload->length_bytes = static_cast<uint32_t>(plain.size());
    batch_bytes_ += plain.size();
    payload->staged = batch_.emplace_back(std::make_shared<StagedBlock>(std::move(plain)));
    uint64_t source_offset = 0;
    for (const WindowRange& range : stored) {
      for (uint64_t at = offset + range.begin; at < offset + range.end;) {
        const uint64_t end = std::min(offset + range.end, (at / kGridBytes + 1) * kGridBytes);
        DeltaChange& change = changes.emplace_back();
        change.kind = DeltaChange::Kind::kData;
        change.ino = ino;
        change.range = {at, end};
        change.payload = payload;
        change.source_offset = source_offset;
        source_offset += end - at;
        at = end;
      }
    }
  }

  Status BeginSession() REQUIRES(mutex_) {
    if (session_ != nullptr) return {};
    if (options_.begin_session) {
      session_ = CAIRN_TRY(options_.begin_session());
    } else {
      session_ = CAIRN_TRY(
          store_.BeginWrite(options_.realm, {.use = SpaceUse::kRetaining, .what = "an import"}));
    }
    return {};
  }

  Status AwaitPut() REQUIRES(mutex_) { return putting_.valid() ? putting_.get() : Status(); }

  // Hands the batch to the background, behind the one before it.
  Status StartPut() REQUIRES(mutex_) {
    CAIRN_TRY(AwaitPut());
    CAIRN_TRY(may_go_on_());
    if (batch_.empty()) return {};
    CAIRN_TRY(BeginSession());
    putting_ = std::async(std::launch::async, [session = session_.get(), batch = std::move(batch_),
                                               compression = options_.compression] {
      return PutBatch(*session, batch, compression);
    });
    batch_ = {};
    batch_bytes_ = 0;
    return {};
  }

  Status PublishSlice() REQUIRES(mutex_) {
    CAIRN_TRY(StartPut());
    CAIRN_TRY(AwaitPut());
    CAIRN_TRY(BeginSession());
    layer_->Freeze();
    auto tree = CAIRN_TRY(publish_(*layer_, *session_, state_));
    session_.reset();
    layer_->BecomeSealed(std::move(tree));
    BeginSlice(layer_->generation() + 1, layer_);
    return {};
  }

  BlockStore& store_;
  const StagedHeadOptions options_;
  const Publish publish_;
  const MayGoOn may_go_on_;
  const std::vector<ReplyRecord> no_replies_;

  mutable Mutex mutex_;
  HeadState state_ GUARDED_BY(mutex_);
  std::shared_ptr<Delta> delta_ GUARDED_BY(mutex_);
  std::shared_ptr<ChainLayer> layer_ GUARDED_BY(mutex_);
  uint64_t records_ GUARDED_BY(mutex_) = 0;
  uint64_t record_bytes_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  Batch batch_ GUARDED_BY(mutex_);
  uint64_t batch_bytes_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<WriteSession> session_ GUARDED_BY(mutex_);
  std::future<Status> putting_ GUARDED_BY(mutex_);  // uses the session; ends before it
};

}  // namespace

std::unique_ptr<StagedHead> StagedHead::Create(BlockStore& store, const StagedHeadOptions& options,
                                               Publish publish, MayGoOn may_go_on) {
  return std::make_unique<StagedHeadImpl>(store, options, std::move(publish), std::move(may_go_on));
}

}  // namespace cairn
