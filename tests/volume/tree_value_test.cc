// The values that volume/ keeps in a tree and its root record: they come back, and each broken rule
// is DataLoss.
#include <gtest/gtest.h>

#include "store/reference_table.h"
#include "volume/extent_value.h"
#include "volume/fs_root.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

BlockRef Ref(BlockKind kind, uint32_t raw_length_bytes) {
  BlockRef ref;
  ref.kind = kind;
  ref.raw_length_bytes = raw_length_bytes;
  ref.address.bytes.fill(7);
  return ref;
}

FsRoot SampleRoot() {
  FsRoot root;
  root.volume.bytes.fill(3);
  root.parent = Ref(BlockKind::kFsRoot, 200);
  root.generation = 11;
  root.hash_seed = 12;
  root.tree = {Ref(BlockKind::kTreeNode, 300), {5, 6}};
  root.next_ino = 13;
  root.has_orphans = true;
  root.sealed_at = {-5, 999'999'999};
  return root;
}

TEST(FsRoot, ComesBack) {
  const FsRoot root = SampleRoot();
  const FsRoot back = *FsRoot::Decode(root.Encode());
  EXPECT_EQ(back.volume, root.volume);
  EXPECT_EQ(back.parent, root.parent);
  EXPECT_EQ(back.generation, root.generation);
  EXPECT_EQ(back.hash_seed, root.hash_seed);
  EXPECT_EQ(back.tree.node, root.tree.node);
  EXPECT_EQ(back.tree.counters, root.tree.counters);
  EXPECT_EQ(back.next_ino, root.next_ino);
  EXPECT_EQ(back.has_orphans, root.has_orphans);
  EXPECT_EQ(back.sealed_at, root.sealed_at);
  const FsRoot empty = *FsRoot::Decode(FsRoot().Encode());
  EXPECT_FALSE(empty.tree.node);
  EXPECT_FALSE(empty.parent);
}

TEST(FsRoot, OnlyTheTreeIsKeptAlive) {
  const BranchBlock block = *DecodeBranch(BlockKind::kFsRoot, SampleRoot().Encode());
  ASSERT_EQ(block.refs.size(), 1u);
  EXPECT_EQ(block.refs[0], *SampleRoot().tree.node);
}

TEST(FsRoot, EachBrokenRuleIsDataLoss) {
  const BranchBlock good = *DecodeBranch(BlockKind::kFsRoot, SampleRoot().Encode());
  const auto code = [](const std::vector<BlockRef>& refs, const std::string& body) {
    const auto root = FsRoot::Decode(EncodeBranch(BlockKind::kFsRoot, refs, body));
    return root ? ErrorCode::kInternal : root.error().code();
  };
  const auto with = [&](size_t at, char byte) {
    std::string body = good.body;
    body[at] = byte;
    return body;
  };
  EXPECT_EQ(code(good.refs, good.body), ErrorCode::kInternal);  // the unbroken one decodes
  EXPECT_EQ(code(good.refs, good.body.substr(1)), ErrorCode::kDataLoss);
  EXPECT_EQ(code(good.refs, good.body + "x"), ErrorCode::kDataLoss);
  EXPECT_EQ(code({good.refs[0], good.refs[0]}, good.body), ErrorCode::kDataLoss);
  EXPECT_EQ(code({}, good.body), ErrorCode::kDataLoss);  // totals without a tree
  EXPECT_EQ(code({Ref(BlockKind::kData, 1)}, good.body), ErrorCode::kDataLoss);
  EXPECT_EQ(code(good.refs, with(67, '\x7f')), ErrorCode::kDataLoss);  // nanoseconds
  EXPECT_EQ(code(good.refs, with(68, '\x07')), ErrorCode::kDataLoss);  // unknown flag
  EXPECT_EQ(code(good.refs, with(68, '\x01')), ErrorCode::kDataLoss);  // parent without its flag
  EXPECT_EQ(code(good.refs, with(73, '\x01')), ErrorCode::kDataLoss);  // parent of another kind
  EXPECT_EQ(FsRoot::Decode("").error().code(), ErrorCode::kDataLoss);
}

