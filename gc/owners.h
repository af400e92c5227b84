// Who is hurt by blocks that cannot be read: for reports.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "gc/root_set.h"
#include "store/local_block_store.h"

namespace cairn {

inline constexpr size_t kMaxOwners = 64;
// Files of one Environment or snapshot, or Artifacts of one turn, that a hurt node touches.
inline constexpr size_t kMaxFilesOfRoot = 8;

struct OwnersOptions {
  // Called after each branch block that was read, with its length; false: stop.
  std::function<bool(uint64_t bytes)> pace;
  // Branch blocks that are remembered to reach nothing hurt (about 50 bytes each). Past it they are
  // forgotten and may be read again.
  size_t remembered_nodes = 1 << 18;
};

struct Owners {
  // For each damage "environment env_.. /workspace/a.txt", "snapshot snap_.. memory", "artifact
  // art_..": at most kMaxOwners, then "and more".
  std::vector<std::vector<std::string>> of_damage;
  bool complete = true;  // false: it was stopped
};

// `hurt`: for each damage the blocks that cannot be read because of it. A root whose tree is hurt
// is named itself, and then the files of which something lies below the node that cannot be read,
// as far as their names still read; of a turn its Artifacts are named. Time: the branch blocks of
// all roots, each read once (a hurt one's ancestors once for each root). Memory:
// `remembered_nodes`, one path down a tree, and the result; it does not grow with the store.
Owners OwnersOf(Catalog& catalog, LocalBlockStore& store, const RootSet& roots,
                const std::vector<std::vector<Address>>& hurt, const OwnersOptions& options = {});

}  // namespace cairn
