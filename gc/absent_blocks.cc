// Depth first by reference tables, each branch block once as far as memory goes. What a collection
// takes away meanwhile was unreferenced when it began: whoever reports a block looks whether
// something still refers to it.
#include "gc/absent_blocks.h"

#include <unordered_set>

#include "gc/block_walk.h"
#include "store/reference_table.h"

namespace cairn {
namespace {

class AbsentSearch {
 public:
  AbsentSearch(LocalBlockStore& store, const AbsentOptions& options)
      : store_(store), options_(options) {}

  AbsentBlocks Run(const RootSet& roots) {
    for (const Root& root : roots.roots) {
      Look(root.realm, root.ref);
      while (!pending_.empty() && found_.complete) {
        const BlockRef ref = pending_.back();
        pending_.pop_back();
        Enter(root.realm, ref);
      }
      pending_.clear();
      if (!found_.complete) break;
    }
    return std::move(found_);
  }

 private:
  // Asks for a block; a branch that is there is entered later.
  void Look(const Id128& realm, const BlockRef& ref) {
    if (IsBranch(ref.kind) && seen_.contains(ref.address)) return;
    const auto has = store_.Contains(realm, ref);
    if (!has) {
      found_.complete = false;
    } else if (!*has) {
      Note({.realm = HoldingRealm(realm, ref), .ref = ref});
    } else if (IsBranch(ref.kind)) {
      pending_.push_back(ref);
    }
  }

  void Note(const AbsentBlocks::Absent& absent) {
    if (noted_.contains(absent.ref.address)) return;
    if (found_.blocks.size() >= options_.most) {
      ++found_.left_off;
      return;
    }
    noted_.insert(absent.ref.address);
    found_.blocks.push_back(absent);
  }

  void Enter(const Id128& realm, const BlockRef& ref) {
    if (seen_.size() >= options_.remembered_nodes) seen_.clear();
    if (!seen_.insert(ref.address).second) return;
    const auto block = store_.Get(realm, ref);
    if (options_.pace && !options_.pace(ref.raw_length_bytes)) found_.complete = false;
    if (!block) return;
    const auto branch = DecodeBranch(ref.kind, **block);
    if (!branch) return;
    for (const BlockRef& child : branch->refs) {
      if (!found_.complete) return;
      Look(realm, child);
    }
  }

  LocalBlockStore& store_;
  const AbsentOptions& options_;
  std::unordered_set<Address, AddressHash> seen_;
  std::unordered_set<Address, AddressHash> noted_;
  std::vector<BlockRef> pending_;  // of the root that is walked
  AbsentBlocks found_;
};

}  // namespace

AbsentBlocks FindAbsentBlocks(LocalBlockStore& store, const RootSet& roots,
                              const AbsentOptions& options) {
  return AbsentSearch(store, options).Run(roots);
}

}  // namespace cairn
