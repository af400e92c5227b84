#include "api/page.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using Strings = std::vector<std::string>;

Result<Page<std::string>> Take(const PageQuery& query) {
  return TakePage(Strings{"a", "b", "c", "d", "e"}, query, [](const std::string& s) { return s; });
}

TEST(TakePage, WalksEveryObjectOnceInBothOrders) {
  for (const bool ascending : {false, true}) {
    Strings seen;
    PageQuery query{.limit = 2, .after = {}, .ascending = ascending};
    for (int i = 0; i < 10; ++i) {
      const auto page = Take(query);
      ASSERT_TRUE(page);
      seen.insert(seen.end(), page->data.begin(), page->data.end());
      if (!page->has_more) break;
      query.after = page->data.back();
    }
    EXPECT_EQ(seen,
              ascending ? (Strings{"a", "b", "c", "d", "e"}) : (Strings{"e", "d", "c", "b", "a"}));
  }
}

TEST(TakePage, ExactlyFullPageHasNoMore) {
  const auto page = Take({.limit = 5, .after = {}, .ascending = true});
  ASSERT_TRUE(page);
  EXPECT_FALSE(page->has_more);
}

TEST(TakePage, AfterTheLastIsEmptyAndAnUnknownOneIsAnError) {
  const auto last = Take({.limit = 2, .after = "e", .ascending = true});
  ASSERT_TRUE(last);
  EXPECT_TRUE(last->data.empty());
  EXPECT_FALSE(last->has_more);
  EXPECT_FALSE(Take({.limit = 2, .after = "zz", .ascending = true}));
}

TEST(ParsePageQuery, DefaultsAndLimits) {
  std::string param;
  const auto defaults = ParsePageQuery({}, {}, &param);
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->limit, 20u);
  EXPECT_FALSE(defaults->ascending);
  EXPECT_EQ(ParsePageQuery({{"limit", "100"}, {"order", "asc"}, {"after", "x"}}, {}, &param)->limit,
            100u);
  for (const char* bad : {"0", "101", "-1", "", "1e1", "999999999999", " 1"}) {
    EXPECT_FALSE(ParsePageQuery({{"limit", bad}}, {}, &param)) << bad;
    EXPECT_EQ(param, "limit");
  }
  EXPECT_FALSE(ParsePageQuery({{"order", "up"}}, {}, &param));
  EXPECT_EQ(param, "order");
  EXPECT_FALSE(ParsePageQuery({{"limits", "1"}}, {}, &param));
  EXPECT_EQ(param, "limits");
  EXPECT_TRUE(ParsePageQuery({{"type", "1"}}, {"type"}, &param));
}

}  // namespace
}  // namespace cairn
