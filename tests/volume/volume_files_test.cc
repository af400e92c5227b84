// Contents of files: inline and extents, holes, allocation, and unlinked files that are open.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include "store/base/random.h"
#include "tests/volume/volume_world.h"

namespace cairn {
namespace {

class FilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(world_.Open()); }
  Volume& volume() { return *world_.volume; }
  const OpContext& ctx() { return world_.ctx; }
  void Write(InodeNumber ino, uint64_t offset, std::string_view data) {
    const auto n = volume().Write(ctx(), ino, offset, data, false);
    ASSERT_TRUE(n);
    ASSERT_EQ(*n, data.size());
  }
  int Truncate(InodeNumber ino, uint64_t size) {
    SetAttributes attributes;
    attributes.size_bytes = size;
    return ErrnoOf(volume().SetAttr(ctx(), ino, attributes));
  }
  bool IsInline(InodeNumber ino) {
    return volume().head().current()->Get(InlineKey(ino)).value().has_value();
  }
  uint64_t Allocated(InodeNumber ino) { return world_.Attributes(ino).allocated_bytes; }

  VolumeWorld world_;
};

TEST_F(FilesTest, SmallFilesAreInlineAndOutgrowIt) {
  const InodeNumber ino = world_.File(kRootInode, "f", std::string(100, 'a'));
  EXPECT_TRUE(IsInline(ino));
  EXPECT_EQ(Allocated(ino), 512u);
  Write(ino, 2000, std::string(48, 'b'));
  EXPECT_TRUE(IsInline(ino));
  EXPECT_EQ(Allocated(ino), 2048u);
  Write(ino, 2048, "c");
  EXPECT_FALSE(IsInline(ino));
  EXPECT_EQ(Allocated(ino), 4096u);
  const std::string expected =
      std::string(100, 'a') + std::string(1900, '\0') + std::string(48, 'b') + "c";
  EXPECT_EQ(world_.Contents(ino), expected);
  ASSERT_TRUE(world_.Reopen());
  EXPECT_EQ(world_.Contents(ino), expected);
}

TEST_F(FilesTest, OutgrowingWithADistantWriteKeepsTheOldBytes) {
  const InodeNumber ino = world_.File(kRootInode, "f", "start");
  Write(ino, 1 << 20, "end");
  EXPECT_FALSE(IsInline(ino));
  EXPECT_EQ(Allocated(ino), 8192u);
  EXPECT_EQ(world_.Contents(ino), "start" + std::string((1 << 20) - 5, '\0') + "end");
}

TEST_F(FilesTest, GrowingATruncatedFileGivesZeros) {
  const InodeNumber ino = world_.File(kRootInode, "f", std::string(10000, 'x'));
  ASSERT_EQ(Truncate(ino, 5000), 0);
  EXPECT_EQ(Allocated(ino), 8192u);
  ASSERT_EQ(Truncate(ino, 10000), 0);
  EXPECT_EQ(world_.Contents(ino), std::string(5000, 'x') + std::string(5000, '\0'));
  ASSERT_EQ(Truncate(ino, 0), 0);
  EXPECT_EQ(Allocated(ino), 0u);
  ASSERT_EQ(Truncate(ino, 3000), 0);
  EXPECT_EQ(world_.Contents(ino), std::string(3000, '\0'));
  EXPECT_EQ(Allocated(ino), 0u);
}

TEST_F(FilesTest, InlineFilesAreCutGrownAndMovedOutByTruncation) {
  const InodeNumber ino = world_.File(kRootInode, "f", "0123456789");
  ASSERT_EQ(Truncate(ino, 4), 0);
  ASSERT_EQ(Truncate(ino, 6), 0);
  EXPECT_TRUE(IsInline(ino));
  EXPECT_EQ(world_.Contents(ino), std::string("0123\0\0", 6));
  ASSERT_EQ(Truncate(ino, 70000), 0);
  EXPECT_FALSE(IsInline(ino));
  EXPECT_EQ(Allocated(ino), 4096u);
  EXPECT_EQ(world_.Contents(ino), "0123" + std::string(69996, '\0'));
  ASSERT_EQ(Truncate(ino, 0), 0);
  Write(ino, 0, "again");
  EXPECT_TRUE(IsInline(ino));
}

