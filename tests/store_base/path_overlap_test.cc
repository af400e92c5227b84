// Which paths count as one in the other.
#include "store/base/path_overlap.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class PathOverlap : public testing::Test {
 protected:
  PathOverlap() {
    for (const char* dir : {"a/b/c", "a/bc", "other"}) {
      std::filesystem::create_directories(temp_ / dir);
    }
  }
  bool Overlap(const std::string& a, const std::string& b) {
    const auto forth = PathsOverlap(temp_ / a, temp_ / b);
    const auto back = PathsOverlap(temp_ / b, temp_ / a);
    if (!forth || !back) {
      ADD_FAILURE() << "an error for " << a << " and " << b;
      return false;
    }
    EXPECT_EQ(*forth, *back) << a << " and " << b;
    return *forth;
  }
  TempDir temp_;
};

TEST_F(PathOverlap, APathAndItsParentsByWholeNames) {
  EXPECT_TRUE(Overlap("a/b", "a/b"));
  EXPECT_TRUE(Overlap("a/b/c", "a"));
  EXPECT_TRUE(Overlap("a/b/", "a/./b/c/../c"));
  EXPECT_FALSE(Overlap("a/b", "a/bc"));
  EXPECT_FALSE(Overlap("a/b", "other"));
}

TEST_F(PathOverlap, WhatDoesNotExistLiesInItsNearestAncestor) {
  EXPECT_TRUE(Overlap("a/b", "a/b/none/of/it"));
  EXPECT_FALSE(Overlap("a/b", "a/none/of/it"));
  EXPECT_FALSE(Overlap("a/none", "a/other_none"));
}

TEST_F(PathOverlap, LinksAreFollowed) {
  std::filesystem::create_symlink(temp_ / "a/b", temp_ / "other/link");
  EXPECT_TRUE(Overlap("other/link/new", "a/b"));
  EXPECT_TRUE(Overlap("other/link", "a/b/c"));
  EXPECT_FALSE(Overlap("other/link", "a/bc"));
}

TEST_F(PathOverlap, ALoopOfLinksIsAnError) {
  std::filesystem::create_symlink(temp_ / "other/loop", temp_ / "other/loop");
  EXPECT_FALSE(PathsOverlap(temp_ / "other/loop/x", temp_ / "a"));
}

TEST_F(PathOverlap, ABindMountOfEitherIsKnown) {
  const std::string target = temp_ / "other";
  if (mount((temp_ / "a/b").c_str(), target.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "only root can mount";
  }
  EXPECT_TRUE(Overlap("other", "a/b"));
  EXPECT_TRUE(Overlap("other/new", "a/b"));
  EXPECT_TRUE(Overlap("other", "a/b/c"));
  EXPECT_FALSE(Overlap("other", "a/bc"));
  EXPECT_EQ(umount2(target.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace cairn
