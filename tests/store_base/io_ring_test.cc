// Batches of reads and queues of writes: the ring, what serves where there is none, and that an
// error or a short read is one read's alone.
#include "store/base/io_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "store/base/file_system.h"
#include "store/base/random.h"
#include "store/base/unique_fd.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kSeed = 20240611;

bool KernelHasRings() { return IoRing::Create(IoRing::Use::kReads).has_value(); }

// Not in the page cache afterwards.
void WriteCold(const std::string& path, const std::string& contents) {
  UniqueFd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(pwrite(fd.get(), contents.data(), contents.size(), 0),
            static_cast<ssize_t>(contents.size()));
  ASSERT_EQ(fsync(fd.get()), 0);
  ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
}

size_t CachedPages(const std::string& path, size_t file_bytes) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* const map = mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  EXPECT_NE(map, MAP_FAILED);
  std::vector<unsigned char> pages((file_bytes + 4095) / 4096);
  EXPECT_EQ(mincore(map, file_bytes, pages.data()), 0);
  munmap(map, file_bytes);
  return static_cast<size_t>(std::ranges::count_if(pages, [](unsigned char p) { return p & 1; }));
}

struct Range {
  uint64_t offset;
  size_t length_bytes;
};

// Reads the ranges in one batch; "error N" for a failed one. Each must be answered once.
std::vector<std::string> ReadRanges(FileSystem& fs, File& file, const std::vector<Range>& ranges) {
  std::vector<ReadOp> ops;
  for (const Range& range : ranges) {
    ops.push_back({.file = &file, .offset = range.offset, .length_bytes = range.length_bytes});
  }
  std::vector<std::string> result(ops.size(), "unanswered");
  fs.ReadMany(ops, [&](size_t index, Result<std::string_view> bytes) {
    EXPECT_EQ(result[index], "unanswered");
    result[index] =
        bytes ? std::string(*bytes) : "error " + std::to_string(bytes.error().sys_errno());
  });
  return result;
}

struct Backend {
  IoBackend backend;
  bool bulk_direct;
  bool cold;
};

class ReadMany : public testing::TestWithParam<Backend> {};

INSTANTIATE_TEST_SUITE_P(, ReadMany,
                         testing::Values(Backend{IoBackend::kPosix, false, true},
                                         Backend{IoBackend::kPosix, true, true},
                                         Backend{IoBackend::kRing, false, true},
                                         Backend{IoBackend::kRing, true, true},
                                         Backend{IoBackend::kRing, true, false}));

TEST_P(ReadMany, GivesEachReadItsBytes) {
  SCOPED_TRACE(kSeed);
  SeededRandom random(kSeed);
  TempDir temp;
  const std::string contents = random.Bytes((5 << 20) + 777);
  WriteCold(temp / "f", contents);
  if (!GetParam().cold) {
    ASSERT_TRUE(ReadWholeFile(HostFileSystem(), temp / "f", 8 << 20).has_value());
  }
  const std::unique_ptr<FileSystem> fs = NewHostFileSystem(GetParam().backend);
  const auto file =
      fs->Open(temp / "f", {.read_only = true, .bulk_direct = GetParam().bulk_direct});
  ASSERT_TRUE(file.has_value());
  std::vector<Range> ranges = {{0, 1},
                               {0, 0},
                               {contents.size() - 1, 4096},
                               {contents.size() + 5000, 100},
                               {contents.size() - 70000, 70000},
                               {1, IoRing::kMaxReadBytes},
                               {4096, IoRing::kMaxReadBytes},
                               {3, 3 << 20}};
  for (int i = 0; i < 200; ++i) {
    ranges.push_back({random.Below(contents.size()), random.Below(i % 10 == 0 ? 1 << 20 : 70000)});
  }
  const std::vector<std::string> got = ReadRanges(*fs, **file, ranges);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const std::string want = ranges[i].offset < contents.size()
                                 ? contents.substr(ranges[i].offset, ranges[i].length_bytes)
                                 : "";
    EXPECT_TRUE(got[i] == want) << "range " << i << " at " << ranges[i].offset << " of "
                                << ranges[i].length_bytes << " has " << got[i].size();
  }
}

