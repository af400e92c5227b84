// Encodes and decodes the nodes of the Merkle B+ tree (docs/formats/tree.md, part one). Decoding:
// reference table, fixed head, then one pass over the items that decompresses each key from the one
// before it and records where it and the payload stand; views are made at the end, when the key
// buffer no longer moves. Every rule of the format is checked here but for the two that need the
// parent (TreeReader::LoadChild).
#include "store/tree_node.h"

#include <algorithm>
#include <utility>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/reference_table.h"

namespace cairn {
namespace {

constexpr size_t kLeafItemBytes = 8;
constexpr size_t kInteriorItemBytes = 32;

size_t SharedPrefix(std::string_view a, std::string_view b) {
  const size_t limit = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(limit), b.begin()).first -
      a.begin());
}

std::unexpected<Error> Bad(const char* what) {
  return Err(ErrorCode::kDataLoss, std::string("tree node: ") + what);
}

}  // namespace

size_t EncodedItemBytes(uint32_t level, std::string_view previous_key, const NodeItem& item) {
  const size_t fixed = level == 0 ? kLeafItemBytes + item.payload.size() : kInteriorItemBytes;
  return fixed + item.key.size() - SharedPrefix(previous_key, item.key) +
         item.refs.size() * BlockRef::kEncodedBytes;
}

std::string EncodeTreeNode(uint32_t level, uint64_t epoch, std::span<const NodeItem> items) {
  CAIRN_CHECK(level < kMaxTreeLevels);
  CAIRN_CHECK(!items.empty());
  std::string body;
  std::vector<BlockRef> refs;
  ByteWriter w(body);
  w.U8(static_cast<uint8_t>(level));
  w.U8(0);
  w.U16(0);
  w.U32(static_cast<uint32_t>(items.size()));
  w.U64(epoch);
  std::string_view previous;
  for (const NodeItem& item : items) {
    CAIRN_CHECK(item.key.size() <= kMaxTreeKeyBytes);
    const size_t shared = SharedPrefix(previous, item.key);
    w.U16(static_cast<uint16_t>(shared));
    w.U16(static_cast<uint16_t>(item.key.size() - shared));
    if (level == 0) {
      CAIRN_CHECK(item.payload.size() <= kMaxTreePayloadBytes);
      CAIRN_CHECK(item.refs.size() <= kMaxTreeEntryRefs);
      w.U16(static_cast<uint16_t>(item.payload.size()));
      w.U8(static_cast<uint8_t>(item.refs.size()));
      w.U8(0);
    } else {
      CAIRN_CHECK(item.refs.size() == 1);
      w.U32(0);
      w.U64(item.counters.inodes);
      w.U64(item.counters.logical_bytes);
      w.U64(item.newest_epoch);
    }
    w.Bytes(item.key.substr(shared));
    if (level == 0) w.Bytes(item.payload);
    refs.insert(refs.end(), item.refs.begin(), item.refs.end());
    previous = item.key;
  }
  return EncodeBranch(BlockKind::kTreeNode, refs, body);
}

