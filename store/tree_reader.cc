// Reading a Merkle B+ tree. A lookup goes down from the top node: in an interior node to the last
// child whose first key is not above the wanted one, in the leaf to the key. Depth is bounded
// before the descent by the top node's level (< kMaxTreeLevels) and every step checks that levels
// fall by one, so a cycle or a forged level ends in DataLoss, not in a loop.
#include <algorithm>
#include <utility>
#include <vector>

#include "store/node_cache.h"
#include "store/tree.h"
#include "store/tree_node.h"

namespace cairn {
namespace {

using NodePtr = std::shared_ptr<const TreeNode>;

// A path from the top node to an item of a leaf. Invariant: path_[i + 1].node is the child at
// path_[i].index, and the last node is a leaf; or the path is empty (past the end).
class PathCursor final : public TreeReader::Cursor {
 public:
  explicit PathCursor(TreeReader reader) : reader_(std::move(reader)) {}

  Status Seek(std::string_view from) {
    if (!reader_.root().node) return {};
    NodePtr node = CAIRN_TRY(reader_.LoadNode(*reader_.root().node));
    while (node->level() > 0) {
      size_t index = node->LastAtMost(from);
      if (index == node->items().size()) index = 0;
      const NodeItem& item = node->items()[index];
      NodePtr child = CAIRN_TRY(reader_.LoadChild(item.refs[0], node->level() - 1, item.key));
      path_.push_back({std::move(node), index});
      node = std::move(child);
    }
    const size_t index = node->LowerBound(from);
    path_.push_back({std::move(node), index});
    return Settle();
  }

  bool valid() const override { return !path_.empty(); }
  std::string_view key() const override { return item().key; }
  const Entry& entry() const override { return entry_; }

  Status Next() override {
    ++path_.back().index;
    return Settle();
  }

 private:
  struct Step {
    NodePtr node;
    size_t index = 0;
  };

  const NodeItem& item() const { return path_.back().node->items()[path_.back().index]; }

  // From an index that may be past its node's end to the next leaf item. After an error the cursor
  // is not valid.
  Status Settle() {
    Status status = Descend();
    if (!status) path_.clear();
    return status;
  }

  Status Descend() {
    while (!path_.empty() && path_.back().index == path_.back().node->items().size()) {
      path_.pop_back();
      if (!path_.empty()) ++path_.back().index;
    }
    if (path_.empty()) return {};
    while (path_.back().node->level() > 0) {
      const NodeItem& at = item();
      NodePtr child =
          CAIRN_TRY(reader_.LoadChild(at.refs[0], path_.back().node->level() - 1, at.key));
      path_.push_back({std::move(child), 0});
    }
    entry_.payload.assign(item().payload);
    entry_.refs.assign(item().refs.begin(), item().refs.end());
    return {};
  }

  const TreeReader reader_;
  std::vector<Step> path_;
  Entry entry_;
};

struct Position {
  NodePtr node;  // a leaf; nullptr: nowhere
  size_t index = 0;
  const NodeItem& item() const { return node->items()[index]; }
};

// The last entry with a key <= `key`.
Result<Position> FindLastAtMost(const TreeReader& reader, std::string_view key) {
  if (!reader.root().node) return Position{};
  NodePtr node = CAIRN_TRY(reader.LoadNode(*reader.root().node));
  while (true) {
    const size_t index = node->LastAtMost(key);
    if (index == node->items().size()) return Position{};
    if (node->level() == 0) return Position{std::move(node), index};
    const NodeItem& item = node->items()[index];
    node = CAIRN_TRY(reader.LoadChild(item.refs[0], node->level() - 1, item.key));
  }
}

}  // namespace

Result<NodePtr> TreeReader::LoadNode(const BlockRef& ref) const {
  if (ref.kind != BlockKind::kTreeNode) {
    return Err(ErrorCode::kDataLoss, "reference is not to a tree node");
  }
  const Id128 realm = ref.realm == RealmTag::kBase ? BaseRealm() : realm_;
  if (NodePtr node = cache_.Find(realm, ref.address)) return node;
  const Block block = CAIRN_TRY(store_.Get(realm_, ref));
  auto decoded = TreeNode::Decode(*block);
  if (!decoded) {
    return std::unexpected(std::move(decoded).error().WithContext("block " + ref.address.ToHex()));
  }
  cache_.Insert(realm, ref.address, *decoded);
  return decoded;
}

Result<NodePtr> TreeReader::LoadChild(const BlockRef& ref, uint32_t level,
                                      std::string_view first_key) const {
  NodePtr node = CAIRN_TRY(LoadNode(ref));
  if (node->level() != level || node->items().front().key != first_key) {
    return Err(ErrorCode::kDataLoss,
               "tree node " + ref.address.ToHex() + " is not the child that its parent says");
  }
  return node;
}

Result<std::optional<Entry>> TreeReader::Get(std::string_view key) const {
  const Position at = CAIRN_TRY(FindLastAtMost(*this, key));
  if (at.node == nullptr || at.item().key != key) return std::nullopt;
  return at.item().ToEntry();
}

Result<std::unique_ptr<TreeReader::Cursor>> TreeReader::Seek(std::string_view from) const {
  auto cursor = std::make_unique<PathCursor>(*this);
  CAIRN_TRY(cursor->Seek(from));
  return cursor;
}

Result<std::optional<std::pair<std::string, Entry>>> TreeReader::SeekBackward(
    std::string_view key) const {
  const Position at = CAIRN_TRY(FindLastAtMost(*this, key));
  if (at.node == nullptr) return std::nullopt;
  return std::make_pair(std::string(at.item().key), at.item().ToEntry());
}

}  // namespace cairn