TEST(HostFileSystemBatch, DirectReadsLeaveThePageCacheAlone) {
  if (!KernelHasRings()) GTEST_SKIP() << "no io_uring here";
  TempDir temp;
  const std::string contents = SeededRandom(kSeed).Bytes(4 << 20);
  WriteCold(temp / "f", contents);
  if (CachedPages(temp / "f", contents.size()) > 0) GTEST_SKIP() << "not on a disk";
  const std::unique_ptr<FileSystem> fs = NewHostFileSystem(IoBackend::kRing);
  const auto file = fs->Open(temp / "f", {.read_only = true, .bulk_direct = true});
  ASSERT_TRUE(file.has_value());
  const auto got = ReadRanges(*fs, **file, {{100, 100000}, {2 << 20, 1 << 20}});
  EXPECT_TRUE(got[0] == contents.substr(100, 100000));
  EXPECT_TRUE(got[1] == contents.substr(2 << 20, 1 << 20));
  EXPECT_EQ(CachedPages(temp / "f", contents.size()), 0u);
}

TEST(HostFileSystemBatch, AFileThatShrankReadsShort) {
  TempDir temp;
  const std::string contents = SeededRandom(kSeed).Bytes(1 << 20);
  WriteCold(temp / "f", contents);
  const std::unique_ptr<FileSystem> fs = NewHostFileSystem(IoBackend::kRing);
  const auto file = fs->Open(temp / "f", {.read_only = true, .bulk_direct = true});
  ASSERT_TRUE(file.has_value());
  ASSERT_EQ(truncate((temp / "f").c_str(), 300001), 0);
  const auto got = ReadRanges(*fs, **file, {{0, 65536}, {299000, 65536}, {400000, 65536}});
  EXPECT_TRUE(got[0] == contents.substr(0, 65536));
  EXPECT_TRUE(got[1] == contents.substr(299000, 1001));
  EXPECT_EQ(got[2], "");
}

