// One collection, with writers held off:
//
//   hold writers -> seal the open packs -> read the root set at one instant -> mark (every branch
//   read and verified, every leaf looked up) -> purge the trash -> pack by pack, those that free
//   soonest first: condemn what is not marked (index entries get this cycle's tag) -> rewrite or
//   remove the pack.
//
// Anything unreadable or missing while it marks ends it before the first deletion: an incomplete
// mark must never become a sweep. A pack whose live leaf turns out damaged while it is copied stays
// as it is, and the others go on. A read that only the trash could satisfy since the daemon started
// also ends it: something live was collected. A crash between any two steps leaves condemned tags
// (the next write that finds such a block takes the tag off, the next collection sets its own) and
// at worst both the old and the new copy of a pack.
#include "gc/collector.h"

#include <algorithm>

#include "gc/block_walk.h"
#include "gc/root_set.h"
#include "store/base/log.h"
#include "store/base/random.h"

namespace cairn {

namespace {

constexpr int64_t kHoldTimeoutMs = 120000;

struct Marked {
  MarkSet marks;
  uint64_t blocks = 0;
};

Result<Marked> Mark(LocalBlockStore& store, const RootSet& set) {
  Marked marked;
  WalkCallbacks callbacks;
  callbacks.leaf = [&](const Id128& realm, const BlockRef& ref) -> Status {
    if (!CAIRN_TRY(store.Contains(HoldingRealm(realm, ref), ref))) {
      return Err(ErrorCode::kDataLoss,
                 "block " + ref.address.ToHex() + " is referenced but missing");
    }
    return {};
  };
  callbacks.branch = [](const Id128&, const BlockRef&, const std::vector<BlockRef>&) -> Status {
    return {};
  };
  callbacks.unreadable = [](const Id128&, const BlockRef& ref, const Error& error) -> Status {
    return Err(ErrorCode::kDataLoss, std::string(BlockKindName(ref.kind)) + " " +
                                         ref.address.ToHex() +
                                         " is not readable: " + error.ToString());
  };
  Status walked = WalkBlocks(store, set.roots, callbacks, marked.marks);
  if (!walked) {
    return std::unexpected(std::move(walked).error().WithContext(
        "nothing was collected: run check to see what is hurt"));
  }
  for (const auto& [realm, addresses] : marked.marks) marked.blocks += addresses.size();
  return marked;
}

const LocalBlockStore::AddressSet& LiveOf(const MarkSet& marks, const Id128& realm) {
  static const LocalBlockStore::AddressSet kNone;
  const auto found = marks.find(realm);
  return found == marks.end() ? kNone : found->second;
}

}  // namespace

// Packs without anything live need no room to go, and make room for the copies of the others; of
// those, the one that frees most for each byte of its copy is first. Last, those that stay.
bool Collector::FreesSooner(const Candidate& a, const Candidate& b) {
  if (a.rewrite != b.rewrite) return a.rewrite;
  const auto weigh = [](const Candidate& c, const Candidate& other) {
    return static_cast<double>(c.live_bytes) * static_cast<double>(other.garbage_bytes);
  };
  if ((a.live_bytes == 0) != (b.live_bytes == 0)) return a.live_bytes == 0;
  return weigh(a, b) < weigh(b, a);
}

Status Collector::Sweep(const Candidate& candidate, const LocalBlockStore::AddressSet& live,
                        uint64_t cycle, bool now, CollectReport& report) {
  for (const auto& block : CAIRN_TRY(store_.ListBlocks(candidate.pack))) {
    if (!block.indexed_here || live.contains(block.entry.address)) continue;
    CAIRN_TRY(store_.Condemn(block.entry.address, block.condemn_cycle, cycle));
  }
  if (!candidate.rewrite) return {};
  const auto rewritten =
      CAIRN_TRY(store_.RewritePack(candidate.pack, live, {.now = now, .condemn_cycle = cycle}));
  ++(rewritten.kept_blocks == 0 ? report.packs_removed : report.packs_rewritten);
  report.freed_bytes +=
      rewritten.bytes_before - std::min(rewritten.bytes_before, rewritten.bytes_after);
  return {};
}

Result<Collector::Held> Collector::Hold() {
  if (running_.exchange(true)) {
    return Err(ErrorCode::kUnavailable,
               "a collection or a backup is running: try again when it has ended");
  }
  return Held(running_);
}

Result<CollectReport> Collector::Collect(const CollectOptions& options) {
  const Held alone = CAIRN_TRY(Hold());
  if (store_.trash_reads() > 0) {
    return Err(ErrorCode::kDataLoss,
               "a read was satisfied from the trash only: something live was collected, and "
               "nothing is until this is understood");
  }
  const WritersHeld held = CAIRN_TRY(store_.HoldWriters(kHoldTimeoutMs));
  CAIRN_TRY(store_.SealOpenPacks());
  const RootSet roots = CAIRN_TRY(ReadRootSet(catalog_));
  const Marked marked = CAIRN_TRY(Mark(store_, roots));

  CollectReport report;
  report.marked_blocks = marked.blocks;
  // Never used before: docs/decisions/0008-collection-protocol.md.
  uint64_t cycle = 0;
  while (cycle == 0) FillRandom(&cycle, sizeof(cycle));

  if (!options.dry_run) {
    for (const Id128& realm : roots.dead_realms)
      report.freed_bytes += CAIRN_TRY(store_.DropRealm(realm));
  }
  std::vector<Candidate> candidates;
  for (const Id128& realm : store_.ListRealms()) {
    const bool known =
        std::find(roots.realms.begin(), roots.realms.end(), realm) != roots.realms.end();
    if (!known) continue;  // of nobody that the catalog knows: kept, check reports it
    const LocalBlockStore::AddressSet& live = LiveOf(marked.marks, realm);
    for (const PackSummary& pack : store_.ListPacks(realm)) {
      ++report.packs_scanned;
      Candidate candidate{.realm = realm, .pack = pack.pack};
      uint64_t framed_bytes = kPackHeaderBytes;
      for (const auto& block : CAIRN_TRY(store_.ListBlocks(pack.pack))) {
        framed_bytes += PackEntry::FrameBytes(block.entry.stored_length);
        const bool keep = block.indexed_here && live.contains(block.entry.address);
        (keep ? candidate.live_bytes : candidate.garbage_bytes) += block.entry.stored_length;
        if (!keep) ++report.garbage_blocks;
      }
      // What an interrupted write left after the last frame, or between frames.
      if (!pack.sealed) {
        candidate.garbage_bytes += pack.file_bytes - std::min(pack.file_bytes, framed_bytes);
      }
      report.live_bytes += candidate.live_bytes;
      report.garbage_bytes += candidate.garbage_bytes;
      const uint64_t all_bytes = candidate.live_bytes + candidate.garbage_bytes;
      const double live_ratio = all_bytes == 0 ? 0.0
                                               : static_cast<double>(candidate.live_bytes) /
                                                     static_cast<double>(all_bytes);
      candidate.rewrite = candidate.live_bytes == 0 || live_ratio < options.min_live_ratio ||
                          (options.now && candidate.garbage_bytes > 0);
      if (candidate.live_bytes == 0 || candidate.garbage_bytes > 0) {
        candidates.push_back(candidate);
      }
    }
  }
  if (!options.dry_run) {
    report.freed_bytes += CAIRN_TRY(store_.PurgeTrash(options.now ? 0 : options.trash_ms));
    std::ranges::sort(candidates, FreesSooner);
    for (const Candidate& candidate : candidates) {
      const Status swept =
          Sweep(candidate, LiveOf(marked.marks, candidate.realm), cycle, options.now, report);
      if (swept) continue;
      if (swept.error().code() == ErrorCode::kExhausted) {
        ++report.packs_without_room;
      } else if (swept.error().code() == ErrorCode::kDataLoss) {
        // A live block of it is damaged: that hurts its owners, not everybody else's space.
        ++report.packs_damaged;
      } else {
        return std::unexpected(swept.error());
      }
      LogError("pack_not_collected",
               {{"pack", candidate.pack.ToHex()}, {"error", swept.error().ToString()}});
    }
  }
  report.trash_bytes = store_.Stats().trash_bytes;
  LogInfo("collected", {{"marked", report.marked_blocks},
                        {"garbage_blocks", report.garbage_blocks},
                        {"packs_removed", report.packs_removed},
                        {"packs_rewritten", report.packs_rewritten},
                        {"packs_damaged", report.packs_damaged},
                        {"packs_without_room", report.packs_without_room},
                        {"freed_bytes", report.freed_bytes},
                        {"dry_run", options.dry_run}});
  return report;
}

}  // namespace cairn
