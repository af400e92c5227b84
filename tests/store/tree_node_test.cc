// Tree nodes: what is encoded is decoded, the bytes are those of the format document, and no
// changed byte passes as a node.
#include "store/tree_node.h"

#include <gtest/gtest.h>

#include "store/base/bytes.h"
#include "store/base/hex.h"
#include "store/base/random.h"
#include "store/node_cache.h"
#include "store/reference_table.h"

namespace cairn {
namespace {

BlockRef Ref(uint8_t n, BlockKind kind = BlockKind::kData) {
  BlockRef ref;
  ref.kind = kind;
  ref.raw_length_bytes = 100;
  ref.address.bytes.fill(n);
  return ref;
}

std::string Body(std::string_view hex) { return *HexDecode(hex); }

std::string Leaf(std::string_view body_hex, const std::vector<BlockRef>& refs = {}) {
  return EncodeBranch(BlockKind::kTreeNode, refs, Body(body_hex));
}

ErrorCode DecodeError(std::string_view plain) {
  const auto node = TreeNode::Decode(plain);
  EXPECT_FALSE(node.has_value());
  return node ? ErrorCode::kInternal : node.error().code();
}

TEST(TreeNode, EncodesTheDocumentsExample) {
  const NodeItem items[] = {{.key = "ab", .payload = "x", .refs = {}, .counters = {}},
                            {.key = "ac", .payload = "", .refs = {}, .counters = {}}};
  const std::string plain = EncodeTreeNode(0, 7, items);
  EXPECT_EQ(HexEncode(DecodeBranch(BlockKind::kTreeNode, plain)->body),
            "00000000020000000700000000000000"
            "0000020001000000616278"
            "010001000000000063");
}

TEST(TreeNode, LeafComesBack) {
  const std::vector<BlockRef> refs = {Ref(1), Ref(2), Ref(3)};
  const std::span<const BlockRef> all = refs;
  const NodeItem items[] = {
      {.key = "a", .payload = "one", .refs = all.subspan(0, 2), .counters = {}},
      {.key = "ab", .payload = "", .refs = {}, .counters = {}},
      {.key = "b", .payload = std::string_view("\0x", 2), .refs = all.subspan(2), .counters = {}}};
  const auto node = *TreeNode::Decode(EncodeTreeNode(0, 9, items));
  EXPECT_EQ(node->level(), 0u);
  EXPECT_EQ(node->epoch(), 9u);
  ASSERT_EQ(node->items().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(node->items()[i].key, items[i].key);
    EXPECT_EQ(node->items()[i].ToEntry(), items[i].ToEntry());
  }
}

TEST(TreeNode, InteriorComesBack) {
  const BlockRef a = Ref(1, BlockKind::kTreeNode);
  const BlockRef b = Ref(2, BlockKind::kTreeNode);
  const NodeItem items[] = {
      {.key = "k1", .payload = {}, .refs = {&a, 1}, .counters = {1, 2}, .newest_epoch = 3},
      {.key = "k2", .payload = {}, .refs = {&b, 1}, .counters = {4, 5}, .newest_epoch = 6}};
  const auto node = *TreeNode::Decode(EncodeTreeNode(2, 6, items));
  EXPECT_EQ(node->level(), 2u);
  ASSERT_EQ(node->items().size(), 2u);
  EXPECT_EQ(node->items()[1].counters, (TreeCounters{4, 5}));
  EXPECT_EQ(node->items()[0].newest_epoch, 3u);
  EXPECT_EQ(node->items()[1].refs[0], b);
}

TEST(TreeNode, SearchesByKey) {
  const NodeItem items[] = {{.key = "b", .payload = {}, .refs = {}, .counters = {}},
                            {.key = "d", .payload = {}, .refs = {}, .counters = {}}};
  const auto node = *TreeNode::Decode(EncodeTreeNode(0, 0, items));
  EXPECT_EQ(node->LowerBound("a"), 0u);
  EXPECT_EQ(node->LowerBound("b"), 0u);
  EXPECT_EQ(node->LowerBound("c"), 1u);
  EXPECT_EQ(node->LowerBound("e"), 2u);
  EXPECT_EQ(node->LastAtMost("a"), 2u);
  EXPECT_EQ(node->LastAtMost("b"), 0u);
  EXPECT_EQ(node->LastAtMost("c"), 0u);
  EXPECT_EQ(node->LastAtMost("z"), 1u);
}

// One broken rule each; the good form of each body is the document's example.
TEST(TreeNode, EachBrokenRuleIsDataLoss) {
  const std::string head2 = "00000000020000000700000000000000";
  const std::string ab = "0000020001000000616278";
  const std::string ac = "010001000000000063";
  ASSERT_TRUE(TreeNode::Decode(Leaf(head2 + ab + ac)));
  const struct {
    const char* rule;
    std::string plain;
  } cases[] = {
      {"empty", ""},
      {"head cut", Leaf("000000000200")},
      {"level over the limit", Leaf("10000000020000000700000000000000" + ab + ac)},
      {"flags", Leaf("00010000020000000700000000000000" + ab + ac)},
      {"reserved", Leaf("00000100020000000700000000000000" + ab + ac)},
      {"no items", Leaf("00000000000000000700000000000000")},
      {"huge count", Leaf("00000000ffffffff0700000000000000" + ab + ac)},
      {"count too small", Leaf("00000000010000000700000000000000" + ab + ac)},
      {"count too large", Leaf("00000000030000000700000000000000" + ab + ac)},
      {"item reserved", Leaf(head2 + "0000020001000001616278" + ac)},
      {"shared in the first item", Leaf(head2 + "0100020001000000616278" + ac)},
      {"shared longer than the previous key", Leaf(head2 + ab + "030001000000000063")},
      {"empty key", Leaf(head2 + "0000000001000000" + "78" + ac)},
      {"equal keys", Leaf(head2 + ab + "010001000000000062")},
      {"descending keys", Leaf(head2 + ab + "010001000000000061")},
      {"prefix after its extension", Leaf(head2 + ab + "010000000000000000")},
      {"reference missing", Leaf(head2 + "0000020001000100616278" + ac)},
      {"reference too many", Leaf(head2 + ab + ac, {Ref(1)})},
      {"17 references",
       Leaf(head2 + "0000020001001100616278" + ac, std::vector<BlockRef>(17, Ref(1)))},
      {"suffix past the end", Leaf(head2 + ab + "0100ff000000000063")},
      {"other kind of block", EncodeBranch(BlockKind::kFsRoot, {}, Body(head2 + ab + ac))},
      {"child that is data", Leaf("01000000010000000700000000000000" +
                                      std::string("0000010000000000") + std::string(48, '0') + "61",
                                  {Ref(1)})},
  };
  for (const auto& c : cases) EXPECT_EQ(DecodeError(c.plain), ErrorCode::kDataLoss) << c.rule;
}

TEST(TreeNode, KeysPastTheDecompressionLimitAreDataLoss) {
  // Keys of 1024 bytes that share 1022 with their predecessor: 10 bytes each in the node.
  std::string body;
  ByteWriter w(body);
  const uint32_t count = 9000;
  w.U32(0);
  w.U32(count);
  w.U64(1);
  for (uint32_t i = 0; i < count; ++i) {
    const uint16_t suffix = i == 0 ? 1024 : 2;
    w.U16(static_cast<uint16_t>(1024 - suffix));
    w.U16(suffix);
    w.U32(0);
    if (i == 0) w.Zeros(1022);
    w.U8(static_cast<uint8_t>(i >> 8));
    w.U8(static_cast<uint8_t>(i));
  }
  EXPECT_EQ(DecodeError(EncodeBranch(BlockKind::kTreeNode, {}, body)), ErrorCode::kDataLoss);
}

TEST(TreeNode, NoFlippedOrCutByteCrashesTheDecoder) {
  const uint64_t seed = 20240601;
  SCOPED_TRACE(seed);
  SeededRandom random(seed);
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) keys.push_back("key" + std::to_string(1000 + i));
  const std::vector<BlockRef> refs = {Ref(1), Ref(2)};
  std::vector<NodeItem> items;
  for (const std::string& key : keys) {
    items.push_back({.key = key, .payload = "payload", .refs = refs, .counters = {}});
  }
  const std::string plain = EncodeTreeNode(0, 1, items);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = plain;
    if (random.OneIn(4)) bad.resize(random.Below(bad.size()));
    const uint64_t flips = 1 + random.Below(3);
    for (uint64_t f = 0; f < flips && !bad.empty(); ++f) {
      bad[random.Below(bad.size())] ^= static_cast<char>(1u << random.Below(8));
    }
    const auto node = TreeNode::Decode(bad);
    if (!node) {
      EXPECT_EQ(node.error().code(), ErrorCode::kDataLoss);
      continue;
    }
    std::string_view previous;  // what decodes keeps the invariants
    for (const NodeItem& item : (*node)->items()) {
      EXPECT_LT(previous, item.key);
      previous = item.key;
    }
  }
}

