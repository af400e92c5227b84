// Branch blocks as merges, seals and captures make them, small.
#include <algorithm>

#include "snapshot/memory_image.h"
#include "store/reference_table.h"
#include "store/tree_node.h"
#include "tests/fuzz/seeds.h"
#include "volume/extent_value.h"
#include "volume/fs_root.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

BlockRef Ref(BlockKind kind, uint8_t seed, uint32_t bytes = 4096) {
  BlockRef ref{.realm = RealmTag::kOwn, .kind = kind, .raw_length_bytes = bytes, .address = {}};
  ref.address.bytes.fill(seed);
  return ref;
}

std::string Leaf() {
  Inode inode;
  inode.mode = 0100644;
  inode.nlink = 1;
  inode.size_bytes = 70000;
  inode.mtime = {.seconds = 1'700'000'000, .nanoseconds = 5};
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.length_bytes = 4096;
  piece.block = Ref(BlockKind::kData, 3);
  const std::vector<std::pair<std::string, Entry>> entries = {
      {OrphanKey(9), {}},
      {AttributesKey(1), {inode.Encode(), {}}},
      {DirentKey(1, 0x300), {Dirent{.child = 2, .type = 8, .name = "file"}.Encode(), {}}},
      {DirentKey(1, 0x301), {Dirent{.child = 3, .type = 4, .name = "directory"}.Encode(), {}}},
      {AttributesKey(2), {inode.Encode(), {}}},
      {XattrKey(2, "user.small"), EncodeXattrInline("value")},
      {XattrKey(2, "user.big"), EncodeXattrBlock(Ref(BlockKind::kData, 5, 60000))},
      {ExtentKey(2, 0), EncodeExtent(piece)},
      {InlineKey(3), {"inline data", {}}}};
  std::vector<NodeItem> items;
  std::vector<std::pair<std::string, Entry>> sorted = entries;
  std::ranges::sort(sorted, {}, &std::pair<std::string, Entry>::first);
  for (const auto& [key, entry] : sorted) {
    items.push_back({.key = key, .payload = entry.payload, .refs = entry.refs, .counters = {}});
  }
  return EncodeTreeNode(0, 7, items);
}

std::string Interior() {
  const BlockRef refs[] = {Ref(BlockKind::kTreeNode, 1), Ref(BlockKind::kTreeNode, 2),
                           Ref(BlockKind::kTreeNode, 3)};
  const std::string keys[] = {AttributesKey(1), AttributesKey(300), AttributesKey(301)};
  std::vector<NodeItem> items;
  for (int i = 0; i < 3; ++i) {
    items.push_back({.key = keys[i],
                     .payload = {},
                     .refs = {&refs[i], 1},
                     .counters = {.inodes = 10, .logical_bytes = 1000},
                     .newest_epoch = 7});
  }
  return EncodeTreeNode(1, 7, items);
}

FsRoot Root() {
  FsRoot root;
  root.volume.bytes.fill(0x22);
  root.parent = Ref(BlockKind::kFsRoot, 1, 200);
  root.generation = 4;
  root.hash_seed = 5;
  root.tree = {.node = Ref(BlockKind::kTreeNode, 2),
               .counters = {.inodes = 3, .logical_bytes = 70000}};
  root.next_ino = 10;
  root.has_orphans = true;
  root.sealed_at = {.seconds = 1'700'000'000, .nanoseconds = 1};
  return root;
}

MemoryImage Image() {
  MemoryImage image;
  image.memory_bytes = (uint64_t{3} << 26) + 5;
  image.vmstate_bytes = 70000;
  image.regions = {{.name = "ram", .guest_address = 0, .file_offset = 0, .length_bytes = 1 << 20},
                   {.name = "high",
                    .guest_address = uint64_t{1} << 32,
                    .file_offset = 1 << 20,
                    .length_bytes = 1 << 20}};
  image.restore_count = 2;
  image.parent = Ref(BlockKind::kMemoryImage, 1);
  image.nonzero_pages = 5;
  image.nonzero_chunks = 2;
  image.maps = {Ref(BlockKind::kMemoryMap, 2), std::nullopt, Ref(BlockKind::kMemoryMap, 3),
                std::nullopt};
  image.vmstate_blocks = {Ref(BlockKind::kMemory, 4), Ref(BlockKind::kMemory, 5)};
  image.working_set_trace = Ref(BlockKind::kMemory, 6);
  return image;
}

}  // namespace

std::vector<Seed> BlockSeeds() {
  std::vector<Seed> seeds;
  const auto add = [&](std::string name, uint8_t which, uint8_t repair, const std::string& block) {
    seeds.push_back({"node", std::move(name),
                     std::string{static_cast<char>(which), static_cast<char>(repair)} + block});
  };
  add("leaf", 0, 0, Leaf());
  add("leaf-repaired", 0, 15, Leaf());
  add("leaf-table", 0, 7, Leaf());
  add("interior", 0, 0, Interior());
  add("interior-repaired", 0, 15, Interior());
  FsRoot root = Root();
  add("root", 1, 7, root.Encode());
  FsRoot late = root;
  late.sealed_at.nanoseconds = 1'000'000'000;
  add("root-time", 1, 0, late.Encode());
  root.parent.reset();
  root.tree = {};
  add("root-empty", 1, 0, root.Encode());
  MemoryImage image = Image();
  add("image", 2, 7, image.Encode());
  MemoryImage past = image;
  past.regions[1].length_bytes = past.memory_bytes - past.regions[1].file_offset + 1;
  add("image-region-past-end", 2, 0, past.Encode());
  image.parent.reset();
  image.working_set_trace.reset();
  image.regions.clear();
  add("image-plain", 2, 0, image.Encode());
  MemoryMap map;
  map.pages = {0, 0xffff, 1, 0, 0x8001};
  map.chunks = {std::nullopt, Ref(BlockKind::kMemory, 1, 65536), Ref(BlockKind::kMemory, 2, 4096),
                std::nullopt, Ref(BlockKind::kMemory, 3, 5000)};
  add("map", 3, 7, map.Encode());
  add("map-plain", 3, 0, map.Encode());
  add("branch", 4, 7, Leaf());
  add("branch-of-a-leaf-kind", 6, 7, Leaf());
  return seeds;
}

}  // namespace cairn
