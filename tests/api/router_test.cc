#include "api/router.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

Router<int> Routes() {
  Router<int> router;
  router.Add("GET", "/v1/things", 1);
  router.Add("POST", "/v1/things", 2);
  router.Add("GET", "/v1/things/{id}", 3);
  router.Add("DELETE", "/v1/things/{id}", 4);
  router.Add("GET", "/v1/things/{id}/parts/{part}", 5);
  return router;
}

int Find(const std::string& method, const std::string& target) {
  const auto parsed = ParseTarget(target);
  if (!parsed) return -1;
  const auto router = Routes();
  const auto match = router.Find(method, parsed->segments);
  return match.route == nullptr ? 0 : *match.route;
}

TEST(Router, FindsByMethodAndPath) {
  EXPECT_EQ(Find("GET", "/v1/things"), 1);
  EXPECT_EQ(Find("POST", "/v1/things?x=1"), 2);
  EXPECT_EQ(Find("DELETE", "/v1/things/a"), 4);
  EXPECT_EQ(Find("GET", "/v1/things/a/parts/b"), 5);
  EXPECT_EQ(Find("GET", "/v1"), 0);
  EXPECT_EQ(Find("GET", "/?a=b"), 0);
  EXPECT_EQ(Find("GET", "/V1/things"), 0);
  EXPECT_EQ(Find("PUT", "/v1/things"), 0);
}

TEST(Router, HeadGoesToGet) { EXPECT_EQ(Find("HEAD", "/v1/things/a"), 3); }

TEST(Router, WrongMethodListsThoseThatThePathHas) {
  const auto router = Routes();
  const auto match = router.Find("PATCH", {"v1", "things", "a"});
  EXPECT_EQ(match.route, nullptr);
  EXPECT_EQ(match.allowed, (std::vector<std::string>{"GET", "HEAD", "DELETE"}));
  EXPECT_TRUE(router.Find("GET", {"v1", "nothing"}).allowed.empty());
}

TEST(Router, EncodedSlashesStayInsideTheirSegment) {
  const auto target = ParseTarget("/v1/things/%2e%2e%2f%2E%2E%2Fetc%2fpasswd");
  ASSERT_TRUE(target);
  ASSERT_EQ(target->segments.size(), 3u);
  const auto router = Routes();
  EXPECT_EQ(router.Find("GET", target->segments).parameters.at("id"), "../../etc/passwd");
}

TEST(ParseTarget, DotSegmentsAreNotResolved) {
  EXPECT_EQ(Find("GET", "/v1/things/../things"), 0);
  EXPECT_EQ(Find("GET", "/v1/things/.."), 3);  // an id that is no id
}

TEST(ParseTarget, RefusesWhatIsMalformed) {
  for (const char* target : {"", "*", "http://x/", "v1", "//", "/v1//things", "/v1/things/", "/a%",
                             "/a%2", "/a%zz", "/a%00", "/a?x=1&x=2", "/a?x=%"}) {
    EXPECT_FALSE(ParseTarget(target)) << target;
  }
}

TEST(ParseTarget, DecodesTheQuery) {
  const auto target = ParseTarget("/a?limit=5&after=art_%31&empty=&flag&sp=a+b%2Bc#frag");
  ASSERT_TRUE(target);
  const std::map<std::string, std::string> expected = {
      {"limit", "5"}, {"after", "art_1"}, {"empty", ""}, {"flag", ""}, {"sp", "a b+c"}};
  EXPECT_EQ(target->query, expected);
}

}  // namespace
}  // namespace cairn
