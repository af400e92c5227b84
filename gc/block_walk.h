// The walk from roots to every block they reach, by reference tables alone: no meaning of a block
// is known here.
#pragma once

#include <functional>
#include <map>
#include <unordered_set>
#include <vector>

#include "gc/root_set.h"
#include "store/block_store.h"

namespace cairn {

// Addresses by the realm that holds them. Exact: a false positive on a branch would skip a live
// subtree.
using MarkSet = std::map<Id128, std::unordered_set<Address, AddressHash>>;

// The realm in which `ref`, found in a block or record of `realm`, lies.
Id128 HoldingRealm(const Id128& realm, const BlockRef& ref);

struct WalkCallbacks {
  // Each leaf block once. An error ends the walk.
  std::function<Status(const Id128& realm, const BlockRef& ref)> leaf;
  // Each branch block once, after it was read, verified and decoded.
  std::function<Status(const Id128& realm, const BlockRef& ref,
                       const std::vector<BlockRef>& children)>
      branch;
  // A branch that does not read or decode. Returning the error ends the walk; returning success
  // goes on without its subtree.
  std::function<Status(const Id128& realm, const BlockRef& ref, const Error& error)> unreadable;
};

// Visits what `roots` reach and `marks` does not hold yet, and adds it to `marks`. Depth first with
// a stack of its own; memory follows the number of blocks (about 40 bytes each) and the depth of
// the trees.
Status WalkBlocks(BlockStore& store, const std::vector<Root>& roots, const WalkCallbacks& callbacks,
                  MarkSet& marks);

}  // namespace cairn