// ---- NodeCache ----

std::shared_ptr<const TreeNode> NodeOf(const std::string& key) {
  const std::string payload(4000, 'p');
  const NodeItem items[] = {{.key = key, .payload = payload, .refs = {}, .counters = {}}};
  return *TreeNode::Decode(EncodeTreeNode(0, 0, items));
}

Address AddressOf(uint8_t n) {
  Address address;
  address.bytes[0] = n;  // the last byte picks the shard: all in one
  return address;
}

TEST(NodeCache, EvictsTheLeastRecentlyUsedAndStaysInItsBound) {
  const Id128 realm;
  const size_t one = NodeOf("k")->memory_bytes() + 200;
  NodeCache cache(16 * 3 * one);  // three nodes per shard
  for (uint8_t i = 0; i < 3; ++i) cache.Insert(realm, AddressOf(i), NodeOf("k"));
  EXPECT_NE(cache.Find(realm, AddressOf(0)), nullptr);  // now 1 is the oldest
  cache.Insert(realm, AddressOf(3), NodeOf("k"));
  EXPECT_EQ(cache.Find(realm, AddressOf(1)), nullptr);
  EXPECT_NE(cache.Find(realm, AddressOf(0)), nullptr);
  EXPECT_NE(cache.Find(realm, AddressOf(3)), nullptr);
  for (uint8_t i = 4; i < 100; ++i) cache.Insert(realm, AddressOf(i), NodeOf("k"));
  const NodeCache::Stats stats = cache.GetStats();
  EXPECT_EQ(stats.node_count, 3u);
  EXPECT_LE(stats.size_bytes, 3 * one);
  EXPECT_EQ(stats.misses, 1u);
}

TEST(NodeCache, NodeLargerThanItsShareIsNotKept) {
  NodeCache cache(16 * 1000);
  cache.Insert(Id128{}, AddressOf(1), NodeOf("k"));
  EXPECT_EQ(cache.Find(Id128{}, AddressOf(1)), nullptr);
  EXPECT_EQ(cache.GetStats().size_bytes, 0u);
}

TEST(NodeCache, RealmsAreApartAndErasable) {
  NodeCache cache;
  Id128 other;
  other.bytes[3] = 1;
  cache.Insert(Id128{}, AddressOf(1), NodeOf("mine"));
  EXPECT_EQ(cache.Find(other, AddressOf(1)), nullptr);
  cache.Insert(other, AddressOf(1), NodeOf("theirs"));
  cache.EraseRealm(Id128{});
  EXPECT_EQ(cache.Find(Id128{}, AddressOf(1)), nullptr);
  ASSERT_NE(cache.Find(other, AddressOf(1)), nullptr);
  EXPECT_EQ(cache.Find(other, AddressOf(1))->items()[0].key, "theirs");
  EXPECT_EQ(cache.GetStats().node_count, 1u);
}

}  // namespace
}  // namespace cairn
