// Check: verifies catalog, roots, trees, blocks, index, packs and journals, and says for each
// damage what it hurts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "store/base/file_system.h"
#include "store/key_ring.h"
#include "store/local_block_store.h"

namespace cairn {

struct Damage {
  std::string structure;  // "pack header", "frame", "pack footer", "pack digest", "pack", "block",
                          // a block's kind ("tree node"), "journal", "index", "catalog"
  std::string where;      // file, offset, address or key
  std::string what;
  std::vector<std::string> owners;  // "environment env_.. /workspace/a.txt", "snapshot snap_..",
                                    // "artifact art_..": at most 16. "organization org_.." where a
                                    // pack is damaged and no block of it is lost
};

struct CheckReport {
  std::vector<Damage> damages;
  uint64_t records = 0, roots = 0, blocks = 0, packs = 0, journals = 0, bytes = 0;
  uint64_t live_bytes = 0, garbage_bytes = 0;
  LocalBlockStore::IndexRebuild index;  // when it was rebuilt
};

struct CheckProgress {
  std::string phase;             // "index": being rebuilt; "packs": being verified; "roots"
  uint64_t done = 0, total = 0;  // packs
  uint64_t blocks = 0;           // of the packs that are done
};

struct CheckOptions {
  bool rebuild_index = false;  // first rebuild the index from the packs
  std::string volumes_dir;
  std::function<void(const CheckProgress&)> progress = {};
};

// Reads everything; changes nothing (but the index when asked). Never stops at the first damage.
// DataLoss is in the report, not the result.
Result<CheckReport> CheckStore(Catalog& catalog, LocalBlockStore& store, KeyRing& keys,
                               FileSystem& fs, const CheckOptions& options);

}  // namespace cairn
