// DiffTrees: the differences of two trees in key order, in time that follows the difference. Two
// frontiers walk down and to the right; each stands at the next item not yet compared: an entry, or
// a subtree that has not been opened. At each step the one with the smaller key is moved: an entry
// is reported as missing on the other side (everything smaller has been passed there), a subtree is
// opened. With equal keys: equal references of equal level are passed over unopened, two entries
// are compared, otherwise the higher subtree is opened. Since a subtree's key is its smallest, a
// shared subtree is reached by both at once.
#include <utility>
#include <vector>

#include "store/tree.h"
#include "store/tree_node.h"

namespace cairn {
namespace {

using NodePtr = std::shared_ptr<const TreeNode>;

class Frontier {
 public:
  explicit Frontier(const TreeReader& reader) : reader_(reader) {}

  Status Start() {
    if (!reader_.root().node) return {};
    path_.push_back({CAIRN_TRY(reader_.LoadNode(*reader_.root().node)), 0});
    return {};
  }

  bool done() const { return path_.empty(); }
  const NodeItem& item() const { return path_.back().node->items()[path_.back().index]; }
  // Level of what the item is or names: 0 for an entry, 1 for a leaf node, ...
  uint32_t height() const { return path_.back().node->level(); }
  Id128 realm() const { return reader_.realm(); }

  void Pass() {
    ++path_.back().index;
    while (!path_.empty() && path_.back().index == path_.back().node->items().size()) {
      path_.pop_back();
      if (!path_.empty()) ++path_.back().index;
    }
  }

  Status Open() {
    NodePtr child = CAIRN_TRY(reader_.LoadChild(item().refs[0], height() - 1, item().key));
    path_.push_back({std::move(child), 0});
    return {};
  }

 private:
  struct Step {
    NodePtr node;
    size_t index = 0;
  };
  const TreeReader& reader_;
  std::vector<Step> path_;
};

bool SameBlock(const Id128& realm_a, const BlockRef& a, const Id128& realm_b, const BlockRef& b) {
  return a == b && (a.realm == RealmTag::kBase || realm_a == realm_b);
}

}  // namespace

Status DiffTrees(
    const TreeReader& a, const TreeReader& b,
    const std::function<bool(std::string_view key, const Entry* a, const Entry* b)>& visit) {
  if (a.root().node && b.root().node &&
      SameBlock(a.realm(), *a.root().node, b.realm(), *b.root().node)) {
    return {};
  }
  Frontier left(a);
  Frontier right(b);
  CAIRN_TRY(left.Start());
  CAIRN_TRY(right.Start());
  while (!left.done() || !right.done()) {
    int order = 0;  // sign of (left's key) - (right's key); the end is after every key
    if (left.done()) {
      order = 1;
    } else if (right.done()) {
      order = -1;
    } else {
      order = left.item().key.compare(right.item().key);
    }
    if (order != 0) {
      Frontier& behind = order < 0 ? left : right;
      if (behind.height() > 0) {
        CAIRN_TRY(behind.Open());
        continue;
      }
      const Entry entry = behind.item().ToEntry();
      if (!visit(behind.item().key, order < 0 ? &entry : nullptr, order < 0 ? nullptr : &entry)) {
        return {};
      }
      behind.Pass();
      continue;
    }
    if (left.height() != right.height()) {
      CAIRN_TRY((left.height() > right.height() ? left : right).Open());
      continue;
    }
    if (left.height() == 0) {
      const Entry entry_a = left.item().ToEntry();
      const Entry entry_b = right.item().ToEntry();
      if (entry_a != entry_b && !visit(left.item().key, &entry_a, &entry_b)) return {};
    } else if (!SameBlock(left.realm(), left.item().refs[0], right.realm(), right.item().refs[0])) {
      CAIRN_TRY(left.Open());
      CAIRN_TRY(right.Open());
      continue;
    }
    left.Pass();
    right.Pass();
  }
  return {};
}

}  // namespace cairn