TEST(CountEntry, CountsAttributesOnly) {
  Inode inode;
  inode.size_bytes = 42;
  EXPECT_EQ(CountEntry(AttributesKey(3), {inode.Encode(), {}}), (TreeCounters{1, 42}));
  EXPECT_EQ(CountEntry(InlineKey(3), {inode.Encode(), {}}), TreeCounters{});
  EXPECT_EQ(CountEntry("x", {}), TreeCounters{});
}

TEST(ExtentValue, ComesBackAndKeepsItsBounds) {
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.offset = 3 * kGridBytes + 100;
  piece.length_bytes = 200;
  piece.source_offset = 50;
  piece.block = Ref(BlockKind::kData, 250);
  const Entry entry = EncodeExtent(piece);
  const Segment back = *DecodeExtent(piece.offset, entry);
  EXPECT_EQ(back.offset, piece.offset);
  EXPECT_EQ(back.length_bytes, 200u);
  EXPECT_EQ(back.source_offset, 50u);
  EXPECT_EQ(back.block, piece.block);

  const auto code = [](uint64_t offset, const Entry& e) {
    const auto decoded = DecodeExtent(offset, e);
    return decoded ? ErrorCode::kInternal : decoded.error().code();
  };
  Entry bad = entry;
  bad.payload.pop_back();
  EXPECT_EQ(code(0, bad), ErrorCode::kDataLoss);
  bad = entry;
  bad.refs.clear();
  EXPECT_EQ(code(0, bad), ErrorCode::kDataLoss);
  bad.refs = {Ref(BlockKind::kMemory, 250)};
  EXPECT_EQ(code(0, bad), ErrorCode::kDataLoss);
  bad.refs = {Ref(BlockKind::kData, 249)};  // ends past its block
  EXPECT_EQ(code(0, bad), ErrorCode::kDataLoss);
  EXPECT_EQ(code(kGridBytes - 199, entry), ErrorCode::kDataLoss);  // crosses the grid
  EXPECT_EQ(code(kGridBytes - 200, entry), ErrorCode::kInternal);  // just fits
  bad = entry;
  bad.payload.replace(0, 4, std::string(4, '\0'));  // no length
  EXPECT_EQ(code(0, bad), ErrorCode::kDataLoss);
}

TEST(XattrValue, BothFormsComeBack) {
  const Entry inlined = EncodeXattrInline(std::string_view("\0v", 2));
  EXPECT_EQ(DecodeXattrValue(inlined)->inline_value, std::string_view("\0v", 2));
  EXPECT_EQ(DecodeXattrValue(EncodeXattrInline(""))->size_bytes(), 0u);
  const Entry block = EncodeXattrBlock(Ref(BlockKind::kData, 5000));
  EXPECT_EQ(DecodeXattrValue(block)->size_bytes(), 5000u);
  EXPECT_EQ(*DecodeXattrValue(block)->block, Ref(BlockKind::kData, 5000));
}

TEST(XattrValue, OtherFormsAreDataLoss) {
  const auto code = [](const Entry& e) {
    const auto decoded = DecodeXattrValue(e);
    return decoded ? ErrorCode::kInternal : decoded.error().code();
  };
  const BlockRef data = Ref(BlockKind::kData, 10);
  EXPECT_EQ(code({"", {}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({"\x02", {}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({std::string(1, '\0') + "v", {data}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({std::string(kMaxXattrBytes + 2, '\0'), {}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({"\x01", {}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({"\x01", {data, data}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({"\x01v", {data}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({"\x01", {Ref(BlockKind::kTreeNode, 10)}}), ErrorCode::kDataLoss);
  EXPECT_EQ(code({"\x01", {Ref(BlockKind::kData, kMaxXattrBytes + 1)}}), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace cairn
