// Names: creation, links, removal, and the errno of each refusal.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>
#include <vector>

#include "tests/volume/volume_world.h"
#include "volume/directory_internal.h"

namespace cairn {
namespace {

class NamespaceTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(world_.Open()); }
  Volume& volume() { return *world_.volume; }
  const OpContext& ctx() { return world_.ctx; }
  int LookupErrno(InodeNumber dir, std::string_view name) {
    return ErrnoOf(volume().Lookup(dir, name));
  }

  VolumeWorld world_;
};

TEST_F(NamespaceTest, NewVolumeHasAnEmptyRootDirectory) {
  const Inode root = world_.Attributes(kRootInode);
  EXPECT_EQ(root.mode, uint32_t{S_IFDIR | 0755});
  EXPECT_EQ(root.uid, 0u);
  EXPECT_EQ(root.nlink, 2u);
  EXPECT_EQ(root.parent, kRootInode);
  EXPECT_EQ(volume().GetStatus().inodes, 1u);
}

TEST_F(NamespaceTest, EveryTypeOfInodeIsMade) {
  struct Case {
    const char* name;
    uint32_t mode;
    uint64_t rdev;
  };
  for (const Case& c : {Case{"file", S_IFREG | 0640, 0}, Case{"fifo", S_IFIFO | 0600, 0},
                        Case{"socket", S_IFSOCK | 0777, 0}, Case{"char", S_IFCHR | 0600, 0x105},
                        Case{"block", S_IFBLK | 06644, 0x801}}) {
    const auto made = volume().MakeNode(ctx(), kRootInode, c.name, c.mode, c.rdev);
    ASSERT_TRUE(made) << c.name;
    const auto found = volume().Lookup(kRootInode, c.name);
    ASSERT_TRUE(found) << c.name;
    EXPECT_EQ(found->ino, made->ino);
    EXPECT_EQ(found->inode, made->inode);
    EXPECT_EQ(found->inode.mode, c.mode);
    EXPECT_EQ(found->inode.rdev, c.rdev);
    EXPECT_EQ(found->inode.nlink, 1u);
    EXPECT_EQ(found->inode.uid, 1000u);
    EXPECT_EQ(found->inode.birth_sequence, made->ino);
    EXPECT_EQ(found->inode.birth_volume, volume().id());
  }
}

TEST_F(NamespaceTest, CreationChangesTheParentsTimes) {
  const TimeSpec before = world_.Attributes(kRootInode).mtime;
  const TimeSpec now = world_.clock.Advance(1000);
  world_.File(kRootInode, "a");
  const Inode root = world_.Attributes(kRootInode);
  EXPECT_NE(before, now);
  EXPECT_EQ(root.mtime, now);
  EXPECT_EQ(root.ctime, now);
}

TEST_F(NamespaceTest, SetgidDirectoriesGiveTheirGroup) {
  const InodeNumber dir = world_.Dir(kRootInode, "d", 02775);
  SetAttributes owner;
  owner.gid = 77;
  ASSERT_TRUE(volume().SetAttr(ctx(), dir, owner));
  EXPECT_EQ(world_.Attributes(world_.File(dir, "f")).gid, 77u);
  const Inode sub = world_.Attributes(world_.Dir(dir, "s", 0755));
  EXPECT_EQ(sub.gid, 77u);
  EXPECT_EQ(sub.mode, uint32_t{S_IFDIR | 02755});
}

TEST_F(NamespaceTest, ErrnoOfCreations) {
  const InodeNumber file = world_.File(kRootInode, "file");
  world_.Dir(kRootInode, "dir");
  const std::string longest(255, 'n');
  const std::string too_long(256, 'n');
  struct Case {
    InodeNumber dir;
    std::string name;
    uint32_t mode;
    int error;
  };
  for (const Case& c : {
           Case{kRootInode, "file", S_IFREG, EEXIST},
           Case{kRootInode, "dir", S_IFREG, EEXIST},
           Case{file, "x", S_IFREG, ENOTDIR},
           Case{9999, "x", S_IFREG, ENOENT},
           Case{kRootInode, too_long, S_IFREG, ENAMETOOLONG},
           Case{kRootInode, "", S_IFREG, EINVAL},
           Case{kRootInode, ".", S_IFREG, EINVAL},
           Case{kRootInode, "..", S_IFREG, EINVAL},
           Case{kRootInode, "a/b", S_IFREG, EINVAL},
           Case{kRootInode, std::string("a\0b", 3), S_IFREG, EINVAL},
           Case{kRootInode, "x", S_IFDIR, EPERM},
           Case{kRootInode, "x", S_IFLNK, EINVAL},
           Case{kRootInode, longest, S_IFREG, 0},
           Case{kRootInode, "\xff\x01 \n", S_IFREG, 0},
       }) {
    EXPECT_EQ(ErrnoOf(volume().MakeNode(ctx(), c.dir, c.name, c.mode | 0600, 0)), c.error)
        << c.name << " " << c.mode;
    if (c.mode != S_IFREG || c.error == 0) continue;
    EXPECT_EQ(ErrnoOf(volume().MakeDir(ctx(), c.dir, c.name, 0700)), c.error) << c.name;
    EXPECT_EQ(ErrnoOf(volume().Symlink(ctx(), c.dir, c.name, "t")), c.error) << c.name;
    EXPECT_EQ(ErrnoOf(volume().Link(ctx(), file, c.dir, c.name)), c.error) << c.name;
    EXPECT_EQ(ErrnoOf(volume().Create(ctx(), c.dir, c.name, 0600, true)), c.error) << c.name;
  }
}

