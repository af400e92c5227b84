// One node of a Merkle B+ tree: its layout (docs/formats/tree.md), decoded once and shared for
// ever.
//
// Invariants of a decoded node
//   1. Keys are strictly increasing; no key is longer than kMaxTreeKeyBytes.
//   2. level() == 0: items are entries. level() > 0: each item has exactly one reference, to a node
//   of level() - 1, and its
//      key is the smallest key of that child's subtree.
//   3. A node has at least one item (an empty tree has no node).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/address.h"
#include "store/tree.h"

namespace cairn {

inline constexpr uint32_t kMaxTreeLevels = 16;            // levels 0 to 15
inline constexpr size_t kMaxTreeEntryRefs = 16;           // references of one entry
inline constexpr size_t kMaxTreeNodeKeyBytes = 8u << 20;  // keys of one node after decompression

// An entry of a leaf or a child of an interior node. Views: whoever made it says how long they
// live.
struct NodeItem {
  std::string_view key;
  std::string_view payload;        // leaf only
  std::span<const BlockRef> refs;  // leaf: the entry's; interior: the child
  TreeCounters counters;           // interior only: totals of the child's subtree
  uint64_t newest_epoch = 0;       // interior only: the largest epoch in the child's subtree

  Entry ToEntry() const { return {std::string(payload), {refs.begin(), refs.end()}}; }
};

// Immutable, thread-safe. Items view the node's own memory and live as long as it.
class TreeNode {
 public:
  // The plaintext of a kTreeNode block. DataLoss: broken reference table or body, or an invariant
  // above violated.
  static Result<std::shared_ptr<const TreeNode>> Decode(std::string_view plain);

  TreeNode(const TreeNode&) = delete;
  TreeNode& operator=(const TreeNode&) = delete;

  uint32_t level() const { return level_; }
  uint64_t epoch() const { return epoch_; }
  std::span<const NodeItem> items() const { return items_; }
  size_t memory_bytes() const;

  // First item with key >= `key`; items().size() if there is none.
  size_t LowerBound(std::string_view key) const;
  // Last item with key <= `key`; items().size() if there is none.
  size_t LastAtMost(std::string_view key) const;

 private:
  TreeNode() = default;

  uint32_t level_ = 0;
  uint64_t epoch_ = 0;
  std::vector<BlockRef> refs_;
  std::string body_;  // payloads
  std::string keys_;  // decompressed
  std::vector<NodeItem> items_;
};

// The plaintext of a node block. CHECKs the invariants that the types do not give (items not empty,
// level, counts).
std::string EncodeTreeNode(uint32_t level, uint64_t epoch, std::span<const NodeItem> items);

// Bytes that `item` takes in a node when it comes after `previous_key`, its references included.
size_t EncodedItemBytes(uint32_t level, std::string_view previous_key, const NodeItem& item);

}  // namespace cairn
