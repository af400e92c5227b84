// MergeTree: applies a sorted batch of changes to an immutable tree, bottom up, touching only the
// nodes on the way to a change.
//
// Order of steps, for each node that a change falls into, children first:
//   1. Apply() gives the items that the node holds afterwards, or "unchanged". Nothing is written
//   yet.
//   2. The parent joins the items of neighbouring changed children into one run. A run under
//   min_bytes takes in the
//      unchanged child to its right, else to its left.
//   3. A run is split into equal pieces of about target_bytes, if it is over max_bytes, and
//   written; its pieces are the
//      parent's new items.
//   4. What remains for the top node is written level by level until it is one node; a top node
//   with one child gives way to it.
//
// Written nodes are put in batches: a node waits in pending_, and its reference is filled in before
// a node of a higher level, which holds it, is encoded.
//
// Invariants: an unchanged child keeps its reference, counters and epoch. Every interior node but a
// temporary top has at least two items when a split made it, so height shrinks towards the top.
// Memory: the runs of one root-to-leaf path and one batch, not the tree.
#include <algorithm>
#include <list>
#include <utility>
#include <vector>

#include "store/tree.h"
#include "store/tree_node.h"

namespace cairn {
namespace {

constexpr size_t kMaxPendingBytes = 2 << 20;

using NodePtr = std::shared_ptr<const TreeNode>;
using Updates = std::span<const TreeUpdate>;

// Items of one level in key order, with what their views point into.
struct Run {
  struct OwnedChild {
    std::string key;
    BlockRef ref;
  };

  uint32_t level = 0;
  std::vector<NodeItem> items;
  size_t encoded_bytes = 0;
  std::vector<NodePtr> nodes;      // views into these,
  std::list<OwnedChild> children;  // into these,
                                   // or into the updates

  void Push(const NodeItem& item) {
    const std::string_view previous = items.empty() ? std::string_view() : items.back().key;
    encoded_bytes += EncodedItemBytes(level, previous, item);
    items.push_back(item);
  }
  void Append(Run&& other) {
    for (const NodeItem& item : other.items) Push(item);
    nodes.insert(nodes.end(), other.nodes.begin(), other.nodes.end());
    children.splice(children.end(), other.children);
  }
  void PushNode(const NodePtr& node) {
    for (const NodeItem& item : node->items()) Push(item);
    nodes.push_back(node);
  }
};

class Merger {
 public:
  Merger(const TreeReader& base, WriteSession& session, const EntryCounter& counter, uint64_t epoch,
         const TreeOptions& options)
      : base_(base), session_(session), counter_(counter), epoch_(epoch), options_(options) {}

  Result<TreeRoot> Merge(Updates updates) {
    Run top;
    if (base_.root().node) {
      const NodePtr node = CAIRN_TRY(base_.LoadNode(*base_.root().node));
      std::optional<Run> changed = CAIRN_TRY(Apply(node, updates));
      if (!changed) return base_.root();
      top = std::move(*changed);
    } else {
      for (const TreeUpdate& update : updates) {
        if (update.entry) top.Push(ItemOf(update));
      }
    }
    return WriteTop(std::move(top));
  }

 private:
  static NodeItem ItemOf(const TreeUpdate& update) {
    NodeItem item;
    item.key = update.key;
    item.payload = update.entry->payload;
    item.refs = update.entry->refs;
    return item;
  }

  static bool SameEntry(const NodeItem& item, const Entry& entry) {
    return item.payload == entry.payload && std::ranges::equal(item.refs, entry.refs);
  }

  // The items of `node` after `updates`, which all fall into it; nullopt when they change nothing.
  // Recursion is bounded by the level, which falls by one at each step (LoadChild).
  Result<std::optional<Run>> Apply(const NodePtr& node, Updates updates) {
    return node->level() == 0 ? ApplyToLeaf(node, updates) : ApplyToInterior(node, updates);
  }

  static Result<std::optional<Run>> ApplyToLeaf(const NodePtr& node, Updates updates) {
    Run run;
    run.nodes.push_back(node);
    bool changed = false;
    const std::span<const NodeItem> items = node->items();
    size_t i = 0;
    for (const TreeUpdate& update : updates) {
      while (i < items.size() && items[i].key < update.key) run.Push(items[i++]);
      const bool present = i < items.size() && items[i].key == update.key;
      if (update.entry) {
        changed |= !present || !SameEntry(items[i], *update.entry);
        run.Push(ItemOf(update));
      } else {
        changed |= present;
      }
      if (present) ++i;
    }
    while (i < items.size()) run.Push(items[i++]);
    if (!changed) return std::nullopt;
    return run;
  }

