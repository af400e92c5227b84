// Opening: list the pack files, compare with the index's markers, index what is missing (from
// footers, or by a scan of a torn pack, which is fdatasynced first) or everything. Reads are
// block_reader.cc's, writes block_writer.cc's.
#include "store/local_block_store.h"

#include <algorithm>

#include "store/base/check.h"
#include "store/base/log.h"
#include "store/budgeted_session.h"

namespace cairn {
namespace {

std::function<Status(uint64_t)> RoomMaker(SpaceGuard* space) {
  if (space == nullptr) return nullptr;
  return [space](uint64_t bytes) { return space->MakeRoom(bytes, "the block index"); };
}

}  // namespace

LocalBlockStore::LocalBlockStore(const LocalBlockStoreOptions& options)
    : options_(options),
      packs_(options.fs, options.keys, options.dir, options.open_readers),
      quarantine_(Quarantine::Open(options.fs, options.dir + "/quarantine")),
      reader_({.fs = options.fs,
               .keys = options.keys,
               .packs = packs_,
               .quarantine = *quarantine_,
               .clock = options.clock,
               .cache_bytes = options.cache_bytes,
               .threads = options.read_threads,
               .locate =
                   [this](const Id128& realm, std::span<const Address> addresses,
                          std::span<std::optional<BlockLocation>> found) {
                     return writer_.LocateMany(realm, addresses, found);
                   }}),
      writer_({.fs = options.fs,
               .keys = options.keys,
               .clock = options.clock,
               .packs = packs_,
               .quarantine = *quarantine_,
               .epoch = options.epoch,
               .pack_bytes = options.pack_bytes,
               .threads = options.put_threads,
               .buffer_bytes = options.put_bytes,
               .index = [this]() -> BlockIndex& { return *index_; },
               .lookup =
                   [this](std::span<const Address> addresses,
                          std::span<std::optional<BlockLocation>> found) {
                     return LookUpIndex(addresses, found);
                   },
               .resurrect =
                   [this](const Address& address, uint64_t condemn_cycle) {
                     return Condemn(address, condemn_cycle, 0);
                   },
               .rebuild = [this]() -> Status {
                 CAIRN_TRY(RebuildIndex());
                 return {};
               }}) {}

// The threads that read ahead use everything else.
LocalBlockStore::~LocalBlockStore() { reader_.Close(); }

Result<std::unique_ptr<LocalBlockStore>> LocalBlockStore::Open(
    const LocalBlockStoreOptions& options) {
  CAIRN_CHECK(options.pack_bytes + PackEntry::FrameBytes(kMaxStoredBytes) < kMaxPackBytes);
  std::unique_ptr<LocalBlockStore> store(new LocalBlockStore(options));
  CAIRN_TRY(store->packs_.Prepare());
  store->index_ = CAIRN_TRY(BlockIndex::Open({.dir = options.dir + "/index",
                                              .store = options.store,
                                              .make_room = RoomMaker(options.space),
                                              .env = options.index_env}));
  CAIRN_TRY(store->Recover());
  return store;
}

Status LocalBlockStore::Recover() {
  const std::vector<PackSet::PackFile> files = CAIRN_TRY(packs_.ListFiles());
  Result<std::vector<PackSummary>> markers = index_->Packs();
  std::map<Id128, PackSummary> indexed;
  std::string stale;
  if (!markers) {
    stale = markers.error().ToString();
  } else {
    for (const PackSummary& marker : *markers) indexed[marker.pack] = marker;
  }
  std::map<Id128, PackSummary> gone = indexed;
  for (const PackSet::PackFile& file : files) {
    const auto it = indexed.find(file.pack);
    if (it == indexed.end()) continue;
    gone.erase(file.pack);
    if (it->second.file_bytes != file.file_bytes || it->second.realm != file.realm) {
      stale = file.path + " has another length than the index says";
    }
  }
  for (const auto& [pack, marker] : gone) {
    stale = packs_.PathOf(marker.realm, pack) + " is indexed but gone";
    LogError("pack_missing",
             {{"pack", packs_.PathOf(marker.realm, pack)}, {"blocks", marker.entry_count}});
  }
  if (!stale.empty()) {
    LogWarning("index_rebuild", {{"why", stale}});
    CAIRN_TRY(index_->Clear());
    indexed.clear();
  }
  std::vector<PackSet::PackFile> missing;
  for (const PackSet::PackFile& file : files) {
    const auto it = indexed.find(file.pack);
    if (it == indexed.end()) {
      missing.push_back(file);
    } else {
      packs_.Settle(it->second);
    }
  }
  const IndexRebuild added = CAIRN_TRY(AddPacks(missing, {}));
  if (added.packs_total > 0) {
    LogInfo("packs_indexed", {{"packs", added.packs},
                              {"of", added.packs_total},
                              {"blocks", added.blocks},
                              {"left_out", added.left_out.size()}});
  }
  for (const QuarantinedFrame& frame : quarantine_->List()) {
    if (!packs_.Find(frame.pack)) quarantine_->ReleasePack(frame.pack);
  }
  return {};
}

Result<LocalBlockStore::IndexRebuild> LocalBlockStore::AddPacks(
    const std::vector<PackSet::PackFile>& files, const RebuildProgress& progress) {
  IndexRebuild done;
  done.packs_total = files.size();
  std::vector<Unindexed> packs;
  for (const PackSet::PackFile& file : files) {
    const auto reader = PackReader::Open(options_.fs, file.path, file.pack);
    if (reader) {
      packs.push_back({.file = file,
                       .epoch = (*reader)->header().epoch,
                       .created_ms = (*reader)->header().created_ms});
      continue;
    }
    if (reader.error().code() == ErrorCode::kDataLoss && file.file_bytes <= kPackHeaderBytes) {
      LogInfo("interrupted_pack_removed", {{"pack", file.path}});
      packs_.Remove(file.pack);
      CAIRN_TRY(packs_.Unlink(file.realm, file.pack));
      continue;
    }
    if (!IsDamage(reader.error())) return std::unexpected(reader.error());
    LeaveOut(file, reader.error().message(), done);
  }
  std::ranges::sort(packs, {}, [](const Unindexed& pack) {
    return std::tuple(pack.epoch, pack.created_ms, pack.file.pack);
  });
  for (const Unindexed& pack : packs) {
    const Status added = AddOnePack(pack, done);
    if (!added && !IsDamage(added.error())) return std::unexpected(added.error());
    if (!added) LeaveOut(pack.file, added.error().message(), done);
    if (progress) progress(done);
  }
  return done;
}

// The whole pack cannot be indexed: it stays where it is.
void LocalBlockStore::LeaveOut(const PackSet::PackFile& file, const std::string& why,
                               IndexRebuild& done) {
  LogError("data_loss", {{"pack", file.path}, {"what", why}});
  packs_.AddDamaged(file);
  if (done.left_out.size() < IndexRebuild::kMaxLeftOut) done.left_out.push_back({file.path, why});
}

Status LocalBlockStore::AddOnePack(const Unindexed& pack, IndexRebuild& done) {
  const std::unique_ptr<PackReader> reader =
      CAIRN_TRY(PackReader::Open(options_.fs, pack.file.path, pack.file.pack));
  if (reader->header().realm != pack.file.realm) {
    return Err(ErrorCode::kDataLoss, "pack lies in another realm's folder");
  }
  const PackListing listing = CAIRN_TRY(ListPack(*reader));
  if (!listing.sealed) {
    LogInfo("torn_pack_indexed", {{"pack", pack.file.path},
                                  {"blocks", listing.entries.size()},
                                  {"torn_bytes", listing.torn_bytes}});
    if (listing.entries.empty()) {
      packs_.Remove(pack.file.pack);
      if (listing.torn_bytes == 0) return packs_.Unlink(pack.file.realm, pack.file.pack);
      return packs_.MoveToTrash(pack.file.realm, pack.file.pack, options_.clock.NowMs());
    }
    for (const PackScan::Hole& hole : listing.holes) {
      if (done.left_out.size() >= IndexRebuild::kMaxLeftOut) break;
      done.left_out.push_back({pack.file.path, fmt::format("{} bytes at {}: {}", hole.length_bytes,
                                                           hole.offset, hole.what)});
    }
    CAIRN_TRY(reader->Sync());
  }
  const PackSummary summary =
      Summarize(reader->header(), listing.sealed, reader->file_bytes(), listing.entries);
  std::vector<PackEntry> trusted = listing.entries;
  // The index's own damage is not the pack's.
  const auto index_failed = [](const Error& error) {
    return error.code() == ErrorCode::kDataLoss ? Error(ErrorCode::kUnavailable, error.ToString())
                                                : error;
  };
  std::optional<Error> failed;
  // A bad copy never takes the place of another one (docs/formats/quarantine.md, rule 5).
  std::erase_if(trusted, [&](const PackEntry& entry) {
    if (!quarantine_->Holds(pack.file.pack, entry.offset)) return false;
    const auto other = index_->Get(entry.address);
    if (!other) failed = other.error();
    return other && other->has_value() && (*other)->pack != pack.file.pack;
  });
  if (failed) return std::unexpected(index_failed(*failed));
  const Status added = index_->AddPack(summary, reader->header().epoch, trusted);
  if (!added) return std::unexpected(index_failed(added.error()));
  packs_.Settle(summary);
  ++done.packs;
  done.blocks += trusted.size();
  return {};
}

Status LocalBlockStore::LookUpIndex(std::span<const Address> addresses,
                                    std::span<std::optional<BlockLocation>> found) {
  {
    ReaderLock lock(index_gate_);
    if (index_whole_) {
      Status looked = index_->GetMany(addresses, found);
      if (looked || looked.error().code() != ErrorCode::kDataLoss) return looked;
      LogError("index_damaged", {{"error", looked.error().ToString()}});
    }
  }
  CAIRN_TRY(RebuildIndex());
  ReaderLock lock(index_gate_);
  return index_->GetMany(addresses, found);
}

Result<LocalBlockStore::IndexRebuild> LocalBlockStore::RebuildIndex(
    const RebuildProgress& progress) {
  MutexLock lock(maintenance_mutex_);
  return RebuildLocked(progress);
}

// Clear first, list then: a pack that is sealed meanwhile is in the list or is added by its writer
// after the Clear.
Result<LocalBlockStore::IndexRebuild> LocalBlockStore::RebuildLocked(
    const RebuildProgress& progress) {
  WriterLock gate(index_gate_);
  index_whole_ = false;
  CAIRN_TRY(index_->Clear());
  std::vector<PackSet::PackFile> files;
  for (const PackSet::PackFile& file : CAIRN_TRY(packs_.ListFiles())) {
    const auto known = packs_.Find(file.pack);
    if (known && !known->open) files.push_back(file);
  }
  IndexRebuild done = CAIRN_TRY(AddPacks(files, progress));
  index_whole_ = true;
  LogInfo("index_rebuilt",
          {{"packs", done.packs}, {"blocks", done.blocks}, {"left_out", done.left_out.size()}});
  return done;
}

Result<std::unique_ptr<WriteSession>> LocalBlockStore::BeginWrite(const Id128& realm,
                                                                  const WriteBudget& budget) {
  if (realm == BaseRealm()) {
    return Err(ErrorCode::kPermissionDenied, "the base realm is the operator's to fill");
  }
  return Begin(realm, budget);
}

Result<std::unique_ptr<WriteSession>> LocalBlockStore::BeginBaseWrite(const WriteBudget& budget) {
  return Begin(BaseRealm(), budget);
}

Result<std::unique_ptr<WriteSession>> LocalBlockStore::Begin(const Id128& realm,
                                                             const WriteBudget& budget) {
  auto session = CAIRN_TRY(writer_.BeginWrite(realm));
  if (options_.space == nullptr) return session;
  return BudgetSession(*options_.space, budget, std::move(session));
}

Result<Block> LocalBlockStore::Get(const Id128& realm, const BlockRef& ref) {
  return reader_.Get(realm, ref);
}

std::vector<Result<Block>> LocalBlockStore::GetMany(const Id128& realm,
                                                    std::span<const BlockRef> refs,
                                                    const ReadOptions& options) {
  return reader_.GetMany(realm, refs, options);
}

void LocalBlockStore::Prefetch(const Id128& realm, std::span<const BlockRef> refs) {
  reader_.Prefetch(realm, refs);
}

Status LocalBlockStore::Verify(const Id128& realm, const BlockRef& ref) {
  return reader_.Verify(realm, ref);
}

BlockStoreStats LocalBlockStore::Stats() {
  BlockStoreStats stats;
  for (const PackSet::Known& known : packs_.List(std::nullopt)) {
    ++stats.pack_count;
    stats.pack_bytes += known.summary.file_bytes;
    stats.block_count += known.summary.entry_count;
    stats.stored_bytes += known.summary.stored_bytes;
    stats.raw_bytes += known.summary.raw_bytes;
  }
  for (RealmWriter* writer : writer_.Writers()) {
    const RealmWriter::Totals totals = writer->PendingTotals();
    stats.pack_bytes += totals.pack_bytes;
    stats.block_count += totals.blocks;
    stats.stored_bytes += totals.stored_bytes;
    stats.raw_bytes += totals.raw_bytes;
  }
  if (const auto trash = packs_.ListTrash()) {
    for (const PackSet::TrashFile& file : *trash) stats.trash_bytes += file.file_bytes;
  }
  stats.pack_bytes += stats.trash_bytes;
  stats.cache_bytes = reader_.cache_bytes();
  return stats;
}

void LocalBlockStore::ForgetRealm(const Id128& realm) {
  packs_.ForgetReaders(realm);
  reader_.ForgetRealm(realm);
}

Status LocalBlockStore::Close() {
  const Status sealed = writer_.Close();
  if (closed_.exchange(true)) return {};
  reader_.Close();
  const Status closed = index_->Close();
  return sealed ? closed : sealed;
}

}  // namespace cairn
