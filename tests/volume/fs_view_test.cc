// FsView: paths and searches. (Reading files and names through it is tested by the volume's tests,
// which read through it too.)
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/volume/volume_world.h"

namespace cairn {
namespace {

class FsViewTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(world_.Open());
    a_ = world_.Dir(kRootInode, "a");
    b_ = world_.Dir(a_, "b");
    file_ = world_.File(b_, "file", "contents");
    link_ = world_.volume->Symlink(world_.ctx, a_, "link", "b").value().ino;
  }
  FsView View() { return world_.volume->View(); }

  VolumeWorld world_;
  InodeNumber a_ = 0, b_ = 0, file_ = 0, link_ = 0;
};

TEST_F(FsViewTest, ResolveWalksPaths) {
  struct Case {
    std::string path;
    InodeNumber ino;
  };
  for (const Case& c :
       {Case{"", kRootInode}, Case{"/", kRootInode}, Case{"/a", a_}, Case{"a/b", b_},
        Case{"/a//b/", b_}, Case{"./a/./b/file", file_}, Case{"/a/link", link_}}) {
    const auto found = View().Resolve(c.path);
    ASSERT_TRUE(found) << c.path;
    EXPECT_EQ(*found, c.ino) << c.path;
  }
}

TEST_F(FsViewTest, ResolveNeverFollowsALinkAndNeverGoesUp) {
  struct Case {
    std::string path;
    bool final_link_is_error;
    int error;
  };
  for (const Case& c :
       {Case{"a/link/file", false, ELOOP}, Case{"a/link", true, ELOOP},
        Case{"a/link/", false, ELOOP}, Case{"a/link/.", false, ELOOP}, Case{"a/..", false, EINVAL},
        Case{"..", false, EINVAL}, Case{"a/b/file/", false, ENOTDIR},
        Case{"a/b/file/.", false, ENOTDIR}, Case{"a/b/file/x", false, ENOTDIR},
        Case{"a/absent/x", false, ENOENT}, Case{"a/" + std::string(256, 'n'), false, ENAMETOOLONG},
        Case{std::string("a\0b", 3), false, EINVAL}}) {
    EXPECT_EQ(ErrnoOf(View().Resolve(c.path, c.final_link_is_error)), c.error) << c.path;
  }
  EXPECT_EQ(View().Resolve("..").error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(FsViewTest, FindPathOfAnyInode) {
  EXPECT_EQ(View().FindPath(kRootInode).value(), "/");
  EXPECT_EQ(View().FindPath(b_).value(), "/a/b");
  EXPECT_EQ(View().FindPath(file_).value(), "/a/b/file");
  EXPECT_EQ(View().FindPath(link_).value(), "/a/link");
  EXPECT_EQ(ErrnoOf(View().FindPath(9999)), ENOENT);
  ASSERT_TRUE(world_.volume->OpenInode(world_.ctx, file_, false));
  ASSERT_TRUE(world_.volume->Unlink(world_.ctx, b_, "file"));
  EXPECT_EQ(ErrnoOf(View().FindPath(file_)), ENOENT);
}

TEST_F(FsViewTest, DamagedRecordsAreDataLoss) {
  Transaction tx;
  tx.Put(AttributesKey(a_), Entry{"short", {}});
  tx.Put(DirentKey(b_, (NameHash(world_.volume->hash_seed(), "x") << 8)), Entry{"bad", {}});
  tx.Delete(InlineKey(link_));
  ASSERT_TRUE(world_.volume->head().Commit(std::move(tx)));
  EXPECT_EQ(View().GetInode(a_).error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(View().Lookup(b_, "x").error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(View().ReadDir(b_, 0, [](const DirEntry&) { return true; }).error().code(),
            ErrorCode::kDataLoss);
  EXPECT_EQ(View().ReadLink(link_).error().code(), ErrorCode::kDataLoss);
}

TEST_F(FsViewTest, SealedTreeReadsLikeTheVolume) {
  const InodeNumber big = world_.File(b_, "big", std::string(200000, 'b'));
  ASSERT_TRUE(world_.volume->SetXattr(world_.ctx, big, "user.x", std::string(20000, 'v'), 0));
  ASSERT_TRUE(world_.volume->Freeze());
  ASSERT_TRUE(world_.SealOldest());
  ASSERT_TRUE(world_.Reopen());
  EXPECT_EQ(world_.volume->head().unsealed().size(), 0u);
  EXPECT_EQ(world_.Contents(View().Resolve("a/b/big").value()), std::string(200000, 'b'));
  EXPECT_EQ(world_.Contents(file_), "contents");
  EXPECT_EQ(View().ReadLink(link_).value(), "b");
  EXPECT_EQ(View().GetXattr(big, "user.x").value(), std::string(20000, 'v'));
  EXPECT_EQ(world_.volume->GetStatus().inodes, 6u);
}

}  // namespace
}  // namespace cairn