  Result<std::optional<Run>> ApplyToInterior(const NodePtr& node, Updates updates) {
    const std::span<const NodeItem> items = node->items();
    Run out;
    out.level = node->level();
    out.nodes.push_back(node);
    std::optional<Run> run;  // of changed children, not written yet
    bool any_changed = false;
    for (size_t i = 0; i < items.size(); ++i) {
      // The first child also takes what lies before its first key, the last one everything that is
      // left.
      const auto end = i + 1 == items.size()
                           ? updates.end()
                           : std::ranges::lower_bound(
                                 updates, items[i + 1].key, {},
                                 [](const TreeUpdate& u) -> std::string_view { return u.key; });
      const Updates mine(updates.begin(), end);
      updates = Updates(end, updates.end());
      std::optional<Run> changed;
      if (!mine.empty()) {
        const NodePtr child =
            CAIRN_TRY(base_.LoadChild(items[i].refs[0], node->level() - 1, items[i].key));
        changed = CAIRN_TRY(Apply(child, mine));
      }
      if (changed) {
        any_changed = true;
        if (run) {
          run->Append(std::move(*changed));
        } else {
          run = std::move(changed);
        }
      } else if (run && IsSmall(*run)) {
        run->PushNode(
            CAIRN_TRY(base_.LoadChild(items[i].refs[0], node->level() - 1, items[i].key)));
      } else {
        if (run) CAIRN_TRY(WriteRun(*std::exchange(run, std::nullopt), out));
        out.Push(items[i]);
      }
    }
    if (!any_changed) return std::nullopt;
    if (run) {
      if (IsSmall(*run) && !out.items.empty()) {
        // The item before a run is always an unchanged child.
        const NodeItem left = out.items.back();
        out = WithoutLast(std::move(out));
        Run joined;
        joined.level = run->level;
        joined.PushNode(CAIRN_TRY(base_.LoadChild(left.refs[0], run->level, left.key)));
        joined.Append(std::move(*run));
        run = std::move(joined);
      }
      CAIRN_TRY(WriteRun(*run, out));
    }
    return out;
  }

  bool IsSmall(const Run& run) const {
    return !run.items.empty() && run.encoded_bytes < options_.min_bytes;
  }

  static Run WithoutLast(Run run) {
    const NodeItem last = run.items.back();
    run.items.pop_back();
    const std::string_view previous = run.items.empty() ? std::string_view() : run.items.back().key;
    run.encoded_bytes -= EncodedItemBytes(run.level, previous, last);
    return run;
  }

  // Writes the nodes of `run` and appends them to `out` as children. An empty run writes nothing.
  Status WriteRun(const Run& run, Run& out) {
    if (run.items.empty()) return {};
    size_t pieces = 1;
    if (run.encoded_bytes > options_.max_bytes) {
      pieces = (run.encoded_bytes + options_.target_bytes - 1) / options_.target_bytes;
    }
    const size_t min_items = run.level == 0 ? 1 : 2;
    const std::span<const NodeItem> items = run.items;
    size_t begin = 0;
    size_t written_pieces = 0;
    size_t passed_bytes = 0;
    std::string_view previous;
    for (size_t i = 0; i < items.size(); ++i) {
      passed_bytes += EncodedItemBytes(run.level, previous, items[i]);
      previous = items[i].key;
      const bool last = i + 1 == items.size();
      const bool full = passed_bytes * pieces >= run.encoded_bytes * (written_pieces + 1);
      const bool enough = i + 1 - begin >= min_items && items.size() - (i + 1) >= min_items;
      if (!last && !(full && enough)) continue;
      CAIRN_TRY(WriteNode(run.level, items.subspan(begin, i + 1 - begin), out));
      begin = i + 1;
      ++written_pieces;
    }
    return {};
  }

