// Depth-first walk over reference tables. A block is marked when it is pushed, so each is read once
// however many references lead to it; a leaf is not read here at all.
#include "gc/block_walk.h"

#include "store/reference_table.h"

namespace cairn {

Id128 HoldingRealm(const Id128& realm, const BlockRef& ref) {
  return ref.realm == RealmTag::kBase ? BaseRealm() : realm;
}

Status WalkBlocks(BlockStore& store, const std::vector<Root>& roots, const WalkCallbacks& callbacks,
                  MarkSet& marks) {
  struct Pending {
    Id128 realm;
    BlockRef ref;
  };
  std::vector<Pending> stack;
  auto push = [&](const Id128& realm, const BlockRef& ref) {
    if (marks[HoldingRealm(realm, ref)].insert(ref.address).second) stack.push_back({realm, ref});
  };
  for (const Root& root : roots) {
    push(root.realm, root.ref);
    while (!stack.empty()) {
      const Pending at = stack.back();
      stack.pop_back();
      if (!IsBranch(at.ref.kind)) {
        CAIRN_TRY(callbacks.leaf(at.realm, at.ref));
        continue;
      }
      auto read = [&]() -> Result<BranchBlock> {
        const Block block = CAIRN_TRY(store.Get(at.realm, at.ref));
        return DecodeBranch(at.ref.kind, *block);
      };
      const Result<BranchBlock> branch = read();
      if (!branch) {
        CAIRN_TRY(callbacks.unreadable(at.realm, at.ref, branch.error()));
        continue;
      }
      CAIRN_TRY(callbacks.branch(at.realm, at.ref, branch->refs));
      for (auto child = branch->refs.rbegin(); child != branch->refs.rend(); ++child) {
        push(at.realm, *child);
      }
    }
  }
  return {};
}

}  // namespace cairn