TEST_F(FilesTest, AllocationCountsPagesOnce) {
  const InodeNumber ino = world_.File(kRootInode, "f");
  Write(ino, 0, std::string(65536, 'a'));
  EXPECT_EQ(Allocated(ino), 65536u);
  Write(ino, 30000, std::string(65536, 'b'));
  EXPECT_EQ(Allocated(ino), 98304u);
  Write(ino, 10, "x");
  EXPECT_EQ(Allocated(ino), 98304u);
  Write(ino, 1 << 20, "x");
  EXPECT_EQ(Allocated(ino), 102400u);
  ASSERT_EQ(Truncate(ino, 95536), 0);
  EXPECT_EQ(Allocated(ino), 98304u);
  ASSERT_EQ(Truncate(ino, 4097), 0);
  EXPECT_EQ(Allocated(ino), 8192u);
}

// A seal may widen what was written to whole pages, so that a file whose data was cut off has
// extents of zeros left.
TEST_F(FilesTest, SmallFileWithExtentsStaysWithThem) {
  const InodeNumber ino = world_.File(kRootInode, "f");
  Write(ino, 2755, std::string(5000, 'a'));
  ASSERT_TRUE(volume().Freeze());
  ASSERT_EQ(Truncate(ino, 1478), 0);
  ASSERT_EQ(Truncate(ino, 8192), 0);
  ASSERT_TRUE(volume().Freeze());
  ASSERT_TRUE(world_.SealOldest());
  ASSERT_TRUE(world_.SealOldest());
  Write(ino, 100, "x");
  ASSERT_EQ(Truncate(ino, 1000), 0);
  Write(ino, 0, "y");
  EXPECT_FALSE(IsInline(ino));
  const std::string expected = "y" + std::string(99, '\0') + "x" + std::string(899, '\0');
  EXPECT_EQ(world_.Contents(ino), expected);
  ASSERT_EQ(Truncate(ino, 0), 0);
  Write(ino, 0, "z");
  EXPECT_TRUE(IsInline(ino));
}

TEST_F(FilesTest, ExtentsOfZerosAreExtentsToo) {
  const InodeNumber ino = world_.File(kRootInode, "f");
  Write(ino, 2755, std::string(5000, 'a'));
  ASSERT_TRUE(volume().Freeze());
  ASSERT_EQ(Truncate(ino, 1478), 0);
  EXPECT_EQ(Allocated(ino), 0u);
  ASSERT_TRUE(volume().Freeze());
  ASSERT_TRUE(world_.SealOldest());
  ASSERT_TRUE(world_.SealOldest());
  Write(ino, 0, "y");
  const auto segments = volume().head().current()->Extents(ino, 0, 4096);
  ASSERT_TRUE(segments);
  bool has_data = false;
  for (const Segment& s : *segments) has_data |= s.source != Segment::Source::kHole;
  EXPECT_NE(IsInline(ino), has_data);  // never both
  EXPECT_EQ(world_.Contents(ino), "y" + std::string(1477, '\0'));
}

TEST_F(FilesTest, PunchedAndZeroedRangesReadAsZeros) {
  const InodeNumber ino = world_.File(kRootInode, "f", std::string(20000, 'x'));
  const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  ASSERT_TRUE(volume().Allocate(ctx(), ino, 4000, 9000, punch));
  EXPECT_EQ(world_.Contents(ino),
            std::string(4000, 'x') + std::string(9000, '\0') + std::string(7000, 'x'));
  EXPECT_EQ(Allocated(ino), 12288u);
  EXPECT_EQ(volume().SeekHole(ino, 0).value(), 4096u);
  EXPECT_EQ(volume().SeekData(ino, 4096).value(), 12288u);
  ASSERT_TRUE(volume().Allocate(ctx(), ino, 19000, 2000, FALLOC_FL_ZERO_RANGE));
  EXPECT_EQ(world_.Attributes(ino).size_bytes, 21000u);
  EXPECT_EQ(world_.Contents(ino).substr(18999), "x" + std::string(2000, '\0'));
  ASSERT_TRUE(
      volume().Allocate(ctx(), ino, 20000, 5000, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE));
  EXPECT_EQ(world_.Attributes(ino).size_bytes, 21000u);
}