TEST(HostFileSystemBatch, MoreReadersThanRings) {
  TempDir temp;
  const std::string contents = SeededRandom(kSeed).Bytes(4 << 20);
  WriteCold(temp / "f", contents);
  const std::unique_ptr<FileSystem> fs = NewHostFileSystem(IoBackend::kRing);
  const auto file = fs->Open(temp / "f", {.read_only = true, .bulk_direct = true});
  ASSERT_TRUE(file.has_value());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 10; ++t) {
    threads.emplace_back([&, t] {
      SeededRandom random(kSeed + t);
      for (int round = 0; round < 5; ++round) {
        std::vector<Range> ranges;
        for (int i = 0; i < 40; ++i) ranges.push_back({random.Below(4 << 20), random.Below(65536)});
        const auto got = ReadRanges(*fs, **file, ranges);
        for (size_t i = 0; i < ranges.size(); ++i) {
          EXPECT_TRUE(got[i] == contents.substr(ranges[i].offset, ranges[i].length_bytes));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostFileSystemBatch, AnErrorIsOneReadsAlone) {
  TempDir temp;
  const std::string contents = SeededRandom(kSeed).Bytes(1 << 20);
  WriteCold(temp / "f", contents);
  FaultyFileSystem fs(temp / "scratch");
  const auto file = fs.Open(temp / "f", {.read_only = true});
  ASSERT_TRUE(file.has_value());
  fs.FailNth(FaultyFileSystem::Call::kRead, 2, EIO);
  const auto got = ReadRanges(fs, **file, {{0, 100}, {100, 100}, {200, 100}});
  EXPECT_EQ(got[0], contents.substr(0, 100));
  EXPECT_EQ(got[1], "error " + std::to_string(EIO));
  EXPECT_EQ(got[2], contents.substr(200, 100));
}

// io_uring_setup is answered with `sys_errno` in this process from now on.
void RefuseRings(int sys_errno) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(sys_errno)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{.len = 4, .filter = program};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(HostFileSystemBatch, ServesWhereTheKernelRefusesRingsAndSaysSoOnce) {
  for (const int refusal : {EPERM, ENOSYS}) {
    TempDir temp;
    const std::string contents = SeededRandom(kSeed).Bytes(1 << 20);
    WriteCold(temp / "f", contents);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      UniqueFd log(open((temp / "log").c_str(), O_CREAT | O_WRONLY, 0600));
      dup2(log.get(), STDERR_FILENO);
      RefuseRings(refusal);
      const std::unique_ptr<FileSystem> fs = NewHostFileSystem(IoBackend::kRing);
      const auto file = fs->Open(temp / "f", {.read_only = true, .bulk_direct = true});
      bool good = file.has_value() && !KernelHasRings();
      for (int i = 0; i < 3 && good; ++i) {
        const auto got = ReadRanges(*fs, **file, {{10, 70000}, {500000, 70000}});
        good = got[0] == contents.substr(10, 70000) && got[1] == contents.substr(500000, 70000);
      }
      _exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << refusal;
    const std::string log = ReadWholeFile(HostFileSystem(), temp / "log", 1 << 20).value_or("");
    const size_t first = log.find("io_backend");
    EXPECT_NE(first, std::string::npos) << log;
    EXPECT_EQ(log.find("io_backend", first + 1), std::string::npos) << log;
    EXPECT_THAT(log, testing::HasSubstr("posix"));
  }
}

TEST(IoRing, ABoundedArenaIsSharedByShortAndLongReads) {
  if (!KernelHasRings()) GTEST_SKIP() << "no io_uring here";
  TempDir temp;
  const std::string contents = SeededRandom(kSeed).Bytes(4 << 20);
  WriteCold(temp / "f", contents);
  UniqueFd fd(open((temp / "f").c_str(), O_RDONLY | O_CLOEXEC));
  IoRing ring = *IoRing::Create(IoRing::Use::kReads);
  for (uint64_t i = 0; i < IoRing::kSlots; ++i) {
    ASSERT_TRUE(ring.Start(fd.get(), i * 1000, IoRing::kSlotBytes, i)) << i;
  }
  EXPECT_FALSE(ring.Start(fd.get(), 0, 1, 99));
  const auto check = [&](const IoRing::Completion& done) {
    EXPECT_EQ(done.result, static_cast<ssize_t>(done.buffer.size()));
    EXPECT_TRUE(std::string_view(done.buffer.data(), done.buffer.size()) ==
                std::string_view(contents).substr(done.offset, done.buffer.size()));
  };
  // A completion's slots stay its own until it is released.
  IoRing::Completion first = ring.Wait();
  EXPECT_FALSE(ring.Start(fd.get(), 0, 1, 99));
  check(first);
  ring.Release(first);
  EXPECT_FALSE(ring.Start(fd.get(), 0, IoRing::kSlotBytes + 1, 99));
  EXPECT_TRUE(ring.Start(fd.get(), 5, IoRing::kSlotBytes, 99));
  while (ring.in_flight() > 0) {
    const IoRing::Completion done = ring.Wait();
    check(done);
    ring.Release(done);
  }
  EXPECT_TRUE(ring.Start(fd.get(), 7, IoRing::kMaxReadBytes, 1));
  EXPECT_TRUE(ring.Start(fd.get(), 9, IoRing::kMaxReadBytes, 2));
  EXPECT_FALSE(ring.Start(fd.get(), 0, 1, 3));
  IoRing moved = std::move(ring);
  check(moved.Wait());
  // The other one is in flight when the ring goes.
}

TEST(IoRing, ReadsThatAreStillQueuedAreFinishedWhenItGoes) {
  if (!KernelHasRings()) GTEST_SKIP() << "no io_uring here";
  TempDir temp;
  WriteCold(temp / "f", SeededRandom(kSeed).Bytes(4 << 20));
  UniqueFd fd(open((temp / "f").c_str(), O_RDONLY | O_CLOEXEC));
  for (int round = 0; round < 20; ++round) {
    IoRing ring = *IoRing::Create(IoRing::Use::kReads);
    for (uint64_t i = 0; i < IoRing::kSlots; ++i) {
      ASSERT_TRUE(ring.Start(fd.get(), i * 65536, 65536, i));
    }
    for (uint64_t i = 0; i < 3; ++i) {
      const IoRing::Completion done = ring.Wait();
      ring.Release(done);
      ASSERT_TRUE(ring.Start(fd.get(), i * 4096, 4096, IoRing::kSlots + i));
    }
  }
}

// A file system of at most `size` (as of tmpfs), until the end of the scope.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const char* size) {
    EXPECT_TRUE(HostFileSystem().MakeDir(dir_));
    mounted_ = mount("small", dir_.c_str(), "tmpfs", 0, size) == 0;
    EXPECT_TRUE(mounted_ || geteuid() != 0) << "mount: " << std::strerror(errno);
  }
  ~SmallFileSystem() {
    if (mounted_) {
      EXPECT_EQ(umount(dir_.c_str()), 0) << std::strerror(errno);
    }
  }
  bool mounted() const { return mounted_; }
  std::string operator/(const std::string& name) const { return dir_ + "/" + name; }

 private:
  const TempDir temp_;
  const std::string dir_ = temp_ / "small";
  bool mounted_ = false;
};

TEST(WriteQueue, WritesEachPieceAtItsPlace) {
  SeededRandom random(kSeed);
  TempDir temp;
  FaultyFileSystem faulty(temp / "scratch");
  const auto ring = NewHostFileSystem(IoBackend::kRing);
  const auto posix = NewHostFileSystem(IoBackend::kPosix);
  for (FileSystem* fs : {ring.get(), posix.get(), static_cast<FileSystem*>(&faulty)}) {
    std::vector<std::pair<uint64_t, std::string>> pieces;  // more than a ring takes at once
    std::string want(5, '\0');
    for (int i = 0; i < 300; ++i) {
      pieces.emplace_back(want.size(), random.Bytes(i % 7 == 0 ? 0 : random.Below(20'000)));
      want += pieces.back().second;
    }
    for (size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random.Below(i)]);
    const std::string path = temp / "file";
    const auto file = fs->Open(path, {.create = true, .truncate = true});
    ASSERT_TRUE(file.has_value());
    const auto writes = (*file)->BeginWrites();
    for (const auto& [offset, piece] : pieces) writes->Add(offset, piece);
    ASSERT_TRUE(writes->Finish());
    EXPECT_TRUE(ReadWholeFile(HostFileSystem(), path, 4 << 20).value() == want);
  }
}

TEST(WriteQueue, ReportsAFullDiskAndWritesWhatFits) {
  for (const IoBackend backend : {IoBackend::kRing, IoBackend::kPosix}) {
    const SmallFileSystem small("size=64k");
    if (!small.mounted()) GTEST_SKIP() << "only root can mount a small file system";
    const auto fs = NewHostFileSystem(backend);
    const auto file = fs->Open(small / "file", {.create = true});
    ASSERT_TRUE(file.has_value());
    const std::string piece(48 << 10, 'x');
    const auto writes = (*file)->BeginWrites();
    writes->Add(0, piece);
    writes->Add(piece.size(), piece);
    const Status written = writes->Finish();
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code(), ErrorCode::kExhausted);
    EXPECT_TRUE(ReadWholeFile(*fs, small / "file", 1 << 20).value().starts_with(piece));
  }
}

// A write that the kernel ends short (here at the largest size that the process may give a file) is
// gone on with, and what stops it is told.
TEST(WriteQueue, GoesOnAfterAShortWrite) {
  TempDir temp;
  const auto fs = NewHostFileSystem(IoBackend::kRing);
  const auto file = fs->Open(temp / "file", {.create = true});
  ASSERT_TRUE(file.has_value());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{.rlim_cur = 10'000, .rlim_max = old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto writes = (*file)->BeginWrites();
  const std::string piece(20'000, 'x');
  writes->Add(0, piece);
  const Status written = writes->Finish();
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().sys_errno(), EFBIG);
  EXPECT_EQ((*file)->SizeBytes().value(), 10'000u);
}

TEST(WriteQueue, WaitsForItsWritesWhenItIsDropped) {
  TempDir temp;
  const auto fs = NewHostFileSystem(IoBackend::kRing);
  const auto file = fs->Open(temp / "file", {.create = true});
  ASSERT_TRUE(file.has_value());
  std::string piece(1 << 20, 'x');
  {
    const auto writes = (*file)->BeginWrites();
    for (uint64_t i = 0; i < 16; ++i) writes->Add(i << 20, piece);
  }
  piece.assign(piece.size(), 'y');
  EXPECT_EQ(ReadWholeFile(*fs, temp / "file", 32 << 20).value(), std::string(16 << 20, 'x'));
}

TEST(IoRing, TakesNoMoreWritesThanItHasRoomForAndTellsOfEachOnce) {
  if (!KernelHasRings()) GTEST_SKIP() << "the kernel gives no ring";
  TempDir temp;
  const std::string path = temp / "file";
  UniqueFd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  IoRing ring = *IoRing::Create(IoRing::Use::kWrites);
  const std::string piece(1000, 'x');
  for (unsigned i = 0; i < IoRing::kSlots; ++i) {
    ASSERT_TRUE(ring.StartWrite(fd.get(), i * piece.size(), piece, i));
  }
  EXPECT_FALSE(ring.StartWrite(fd.get(), 0, piece, 99));
  std::set<uint64_t> tags;
  while (ring.in_flight() > 0) {
    const IoRing::Completion done = ring.Wait();
    EXPECT_EQ(done.result, static_cast<ssize_t>(piece.size()));
    EXPECT_EQ(done.offset, done.tag * piece.size());
    EXPECT_TRUE(tags.insert(done.tag).second);
  }
  EXPECT_EQ(tags.size(), IoRing::kSlots);
  EXPECT_TRUE(ring.StartWrite(fd.get(), 0, piece, 0));
}

}  // namespace
}  // namespace cairn