TEST_F(NamespaceTest, FailedCreationLeavesNothing) {
  world_.File(kRootInode, "file");
  const VolumeStatus before = volume().GetStatus();
  EXPECT_EQ(ErrnoOf(volume().Create(ctx(), kRootInode, "file", 0600, true)), EEXIST);
  EXPECT_EQ(volume().GetStatus().inodes, before.inodes);
  EXPECT_EQ(volume().GetStatus().open_handles, 0u);
}

TEST_F(NamespaceTest, SymlinksHoldTheirTarget) {
  const auto made = volume().Symlink(ctx(), kRootInode, "l", "../somewhere/else");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->inode.mode, uint32_t{S_IFLNK | 0777});
  EXPECT_EQ(made->inode.size_bytes, 17u);
  EXPECT_EQ(volume().ReadLink(made->ino).value(), "../somewhere/else");
  EXPECT_EQ(ErrnoOf(volume().ReadLink(kRootInode)), EINVAL);
  EXPECT_EQ(ErrnoOf(volume().Symlink(ctx(), kRootInode, "e", "")), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().Symlink(ctx(), kRootInode, "e", std::string(4096, 't'))),
            ENAMETOOLONG);
  EXPECT_EQ(ErrnoOf(volume().Symlink(ctx(), kRootInode, "e", std::string(4095, 't'))), 0);
}

TEST_F(NamespaceTest, LookupErrno) {
  const InodeNumber file = world_.File(kRootInode, "file");
  const InodeNumber dir = world_.Dir(kRootInode, "dir");
  EXPECT_EQ(LookupErrno(kRootInode, "absent"), ENOENT);
  EXPECT_EQ(LookupErrno(file, "x"), ENOTDIR);
  EXPECT_EQ(LookupErrno(9999, "x"), ENOENT);
  EXPECT_EQ(LookupErrno(kRootInode, std::string(256, 'x')), ENAMETOOLONG);
  EXPECT_EQ(volume().Lookup(dir, ".").value().ino, dir);
  EXPECT_EQ(volume().Lookup(dir, "..").value().ino, kRootInode);
}

TEST_F(NamespaceTest, HardLinksShareAnInode) {
  const InodeNumber ino = world_.File(kRootInode, "a", "content");
  const InodeNumber dir = world_.Dir(kRootInode, "d");
  const TimeSpec now = world_.clock.Advance(5);
  const auto linked = volume().Link(ctx(), ino, dir, "b");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->inode.nlink, 2u);
  EXPECT_EQ(linked->inode.ctime, now);
  EXPECT_EQ(world_.Attributes(dir).mtime, now);
  ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "a"));
  EXPECT_EQ(volume().Lookup(dir, "b").value().ino, ino);
  EXPECT_EQ(world_.Attributes(ino).nlink, 1u);
  EXPECT_EQ(world_.Contents(ino), "content");
  ASSERT_TRUE(volume().Unlink(ctx(), dir, "b"));
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(ino)), ENOENT);
}

TEST_F(NamespaceTest, LinkErrno) {
  const InodeNumber dir = world_.Dir(kRootInode, "d");
  const InodeNumber file = world_.File(kRootInode, "f");
  EXPECT_EQ(ErrnoOf(volume().Link(ctx(), dir, kRootInode, "x")), EPERM);
  EXPECT_EQ(ErrnoOf(volume().Link(ctx(), 9999, kRootInode, "x")), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().Link(ctx(), file, kRootInode, "d")), EEXIST);
}

