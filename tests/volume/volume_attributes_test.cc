// Attributes, times and extended attributes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "store/base/random.h"
#include "tests/volume/volume_world.h"

namespace cairn {
namespace {

class AttributesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(world_.Open());
    ino_ = world_.File(kRootInode, "f", "contents");
  }
  Volume& volume() { return *world_.volume; }
  Inode Set(const SetAttributes& attributes) {
    const auto inode = volume().SetAttr(world_.ctx, ino_, attributes);
    EXPECT_TRUE(inode);
    EXPECT_EQ(world_.Attributes(ino_), *inode);
    return *inode;
  }
  int SetXattr(std::string_view name, std::string_view value, int flags = 0) {
    return ErrnoOf(volume().SetXattr(world_.ctx, ino_, name, value, flags));
  }

  VolumeWorld world_;
  InodeNumber ino_ = 0;
};

TEST_F(AttributesTest, ModeAndOwnerMoveCtimeAlone) {
  const Inode before = world_.Attributes(ino_);
  const TimeSpec now = world_.clock.Advance(7);
  SetAttributes attributes;
  attributes.mode = 04711;
  attributes.uid = 5;
  attributes.gid = 6;
  const Inode inode = Set(attributes);
  EXPECT_EQ(inode.mode, uint32_t{S_IFREG | 04711});
  EXPECT_EQ(inode.uid, 5u);
  EXPECT_EQ(inode.gid, 6u);
  EXPECT_EQ(inode.ctime, now);
  EXPECT_EQ(inode.mtime, before.mtime);
  EXPECT_EQ(inode.atime, before.atime);
  EXPECT_GT(inode.change_counter, before.change_counter);
}

TEST_F(AttributesTest, ExplicitTimesAndNow) {
  const TimeSpec now = world_.clock.Advance(7);
  SetAttributes attributes;
  attributes.atime = TimeSpec{-2208988800, 999999999};
  attributes.mtime_now = true;
  Inode inode = Set(attributes);
  EXPECT_EQ(inode.atime, (TimeSpec{-2208988800, 999999999}));
  EXPECT_EQ(inode.mtime, now);
  EXPECT_EQ(inode.ctime, now);
  attributes = {};
  attributes.atime_now = true;
  attributes.mtime = TimeSpec{15032385536, 1};
  attributes.ctime = TimeSpec{1, 2};
  inode = Set(attributes);
  EXPECT_EQ(inode.atime, now);
  EXPECT_EQ(inode.mtime, (TimeSpec{15032385536, 1}));
  EXPECT_EQ(inode.ctime, (TimeSpec{1, 2}));
  attributes.mtime = TimeSpec{0, 1000000000};
  EXPECT_EQ(ErrnoOf(volume().SetAttr(world_.ctx, ino_, attributes)), EINVAL);
}

TEST_F(AttributesTest, NewSizeMovesMtimeAndTheSameSizeNothing) {
  const Inode before = world_.Attributes(ino_);
  const TimeSpec now = world_.clock.Advance(7);
  SetAttributes attributes;
  attributes.size_bytes = before.size_bytes;
  EXPECT_EQ(Set(attributes), before);
  attributes.size_bytes = 3;
  const Inode inode = Set(attributes);
  EXPECT_EQ(inode.mtime, now);
  EXPECT_EQ(inode.ctime, now);
  world_.clock.Advance(7);
  attributes.mtime_now = true;  // ftruncate
  EXPECT_NE(Set(attributes).mtime, now);
}

TEST_F(AttributesTest, PrivilegesFallWhenAsked) {
  SetAttributes chmod;
  SetAttributes chown;
  chown.uid = 1;
  chown.kill_privileges = true;
  chmod.mode = 06755;
  Set(chmod);
  EXPECT_EQ(Set(chown).mode & 07777, 0755u);
  chmod.mode = 06745;  // no group execution: setgid is not a privilege
  Set(chmod);
  EXPECT_EQ(Set(chown).mode & 07777, 02745u);

  chmod.mode = 06755;
  Set(chmod);
  ASSERT_EQ(SetXattr("security.capability", "cap"), 0);
  ASSERT_TRUE(volume().Write(world_.ctx, ino_, 0, "x", false));
  EXPECT_EQ(world_.Attributes(ino_).mode & 07777, 06755u);
  ASSERT_TRUE(volume().Write(world_.ctx, ino_, 0, "x", true));
  EXPECT_EQ(world_.Attributes(ino_).mode & 07777, 0755u);
  EXPECT_EQ(ErrnoOf(volume().GetXattr(ino_, "security.capability")), ENODATA);

  const InodeNumber dir = world_.Dir(kRootInode, "d", 02755);
  ASSERT_TRUE(volume().SetAttr(world_.ctx, dir, chown));
  EXPECT_EQ(world_.Attributes(dir).mode & 07777, 02755u);
}

