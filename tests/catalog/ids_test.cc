// Ids, API secrets and the key layout.
#include "catalog/ids.h"

#include <gtest/gtest.h>

#include <set>

#include "catalog/keys.h"

namespace cairn {
namespace {

TEST(Ids, HaveTheirPrefixAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewId(kEnvironmentPrefix);
    EXPECT_TRUE(IsId(id, kEnvironmentPrefix)) << id;
    EXPECT_TRUE(seen.insert(id).second);
  }
}

TEST(Ids, WhatIsNoIdIsRefused) {
  const std::string good = "env_0123456789abcdef0123456789abcdef";
  ASSERT_TRUE(IsId(good, kEnvironmentPrefix));
  for (const std::string& bad :
       {std::string(), std::string("env_"), good.substr(0, 35), good + "0", "sess" + good.substr(3),
        std::string("env_0123456789ABCDEF0123456789abcdef"),
        std::string("env_0123456789abcde/0123456789abcdef"),
        std::string("env_0123456789abcde\0"
                    "0123456789abcdef",
                    36)}) {
    EXPECT_FALSE(IsId(bad, kEnvironmentPrefix)) << bad;
  }
}

TEST(ApiSecret, Has256RandomBitsInBase64Url) {
  std::set<char> alphabet;
  for (int i = 0; i < 200; ++i) {
    const std::string secret = NewApiSecret();
    ASSERT_EQ(secret.size(), 9u + 43u);
    EXPECT_TRUE(LooksLikeApiSecret(secret)) << secret;
    alphabet.insert(secret.begin() + 9, secret.end());
  }
  EXPECT_EQ(alphabet.size(), 64u);  // 8600 draws miss one of 64 with probability below 1e-56
}

TEST(ApiSecret, OtherTextIsRefused) {
  const std::string secret = NewApiSecret();
  EXPECT_FALSE(LooksLikeApiSecret(""));
  EXPECT_FALSE(LooksLikeApiSecret(secret.substr(1)));
  EXPECT_FALSE(LooksLikeApiSecret(secret + "A"));
  EXPECT_FALSE(LooksLikeApiSecret(secret.substr(0, 51) + "+"));
}

TEST(Keys, NumbersSortAsText) {
  EXPECT_LT(keys::Number(9), keys::Number(10));
  EXPECT_LT(keys::Number(255), keys::Number(1ull << 60));
  EXPECT_EQ(keys::Number(0x1234).size(), 16u);
}

TEST(Keys, ARangeHoldsExactlyWhatIsBelowItsPrefix) {
  const keys::Range range = keys::Below("env", "org_1");
  const auto inside = [&](std::string_view key) { return range.begin <= key && key < range.end; };
  EXPECT_TRUE(inside("env/org_1/env_1"));
  EXPECT_FALSE(inside("env/org_1"));
  EXPECT_FALSE(inside("env/org_10/env_1"));
  EXPECT_FALSE(inside("env/org_2/env_1"));
}

TEST(Keys, NameTheirOwner) {
  EXPECT_EQ(keys::OwnerOf("env/org_1/env_2"), "org_1");
  EXPECT_EQ(keys::OwnerOf("org/org_1"), "org_1");
  EXPECT_EQ(keys::OwnerOf("volume/00ff"), "");
  EXPECT_EQ(keys::OwnerOf("x"), "");
  EXPECT_EQ(keys::LastPart("env/org_1/env_2"), "env_2");
}

}  // namespace
}  // namespace cairn