TEST_F(FilesTest, InlineFilesAreZeroedInPlaceAndGrownOut) {
  const InodeNumber ino = world_.File(kRootInode, "f", "0123456789");
  ASSERT_TRUE(volume().Allocate(ctx(), ino, 2, 3, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE));
  EXPECT_EQ(world_.Contents(ino), std::string("01\0\0\0"
                                              "56789",
                                              10));
  ASSERT_TRUE(volume().Allocate(ctx(), ino, 8, 100, FALLOC_FL_ZERO_RANGE));
  EXPECT_EQ(world_.Contents(ino), std::string("01\0\0\0"
                                              "567",
                                              8) +
                                      std::string(100, '\0'));
  ASSERT_TRUE(volume().Allocate(ctx(), ino, 6, 5000, FALLOC_FL_ZERO_RANGE));
  EXPECT_EQ(world_.Contents(ino), std::string("01\0\0\0"
                                              "5",
                                              6) +
                                      std::string(5000, '\0'));
}

TEST_F(FilesTest, AllocateErrno) {
  const InodeNumber ino = world_.File(kRootInode, "f", "data");
  const InodeNumber fifo = volume().MakeNode(ctx(), kRootInode, "p", S_IFIFO, 0).value().ino;
  struct Case {
    InodeNumber ino;
    uint64_t offset, length;
    int mode, error;
  };
  for (const Case& c : {
           Case{ino, 0, 0, 0, EINVAL},
           Case{ino, 0, 10, FALLOC_FL_PUNCH_HOLE, EOPNOTSUPP},
           Case{ino, 0, 10, FALLOC_FL_COLLAPSE_RANGE, EOPNOTSUPP},
           Case{ino, 0, 10, FALLOC_FL_INSERT_RANGE, EOPNOTSUPP},
           Case{ino, 0, 10, FALLOC_FL_UNSHARE_RANGE, EOPNOTSUPP},
           Case{ino, kMaxFileBytes, 1, 0, EFBIG},
           Case{ino, UINT64_MAX, UINT64_MAX, 0, EFBIG},
           Case{kRootInode, 0, 10, 0, EISDIR},
           Case{fifo, 0, 10, 0, ESPIPE},
           Case{9999, 0, 10, 0, ENOENT},
           Case{ino, 0, 10000, FALLOC_FL_KEEP_SIZE, 0},
           Case{ino, 0, 10000, 0, 0},
       }) {
    EXPECT_EQ(ErrnoOf(volume().Allocate(ctx(), c.ino, c.offset, c.length, c.mode)), c.error)
        << c.offset << " " << c.length << " " << c.mode;
  }
  EXPECT_EQ(world_.Attributes(ino).size_bytes, 10000u);
  EXPECT_EQ(world_.Contents(ino), "data" + std::string(9996, '\0'));
}

TEST_F(FilesTest, ReadAndWriteErrno) {
  const InodeNumber ino = world_.File(kRootInode, "f", "data");
  const InodeNumber link = volume().Symlink(ctx(), kRootInode, "l", "t").value().ino;
  std::string buffer(10, '?');
  EXPECT_EQ(ErrnoOf(volume().Read(kRootInode, 0, buffer)), EISDIR);
  EXPECT_EQ(ErrnoOf(volume().Read(link, 0, buffer)), EINVAL);
  EXPECT_EQ(ErrnoOf(volume().Read(9999, 0, buffer)), ENOENT);
  EXPECT_EQ(volume().Read(ino, 4, buffer).value(), 0u);
  EXPECT_EQ(volume().Read(ino, UINT64_MAX, buffer).value(), 0u);
  EXPECT_EQ(volume().Read(ino, 2, buffer).value(), 2u);
  EXPECT_EQ(ErrnoOf(volume().Write(ctx(), kRootInode, 0, "x", false)), EISDIR);
  EXPECT_EQ(ErrnoOf(volume().Write(ctx(), link, 0, "x", false)), EINVAL);
  EXPECT_EQ(ErrnoOf(volume().Write(ctx(), 9999, 0, "x", false)), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().Write(ctx(), ino, kMaxFileBytes, "x", false)), EFBIG);
  EXPECT_EQ(ErrnoOf(volume().Write(ctx(), ino, UINT64_MAX, "x", false)), EFBIG);
  EXPECT_EQ(ErrnoOf(volume().Write(ctx(), ino, kMaxFileBytes - 1, "x", false)), 0);
  EXPECT_EQ(Truncate(ino, kMaxFileBytes + 1), EFBIG);
  EXPECT_EQ(Truncate(kRootInode, 0), EISDIR);
  EXPECT_EQ(Truncate(link, 0), EINVAL);
  const TimeSpec mtime = world_.Attributes(ino).mtime;
  world_.clock.Advance(5);
  EXPECT_EQ(volume().Write(ctx(), ino, 0, "", false).value(), 0u);
  EXPECT_EQ(world_.Attributes(ino).mtime, mtime);
}