Result<std::shared_ptr<const TreeNode>> TreeNode::Decode(std::string_view plain) {
  BranchBlock block = CAIRN_TRY(DecodeBranch(BlockKind::kTreeNode, plain));
  std::shared_ptr<TreeNode> node(new TreeNode());
  node->refs_ = std::move(block.refs);
  node->body_ = std::move(block.body);

  ByteReader r(node->body_);
  node->level_ = r.U8();
  const uint8_t flags = r.U8();
  const uint16_t reserved = r.U16();
  const size_t count = r.U32();
  node->epoch_ = r.U64();
  if (!r.ok()) return Bad("shorter than its head");
  if (node->level_ >= kMaxTreeLevels) return Bad("level over the limit");
  if (flags != 0 || reserved != 0) return Bad("reserved bits set");
  const bool leaf = node->level_ == 0;
  if (count == 0 || count > r.remaining() / (leaf ? kLeafItemBytes : kInteriorItemBytes)) {
    return Bad("item count does not fit");
  }

  struct Place {
    size_t key_offset, key_bytes, first_ref;
  };
  std::vector<Place> places;
  places.reserve(count);
  node->items_.resize(count);
  size_t used_refs = 0;
  for (size_t i = 0; i < count; ++i) {
    NodeItem& item = node->items_[i];
    const size_t shared = r.U16();
    const size_t suffix_bytes = r.U16();
    size_t payload_bytes = 0;
    size_t ref_count = 1;
    uint32_t zero = 0;
    if (leaf) {
      payload_bytes = r.U16();
      ref_count = r.U8();
      zero = r.U8();
    } else {
      zero = r.U32();
      item.counters.inodes = r.U64();
      item.counters.logical_bytes = r.U64();
      item.newest_epoch = r.U64();
    }
    const std::string_view suffix = r.Bytes(suffix_bytes);
    item.payload = r.Bytes(payload_bytes);
    if (!r.ok()) return Bad("ends inside an item");
    if (zero != 0) return Bad("reserved bits set");
    if (payload_bytes > kMaxTreePayloadBytes || ref_count > kMaxTreeEntryRefs) {
      return Bad("entry over the limits");
    }
    if (ref_count > node->refs_.size() - used_refs)
      return Bad("more references used than there are");
    const size_t previous_bytes = i == 0 ? 0 : places[i - 1].key_bytes;
    const size_t key_bytes = shared + suffix_bytes;
    if (shared > previous_bytes || key_bytes == 0 || key_bytes > kMaxTreeKeyBytes) {
      return Bad("bad key length");
    }
    const size_t key_offset = node->keys_.size();
    if (key_offset + key_bytes > kMaxTreeNodeKeyBytes) return Bad("keys over the limit");
    if (shared > 0) {
      // Resized first, copied by position: the source is in the same buffer.
      node->keys_.resize(key_offset + shared);
      std::copy_n(node->keys_.data() + places[i - 1].key_offset, shared,
                  node->keys_.data() + key_offset);
    }
    node->keys_.append(suffix);
    if (i > 0) {
      const std::string_view keys = node->keys_;
      if (keys.substr(places[i - 1].key_offset, previous_bytes) >=
          keys.substr(key_offset, key_bytes)) {
        return Bad("keys out of order");
      }
    }
    if (!leaf && node->refs_[used_refs].kind != BlockKind::kTreeNode) {
      return Bad("child is not a tree node");
    }
    places.push_back({key_offset, key_bytes, used_refs});
    item.refs = std::span<const BlockRef>(node->refs_).subspan(used_refs, ref_count);
    used_refs += ref_count;
  }
  if (!r.done()) return Bad("bytes after the last item");
  if (used_refs != node->refs_.size()) return Bad("references that no item owns");
  node->keys_.shrink_to_fit();
  for (size_t i = 0; i < count; ++i) {
    node->items_[i].key =
        std::string_view(node->keys_).substr(places[i].key_offset, places[i].key_bytes);
  }
  return std::shared_ptr<const TreeNode>(std::move(node));
}

size_t TreeNode::memory_bytes() const {
  return sizeof(TreeNode) + refs_.capacity() * sizeof(BlockRef) + body_.capacity() +
         keys_.capacity() + items_.capacity() * sizeof(NodeItem);
}

size_t TreeNode::LowerBound(std::string_view key) const {
  const auto it = std::ranges::lower_bound(items_, key, {}, &NodeItem::key);
  return static_cast<size_t>(it - items_.begin());
}

size_t TreeNode::LastAtMost(std::string_view key) const {
  const auto it = std::ranges::upper_bound(items_, key, {}, &NodeItem::key);
  return it == items_.begin() ? items_.size() : static_cast<size_t>(it - items_.begin()) - 1;
}

}  // namespace cairn