TEST_F(AttributesTest, SetAttrErrno) {
  SetAttributes attributes;
  attributes.mode = 0600;
  EXPECT_EQ(ErrnoOf(volume().SetAttr(world_.ctx, 9999, attributes)), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(9999)), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(kNoInode)), ENOENT);
}

TEST_F(AttributesTest, XattrsAreStoredListedAndRemoved) {
  SeededRandom random(3);
  const std::string big = random.Bytes(kMaxXattrBytes);
  const TimeSpec now = world_.clock.Advance(7);
  ASSERT_EQ(SetXattr("user.small", "value"), 0);
  ASSERT_EQ(SetXattr("trusted.big", big), 0);
  ASSERT_EQ(SetXattr("security.empty", ""), 0);
  EXPECT_EQ(world_.Attributes(ino_).ctime, now);
  ASSERT_TRUE(world_.Reopen());
  EXPECT_EQ(volume().GetXattr(ino_, "user.small").value(), "value");
  EXPECT_EQ(volume().GetXattr(ino_, "trusted.big").value(), big);
  EXPECT_EQ(volume().GetXattr(ino_, "security.empty").value(), "");
  EXPECT_THAT(volume().ListXattrs(ino_).value(),
              testing::UnorderedElementsAre("user.small", "trusted.big", "security.empty"));
  ASSERT_TRUE(volume().RemoveXattr(world_.ctx, ino_, "trusted.big"));
  EXPECT_EQ(volume().ListXattrs(ino_).value().size(), 2u);
}

TEST_F(AttributesTest, XattrErrno) {
  ASSERT_EQ(SetXattr("user.a", "1"), 0);
  EXPECT_EQ(SetXattr("user.a", "2", XATTR_CREATE), EEXIST);
  EXPECT_EQ(SetXattr("user.b", "2", XATTR_REPLACE), ENODATA);
  EXPECT_EQ(SetXattr("user.a", "2", XATTR_REPLACE), 0);
  EXPECT_EQ(SetXattr("user.b", "2", XATTR_CREATE), 0);
  EXPECT_EQ(SetXattr("user.c", "2", 8), EINVAL);
  EXPECT_EQ(SetXattr("user.", "2"), EINVAL);
  EXPECT_EQ(SetXattr("", "2"), ERANGE);
  EXPECT_EQ(SetXattr("user." + std::string(250, 'n'), "2"), 0);
  EXPECT_EQ(SetXattr("user." + std::string(251, 'n'), "2"), ERANGE);
  EXPECT_EQ(SetXattr("user.c", std::string(kMaxXattrBytes + 1, 'v')), E2BIG);
  EXPECT_EQ(SetXattr("system.posix_acl_access", "x"), EOPNOTSUPP);
  EXPECT_EQ(SetXattr("system.posix_acl_default", "x"), EOPNOTSUPP);
  EXPECT_EQ(SetXattr("other.x", "x"), EOPNOTSUPP);
  EXPECT_EQ(ErrnoOf(volume().GetXattr(ino_, "user.absent")), ENODATA);
  EXPECT_EQ(ErrnoOf(volume().GetXattr(ino_, "system.posix_acl_access")), EOPNOTSUPP);
  EXPECT_EQ(ErrnoOf(volume().GetXattr(9999, "user.a")), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().ListXattrs(9999)), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().RemoveXattr(world_.ctx, ino_, "user.absent")), ENODATA);
  EXPECT_EQ(ErrnoOf(volume().SetXattr(world_.ctx, 9999, "user.a", "x", 0)), ENOENT);
}

}  // namespace
}  // namespace cairn
