// Under append_mutex_ a block is looked for once more and gets its place in the open pack; hashing
// and compression happen before, encryption and the write after, all in the threads of the callers.
// The order of places is the order of frames in the pack, whatever the order of writes. A pack
// leaves in one of three ways (Retire): sealed by its footer; without a footer when there is no
// room for one (its frames are synced and stay); abandoned after a failed write or fdatasync, cut
// to what is known to be durable. In each case what survives goes to the index in one batch, and
// only then out of pending_, so that a look-up finds a block in one of the two at any moment: it
// asks pending_ first, then the index, and Store asks the index again if a pack went over in
// between (generation_). A block whose write failed stays in pending_ until its pack is retired,
// but no writer finds it there (IsLost), and whoever stores it again replaces it.
#include "store/realm_writer.h"

#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {
namespace {

// Of one realm, sealed in the background while the next one is written.
constexpr size_t kMaxFullPacks = 2;

}  // namespace

std::optional<RealmWriter::Pending> RealmWriter::Find(const Address& address) {
  std::optional<Pending> found;
  {
    MutexLock lock(pending_mutex_);
    const auto it = pending_.find(address);
    if (it == pending_.end()) return std::nullopt;
    found = it->second;
  }
  if (found->location.entry.EndOffset() > found->pack->writer->WrittenEnd()) return std::nullopt;
  return found;
}

void RealmWriter::FindMany(std::span<const Address> addresses,
                           std::span<std::optional<Pending>> found) {
  MutexLock lock(pending_mutex_);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto it = pending_.find(addresses[i]);
    if (it == pending_.end()) continue;
    const Pending& pending = it->second;
    if (!pending.pack->writer->IsLost(pending.location.entry.EndOffset())) found[i] = pending;
  }
}

Status RealmWriter::OpenPackLocked() {
  if (!have_dir_) CAIRN_TRY(deps_.packs.EnsureRealmDir(realm_));
  have_dir_ = true;
  const Id128 id = Id128::Random();
  std::unique_ptr<PackWriter> writer =
      CAIRN_TRY(PackWriter::Create(deps_.fs, deps_.keys,
                                   {.dir = deps_.packs.RealmDir(realm_),
                                    .pack = id,
                                    .realm = realm_,
                                    .epoch = deps_.epoch,
                                    .created_ms = deps_.clock.NowMs()}));
  deps_.packs.AddOpen(id, realm_);
  open_ = std::make_shared<LivePack>(std::move(writer));
  return {};
}

void RealmWriter::CloseOpenLocked(const std::shared_ptr<LivePack>& pack) {
  if (open_ != pack) return;
  full_.push_back(std::exchange(open_, nullptr));
}

Result<std::vector<RealmWriter::Block*>> RealmWriter::MissingLocked(std::span<Block> blocks,
                                                                    uint64_t seen_generation) {
  std::vector<Address> addresses;
  addresses.reserve(blocks.size());
  for (const Block& block : blocks) addresses.push_back(block.frame.address);
  std::vector<std::optional<Pending>> pending(blocks.size());
  FindMany(addresses, pending);
  std::vector<std::optional<BlockLocation>> indexed(blocks.size());
  if (generation_.load() != seen_generation) CAIRN_TRY(deps_.lookup(addresses, indexed));
  std::vector<Block*> missing;
  for (size_t i = 0; i < blocks.size(); ++i) {
    Block& block = blocks[i];
    if (pending[i]) {
      const BlockLocation& at = pending[i]->location;
      if (deps_.quarantine.Holds(at.pack, at.entry.offset)) continue;
      block.pack = pending[i]->pack;
      block.end_offset = at.entry.EndOffset();
    } else if (block.force || !indexed[i]) {
      missing.push_back(&block);
    }
  }
  return missing;
}