TEST_F(NamespaceTest, LinksAreLimited) {
  const InodeNumber file = world_.File(kRootInode, "f");
  Inode inode = world_.Attributes(file);
  inode.nlink = kMaxLinks;
  Transaction tx;
  tx.Put(AttributesKey(file), Entry{inode.Encode(), {}});
  ASSERT_TRUE(volume().head().Commit(std::move(tx)));
  EXPECT_EQ(ErrnoOf(volume().Link(ctx(), file, kRootInode, "x")), EMLINK);
}

TEST_F(NamespaceTest, DirectoriesCountTheirSubdirectories) {
  const InodeNumber dir = world_.Dir(kRootInode, "d");
  world_.Dir(dir, "1");
  world_.Dir(dir, "2");
  world_.File(dir, "f");
  EXPECT_EQ(world_.Attributes(dir).nlink, 4u);
  EXPECT_EQ(world_.Attributes(kRootInode).nlink, 3u);
  ASSERT_TRUE(volume().RemoveDir(ctx(), dir, "1"));
  EXPECT_EQ(world_.Attributes(dir).nlink, 3u);
}

TEST_F(NamespaceTest, RemovalErrno) {
  const InodeNumber dir = world_.Dir(kRootInode, "d");
  const InodeNumber file = world_.File(dir, "f");
  EXPECT_EQ(ErrnoOf(volume().Unlink(ctx(), kRootInode, "d")), EISDIR);
  EXPECT_EQ(ErrnoOf(volume().Unlink(ctx(), kRootInode, "absent")), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().Unlink(ctx(), file, "x")), ENOTDIR);
  EXPECT_EQ(ErrnoOf(volume().Unlink(ctx(), kRootInode, "..")), EINVAL);
  EXPECT_EQ(ErrnoOf(volume().Unlink(ctx(), 9999, "x")), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().RemoveDir(ctx(), kRootInode, "d")), ENOTEMPTY);
  EXPECT_EQ(ErrnoOf(volume().RemoveDir(ctx(), dir, "f")), ENOTDIR);
  EXPECT_EQ(ErrnoOf(volume().RemoveDir(ctx(), kRootInode, "absent")), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().RemoveDir(ctx(), kRootInode, std::string(256, 'x'))), ENAMETOOLONG);
  EXPECT_EQ(ErrnoOf(volume().RemoveDir(ctx(), kRootInode, ".")), EINVAL);
}

TEST_F(NamespaceTest, RemovedOpenDirectoryIsEmptyAndDead) {
  const InodeNumber dir = world_.Dir(kRootInode, "d");
  ASSERT_TRUE(volume().OpenInode(ctx(), dir, false));
  ASSERT_TRUE(volume().RemoveDir(ctx(), kRootInode, "d"));
  EXPECT_EQ(world_.Attributes(dir).nlink, 0u);
  EXPECT_EQ(ErrnoOf(volume().MakeNode(ctx(), dir, "x", S_IFREG, 0)), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().Rename(ctx(), kRootInode, "a", dir, "b", 0)), ENOENT);
  ASSERT_TRUE(volume().ReleaseInode(ctx(), dir, false));
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(dir)), ENOENT);
}

TEST_F(NamespaceTest, RemovalTakesXattrsAndDataAlong) {
  const InodeNumber ino = world_.File(kRootInode, "f", std::string(100000, 'x'));
  ASSERT_TRUE(volume().SetXattr(ctx(), ino, "user.a", "1", 0));
  ASSERT_TRUE(volume().SetXattr(ctx(), ino, "user.b", "2", 0));
  ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "f"));
  const auto layer = volume().head().current();
  size_t keys = 0;
  ASSERT_TRUE(layer->Scan(KeyPrefix(ino), PrefixEnd(KeyPrefix(ino)),
                          [&](std::string_view, const Entry&) { return ++keys > 0; }));
  EXPECT_EQ(keys, 0u);
  const auto extents = layer->Extents(ino, 0, 200000);
  ASSERT_TRUE(extents);
  for (const Segment& s : *extents) EXPECT_EQ(s.source, Segment::Source::kHole);
  EXPECT_EQ(volume().GetStatus().inodes, 1u);
  EXPECT_EQ(volume().GetStatus().logical_bytes, 4096u);
}