TEST_F(FilesTest, SparseFilesOf16TebibytesCostOnlyTheirData) {
  const InodeNumber ino = world_.File(kRootInode, "f");
  Write(ino, kMaxFileBytes - 10, "0123456789");
  Write(ino, uint64_t{1} << 40, "middle");
  EXPECT_EQ(Allocated(ino), 8192u);
  EXPECT_EQ(volume().SeekData(ino, 0).value(), uint64_t{1} << 40);
  EXPECT_EQ(volume().SeekHole(ino, uint64_t{1} << 40).value(), (uint64_t{1} << 40) + 4096);
  EXPECT_EQ(volume().SeekData(ino, (uint64_t{1} << 40) + 4096).value(), kMaxFileBytes - 4096);
  EXPECT_EQ(volume().SeekHole(ino, kMaxFileBytes - 1).value(), kMaxFileBytes);
  EXPECT_EQ(ErrnoOf(volume().SeekData(ino, kMaxFileBytes)), ENXIO);
  EXPECT_EQ(ErrnoOf(volume().SeekHole(ino, kMaxFileBytes)), ENXIO);
  ASSERT_EQ(Truncate(ino, (uint64_t{1} << 40) + 3), 0);
  EXPECT_EQ(Allocated(ino), 4096u);
  ASSERT_EQ(Truncate(ino, 100), 0);
  EXPECT_EQ(Allocated(ino), 0u);
  EXPECT_EQ(ErrnoOf(volume().SeekData(ino, 0)), ENXIO);
}

TEST_F(FilesTest, UnlinkedOpenFileKeepsItsDataUntilTheLastRelease) {
  const InodeNumber ino = world_.File(kRootInode, "f", std::string(5000, 'x'));
  ASSERT_TRUE(volume().OpenInode(ctx(), ino, true));
  ASSERT_TRUE(volume().OpenInode(ctx(), ino, false));
  ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "f"));
  EXPECT_EQ(world_.Attributes(ino).nlink, 0u);
  Write(ino, 5000, "more");
  EXPECT_EQ(world_.Contents(ino), std::string(5000, 'x') + "more");
  ASSERT_TRUE(volume().OpenInode(ctx(), ino, false));
  for (const bool writable : {true, false}) {
    ASSERT_TRUE(volume().ReleaseInode(ctx(), ino, writable));
    EXPECT_EQ(world_.Attributes(ino).size_bytes, 5004u);
  }
  ASSERT_TRUE(volume().ReleaseInode(ctx(), ino, false));
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(ino)), ENOENT);
  EXPECT_EQ(volume().GetStatus().inodes, 1u);
  EXPECT_EQ(volume().GetStatus().open_handles, 0u);
}

TEST_F(FilesTest, OrphanRecordHoldsTheOpenCount) {
  const InodeNumber ino = world_.File(kRootInode, "f", "x");
  const auto count = [&]() -> int {
    const auto entry = volume().head().current()->Get(OrphanKey(ino)).value();
    return entry ? static_cast<unsigned char>(entry->payload.at(0)) : -1;
  };
  ASSERT_TRUE(volume().OpenInode(ctx(), ino, false));
  EXPECT_EQ(count(), -1);
  ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "f"));
  EXPECT_EQ(count(), 1);
  ASSERT_TRUE(volume().OpenInode(ctx(), ino, false));
  EXPECT_EQ(count(), 2);
  ASSERT_TRUE(volume().ReleaseInode(ctx(), ino, false));
  EXPECT_EQ(count(), 1);
  ASSERT_TRUE(volume().ReleaseInode(ctx(), ino, false));
  EXPECT_EQ(count(), -1);
}