Status RealmWriter::PlaceBlocks(std::span<Block> blocks, uint64_t seen_generation, Placed& placed) {
  MutexLock lock(append_mutex_);
  const std::vector<Block*> missing = CAIRN_TRY(MissingLocked(blocks, seen_generation));
  std::vector<PackWriter::Frame> frames;
  frames.reserve(missing.size());
  for (const Block* block : missing) frames.push_back(block->frame);
  std::span<const PackWriter::Frame> left = frames;
  while (!left.empty()) {
    if (open_ == nullptr) CAIRN_TRY(OpenPackLocked());
    Result<PackWriter::Reservation> reserved = open_->writer->Reserve(left, deps_.pack_bytes);
    if (!reserved) {
      // A write or a Sync that failed has closed it and is about to retire it.
      CloseOpenLocked(open_);
      continue;
    }
    const std::vector<PackEntry>& entries = reserved->entries();
    {
      MutexLock pending_lock(pending_mutex_);
      for (const PackEntry& entry : entries) {
        Block& block =
            *missing[frames.size() - left.size() + static_cast<size_t>(&entry - entries.data())];
        block.pack = open_;
        block.end_offset = entry.EndOffset();
        pending_[entry.address] = {.location = {.pack = open_->writer->header().pack,
                                                .entry = entry,
                                                .epoch = deps_.epoch},
                                   .pack = open_};
      }
    }
    const size_t count = entries.size();
    const bool full = entries.back().EndOffset() >= deps_.pack_bytes;
    placed.runs.push_back({.pack = open_,
                           .reservation = *std::move(reserved),
                           .frames = {left.begin(), left.begin() + static_cast<ptrdiff_t>(count)}});
    left = left.subspan(count);
    if (full) {
      placed.full.push_back(open_);
      CloseOpenLocked(open_);
    }
  }
  return {};
}

Status RealmWriter::Store(std::span<Block> blocks, uint64_t seen_generation, std::span<char> room) {
  Placed placed;
  Status first = PlaceBlocks(blocks, seen_generation, placed);
  for (Run& run : placed.runs) {
    const Status written = run.pack->writer->Write(std::move(run.reservation), run.frames, room);
    if (written) continue;
    if (first) first = written;
    {
      MutexLock lock(append_mutex_);
      CloseOpenLocked(run.pack);
    }
    IgnoreError(Retire(run.pack, false), "it is logged; the error of the write is to be reported");
  }
  for (const std::shared_ptr<LivePack>& pack : placed.full) RetireFull(pack);
  return first;
}

// In the background, unless that has fallen behind: what is not settled is held in memory.
void RealmWriter::RetireFull(const std::shared_ptr<LivePack>& pack) {
  const auto retire = [this, pack] { IgnoreError(Retire(pack, false), "it is logged"); };
  bool behind = false;
  {
    MutexLock lock(append_mutex_);
    behind = full_.size() > kMaxFullPacks;
  }
  if (behind || !deps_.pool.Submit(retire)) retire();
}

Status RealmWriter::Sync(const std::shared_ptr<LivePack>& pack, uint64_t through) {
  Status synced = pack->writer->Sync(through);
  if (synced) return {};
  LogError("pack_sync_failed",
           {{"pack", pack->writer->path()}, {"error", synced.error().ToString()}});
  {
    MutexLock lock(append_mutex_);
    CloseOpenLocked(pack);
  }
  IgnoreError(Retire(pack, true), "the error of the sync is the one to report");
  return synced;
}

// Not ok only when blocks were lost, or could not be indexed.
Status RealmWriter::Retire(const std::shared_ptr<LivePack>& pack, bool abandon) {
  Status settled;
  {
    MutexLock lock(pack->mutex);
    if (!pack->settled) {
      pack->settled = true;
      settled = Settle(pack, abandon);
    }
  }
  if (!settled) {
    LogError("pack_retired_with_error",
             {{"pack", pack->writer->path()}, {"error", settled.error().ToString()}});
  }
  MutexLock lock(append_mutex_);
  std::erase(full_, pack);
  return settled;
}

