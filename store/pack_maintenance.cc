// What a collector does to packs. Order of a rewrite: copy the kept blocks into a new pack ->
// footer -> fdatasync -> one synced index batch (kept blocks point to the new pack, the others are
// gone, the old marker too) -> the old file leaves. A crash before the batch leaves two packs with
// the same blocks, of which the newer is indexed; one after it leaves an old file without a marker,
// which is indexed again when the store opens: garbage comes back, nothing is lost. Readers that
// had looked a block up in the old pack find it gone and look again.
#include <algorithm>
#include <set>

#include "store/base/log.h"
#include "store/local_block_store.h"

namespace cairn {

Result<WritersHeld> LocalBlockStore::HoldWriters(int64_t timeout_ms) {
  CAIRN_TRY(writer_.gate().Hold(timeout_ms));
  return WritersHeld(writer_.gate());
}

Status LocalBlockStore::SealOpenPacks() { return writer_.Seal(); }

std::vector<Id128> LocalBlockStore::ListRealms() {
  std::set<Id128> realms;
  for (const PackSet::Known& known : packs_.List(std::nullopt)) realms.insert(known.summary.realm);
  return {realms.begin(), realms.end()};
}

std::vector<PackSummary> LocalBlockStore::ListPacks(const Id128& realm) {
  std::vector<PackSummary> packs;
  for (const PackSet::Known& known : packs_.List(realm)) {
    if (!known.open && !known.damaged) packs.push_back(known.summary);
  }
  return packs;
}

std::vector<LocalBlockStore::PackFile> LocalBlockStore::ListPackFiles() {
  std::vector<PackFile> files;
  for (const PackSet::Known& known : packs_.List(std::nullopt)) {
    files.push_back({.pack = known.summary.pack,
                     .realm = known.summary.realm,
                     .path = packs_.PathOf(known.summary.realm, known.summary.pack),
                     .open = known.open});
  }
  return files;
}

Result<std::vector<LocalBlockStore::PackBlock>> LocalBlockStore::ListBlocks(const Id128& pack) {
  MutexLock lock(maintenance_mutex_);
  const auto known = packs_.Find(pack);
  if (!known) return Err(ErrorCode::kNotFound, "no pack " + pack.ToHex());
  if (known->open) return Err(ErrorCode::kFailedPrecondition, "pack is still being written");
  const std::unique_ptr<PackReader> reader =
      CAIRN_TRY(PackReader::Open(options_.fs, packs_.PathOf(known->summary.realm, pack), pack));
  return ListBlocksLocked(pack, *reader);
}

Result<std::vector<LocalBlockStore::PackBlock>> LocalBlockStore::ListBlocksLocked(
    const Id128& pack, const PackReader& reader) {
  std::vector<PackBlock> blocks;
  const PackListing listing = CAIRN_TRY(ListPack(reader));
  for (const PackEntry& entry : listing.entries) {
    PackBlock block{.entry = entry};
    ReaderLock lock(index_gate_);
    const std::optional<BlockLocation> location = CAIRN_TRY(index_->Get(entry.address));
    if (location && location->pack == pack && location->entry == entry) {
      block.indexed_here = true;
      block.epoch = location->epoch;
      block.condemn_cycle = location->condemn_cycle;
    }
    blocks.push_back(block);
  }
  std::ranges::sort(blocks, {}, [](const PackBlock& block) { return block.entry.offset; });
  return blocks;
}

Result<bool> LocalBlockStore::Contains(const Id128& realm, const BlockRef& ref) {
  const Id128 owner = ref.realm == RealmTag::kBase ? BaseRealm() : realm;
  const auto found = CAIRN_TRY(writer_.Locate(owner, ref.address));
  if (!found) return false;
  const auto known = packs_.Find(found->pack);
  return known && known->summary.realm == owner && found->entry.kind == ref.kind &&
         found->entry.raw_length == ref.raw_length_bytes;
}

Result<bool> LocalBlockStore::Condemn(const Address& address, uint64_t expected_cycle,
                                      uint64_t desired_cycle) {
  ReaderLock lock(index_gate_);
  return index_->SetCondemnCycle(address, expected_cycle, desired_cycle);
}

Result<PackSummary> LocalBlockStore::CopyBlocksLocked(const PackReader& from,
                                                      const std::vector<PackEntry>& blocks,
                                                      std::vector<PackEntry>& moved) {
  const Id128 realm = from.header().realm;
  std::unique_ptr<PackWriter> writer =
      CAIRN_TRY(PackWriter::Create(options_.fs, options_.keys,
                                   {.dir = packs_.RealmDir(realm),
                                    .pack = Id128::Random(),
                                    .realm = realm,
                                    .epoch = options_.epoch,
                                    .created_ms = options_.clock.NowMs()}));
  PutBuffer room;
  std::vector<std::string> plain;  // of blocks that are read and not written yet
  std::vector<PackWriter::Frame> frames;
  uint64_t frame_bytes = 0;
  const auto write = [&]() -> Status {
    PackWriter::Reservation places = CAIRN_TRY(writer->Reserve(frames, kMaxPackBytes));
    moved.insert(moved.end(), places.entries().begin(), places.entries().end());
    CAIRN_TRY(writer->Write(std::move(places), frames, room.Room(frame_bytes)));
    plain.clear();
    frames.clear();
    frame_bytes = 0;
    return {};
  };
  const auto copy = [&]() -> Status {
    plain.reserve(blocks.size());  // frames view into its elements
    for (const PackEntry& entry : blocks) {
      Result<std::string> bytes = from.ReadFrame(entry);
      if (bytes && quarantine_->Holds(from.header().pack, entry.offset)) {
        bytes = Err(ErrorCode::kDataLoss, "the block is in the quarantine");
      }
      if (!bytes) {
        return std::unexpected(std::move(bytes).error().WithContext(
            "block " + entry.address.ToHex() + " in " + from.path()));
      }
      plain.push_back(*std::move(bytes));
      frames.push_back({.address = entry.address,
                        .kind = entry.kind,
                        .codec = entry.codec,
                        .raw_length = entry.raw_length,
                        .bytes = plain.back()});
      frame_bytes += frames.back().FrameBytes();
      if (frame_bytes >= kMaxBlockBytes) CAIRN_TRY(write());
    }
    if (!frames.empty()) CAIRN_TRY(write());
    return writer->Finish();
  };
  const Status copied = copy();
  if (!copied) {
    IgnoreError(packs_.Unlink(realm, writer->header().pack), "the copy is not referenced yet");
    return std::unexpected(copied.error());
  }
  return Summarize(writer->header(), true, writer->FileBytes(), moved);
}

Status LocalBlockStore::RemoveFileLocked(const Id128& realm, const Id128& pack, bool now) {
  packs_.Remove(pack);
  CAIRN_TRY(now ? packs_.Unlink(realm, pack)
                : packs_.MoveToTrash(realm, pack, options_.clock.NowMs()));
  quarantine_->ReleasePack(pack);
  return {};
}

Result<LocalBlockStore::RewriteResult> LocalBlockStore::RewritePack(const Id128& pack,
                                                                    const AddressSet& keep,
                                                                    const RewriteOptions& options) {
  MutexLock lock(maintenance_mutex_);
  const auto known = packs_.Find(pack);
  if (!known) return Err(ErrorCode::kNotFound, "no pack " + pack.ToHex());
  if (known->open) return Err(ErrorCode::kFailedPrecondition, "pack is still being written");
  const Id128 realm = known->summary.realm;
  const std::unique_ptr<PackReader> reader =
      CAIRN_TRY(PackReader::Open(options_.fs, packs_.PathOf(realm, pack), pack));

  BlockIndex::Replacement change;
  change.old_pack = pack;
  change.condemn_cycle = options.condemn_cycle;
  std::vector<PackEntry> kept;
  for (const PackBlock& block : CAIRN_TRY(ListBlocksLocked(pack, *reader))) {
    if (!block.indexed_here) continue;
    const bool spared = options.condemn_cycle != 0 && block.condemn_cycle != options.condemn_cycle;
    if (spared || keep.contains(block.entry.address)) {
      kept.push_back(block.entry);
    } else {
      change.removed.push_back(block.entry.address);
    }
  }
  SpaceReservation copy;
  if (!kept.empty()) {
    if (options_.space != nullptr) {
      uint64_t bytes = kPackHeaderBytes;
      for (const PackEntry& entry : kept) {
        bytes += PackEntry::FrameBytes(entry.stored_length) + kFooterEntryBytes;
      }
      // And what the file system itself, and others meanwhile, take for it.
      bytes += bytes / 32 + (64 << 10);
      copy = CAIRN_TRY(options_.space->Reserve(SpaceUse::kFreeing, bytes, "the copy of a pack"));
    }
    CAIRN_TRY(reader->Unlock(options_.keys));
    change.replacement = CAIRN_TRY(CopyBlocksLocked(*reader, kept, change.moved));
    copy.Use(copy.bytes());
    packs_.Settle(*change.replacement);
  }
  Status replaced;
  {
    ReaderLock gate(index_gate_);
    replaced = index_->ReplacePack(change);
  }
  if (!replaced) {
    if (replaced.error().code() == ErrorCode::kDataLoss) {
      // Whether the batch took is unknown: both files stay, and the index is built from them.
      CAIRN_TRY(RebuildLocked({}));
    } else if (change.replacement) {
      packs_.Remove(change.replacement->pack);
      IgnoreError(packs_.Unlink(realm, change.replacement->pack), "nothing refers to it");
    }
    return std::unexpected(replaced.error());
  }
  CAIRN_TRY(RemoveFileLocked(realm, pack, options.now));
  const RewriteResult result{
      .kept_blocks = kept.size(),
      .dropped_blocks = change.removed.size(),
      .bytes_before = reader->file_bytes(),
      .bytes_after = change.replacement ? change.replacement->file_bytes : 0};
  LogInfo("pack_rewritten", {{"pack", pack.ToHex()},
                             {"kept", result.kept_blocks},
                             {"dropped", result.dropped_blocks},
                             {"bytes_before", result.bytes_before},
                             {"bytes_after", result.bytes_after}});
  return result;
}

Result<LocalBlockStore::RewriteResult> LocalBlockStore::DropPack(const Id128& pack,
                                                                 const RewriteOptions& options) {
  return RewritePack(pack, {}, options);
}

Result<uint64_t> LocalBlockStore::PurgeTrash(int64_t older_than_ms) {
  MutexLock lock(maintenance_mutex_);
  const int64_t now_ms = options_.clock.NowMs();
  uint64_t freed = 0;
  for (const PackSet::TrashFile& file : CAIRN_TRY(packs_.ListTrash())) {
    if (now_ms - file.deleted_ms < older_than_ms) continue;
    CAIRN_TRY(options_.fs.Unlink(file.path));
    freed += file.file_bytes;
  }
  CAIRN_TRY(options_.fs.SyncDir(options_.dir + "/trash"));
  return freed;
}

Result<uint64_t> LocalBlockStore::DropRealm(const Id128& realm) {
  if (realm == BaseRealm()) return Err(ErrorCode::kInvalidArgument, "every organization reads it");
  if (writer_.gate().Live(realm) != 0) {
    return Err(ErrorCode::kFailedPrecondition, "realm " + realm.ToHex() + " is being written");
  }
  if (RealmWriter* writer = writer_.FindWriter(realm)) writer->Drop();
  MutexLock lock(maintenance_mutex_);
  ForgetRealm(realm);
  bool rebuild = false;
  for (const PackSet::Known& known : packs_.List(realm)) {
    BlockIndex::Replacement change;
    change.old_pack = known.summary.pack;
    if (!known.open) {
      const std::string path = packs_.PathOf(realm, known.summary.pack);
      const auto reader = PackReader::Open(options_.fs, path, known.summary.pack);
      const auto listing =
          reader ? ListPack(**reader) : Result<PackListing>(std::unexpected(reader.error()));
      if (listing) {
        for (const PackEntry& entry : listing->entries) change.removed.push_back(entry.address);
      } else {
        rebuild = true;  // which entries were its is unknown
      }
    }
    ReaderLock gate(index_gate_);
    const Status replaced = index_->ReplacePack(change);
    if (!replaced && replaced.error().code() != ErrorCode::kDataLoss) {
      return std::unexpected(replaced.error());
    }
    if (!replaced) rebuild = true;
  }
  uint64_t freed = 0;
  for (const PackSet::PackFile& file : CAIRN_TRY(packs_.ListFiles())) {
    if (file.realm != realm) continue;
    packs_.Remove(file.pack);
    CAIRN_TRY(packs_.Unlink(realm, file.pack));
    quarantine_->ReleasePack(file.pack);
    freed += file.file_bytes;
  }
  for (const PackSet::TrashFile& file : CAIRN_TRY(packs_.ListTrash())) {
    if (file.realm != realm) continue;
    CAIRN_TRY(options_.fs.Unlink(file.path));
    freed += file.file_bytes;
  }
  CAIRN_TRY(options_.fs.SyncDir(options_.dir + "/trash"));
  CAIRN_TRY(RemoveTree(options_.fs, packs_.RealmDir(realm)));
  CAIRN_TRY(options_.fs.SyncDir(options_.dir + "/packs"));
  if (rebuild) CAIRN_TRY(RebuildLocked({}));
  LogInfo("realm_dropped", {{"realm", realm.ToHex()}, {"bytes", freed}});
  return freed;
}

}  // namespace cairn