TEST_F(NamespaceTest, ReadDirContinuesAtAnyEntryWhileNamesComeAndGo) {
  std::set<std::string> stable;
  for (int i = 0; i < 500; ++i) {
    stable.insert("s" + std::to_string(i));
    world_.File(kRootInode, "s" + std::to_string(i));
  }
  std::set<std::string> seen;
  uint64_t after = 0;
  for (int round = 0;; ++round) {
    int taken = 0;
    ASSERT_TRUE(volume().ReadDir(kRootInode, after, [&](const DirEntry& entry) {
      EXPECT_GT(entry.cookie, after);
      EXPECT_EQ(entry.type, DT_REG);
      after = entry.cookie;
      EXPECT_TRUE(seen.insert(entry.name).second) << entry.name << " twice";
      return ++taken < 7;
    }));
    if (taken == 0) break;
    world_.File(kRootInode, "new" + std::to_string(round));
    if (round > 0) {
      ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "new" + std::to_string(round - 1)));
    }
  }
  for (const std::string& name : stable) EXPECT_TRUE(seen.contains(name)) << name;
  EXPECT_EQ(ErrnoOf(volume().ReadDir(world_.File(kRootInode, "f"), 0, [](auto&) { return true; })),
            ENOTDIR);
}

// Fills all ranks of a name's hash with other names, as 256 collisions would.
TEST_F(NamespaceTest, CollidingNamesTakeTheLowestFreeRankAndThenThereIsNoSpace) {
  const InodeNumber other = world_.File(kRootInode, "other");
  const uint64_t first = NameHash(volume().hash_seed(), "name") << 8;
  Transaction tx;
  for (uint64_t rank = 0; rank < 256; ++rank) {
    tx.Put(DirentKey(kRootInode, first + rank),
           Entry{Dirent{other, DT_REG, "c" + std::to_string(rank)}.Encode(), {}});
  }
  ASSERT_TRUE(volume().head().Commit(std::move(tx)));
  EXPECT_EQ(ErrnoOf(volume().MakeNode(ctx(), kRootInode, "name", S_IFREG, 0)), ENOSPC);
  EXPECT_EQ(ErrnoOf(volume().Link(ctx(), other, kRootInode, "name")), ENOSPC);
  EXPECT_EQ(ErrnoOf(volume().Rename(ctx(), kRootInode, "other", kRootInode, "name", 0)), ENOSPC);
  EXPECT_EQ(LookupErrno(kRootInode, "name"), ENOENT);

  Transaction free;
  free.Delete(DirentKey(kRootInode, first + 200));
  free.Delete(DirentKey(kRootInode, first + 130));
  ASSERT_TRUE(volume().head().Commit(std::move(free)));
  const InodeNumber made = world_.File(kRootInode, "name");
  const auto found =
      FindDirent(*volume().head().current(), volume().hash_seed(), kRootInode, "name");
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->cookie, first + 130);
  EXPECT_EQ(volume().Lookup(kRootInode, "name").value().ino, made);
  ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "name"));
  EXPECT_EQ(LookupErrno(kRootInode, "name"), ENOENT);
}

TEST_F(NamespaceTest, OneOfManyRacingCreatesWins) {
  for (int round = 0; round < 50; ++round) {
    const std::string name = "race" + std::to_string(round);
    std::atomic<int> won{0};
    std::atomic<int> exists{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        const int error = ErrnoOf(volume().Create(ctx(), kRootInode, name, 0600, false));
        if (error == 0) ++won;
        if (error == EEXIST) ++exists;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    EXPECT_EQ(exists, 3);
  }
  EXPECT_EQ(volume().GetStatus().inodes, 51u);
}

TEST_F(NamespaceTest, OneOfManyRacingUnlinksWins) {
  for (int round = 0; round < 300; ++round) {
    world_.File(kRootInode, "x");
    std::atomic<int> won{0};
    std::atomic<int> absent{0};
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        const int error = ErrnoOf(volume().Unlink(ctx(), kRootInode, "x"));
        if (error == 0) ++won;
        if (error == ENOENT) ++absent;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(won, 1);
    ASSERT_EQ(absent, 3);
  }
  EXPECT_EQ(volume().GetStatus().inodes, 1u);
}

TEST_F(NamespaceTest, ReplyRecordsCarryTheAnswer) {
  OpContext from_kernel = ctx();
  from_kernel.request.connection.bytes.fill(5);
  from_kernel.request.unique = 17;
  from_kernel.request.opcode = 9;
  world_.options.head.live_connection = from_kernel.request.connection;
  const auto made = volume().MakeNode(from_kernel, kRootInode, "f", S_IFREG | 0600, 0);
  ASSERT_TRUE(made);
  from_kernel.request.unique = 18;
  from_kernel.request.lane = 1;
  ASSERT_TRUE(volume().Write(from_kernel, made->ino, 0, "12345", false));
  ASSERT_TRUE(world_.Reopen());
  const auto& replies = volume().head().recovered_replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].unique, 17u);
  EXPECT_EQ(replies[0].ino, made->ino);
  EXPECT_EQ(replies[1].unique, 18u);
  EXPECT_EQ(replies[1].value, 5u);
  EXPECT_EQ(replies[1].status, 0);
}

}  // namespace
}  // namespace cairn