Status RealmWriter::Settle(const std::shared_ptr<LivePack>& pack, bool abandon) {
  PackWriter& writer = *pack->writer;
  Status finished;
  std::vector<PackEntry> entries;
  if (abandon) {
    entries = writer.Abandon();
  } else {
    finished = writer.Finish();
    if (!finished && finished.error().code() == ErrorCode::kExhausted) {
      LogWarning("pack_left_without_footer", {{"pack", writer.path()}});
      finished = writer.Sync(writer.WrittenEnd());
    }
    entries = finished ? writer.Entries() : writer.Abandon();
  }
  if (entries.empty()) {
    deps_.packs.Remove(writer.header().pack);
    ForgetPending(pack.get(), nullptr);
    return finished;
  }
  const Unindexed unindexed{
      .pack = pack,
      .summary = Summarize(writer.header(), writer.sealed(), writer.FileBytes(), entries),
      .entries = std::move(entries)};
  deps_.packs.Settle(unindexed.summary);
  ForgetPending(pack.get(), &unindexed.entries);
  const Status indexed = IndexPack(unindexed);
  if (!indexed) {
    LogError("pack_not_indexed", {{"pack", writer.path()}, {"error", indexed.error().ToString()}});
    MutexLock pending_lock(pending_mutex_);
    unindexed_.push_back(unindexed);
    return indexed;
  }
  return finished;
}

Status RealmWriter::IndexPack(const Unindexed& pack) {
  Status added = deps_.index.AddPack(pack.summary, deps_.epoch, pack.entries);
  if (!added && added.error().code() == ErrorCode::kDataLoss) added = deps_.rebuild();
  if (!added) return added;
  generation_.fetch_add(1);
  ForgetPending(pack.pack.get(), nullptr);
  return {};
}

// Takes the pack's blocks out of pending_, but for `survivors`.
void RealmWriter::ForgetPending(const LivePack* pack, const std::vector<PackEntry>* survivors) {
  std::unordered_map<Address, uint64_t, AddressHash> keep;
  if (survivors != nullptr) {
    for (const PackEntry& entry : *survivors) keep[entry.address] = entry.offset;
  }
  MutexLock lock(pending_mutex_);
  std::erase_if(pending_, [&](const auto& item) {
    if (item.second.pack.get() != pack) return false;
    const auto it = keep.find(item.first);
    return it == keep.end() || it->second != item.second.location.entry.offset;
  });
}

Status RealmWriter::Seal() {
  std::vector<std::shared_ptr<LivePack>> packs;
  std::vector<Unindexed> again;
  {
    MutexLock lock(append_mutex_);
    if (open_ != nullptr) CloseOpenLocked(open_);
    packs = full_;
  }
  {
    MutexLock lock(pending_mutex_);
    again = std::exchange(unindexed_, {});
  }
  Status first;
  for (const Unindexed& unindexed : again) {
    const Status indexed = IndexPack(unindexed);
    if (indexed) continue;
    first = indexed;
    MutexLock lock(pending_mutex_);
    unindexed_.push_back(unindexed);
  }
  for (const std::shared_ptr<LivePack>& pack : packs) {
    const Status retired = Retire(pack, false);
    if (!retired) first = retired;
  }
  return first;
}

void RealmWriter::Drop() {
  MutexLock lock(append_mutex_);
  if (open_ != nullptr) CloseOpenLocked(open_);
  for (const std::shared_ptr<LivePack>& pack : full_) {
    MutexLock pack_lock(pack->mutex);  // a retirement that has begun ends first
    pack->settled = true;
  }
  full_.clear();
  have_dir_ = false;
  MutexLock pending_lock(pending_mutex_);
  pending_.clear();
  unindexed_.clear();
}

RealmWriter::Totals RealmWriter::PendingTotals() {
  std::vector<std::shared_ptr<LivePack>> packs;
  {
    MutexLock lock(append_mutex_);
    packs = full_;
    if (open_ != nullptr) packs.push_back(open_);
  }
  Totals totals;
  for (const std::shared_ptr<LivePack>& pack : packs) {
    const auto known = deps_.packs.Find(pack->writer->header().pack);
    if (!known || !known->open) continue;  // settled: the registry counts it
    totals.pack_bytes += pack->writer->WrittenEnd();
    for (const PackEntry& entry : pack->writer->Entries()) {
      ++totals.blocks;
      totals.stored_bytes += entry.stored_length;
      totals.raw_bytes += entry.raw_length;
    }
  }
  return totals;
}

}  // namespace cairn
