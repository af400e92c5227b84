// POSIX through a real mount: the kernel, the keeper, the transport and the codec, over a volume in
// memory.
#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/fuse/mount_fixture.h"

namespace cairn {
namespace {

using MountedFiles = MountTestOverBoth;
using MountedFilesInMemory = MountTest;
INSTANTIATE_TEST_SUITE_P(, MountedFiles, testing::Values(Backing::kMemory, Backing::kJournal),
                         BackingName);

struct stat Lstat(const std::string& path) {
  struct stat st{};
  EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path << ": " << std::strerror(errno);
  return st;
}

std::set<std::string> List(const std::string& path) {
  std::set<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return {"errno " + std::to_string(errno)};
  while (const dirent* entry = ::readdir(dir)) names.insert(entry->d_name);
  ::closedir(dir);
  return names;
}

TEST_P(MountedFiles, WrittenBytesAreReadBackAndReachTheServer) {
  Start();
  std::string data(3'000'000, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7919 >> 3);
  Spill(Path("file"), data);
  EXPECT_EQ(Slurp(Path("file")), data);
  EXPECT_EQ(ContentOf("file"), data);  // close(2) wrote it back
  EXPECT_EQ(Lstat(Path("file")).st_size, 3'000'000);
}

TEST_P(MountedFiles, NamesAreMadeMovedAndRemoved) {
  Start();
  ASSERT_EQ(::mkdir(Path("dir").c_str(), 0750), 0);
  EXPECT_EQ(Lstat(Path("dir")).st_mode, static_cast<mode_t>(S_IFDIR | 0750));
  Spill(Path("dir/a"), "a");
  Spill(Path("b"), "b");
  ASSERT_EQ(::rename(Path("dir/a").c_str(), Path("b").c_str()), 0);
  EXPECT_EQ(Slurp(Path("b")), "a");
  EXPECT_EQ(List(Path("dir")), (std::set<std::string>{".", ".."}));
  EXPECT_EQ(List(dir_), (std::set<std::string>{".", "..", "dir", "b"}));
  EXPECT_EQ(Slurp(Path("dir/a")), "errno 2");
  ASSERT_EQ(::rmdir(Path("dir").c_str()), 0);
  ASSERT_EQ(::unlink(Path("b").c_str()), 0);
  EXPECT_EQ(List(dir_), (std::set<std::string>{".", ".."}));
}

TEST_P(MountedFiles, RenameFlagsAreKept) {
  Start();
  Spill(Path("a"), "A");
  Spill(Path("b"), "B");
  const auto rename2 = [this](unsigned flags) {
    return ::renameat2(AT_FDCWD, Path("a").c_str(), AT_FDCWD, Path("b").c_str(), flags) == 0
               ? 0
               : errno;
  };
  EXPECT_EQ(rename2(RENAME_NOREPLACE), EEXIST);
  EXPECT_EQ(rename2(RENAME_EXCHANGE), 0);
  EXPECT_EQ(Slurp(Path("a")), "B");
  EXPECT_EQ(Slurp(Path("b")), "A");
}

TEST_P(MountedFiles, ManyEntriesAreListedOnceEach) {
  Start();
  std::set<std::string> expected = {".", ".."};
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "entry-with-a-long-name-" + std::to_string(i);
    expected.insert(name);
    UniqueFd fd = OpenFile(Path(name), O_WRONLY | O_CREAT);
    ASSERT_TRUE(fd.valid());
  }
  EXPECT_EQ(List(dir_), expected);
  ASSERT_EQ(::unlink(Path("entry-with-a-long-name-7").c_str()), 0);
  expected.erase("entry-with-a-long-name-7");
  EXPECT_EQ(List(dir_), expected);  // the cached listing is not the old one
}

TEST_P(MountedFiles, UnlinkedOpenFileLivesUntilTheLastClose) {
  Start();
  Spill(Path("gone"), "still here");
  {
    UniqueFd fd = OpenFile(Path("gone"), O_RDWR);
    ASSERT_EQ(::unlink(Path("gone").c_str()), 0);
    EXPECT_EQ(Slurp(Path("gone")), "errno 2");
    char buffer[10];
    ASSERT_EQ(::pread(fd.get(), buffer, 10, 0), 10);
    EXPECT_EQ(std::string(buffer, 10), "still here");
    struct stat st{};
    ASSERT_EQ(::fstat(fd.get(), &st), 0);
    EXPECT_EQ(st.st_nlink, 0u);
    EXPECT_TRUE(Eventually([this] { return Ask("opens") == "1"; }));
  }
  EXPECT_TRUE(Eventually([this] { return Ask("opens") == "0"; }));
}

// The kernel writes the times of a removed file back: an error of that is what syncfs(2) would say.
TEST_P(MountedFiles, SyncfsSucceedsAfterLastLinksWereRemoved) {
  Start();
  const int dir = ::open(Path("").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(dir, 0);
  const auto sync = [dir] { return ::syncfs(dir) == 0 ? 0 : errno; };
  Spill(Path("a"), "a");
  ASSERT_EQ(::unlink(Path("a").c_str()), 0);
  EXPECT_EQ(sync(), 0);
  Spill(Path("a"), "a");
  Spill(Path("b"), "b");
  ASSERT_EQ(::rename(Path("a").c_str(), Path("b").c_str()), 0);
  EXPECT_EQ(sync(), 0);
  ASSERT_EQ(::mkdir(Path("dir").c_str(), 0750), 0);
  ASSERT_EQ(::rmdir(Path("dir").c_str()), 0);
  EXPECT_EQ(sync(), 0);
  EXPECT_EQ(Slurp(Path("b")), "a");
  ::close(dir);
}

TEST_P(MountedFiles, SharedMappingIsSeenByReadAndReachesTheServer) {
  Start();
  UniqueFd fd = OpenFile(Path("map"), O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(fd.get(), 8192), 0);
  char* map =
      static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(map, MAP_FAILED);
  std::memcpy(map + 5000, "mapped", 6);
  char buffer[6];
  ASSERT_EQ(::pread(fd.get(), buffer, 6, 5000), 6);
  EXPECT_EQ(std::string(buffer, 6), "mapped");
  ASSERT_EQ(::pwrite(fd.get(), "written", 7, 100), 7);
  EXPECT_EQ(std::string(map + 100, 7), "written");
  ASSERT_EQ(::msync(map, 8192, MS_SYNC), 0);
  EXPECT_EQ(ContentOf("map").substr(5000, 6), "mapped");
  EXPECT_EQ(ContentOf("map").substr(100, 7), "written");
  ::munmap(map, 8192);
}

TEST_P(MountedFiles, LinksAndSymlinks) {
  Start();
  Spill(Path("file"), "x");
  ASSERT_EQ(::link(Path("file").c_str(), Path("second").c_str()), 0);
  EXPECT_EQ(Lstat(Path("file")).st_nlink, 2u);
  EXPECT_EQ(Lstat(Path("file")).st_ino, Lstat(Path("second")).st_ino);
  ASSERT_EQ(::unlink(Path("file").c_str()), 0);
  EXPECT_EQ(Lstat(Path("second")).st_nlink, 1u);
  ASSERT_EQ(::symlink("second", Path("link").c_str()), 0);
  char target[100];
  ASSERT_EQ(::readlink(Path("link").c_str(), target, sizeof target), 6);
  EXPECT_EQ(Slurp(Path("link")), "x");
}

TEST_P(MountedFiles, Xattrs) {
  Start();
  Spill(Path("file"), "x");
  const std::string path = Path("file");
  ASSERT_EQ(::setxattr(path.c_str(), "user.name", "value", 5, XATTR_CREATE), 0);
  EXPECT_EQ(::setxattr(path.c_str(), "user.name", "value", 5, XATTR_CREATE), -1);
  EXPECT_EQ(errno, EEXIST);
  char buffer[100];
  ASSERT_EQ(::getxattr(path.c_str(), "user.name", buffer, sizeof buffer), 5);
  EXPECT_EQ(std::string(buffer, 5), "value");
  ASSERT_EQ(::listxattr(path.c_str(), buffer, sizeof buffer), 10);
  ASSERT_EQ(::removexattr(path.c_str(), "user.name"), 0);
  EXPECT_EQ(::getxattr(path.c_str(), "user.name", buffer, sizeof buffer), -1);
  EXPECT_EQ(errno, ENODATA);
}

TEST_P(MountedFiles, SeekFindsDataThatOnlyThePageCacheHolds) {
  Start();
  UniqueFd fd = OpenFile(Path("sparse"), O_RDWR | O_CREAT);
  const std::string data(10'000, 'd');
  ASSERT_EQ(::pwrite(fd.get(), data.data(), data.size(), 1 << 20), 10'000);
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_DATA), 1 << 20);
  EXPECT_GE(::lseek(fd.get(), 1 << 20, SEEK_HOLE), (1 << 20) + 10'000);
  EXPECT_EQ(::lseek(fd.get(), 2 << 20, SEEK_DATA), -1);
  EXPECT_EQ(errno, ENXIO);
  ASSERT_EQ(::fsync(fd.get()), 0);
  EXPECT_LE(Lstat(Path("sparse")).st_blocks * 512, 16'384);
}

// tar -S takes a file with bytes and no blocks for one hole.
TEST_P(MountedFiles, AFileOpenForWritingIsNeverWithoutBlocks) {
  Start();
  Spill(Path("old"), "");
  EXPECT_TRUE(Eventually([&] { return Lstat(Path("old")).st_blocks == 0; }));
  for (const char* name : {"old", "new"}) {
    SCOPED_TRACE(name);
    UniqueFd fd = OpenFile(Path(name), O_WRONLY | O_CREAT | O_APPEND);
    Lstat(Path(name));
    ASSERT_TRUE(WriteAll(fd.get(), std::string(1 << 20, 'x')));
    EXPECT_GT(Lstat(Path(name)).st_blocks, 0);
    ASSERT_EQ(::fsync(fd.get()), 0);
    EXPECT_TRUE(Eventually([&] { return Lstat(Path(name)).st_blocks == 2048; }))
        << Lstat(Path(name)).st_blocks;
    fd.Reset();
    EXPECT_EQ(Lstat(Path(name)).st_blocks, 2048);
  }
}

TEST_P(MountedFiles, PunchedHoleReadsAsZeros) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), std::string(16'384, 'x')));
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192), 0);
  EXPECT_EQ(Slurp(Path("file")),
            std::string(4096, 'x') + std::string(8192, '\0') + std::string(4096, 'x'));
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_HOLE), 4096);
  EXPECT_EQ(::lseek(fd.get(), 4096, SEEK_DATA), 12'288);
}

