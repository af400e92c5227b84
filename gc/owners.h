// Who is hurt by blocks that cannot be read: for reports.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "gc/root_set.h"
#include "store/local_block_store.h"

namespace cairn {

inline constexpr size_t kMaxOwners = 16;

// "environment env_.. /workspace/a.txt", "snapshot snap_.. memory", "artifact art_..": at most
// kMaxOwners, then "and more". Roots whose tree itself is hurt are named without files. O(blocks of
// all roots).
std::vector<std::string> OwnersOf(Catalog& catalog, LocalBlockStore& store, const RootSet& roots,
                                  const std::set<Address>& hurt);

}  // namespace cairn