  Status WriteNode(uint32_t level, std::span<const NodeItem> items, Run& out) {
    if (std::ranges::any_of(pending_, [&](const Pending& node) { return node.level < level; })) {
      CAIRN_TRY(PutPending());
    }
    std::string plain = EncodeTreeNode(level, epoch_, items);
    if (auto decoded = TreeNode::Decode(plain); !decoded) {
      return Err(ErrorCode::kInternal, "encoded " + decoded.error().message());
    }
    NodeItem child;
    child.newest_epoch = epoch_;
    Entry entry;
    for (const NodeItem& item : items) {
      TreeCounters add = item.counters;
      if (level == 0) {
        entry.payload.assign(item.payload);
        entry.refs.assign(item.refs.begin(), item.refs.end());
        add = counter_(item.key, entry);
      }
      child.counters.inodes += add.inodes;
      child.counters.logical_bytes += add.logical_bytes;
      child.newest_epoch = std::max(child.newest_epoch, item.newest_epoch);
    }
    Run::OwnedChild& owned =
        out.children.emplace_back(Run::OwnedChild{std::string(items.front().key), {}});
    child.key = owned.key;
    child.refs = std::span<const BlockRef>(&owned.ref, 1);
    out.Push(child);
    pending_bytes_ += plain.size();
    pending_.push_back({.level = level, .plain = std::move(plain), .ref = &owned.ref});
    return pending_bytes_ >= kMaxPendingBytes ? PutPending() : Status();
  }

  Status PutPending() {
    std::vector<PutRequest> requests;
    for (const Pending& node : pending_) {
      requests.push_back({.kind = BlockKind::kTreeNode,
                          .plain = node.plain,
                          .compression = Compression::kBackground});
    }
    std::vector<BlockRef> refs(requests.size());
    CAIRN_TRY(session_.PutMany(requests, refs, Durability::kVolatile));
    for (size_t i = 0; i < refs.size(); ++i) *pending_[i].ref = refs[i];
    pending_.clear();
    pending_bytes_ = 0;
    return {};
  }

  Result<TreeRoot> WriteTop(Run top) {
    while (true) {
      if (top.items.empty()) return TreeRoot{};
      if (top.level > 0 && top.items.size() == 1) {
        CAIRN_TRY(PutPending());
        return Collapse(top.level - 1, top.items[0]);
      }
      if (top.level + 1 >= kMaxTreeLevels && top.encoded_bytes > options_.max_bytes) {
        return Err(ErrorCode::kInternal, "tree is higher than its limit");
      }
      Run above;
      above.level = top.level + 1;
      CAIRN_TRY(WriteRun(top, above));
      if (above.items.size() == 1) {
        CAIRN_TRY(PutPending());
        return TreeRoot{above.items[0].refs[0], above.items[0].counters};
      }
      top = std::move(above);
    }
  }

  // The top of a tree whose only child is `item` of level `level`.
  Result<TreeRoot> Collapse(uint32_t level, const NodeItem& item) {
    TreeRoot root{item.refs[0], item.counters};
    NodePtr node = CAIRN_TRY(base_.LoadChild(item.refs[0], level, item.key));
    while (node->level() > 0 && node->items().size() == 1) {
      const NodeItem& only = node->items()[0];
      root.node = only.refs[0];
      node = CAIRN_TRY(base_.LoadChild(only.refs[0], node->level() - 1, only.key));
    }
    return root;
  }

  // A node that is encoded and not put yet. `ref` is in the children of the run that holds it.
  struct Pending {
    uint32_t level = 0;
    std::string plain;
    BlockRef* ref = nullptr;
  };

  const TreeReader& base_;
  WriteSession& session_;
  const EntryCounter& counter_;
  const uint64_t epoch_;
  const TreeOptions& options_;
  std::vector<Pending> pending_;
  size_t pending_bytes_ = 0;
};

Status CheckUpdates(Updates updates) {
  for (size_t i = 0; i < updates.size(); ++i) {
    const TreeUpdate& u = updates[i];
    if (u.key.empty() || u.key.size() > kMaxTreeKeyBytes) {
      return Err(ErrorCode::kInvalidArgument, "tree key is empty or too long");
    }
    if (i > 0 && updates[i - 1].key >= u.key) {
      return Err(ErrorCode::kInvalidArgument, "tree updates are not in key order");
    }
    if (u.entry && (u.entry->payload.size() > kMaxTreePayloadBytes ||
                    u.entry->refs.size() > kMaxTreeEntryRefs)) {
      return Err(ErrorCode::kInvalidArgument, "tree entry is over the limits");
    }
  }
  return {};
}

}  // namespace

Result<TreeRoot> MergeTree(const TreeReader& base, WriteSession& session,
                           const std::vector<TreeUpdate>& updates, const EntryCounter& counter,
                           uint64_t epoch, const TreeOptions& options) {
  CAIRN_TRY(CheckUpdates(updates));
  return Merger(base, session, counter, epoch, options).Merge(updates);
}

}  // namespace cairn
