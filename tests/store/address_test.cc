// References and reference tables: round trips, and every malformed byte string refused.
#include "store/address.h"

#include <gtest/gtest.h>

#include "store/reference_table.h"

namespace cairn {
namespace {

BlockRef SampleRef() {
  BlockRef ref{.realm = RealmTag::kBase,
               .kind = BlockKind::kTreeNode,
               .raw_length_bytes = 4096,
               .address = {}};
  for (size_t i = 0; i < 32; ++i) ref.address.bytes[i] = static_cast<uint8_t>(i);
  return ref;
}

TEST(BlockRef, RoundTrips) {
  const std::string encoded = SampleRef().Encode();
  ASSERT_EQ(encoded.size(), BlockRef::kEncodedBytes);
  const auto decoded = BlockRef::Decode(encoded);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(*decoded, SampleRef());
}

TEST(BlockRef, MalformedBytesAreDataLoss) {
  const std::string good = SampleRef().Encode();
  struct Case {
    const char* what;
    size_t offset;
    uint8_t value;
  };
  const Case cases[] = {{"realm tag", 0, 2}, {"kind zero", 1, 0},       {"kind unknown", 1, 7},
                        {"reserved", 2, 1},  {"reserved high", 3, 128}, {"length too big", 7, 1}};
  for (const Case& c : cases) {
    std::string bad = good;
    bad[c.offset] = static_cast<char>(c.value);
    const auto decoded = BlockRef::Decode(bad);
    ASSERT_FALSE(decoded.has_value()) << c.what;
    EXPECT_EQ(decoded.error().code(), ErrorCode::kDataLoss) << c.what;
  }
  std::string zero_length = good;
  zero_length[4] = zero_length[5] = zero_length[6] = zero_length[7] = '\0';
  EXPECT_FALSE(BlockRef::Decode(zero_length).has_value());
  EXPECT_FALSE(BlockRef::Decode(good.substr(0, 39)).has_value());
  EXPECT_FALSE(BlockRef::Decode(good + "x").has_value());
}

TEST(Address, HexRoundTripsAndWrongLengthIsRefused) {
  const Address address = SampleRef().address;
  EXPECT_EQ(*Address::FromHex(address.ToHex()), address);
  EXPECT_EQ(Address::FromHex("00ff").error().code(), ErrorCode::kInvalidArgument);
}

TEST(ReferenceTable, RoundTrips) {
  const std::string plain =
      EncodeBranch(BlockKind::kTreeNode, {SampleRef(), SampleRef()}, "the body");
  const auto block = DecodeBranch(BlockKind::kTreeNode, plain);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->refs.size(), 2u);
  EXPECT_EQ(block->refs[1], SampleRef());
  EXPECT_EQ(block->body, "the body");
}

TEST(ReferenceTable, EmptyNodeIsTheDocumentedExample) {
  const std::string plain = EncodeBranch(BlockKind::kTreeNode, {}, "");
  EXPECT_EQ(plain, std::string("CNBR\x01\0\x02\0\0\0\0\0\0\0\0\0", 16));
}

TEST(ReferenceTable, EveryFlippedHeaderBitIsDataLoss) {
  const std::string good = EncodeBranch(BlockKind::kFsRoot, {SampleRef()}, "body");
  for (size_t bit = 0; bit < 16 * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const auto block = DecodeBranch(BlockKind::kFsRoot, bad);
    ASSERT_FALSE(block.has_value()) << "bit " << bit;
    EXPECT_EQ(block.error().code(), ErrorCode::kDataLoss);
  }
  EXPECT_FALSE(DecodeBranch(BlockKind::kTreeNode, good).has_value());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(DecodeBranch(BlockKind::kFsRoot, good.substr(0, length)).has_value());
  }
}

TEST(ReferenceTable, HugeCountAllocatesNothing) {
  std::string bad = EncodeBranch(BlockKind::kTreeNode, {}, "");
  bad[8] = bad[9] = bad[10] = bad[11] = static_cast<char>(0xff);
  EXPECT_FALSE(DecodeBranch(BlockKind::kTreeNode, bad).has_value());
}

}  // namespace
}  // namespace cairn
