// The root record of a sealed filesystem (docs/formats/tree.md, root record): a branch block whose
// only reference is the tree's top node, so that a collector that walks references keeps the tree,
// and not the history, alive.
#include "volume/fs_root.h"

#include <utility>

#include "store/base/bytes.h"
#include "store/reference_table.h"

namespace cairn {
namespace {

constexpr uint32_t kHasOrphans = 1;
constexpr uint32_t kHasParent = 2;
constexpr size_t kBodyBytes = 112;

std::unexpected<Error> Bad(const char* what) {
  return Err(ErrorCode::kDataLoss, std::string("filesystem root: ") + what);
}

}  // namespace

std::string FsRoot::Encode() const {
  std::string body;
  ByteWriter w(body);
  w.Bytes(volume.view());
  w.U64(generation);
  w.U64(hash_seed);
  w.U64(next_ino);
  w.U64(tree.counters.inodes);
  w.U64(tree.counters.logical_bytes);
  w.I64(sealed_at.seconds);
  w.U32(sealed_at.nanoseconds);
  w.U32((has_orphans ? kHasOrphans : 0) | (parent ? kHasParent : 0));
  if (parent) {
    parent->AppendTo(body);
  } else {
    w.Zeros(BlockRef::kEncodedBytes);
  }
  std::vector<BlockRef> refs;
  if (tree.node) refs.push_back(*tree.node);
  return EncodeBranch(BlockKind::kFsRoot, refs, body);
}

Result<FsRoot> FsRoot::Decode(std::string_view plain) {
  const BranchBlock block = CAIRN_TRY(DecodeBranch(BlockKind::kFsRoot, plain));
  if (block.body.size() != kBodyBytes) return Bad("wrong length");
  if (block.refs.size() > 1) return Bad("more than one reference");
  FsRoot root;
  ByteReader r(block.body);
  root.volume = Id128::FromView(r.Bytes(16));
  root.generation = r.U64();
  root.hash_seed = r.U64();
  root.next_ino = r.U64();
  root.tree.counters.inodes = r.U64();
  root.tree.counters.logical_bytes = r.U64();
  root.sealed_at.seconds = r.I64();
  root.sealed_at.nanoseconds = r.U32();
  const uint32_t flags = r.U32();
  const std::string_view parent = r.Bytes(BlockRef::kEncodedBytes);
  if ((flags & ~(kHasOrphans | kHasParent)) != 0) return Bad("reserved bits set");
  if (root.sealed_at.nanoseconds >= 1'000'000'000) return Bad("time out of range");
  root.has_orphans = (flags & kHasOrphans) != 0;
  if ((flags & kHasParent) != 0) {
    root.parent = CAIRN_TRY(BlockRef::Decode(parent));
    if (root.parent->kind != BlockKind::kFsRoot) return Bad("parent is not a root");
  } else if (parent.find_first_not_of('\0') != std::string_view::npos) {
    return Bad("parent without its flag");
  }
  if (!block.refs.empty()) {
    root.tree.node = block.refs[0];
    if (root.tree.node->kind != BlockKind::kTreeNode) return Bad("top is not a tree node");
  } else if (root.tree.counters != TreeCounters{}) {
    return Bad("totals without a tree");
  }
  return root;
}

TreeCounters CountEntry(std::string_view key, const Entry& entry) {
  const auto parsed = ParseKey(key);
  if (!parsed || parsed->kind != KeyKind::kAttributes) return {};
  const auto inode = Inode::Decode(entry.payload);
  return {1, inode ? inode->size_bytes : 0};
}

Result<FsRoot> LoadFsRoot(BlockStore& store, const Id128& realm, const BlockRef& ref) {
  if (ref.kind != BlockKind::kFsRoot) return Bad("reference is to another kind of block");
  const Block block = CAIRN_TRY(store.Get(realm, ref));
  return FsRoot::Decode(*block);
}

}  // namespace cairn
