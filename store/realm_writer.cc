// Appends go one after the other under append_mutex_; hashing and compression happen before, in the
// sessions. A pack leaves in one of three ways (Retire): sealed by its footer; without a footer
// when there is no room for one (its frames are synced and stay); abandoned after a failed write or
// fdatasync, cut to what is known to be durable. In each case what survives goes to the index in
// one batch, and only then out of pending_, so that a look-up finds a block in one of the two at
// any moment: it asks pending_ first, then the index, and Store asks the index again if a pack went
// over in between (generation_).
#include "store/realm_writer.h"

#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {

std::optional<RealmWriter::Pending> RealmWriter::Find(const Address& address) {
  MutexLock lock(pending_mutex_);
  const auto it = pending_.find(address);
  if (it == pending_.end()) return std::nullopt;
  return it->second;
}

Status RealmWriter::OpenPackLocked() {
  CAIRN_TRY(deps_.packs.EnsureRealmDir(realm_));
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

Result<std::optional<RealmWriter::Pending>> RealmWriter::Store(const PackWriter::Append& block,
                                                               uint64_t seen_generation,
                                                               bool force) {
  std::shared_ptr<LivePack> full;
  std::optional<Error> failure;
  Pending stored;
  {
    MutexLock lock(append_mutex_);
    if (std::optional<Pending> found = Find(block.address)) {
      const BlockLocation& at = found->location;
      if (deps_.quarantine.Holds(at.pack, at.entry.offset)) return std::optional<Pending>();
      return found;
    }
    if (!force && generation_.load() != seen_generation && CAIRN_TRY(deps_.lookup(block.address))) {
      return std::optional<Pending>();
    }
    if (open_ == nullptr) CAIRN_TRY(OpenPackLocked());
    Result<PackEntry> entry = open_->writer->AppendBlock(block);
    if (!entry && entry.error().code() == ErrorCode::kFailedPrecondition) {
      // A Sync that failed has closed it and is about to retire it.
      open_ = nullptr;
      CAIRN_TRY(OpenPackLocked());
      entry = open_->writer->AppendBlock(block);
    }
    if (!entry) {
      failure = entry.error();
      full = std::exchange(open_, nullptr);
    } else {
      stored = {
          .location = {.pack = open_->writer->header().pack, .entry = *entry, .epoch = deps_.epoch},
          .pack = open_};
      {
        MutexLock pending_lock(pending_mutex_);
        pending_[block.address] = stored;
      }
      if (entry->EndOffset() >= deps_.pack_bytes) full = std::exchange(open_, nullptr);
    }
  }
  if (full != nullptr) {
    const Status retired = Retire(full, false);
    if (!retired) {
      LogError("pack_retired_with_error",
               {{"pack", full->writer->path()}, {"error", retired.error().ToString()}});
    }
  }
  if (failure) return std::unexpected(*std::move(failure));
  return std::optional<Pending>(std::move(stored));
}

Status RealmWriter::Sync(const std::shared_ptr<LivePack>& pack, uint64_t through) {
  Status synced = pack->writer->Sync(through);
  if (synced) return {};
  LogError("pack_sync_failed",
           {{"pack", pack->writer->path()}, {"error", synced.error().ToString()}});
  {
    MutexLock lock(append_mutex_);
    if (open_ == pack) open_ = nullptr;
  }
  IgnoreError(Retire(pack, true), "the error of the sync is the one to report");
  return synced;
}

// Not ok only when blocks were lost, or could not be indexed.
Status RealmWriter::Retire(const std::shared_ptr<LivePack>& pack, bool abandon) {
  MutexLock lock(pack->mutex);
  if (pack->settled) return {};
  pack->settled = true;
  PackWriter& writer = *pack->writer;
  Status finished;
  std::vector<PackEntry> entries;
  if (abandon) {
    entries = writer.Abandon();
  } else {
    if (writer.Entries().empty()) {
      finished = Err(ErrorCode::kUnavailable, "pack holds nothing");
    } else {
      finished = writer.Finish();
    }
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
  const Unindexed settled{
      .pack = pack,
      .summary = Summarize(writer.header(), writer.sealed(), writer.FileBytes(), entries),
      .entries = std::move(entries)};
  deps_.packs.Settle(settled.summary);
  ForgetPending(pack.get(), &settled.entries);
  const Status indexed = IndexPack(settled);
  if (!indexed) {
    LogError("pack_not_indexed", {{"pack", writer.path()}, {"error", indexed.error().ToString()}});
    MutexLock pending_lock(pending_mutex_);
    unindexed_.push_back(settled);
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
  std::shared_ptr<LivePack> pack;
  std::vector<Unindexed> again;
  {
    MutexLock lock(append_mutex_);
    pack = std::exchange(open_, nullptr);
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
  if (pack != nullptr) {
    const Status retired = Retire(pack, false);
    if (!retired) first = retired;
  }
  return first;
}

void RealmWriter::Drop() {
  MutexLock lock(append_mutex_);
  if (open_ != nullptr) {
    MutexLock pack_lock(open_->mutex);
    open_->settled = true;
  }
  open_ = nullptr;
  MutexLock pending_lock(pending_mutex_);
  pending_.clear();
  unindexed_.clear();
}

RealmWriter::Totals RealmWriter::PendingTotals() {
  Totals totals;
  MutexLock lock(append_mutex_);
  if (open_ == nullptr) return totals;
  totals.pack_bytes = open_->writer->WrittenEnd();
  for (const PackEntry& entry : open_->writer->Entries()) {
    ++totals.blocks;
    totals.stored_bytes += entry.stored_length;
    totals.raw_bytes += entry.raw_length;
  }
  return totals;
}

}  // namespace cairn
