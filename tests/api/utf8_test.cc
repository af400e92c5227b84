#include "api/utf8.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ToUtf8, KeepsWhatIsWellFormed) {
  for (const std::string text : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                 "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"}) {
    EXPECT_EQ(ToUtf8(text), text);
  }
}

TEST(ToUtf8, ReplacesEachByteThatIsNot) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(ToUtf8("a\xff"), "a" + r);
  EXPECT_EQ(ToUtf8("\xc0\x80"), r + r);                  // overlong
  EXPECT_EQ(ToUtf8("\xed\xa0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(ToUtf8("\xf4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(ToUtf8("\xe2\x82"), r + r);                  // cut short
  EXPECT_EQ(ToUtf8("\xe2\x82z"), r + r + "z");
}

}  // namespace
}  // namespace cairn
