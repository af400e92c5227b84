// Fuzz target: the plaintext of branch blocks: reference table, tree node, filesystem root, head
// and map of a memory image. Input: which one, repairs, the block. They have no checksums of their
// own (address and frame cover them); a repair makes lengths and counts agree.
//
// Asserted: refusals are DataLoss; what decodes encodes to what decodes to the same (canonical
// layouts: to the same bytes); the invariants of the headers hold; searches in a node agree with a
// walk of its items.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "snapshot/memory_image.h"
#include "store/reference_table.h"
#include "store/tree_node.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/patch.h"
#include "volume/fs_root.h"

namespace cairn {
namespace {

constexpr size_t kHeadBytes = 16;
enum Repair : uint8_t { kTableHead = 1, kTableCounts = 2, kReferences = 4, kNodeItems = 8 };

// Counts that fit the length: as many references as were asked for and have room.
void RepairTable(uint8_t repair, BlockKind kind, std::string& block) {
  if (block.size() < kHeadBytes) return;
  if ((repair & kTableHead) != 0) {
    block.replace(0, 4, "CNBR");
    Patch<uint16_t>(block, 4, 1);
    Patch<uint8_t>(block, 6, static_cast<uint8_t>(kind));
    Patch<uint8_t>(block, 7, 0);
  }
  if ((repair & kTableCounts) != 0) {
    const size_t rest = block.size() - kHeadBytes;
    const size_t refs = std::min<size_t>(Peek<uint32_t>(block, 8), rest / BlockRef::kEncodedBytes);
    Patch(block, 8, static_cast<uint32_t>(refs));
    Patch(block, 12, static_cast<uint32_t>(rest - refs * BlockRef::kEncodedBytes));
  }
  if ((repair & kReferences) == 0) return;
  const size_t refs = Peek<uint32_t>(block, 8);
  for (size_t i = 0; i < refs; ++i) {
    const size_t at = kHeadBytes + i * BlockRef::kEncodedBytes;
    if (at + BlockRef::kEncodedBytes > block.size()) return;
    Patch<uint8_t>(block, at, Peek<uint8_t>(block, at) & 1);
    if (!IsKnownKind(Peek<uint8_t>(block, at + 1))) {
      Patch(block, at + 1, static_cast<uint8_t>(BlockKind::kData));
    }
    Patch<uint16_t>(block, at + 2, 0);
    Patch<uint32_t>(block, at + 4, Peek<uint32_t>(block, at + 4) % kMaxBlockBytes + 1);
  }
}

// As many items as the body holds whole, and as many references as they own.
void RepairNodeItems(std::string& block) {
  if (block.size() < kHeadBytes) return;
  const size_t refs = Peek<uint32_t>(block, 8);
  if (refs > (block.size() - kHeadBytes) / BlockRef::kEncodedBytes) return;
  std::string table = block.substr(kHeadBytes, refs * BlockRef::kEncodedBytes);
  std::string body = block.substr(kHeadBytes + table.size());
  if (body.size() < 16) return;
  const bool leaf = body[0] == 0;
  Patch<uint16_t>(body, 1, 0);
  Patch<uint8_t>(body, 3, 0);
  uint32_t items = 0;
  size_t owned = 0;
  size_t at = 16;
  while (at + (leaf ? 8 : 32) <= body.size()) {
    size_t length = (leaf ? 8 : 32) + size_t{Peek<uint16_t>(body, at + 2)};
    if (leaf) length += Peek<uint16_t>(body, at + 4);
    if (at + length > body.size()) break;
    owned += leaf ? Peek<uint8_t>(body, at + 6) : 1;
    ++items;
    at += length;
  }
  body.resize(at);
  Patch(body, 4, items);
  if (owned > 256) return;
  BlockRef filler;
  filler.kind = leaf ? BlockKind::kData : BlockKind::kTreeNode;
  filler.raw_length_bytes = 1;
  table.resize(std::min(table.size(), owned * BlockRef::kEncodedBytes));
  while (table.size() < owned * BlockRef::kEncodedBytes) filler.AppendTo(table);
  Patch(block, 8, static_cast<uint32_t>(owned));
  Patch(block, 12, static_cast<uint32_t>(body.size()));
  block = block.substr(0, kHeadBytes) + table + body;
}

void Branch(BlockKind kind, const std::string& block) {
  const auto branch = DecodeBranch(kind, block);
  if (!branch) return ExpectRefusal(branch.error());
  CAIRN_CHECK(EncodeBranch(branch->kind, branch->refs, branch->body) == block);
}

void Node(const std::string& block) {
  const auto decoded = TreeNode::Decode(block);
  if (!decoded) return ExpectRefusal(decoded.error());
  const TreeNode& node = **decoded;
  const auto items = node.items();
  CAIRN_CHECK(!items.empty() && node.level() < kMaxTreeLevels);
  size_t key_bytes = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    CAIRN_CHECK(!items[i].key.empty() && items[i].key.size() <= kMaxTreeKeyBytes);
    CAIRN_CHECK(items[i].payload.size() <= kMaxTreePayloadBytes);
    if (i > 0) CAIRN_CHECK(items[i - 1].key < items[i].key);
    if (node.level() > 0) CAIRN_CHECK(items[i].refs.size() == 1 && items[i].payload.empty());
    key_bytes += items[i].key.size();
    CAIRN_CHECK(node.LowerBound(items[i].key) == i && node.LastAtMost(items[i].key) == i);
    const std::string above = std::string(items[i].key) + '\0';
    CAIRN_CHECK(
        node.LowerBound(above) ==
        (i + 1 < items.size() && items[i + 1].key == above ? i + 1 : node.LastAtMost(above) + 1));
  }
  CAIRN_CHECK(node.LowerBound("") == 0 && node.LastAtMost("") == items.size());
  CAIRN_CHECK(key_bytes <= kMaxTreeNodeKeyBytes);
  CAIRN_CHECK(node.memory_bytes() >= key_bytes);
  // Sharing less of a key than one could is valid: the second encoding is the canonical one.
  const std::string canonical = EncodeTreeNode(node.level(), node.epoch(), items);
  CAIRN_CHECK(canonical.size() < block.size() || canonical == block);
  const auto again = TreeNode::Decode(canonical);
  CAIRN_CHECK(again.has_value() && (*again)->level() == node.level() &&
              (*again)->epoch() == node.epoch());
  CAIRN_CHECK(
      std::ranges::equal((*again)->items(), items, [](const NodeItem& a, const NodeItem& b) {
        return a.key == b.key && a.payload == b.payload && std::ranges::equal(a.refs, b.refs) &&
               a.counters == b.counters && a.newest_epoch == b.newest_epoch;
      }));
  CAIRN_CHECK(EncodeTreeNode(node.level(), node.epoch(), (*again)->items()) == canonical);
}

void Root(const std::string& block) {
  const auto root = FsRoot::Decode(block);
  if (!root) return ExpectRefusal(root.error());
  CAIRN_CHECK(root->sealed_at.nanoseconds < 1'000'000'000);
  CAIRN_CHECK(!root->tree.node || root->tree.node->kind == BlockKind::kTreeNode);
  CAIRN_CHECK(!root->parent || root->parent->kind == BlockKind::kFsRoot);
  CAIRN_CHECK(root->Encode() == block);
}

void Image(const std::string& block) {
  const auto image = MemoryImage::Decode(block);
  if (!image) return ExpectRefusal(image.error());
  for (const MemoryRegion& region : image->regions) {
    CAIRN_CHECK(region.file_offset <= image->memory_bytes &&
                region.length_bytes <= image->memory_bytes - region.file_offset);
  }
  for (const auto& map : image->maps) CAIRN_CHECK(!map || map->kind == BlockKind::kMemoryMap);
  for (const BlockRef& ref : image->vmstate_blocks) CAIRN_CHECK(ref.kind == BlockKind::kMemory);
  CAIRN_CHECK(!image->parent || image->parent->kind == BlockKind::kMemoryImage);
  CAIRN_CHECK(image->Encode() == block);
}

void Map(const std::string& block) {
  const auto map = MemoryMap::Decode(block);
  if (!map) return ExpectRefusal(map.error());
  CAIRN_CHECK(map->pages.size() == map->chunks.size() && map->pages.size() <= kMemoryMapSlots);
  for (size_t i = 0; i < map->pages.size(); ++i) {
    if (!map->chunks[i]) continue;
    const auto pages = static_cast<uint32_t>(std::popcount(map->pages[i]));
    CAIRN_CHECK(map->chunks[i]->kind == BlockKind::kMemory &&
                map->chunks[i]->raw_length_bytes <= pages * kMemoryPageBytes);
  }
  CAIRN_CHECK(map->Encode() == block);
}

void Run(uint8_t which, uint8_t repair, std::string block) {
  static constexpr BlockKind kKinds[] = {
      BlockKind::kTreeNode, BlockKind::kFsRoot, BlockKind::kMemoryImage, BlockKind::kMemoryMap,
      BlockKind::kTreeNode, BlockKind::kFsRoot, BlockKind::kData,        BlockKind::kMemory};
  const BlockKind kind = kKinds[which % 8];
  RepairTable(repair, kind, block);
  if (kind == BlockKind::kTreeNode && (repair & kNodeItems) != 0) RepairNodeItems(block);
  if (block.size() > kMaxBlockBytes) return;  // no block is longer
  if (which % 8 >= 4) return Branch(kind, block);
  switch (kind) {
    case BlockKind::kTreeNode:
      return Node(block);
    case BlockKind::kFsRoot:
      return Root(block);
    case BlockKind::kMemoryImage:
      return Image(block);
    default:
      return Map(block);
  }
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  cairn::Run(data[0], data[1], std::string(reinterpret_cast<const char*>(data) + 2, size - 2));
  return 0;
}