TEST_F(FilesTest, OrphansOfAnEarlierLifeArePurgedUnlessReadOnly) {
  const InodeNumber ino = world_.File(kRootInode, "f", std::string(100000, 'x'));
  ASSERT_TRUE(volume().OpenInode(ctx(), ino, false));
  ASSERT_TRUE(volume().Unlink(ctx(), kRootInode, "f"));
  world_.Close();
  ASSERT_TRUE(world_.Open(/*read_only=*/true));
  EXPECT_EQ(world_.Contents(ino), std::string(100000, 'x'));
  EXPECT_EQ(volume().GetStatus().inodes, 2u);
  ASSERT_TRUE(world_.Reopen());
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(ino)), ENOENT);
  EXPECT_EQ(volume().GetStatus().inodes, 1u);
}

TEST_F(FilesTest, UnnamedFilesVanishOrGetAName) {
  const InodeNumber dir = world_.Dir(kRootInode, "d");
  const TimeSpec before = world_.Attributes(dir).mtime;
  world_.clock.Advance(5);
  const auto gone = volume().CreateUnnamed(ctx(), dir, 0600);
  const auto kept = volume().CreateUnnamed(ctx(), dir, 0640);
  ASSERT_TRUE(gone && kept);
  EXPECT_EQ(kept->inode.mode, uint32_t{S_IFREG | 0640});
  EXPECT_EQ(kept->inode.nlink, 0u);
  EXPECT_EQ(world_.Attributes(dir).mtime, before);
  Write(kept->ino, 0, "contents");
  const auto linked = volume().Link(ctx(), kept->ino, dir, "name");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->inode.nlink, 1u);
  ASSERT_TRUE(volume().ReleaseInode(ctx(), gone->ino, true));
  ASSERT_TRUE(volume().ReleaseInode(ctx(), kept->ino, true));
  EXPECT_EQ(ErrnoOf(volume().GetAttributes(gone->ino)), ENOENT);
  ASSERT_TRUE(world_.Reopen());
  EXPECT_EQ(world_.Contents(volume().Lookup(dir, "name").value().ino), "contents");
  EXPECT_EQ(ErrnoOf(volume().CreateUnnamed(ctx(), kept->ino, 0600)), ENOTDIR);
  EXPECT_EQ(ErrnoOf(volume().CreateUnnamed(ctx(), 9999, 0600)), ENOENT);
}

TEST_F(FilesTest, OpenErrno) {
  EXPECT_EQ(ErrnoOf(volume().OpenInode(ctx(), 9999, false)), ENOENT);
  EXPECT_EQ(ErrnoOf(volume().OpenInode(ctx(), kRootInode, true)), EISDIR);
  EXPECT_EQ(ErrnoOf(volume().OpenInode(ctx(), kRootInode, false)), 0);
}

TEST_F(FilesTest, WritableOpensAreListed) {
  const InodeNumber a = world_.File(kRootInode, "a");
  const InodeNumber b = world_.File(kRootInode, "b");
  ASSERT_TRUE(volume().OpenInode(ctx(), a, true));
  ASSERT_TRUE(volume().OpenInode(ctx(), a, true));
  ASSERT_TRUE(volume().OpenInode(ctx(), b, false));
  EXPECT_EQ(volume().WritableOpens(), std::vector<InodeNumber>{a});
  ASSERT_TRUE(volume().ReleaseInode(ctx(), a, true));
  EXPECT_EQ(volume().WritableOpens(), std::vector<InodeNumber>{a});
  ASSERT_TRUE(volume().ReleaseInode(ctx(), a, true));
  EXPECT_TRUE(volume().WritableOpens().empty());
}

TEST_F(FilesTest, BigWritesSurviveReopening) {
  SeededRandom random(1);
  const InodeNumber ino = world_.File(kRootInode, "f");
  std::string expected = random.Bytes(1 << 20);
  Write(ino, 0, expected);
  const std::string patch = random.Bytes(100000);
  Write(ino, 12345, patch);
  expected.replace(12345, patch.size(), patch);
  EXPECT_EQ(world_.Contents(ino), expected);
  ASSERT_TRUE(world_.Reopen());
  EXPECT_EQ(world_.Contents(ino), expected);
}

}  // namespace
}  // namespace cairn
