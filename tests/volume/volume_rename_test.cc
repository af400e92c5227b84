// rename(2): the matrix of what is moved onto what, flags, loops, times and links.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/volume/volume_world.h"

namespace cairn {
namespace {

class RenameTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(world_.Open()); }
  Volume& volume() { return *world_.volume; }
  int Rename(InodeNumber from, std::string_view old_name, InodeNumber to, std::string_view new_name,
             uint32_t flags = 0) {
    return ErrnoOf(volume().Rename(world_.ctx, from, old_name, to, new_name, flags));
  }
  InodeNumber At(InodeNumber dir, std::string_view name) {
    const auto found = volume().Lookup(dir, name);
    return found ? found->ino : kNoInode;
  }

  VolumeWorld world_;
};

// Every kind of source onto every kind of target, within a directory and between two.
TEST_F(RenameTest, Matrix) {
  enum Kind { kAbsent, kFile, kEmptyDir, kFullDir };
  struct Case {
    Kind source, target;
    uint32_t flags;
    int error;
  };
  const uint32_t noreplace = RENAME_NOREPLACE;
  const uint32_t exchange = RENAME_EXCHANGE;
  const std::vector<Case> cases = {
      {kAbsent, kAbsent, 0, ENOENT},
      {kAbsent, kFile, 0, ENOENT},
      {kAbsent, kFile, noreplace, ENOENT},
      {kFile, kAbsent, 0, 0},
      {kFile, kAbsent, noreplace, 0},
      {kFile, kAbsent, exchange, ENOENT},
      {kFile, kFile, 0, 0},
      {kFile, kFile, noreplace, EEXIST},
      {kFile, kFile, exchange, 0},
      {kFile, kEmptyDir, 0, EISDIR},
      {kFile, kFullDir, 0, EISDIR},
      {kFile, kFullDir, exchange, 0},
      {kEmptyDir, kAbsent, 0, 0},
      {kEmptyDir, kFile, 0, ENOTDIR},
      {kEmptyDir, kFile, exchange, 0},
      {kEmptyDir, kEmptyDir, 0, 0},
      {kEmptyDir, kEmptyDir, noreplace, EEXIST},
      {kEmptyDir, kFullDir, 0, ENOTEMPTY},
      {kFullDir, kAbsent, 0, 0},
      {kFullDir, kEmptyDir, 0, 0},
      {kFullDir, kFullDir, 0, ENOTEMPTY},
      {kFullDir, kFullDir, exchange, 0},
  };
  int n = 0;
  for (const bool across : {false, true}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(testing::Message() << c.source << " onto " << c.target << " flags " << c.flags
                                      << " across " << across);
      const InodeNumber from = world_.Dir(kRootInode, "from" + std::to_string(++n));
      const InodeNumber to = across ? world_.Dir(kRootInode, "to" + std::to_string(n)) : from;
      const auto make = [&](InodeNumber dir, const std::string& name, Kind kind) {
        if (kind == kAbsent) return kNoInode;
        if (kind == kFile) return world_.File(dir, name, name);
        const InodeNumber made = world_.Dir(dir, name);
        if (kind == kFullDir) world_.File(made, "inside");
        return made;
      };
      const InodeNumber source = make(from, "s", c.source);
      const InodeNumber target = make(to, "t", c.target);
      const uint64_t inodes = volume().GetStatus().inodes;
      const TimeSpec now = world_.clock.Advance(10);
      ASSERT_EQ(Rename(from, "s", to, "t", c.flags), c.error);

      const bool done = c.error == 0;
      const bool swapped = done && (c.flags & exchange);
      EXPECT_EQ(At(to, "t"), done ? source : target);
      EXPECT_EQ(At(from, "s"), swapped ? target : done ? kNoInode : source);
      const bool replaced = done && !swapped && target != kNoInode;
      EXPECT_EQ(volume().GetStatus().inodes, inodes - (replaced ? 1 : 0));
      EXPECT_EQ(replaced, target != kNoInode && ErrnoOf(volume().GetAttributes(target)) == ENOENT);
      const auto subdirs = [&](InodeNumber dir) {
        uint32_t count = 0;
        EXPECT_TRUE(volume().ReadDir(dir, 0, [&](const DirEntry& e) {
          const Inode child = world_.Attributes(e.ino);
          if (S_ISDIR(child.mode)) {
            ++count;
            EXPECT_EQ(child.parent, dir) << e.name;
          }
          return true;
        }));
        return count;
      };
      EXPECT_EQ(world_.Attributes(from).nlink, 2 + subdirs(from));
      EXPECT_EQ(world_.Attributes(to).nlink, 2 + subdirs(to));
      EXPECT_EQ(world_.Attributes(from).mtime == now, done);
      EXPECT_EQ(world_.Attributes(to).mtime == now, done);
      if (done) {
        EXPECT_EQ(world_.Attributes(source).ctime, now);
      }
    }
  }
}

TEST_F(RenameTest, OntoAHardLinkOfItselfDoesNothing) {
  const InodeNumber ino = world_.File(kRootInode, "a");
  ASSERT_TRUE(volume().Link(world_.ctx, ino, kRootInode, "b"));
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b"), 0);
  EXPECT_EQ(At(kRootInode, "a"), ino);
  EXPECT_EQ(At(kRootInode, "b"), ino);
  EXPECT_EQ(world_.Attributes(ino).nlink, 2u);
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "a"), 0);
  EXPECT_EQ(At(kRootInode, "a"), ino);
}

