// An immutable Merkle B+ tree in the block store: ordered byte-string keys, each with a payload and
// the blocks it references. Persistent: MergeTree writes only the nodes that a change touches and
// shares the rest.
//
// Node layout: docs/formats/tree.md. A node is a branch block: its reference table holds, in key
// order, the child nodes (interior) or the blocks that entries reference (leaf).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/address.h"
#include "store/block_store.h"

namespace cairn {

// What a key maps to. `payload` is at most kMaxTreePayloadBytes; `refs` at most 16 (larger things
// are several keys).
struct Entry {
  std::string payload;
  std::vector<BlockRef> refs;
  bool operator==(const Entry&) const = default;
};
inline constexpr size_t kMaxTreeKeyBytes = 1024;
inline constexpr size_t kMaxTreePayloadBytes = 8192;

// Sums kept per child, so that a subtree's totals need no walk.
struct TreeCounters {
  uint64_t inodes = 0;
  uint64_t logical_bytes = 0;
  bool operator==(const TreeCounters&) const = default;
};
// What one leaf entry adds to the counters. Pure.
using EntryCounter = std::function<TreeCounters(std::string_view key, const Entry& entry)>;

// The root of a tree; an empty tree has no node.
struct TreeRoot {
  std::optional<BlockRef> node;
  TreeCounters counters;
};

// Reads one tree. Immutable, thread-safe; keeps decoded nodes in a bounded cache shared by address
// (NodeCache). I/O on a miss.
class NodeCache;
class TreeNode;
class TreeReader {
 public:
  TreeReader(BlockStore& store, NodeCache& cache, Id128 realm, TreeRoot root)
      : store_(store), cache_(cache), realm_(realm), root_(std::move(root)) {}

  // nullopt when the key is absent. DataLoss from the store passes through.
  Result<std::optional<Entry>> Get(std::string_view key) const;

  // Ordered walk. `key()`/`entry()` are valid until the next move. Not thread-safe.
  class Cursor {
   public:
    virtual ~Cursor() = default;
    virtual bool valid() const = 0;
    virtual std::string_view key() const = 0;
    virtual const Entry& entry() const = 0;
    virtual Status Next() = 0;
  };
  // At the first key >= `from`.
  Result<std::unique_ptr<Cursor>> Seek(std::string_view from) const;
  // The last key < or = `key` (nullopt if there is none).
  Result<std::optional<std::pair<std::string, Entry>>> SeekBackward(std::string_view key) const;

  const TreeRoot& root() const { return root_; }
  const Id128& realm() const { return realm_; }

  // One node of this tree, through the cache. DataLoss: not a node.
  Result<std::shared_ptr<const TreeNode>> LoadNode(const BlockRef& ref) const;
  // As above for a child that a node of level `level` + 1 names with `first_key`: DataLoss unless
  // it has that level and begins with that key.
  Result<std::shared_ptr<const TreeNode>> LoadChild(const BlockRef& ref, uint32_t level,
                                                    std::string_view first_key) const;

 private:
  BlockStore& store_;
  NodeCache& cache_;
  Id128 realm_;
  TreeRoot root_;
};

// One change: put (entry) or delete (nullopt).
struct TreeUpdate {
  std::string key;
  std::optional<Entry> entry;
};

// How large nodes become, in encoded bytes before compression. Part of the result: only tests
// choose other values.
struct TreeOptions {
  size_t target_bytes = 16 * 1024;  // what a split aims at
  size_t max_bytes =
      24 * 1024;  // a larger node is split (one entry may exceed it: kMaxTreePayloadBytes)
  size_t min_bytes = 4 * 1024;  // a smaller rewritten node takes in a neighbour
};

// Applies `updates` (strictly increasing keys) to `base` and returns the new root. Nodes are put
// through `session` (volatile until its Sync). `epoch` is stamped into every node it writes. The
// result depends only on base, updates and epoch. An update that changes nothing (delete of an
// absent key, put of an equal entry) rewrites nothing. Reads and writes O(updates x height) nodes.
// Errors: InvalidArgument (keys empty, out of order or too long, payloads or references over the
// limits), and the store's.
Result<TreeRoot> MergeTree(const TreeReader& base, WriteSession& session,
                           const std::vector<TreeUpdate>& updates, const EntryCounter& counter,
                           uint64_t epoch, const TreeOptions& options = {});

// Differences between two trees in key order; shared subtrees are skipped by address. `a` or `b` is
// null where the key is missing. The callback returns false to stop.
Status DiffTrees(
    const TreeReader& a, const TreeReader& b,
    const std::function<bool(std::string_view key, const Entry* a, const Entry* b)>& visit);

}  // namespace cairn