TEST_P(MountedFiles, CopyFileRangeFallsBackInTheKernel) {
  Start();
  Spill(Path("from"), std::string(100'000, 'c'));
  UniqueFd from = OpenFile(Path("from"), O_RDONLY);
  UniqueFd to = OpenFile(Path("to"), O_WRONLY | O_CREAT);
  EXPECT_EQ(::copy_file_range(from.get(), nullptr, to.get(), nullptr, 100'000, 0), 100'000);
  to.Reset();
  EXPECT_EQ(Slurp(Path("to")), std::string(100'000, 'c'));
}

TEST_P(MountedFiles, TmpFileCanBeLinkedIntoTheTree) {
  Start();
  UniqueFd fd(::open(dir_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd.valid()) << std::strerror(errno);
  ASSERT_TRUE(WriteAll(fd.get(), "nameless"));
  EXPECT_EQ(List(dir_), (std::set<std::string>{".", ".."}));
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  ASSERT_EQ(::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, Path("named").c_str(), AT_SYMLINK_FOLLOW), 0)
      << std::strerror(errno);
  EXPECT_EQ(Slurp(Path("named")), "nameless");
  EXPECT_EQ(Lstat(Path("named")).st_nlink, 1u);
}

TEST_P(MountedFiles, TimesModesAndBirthTime) {
  Start();
  Spill(Path("file"), "x");
  const timespec times[2] = {{.tv_sec = 1, .tv_nsec = 2}, {.tv_sec = -3, .tv_nsec = 999'999'999}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Path("file").c_str(), times, 0), 0);
  ASSERT_EQ(::chmod(Path("file").c_str(), 0604), 0);
  const struct stat st = Lstat(Path("file"));
  EXPECT_EQ(st.st_atim.tv_sec, 1);
  EXPECT_EQ(st.st_atim.tv_nsec, 2);
  EXPECT_EQ(st.st_mtim.tv_sec, -3);
  EXPECT_EQ(st.st_mtim.tv_nsec, 999'999'999);
  EXPECT_EQ(st.st_mode, static_cast<mode_t>(S_IFREG | 0604));
  struct statx stx{};
  ASSERT_EQ(::statx(AT_FDCWD, Path("file").c_str(), 0, STATX_BTIME, &stx), 0);
  EXPECT_NE(stx.stx_mask & STATX_BTIME, 0u);
  EXPECT_GT(stx.stx_btime.tv_sec, 1'500'000'000);
}

TEST_P(MountedFiles, OpenWithTruncTruncates) {
  Start();
  Spill(Path("file"), "longer than before");
  Spill(Path("file"), "short");
  EXPECT_EQ(Slurp(Path("file")), "short");
  EXPECT_EQ(ContentOf("file"), "short");
}

TEST_P(MountedFiles, FifosAndSocketsCanBeMade) {
  Start();
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_TRUE(S_ISFIFO(Lstat(Path("fifo")).st_mode));
  ASSERT_EQ(::mknod(Path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
  EXPECT_EQ(Lstat(Path("null")).st_rdev, makedev(1, 3));
  EXPECT_FALSE(OpenFile(Path("null"), O_RDONLY).valid());  // nodev
}

TEST_P(MountedFiles, LocksWorkBetweenProcesses) {
  Start();
  Spill(Path("lock"), "x");
  UniqueFd fd = OpenFile(Path("lock"), O_RDWR);
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(fd.get(), F_SETLK, &lock), 0);
  const auto try_lock = [&] {
    UniqueFd own = OpenFile(Path("lock"), O_RDWR);
    struct flock mine{};
    mine.l_type = F_WRLCK;
    mine.l_whence = SEEK_SET;
    return ::fcntl(own.get(), F_SETLK, &mine) == 0 ? 0 : errno;
  };
  EXPECT_EQ(InChild(try_lock), EAGAIN);
  lock.l_type = F_UNLCK;
  ASSERT_EQ(::fcntl(fd.get(), F_SETLK, &lock), 0);
  EXPECT_EQ(InChild(try_lock), 0);
  ASSERT_EQ(::flock(fd.get(), LOCK_EX), 0);
  EXPECT_EQ(InChild([&] {
              UniqueFd own = OpenFile(Path("lock"), O_RDWR);
              return ::flock(own.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
            }),
            EWOULDBLOCK);
}

TEST_P(MountedFiles, OtherUsersAreServedAndCheckedByMode) {
  Start();
  Spill(Path("open"), "x");
  Spill(Path("closed"), "y");
  ASSERT_EQ(::chmod(dir_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(Path("closed").c_str(), 0600), 0);
  constexpr uint32_t kNobody = 65534;
  EXPECT_EQ(InChild([&] { return Slurp(Path("open")) == "x" ? 0 : 1; }, kNobody), 0);
  EXPECT_EQ(InChild([&] { return Slurp(Path("closed")) == "errno 13" ? 0 : 1; }, kNobody), 0);
}

TEST_P(MountedFiles, WriteByAnotherUserClearsSetuid) {
  Start();
  Spill(Path("tool"), "x");
  ASSERT_EQ(::chmod(Path("tool").c_str(), 04777), 0);
  EXPECT_EQ(InChild(
                [&] {
                  UniqueFd fd = OpenFile(Path("tool"), O_WRONLY);
                  return fd.valid() && WriteAll(fd.get(), "changed") ? 0 : 1;
                },
                65534),
            0);
  EXPECT_EQ(StatOf("tool").mode & 07777, 0777u);
  EXPECT_EQ(Lstat(Path("tool")).st_mode & 07777, 0777u);
}

TEST_P(MountedFiles, QuotaIsSeenAndKept) {
  Start({"--quota-bytes", "1048576"});
  struct statvfs st{};
  ASSERT_EQ(::statvfs(dir_.c_str(), &st), 0);
  EXPECT_EQ(st.f_blocks * st.f_frsize, 1u << 20);
  UniqueFd fd = OpenFile(Path("big"), O_WRONLY | O_CREAT);
  EXPECT_TRUE(WriteAll(fd.get(), std::string(2 << 20, 'x')));  // into the page cache
  EXPECT_EQ(::fsync(fd.get()), -1);
  EXPECT_EQ(errno, ENOSPC);
}

TEST_F(MountedFilesInMemory, FsyncReachesTheVolumeAndItsErrorTheCaller) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "x"));
  ASSERT_EQ(::fsync(fd.get()), 0);
  EXPECT_EQ(Ask("sync-count"), "1");
  EXPECT_EQ(ContentOf("file"), "x");
  UniqueFd dir(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::fsync(dir.get()), 0);
  EXPECT_EQ(Ask("sync-count"), "2");
  Ask("fail-syncs 1");
  EXPECT_EQ(::fsync(fd.get()), -1);
  EXPECT_EQ(errno, EIO);
}

TEST_F(MountedFilesInMemory, FailedWriteBackIsToldAtFsync) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  Ask("fail-writes 1");
  ASSERT_TRUE(WriteAll(fd.get(), "lost"));
  EXPECT_EQ(::fsync(fd.get()), -1);
  EXPECT_EQ(errno, EIO);
  Ask("fail-writes 0");
  EXPECT_EQ(::fsync(fd.get()), 0);
}

TEST_P(MountedFiles, WithoutWritebackEveryWriteReachesTheServerAtOnce) {
  Start({"--no-writeback"});
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "direct"));
  EXPECT_EQ(ContentOf("file"), "direct");
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_DATA), 0);
}

}  // namespace
}  // namespace cairn
