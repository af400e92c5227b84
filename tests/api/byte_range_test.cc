#include "api/byte_range.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr std::string_view kTag = "\"art_1\"";

struct RangeCase {
  const char* range;
  ByteRange::Kind kind;
  uint64_t offset, length;
};

TEST(ParseRange, Table) {
  using enum ByteRange::Kind;
  const RangeCase cases[] = {
      {"", kWhole, 0, 10},
      {"bytes=0-0", kPart, 0, 1},
      {"bytes=0-9", kPart, 0, 10},
      {"bytes=0-", kPart, 0, 10},
      {"bytes=3-5", kPart, 3, 3},
      {"bytes=3-99", kPart, 3, 7},
      {"bytes=-3", kPart, 7, 3},
      {"bytes=-99", kPart, 0, 10},
      {"Bytes=1-1", kPart, 1, 1},
      {"bytes=10-", kUnsatisfiable, 0, 0},
      {"bytes=99-100", kUnsatisfiable, 0, 0},
      {"bytes=-0", kUnsatisfiable, 0, 0},
      {"bytes=5-3", kWhole, 0, 10},
      {"bytes=0-1,3-4", kWhole, 0, 10},
      {"bytes=a-b", kWhole, 0, 10},
      {"bytes=-", kWhole, 0, 10},
      {"bytes=", kWhole, 0, 10},
      {"items=0-1", kWhole, 0, 10},
      {"bytes=0x1-2", kWhole, 0, 10},
      {"bytes=18446744073709551615-", kUnsatisfiable, 0, 0},
      {"bytes=99999999999999999999-", kUnsatisfiable, 0, 0},
      {"bytes=1-99999999999999999999", kPart, 1, 9},
      {"bytes=-99999999999999999999", kPart, 0, 10},
      {"bytes=1--1", kWhole, 0, 10},
      {"bytes=+1-2", kWhole, 0, 10},
  };
  for (const RangeCase& c : cases) {
    const ByteRange range = ParseRange(c.range, "", kTag, 10);
    EXPECT_EQ(range.kind, c.kind) << c.range;
    EXPECT_EQ(range.offset, c.offset) << c.range;
    EXPECT_EQ(range.length, c.length) << c.range;
  }
}

TEST(ParseRange, NothingOfAnEmptyFileCanBeRanged) {
  EXPECT_EQ(ParseRange("bytes=0-", "", kTag, 0).kind, ByteRange::Kind::kUnsatisfiable);
  EXPECT_EQ(ParseRange("bytes=-5", "", kTag, 0).kind, ByteRange::Kind::kUnsatisfiable);
}

TEST(ParseRange, IfRangeOfAnotherVersionGivesTheWhole) {
  EXPECT_EQ(ParseRange("bytes=0-0", kTag, kTag, 10).kind, ByteRange::Kind::kPart);
  EXPECT_EQ(ParseRange("bytes=0-0", "\"art_2\"", kTag, 10).kind, ByteRange::Kind::kWhole);
  EXPECT_EQ(ParseRange("bytes=0-0", "Wed, 21 Oct 2015 07:28:00 GMT", kTag, 10).kind,
            ByteRange::Kind::kWhole);
}

TEST(NoneMatchHolds, ComparesWeaklyAndInLists) {
  EXPECT_TRUE(NoneMatchHolds("\"art_1\"", kTag));
  EXPECT_TRUE(NoneMatchHolds("\"x\", W/\"art_1\"", kTag));
  EXPECT_TRUE(NoneMatchHolds("*", kTag));
  EXPECT_FALSE(NoneMatchHolds("", kTag));
  EXPECT_FALSE(NoneMatchHolds("\"art_2\",,", kTag));
  EXPECT_FALSE(NoneMatchHolds("art_1", kTag));
}

TEST(AttachmentDisposition, NamesCannotEndTheHeaderOrLeaveTheDirectory) {
  EXPECT_EQ(AttachmentDisposition("a/b/report 1.txt"),
            "attachment; filename=\"report 1.txt\"; filename*=UTF-8''report%201.txt");
  EXPECT_EQ(AttachmentDisposition("x\"; a=\r\nSet-Cookie: b"),
            "attachment; filename=\"x__ a___Set-Cookie_ b\"; "
            "filename*=UTF-8''x%22%3B%20a%3D%0D%0ASet-Cookie%3A%20b");
  EXPECT_EQ(AttachmentDisposition("d/.."),
            "attachment; filename=\"download\"; filename*=UTF-8''download");
  EXPECT_EQ(AttachmentDisposition("\xff"),
            "attachment; filename=\"___\"; filename*=UTF-8''%EF%BF%BD");
}

}  // namespace
}  // namespace cairn