TEST_F(RenameTest, IntoItsOwnSubtreeIsRefused) {
  const InodeNumber a = world_.Dir(kRootInode, "a");
  const InodeNumber b = world_.Dir(a, "b");
  const InodeNumber c = world_.Dir(b, "c");
  EXPECT_EQ(Rename(kRootInode, "a", a, "x"), EINVAL);
  EXPECT_EQ(Rename(kRootInode, "a", c, "x"), EINVAL);
  EXPECT_EQ(Rename(kRootInode, "a", b, "c", RENAME_EXCHANGE), EINVAL);
  EXPECT_EQ(Rename(b, "c", kRootInode, "a", RENAME_EXCHANGE), EINVAL);
  EXPECT_EQ(Rename(b, "c", kRootInode, "a"), ENOTEMPTY);
  EXPECT_EQ(Rename(b, "c", kRootInode, "c"), 0);
  EXPECT_EQ(Rename(kRootInode, "a", c, "a"), 0);
  EXPECT_EQ(world_.Attributes(a).parent, c);
}

TEST_F(RenameTest, FlagsAndNamesAreChecked) {
  world_.File(kRootInode, "a");
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b", 8), EINVAL);
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b", RENAME_EXCHANGE | RENAME_NOREPLACE), EINVAL);
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b", RENAME_EXCHANGE | RENAME_WHITEOUT), EINVAL);
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, std::string(256, 'b')), ENAMETOOLONG);
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, ".."), EINVAL);
  EXPECT_EQ(Rename(kRootInode, ".", kRootInode, "b"), EINVAL);
  EXPECT_EQ(Rename(At(kRootInode, "a"), "a", kRootInode, "b"), ENOTDIR);
}

TEST_F(RenameTest, WhiteoutIsLeftBehind) {
  const InodeNumber a = world_.File(kRootInode, "a");
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b", RENAME_WHITEOUT | RENAME_NOREPLACE), 0);
  EXPECT_EQ(At(kRootInode, "b"), a);
  const auto whiteout = volume().Lookup(kRootInode, "a");
  ASSERT_TRUE(whiteout);
  EXPECT_EQ(whiteout->inode.mode, uint32_t{S_IFCHR});
  EXPECT_EQ(whiteout->inode.rdev, 0u);
  EXPECT_EQ(volume().GetStatus().inodes, 3u);
}

TEST_F(RenameTest, ReplacedOpenFileLivesUntilItsRelease) {
  const InodeNumber a = world_.File(kRootInode, "a", "new");
  const InodeNumber b = world_.File(kRootInode, "b", "old");
  ASSERT_TRUE(volume().OpenInode(world_.ctx, b, true));
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b"), 0);
  EXPECT_EQ(At(kRootInode, "b"), a);
  EXPECT_EQ(world_.Contents(b), "old");
  EXPECT_EQ(world_.Attributes(b).nlink, 0u);
  ASSERT_TRUE(volume().ReleaseInode(world_.ctx, b, true));
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(b)), ENOENT);
}

TEST_F(RenameTest, ReplacedNameKeepsAnotherHardLink) {
  world_.File(kRootInode, "a");
  const InodeNumber b = world_.File(kRootInode, "b");
  ASSERT_TRUE(volume().Link(world_.ctx, b, kRootInode, "c"));
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b"), 0);
  EXPECT_EQ(world_.Attributes(b).nlink, 1u);
  EXPECT_EQ(At(kRootInode, "c"), b);
}

// Threads move directories below each other; whatever wins, the directories stay a tree.
TEST_F(RenameTest, ConcurrentMovesNeverMakeALoop) {
  std::vector<InodeNumber> dirs;
  for (int i = 0; i < 4; ++i) dirs.push_back(world_.Dir(kRootInode, "d" + std::to_string(i)));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "d" + std::to_string(t);
      InodeNumber at = kRootInode;
      for (int i = 0; i < 300; ++i) {
        const InodeNumber to = i % 3 == 2 ? kRootInode : dirs[(t + i) % 4];
        if (Rename(at, name, to, name) == 0) at = to;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const InodeNumber dir : dirs) {
    InodeNumber at = dir;
    int steps = 0;
    for (; at != kRootInode && steps < 10; ++steps) at = world_.Attributes(at).parent;
    EXPECT_LT(steps, 10) << "a loop above " << dir;
    EXPECT_TRUE(volume().View().FindPath(dir));
  }
}

// The two moves have no inode in common, but together they would cut a and b off as a loop.
TEST_F(RenameTest, TwoMovesThatTogetherMakeALoopNeverBothHappen) {
  const InodeNumber p = world_.Dir(kRootInode, "p");
  const InodeNumber q = world_.Dir(kRootInode, "q");
  const InodeNumber a = world_.Dir(p, "a");
  const InodeNumber b = world_.Dir(q, "b");
  const InodeNumber x = world_.Dir(b, "x");
  const InodeNumber y = world_.Dir(a, "y");
  for (int round = 0; round < 500; ++round) {
    std::atomic<int> ready{0};
    int errors[2] = {-1, -1};
    std::thread other([&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      errors[1] = Rename(q, "b", y, "b");
    });
    ++ready;
    while (ready < 2) std::this_thread::yield();
    errors[0] = Rename(p, "a", x, "a");
    other.join();
    ASSERT_EQ(std::min(errors[0], errors[1]), 0);
    ASSERT_EQ(std::max(errors[0], errors[1]), EINVAL);
    ASSERT_EQ(errors[0] == 0 ? Rename(x, "a", p, "a") : Rename(y, "b", q, "b"), 0);
  }
}

}  // namespace
}  // namespace cairn
