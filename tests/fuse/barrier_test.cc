// The snapshot barrier through a real mount: what write(2) returned is in the volume after
// Barrier(), with its times.
#include <sys/mman.h>

#include <cstring>

#include "tests/fuse/mount_fixture.h"

namespace cairn {
namespace {

using Barrier = MountTestOverBoth;
using BarrierInMemory = MountTest;
INSTANTIATE_TEST_SUITE_P(, Barrier, testing::Values(Backing::kMemory, Backing::kJournal),
                         BackingName);

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

TEST_P(Barrier, DirtyDataSizeAndTimesAreInTheVolumeAfterIt) {
  Start({"--write-delay-ms", "150"});
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  const std::string data(3'500'000, 'd');
  ASSERT_TRUE(WriteAll(fd.get(), data));
  struct stat st{};
  ASSERT_EQ(::fstat(fd.get(), &st), 0);
  ASSERT_EQ(Ask("barrier"), "ok");
  const Stat stored = StatOf("file");
  EXPECT_EQ(stored.size_bytes, data.size());
  EXPECT_EQ(stored.mtime_ns, Nanoseconds(st.st_mtim));
  EXPECT_EQ(stored.ctime_ns, Nanoseconds(st.st_ctim));
  EXPECT_EQ(ContentOf("file"), data);
  if (backing_ == Backing::kMemory) {
    EXPECT_EQ(Ask("sync-count"), "0");  // the freeze does the one flush
  }
  EXPECT_TRUE(Eventually([this] { return Ask("opens") == "1"; })) << "the helper left something";
}

TEST_P(Barrier, CoversUnlinkedFilesAndSharedMappings) {
  Start({"--write-delay-ms", "20"});
  UniqueFd orphan = OpenFile(Path("orphan"), O_RDWR | O_CREAT);
  struct stat st{};
  ASSERT_EQ(::fstat(orphan.get(), &st), 0);
  ASSERT_EQ(::unlink(Path("orphan").c_str()), 0);
  ASSERT_TRUE(WriteAll(orphan.get(), "unlinked"));

  UniqueFd fd = OpenFile(Path("map"), O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  char* map =
      static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(map, MAP_FAILED);
  fd.Reset();  // only the mapping is left
  std::memcpy(map, "mapped", 6);

  ASSERT_EQ(Ask("barrier"), "ok");
  EXPECT_EQ(ContentOf("map").substr(0, 6), "mapped");
  EXPECT_EQ(Ask("read-inode " + std::to_string(st.st_ino)), "x" + HexEncode("unlinked"));
  ::munmap(map, 4096);
}

TEST_P(Barrier, CoversMoreFilesThanOneMessageHolds) {
  Start();
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 5000; ++i) {
    fds.push_back(OpenFile(Path("f" + std::to_string(i)), O_WRONLY | O_CREAT));
    ASSERT_TRUE(fds.back().valid()) << std::strerror(errno);
    ASSERT_TRUE(WriteAll(fds.back().get(), "x"));
  }
  EXPECT_EQ(Ask("dirty-opens"), "5000");
  ASSERT_EQ(Ask("barrier"), "ok");
  for (const int i : {0, 4095, 4096, 4999}) EXPECT_EQ(ContentOf("f" + std::to_string(i)), "x");
}

TEST_F(BarrierInMemory, FailedWriteBackIsAnError) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "x"));
  Ask("fail-writes 1");
  const std::string answer = Ask("barrier");
  EXPECT_TRUE(answer.starts_with("error data_loss")) << answer;
  Ask("fail-writes 0");
  EXPECT_EQ(::fsync(fd.get()), -1);  // the owner's handle learns of it too
}

TEST_P(Barrier, GoesOnWhileAWriterWrites) {
  Start();
  UniqueFd fd = OpenFile(Path("log"), O_WRONLY | O_CREAT | O_APPEND);
  const BackgroundChild writer([&fd] {
    while (WriteAll(fd.get(), std::string(1000, 'w'))) {
    }
  });
  for (int i = 0; i < 5; ++i) {
    struct stat before{};
    ASSERT_EQ(::fstat(fd.get(), &before), 0);
    ASSERT_EQ(Ask("barrier"), "ok");
    EXPECT_GE(StatOf("log").size_bytes, static_cast<uint64_t>(before.st_size));
  }
}

TEST_F(BarrierInMemory, ADeadHelperIsReplaced) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  ASSERT_EQ(Ask("barrier"), "ok");
  // The keeper's children: the server and the helper.
  const std::string list =
      "/proc/" + std::to_string(keeper_) + "/task/" + std::to_string(keeper_) + "/children";
  std::ifstream children(list);
  pid_t child;
  int killed = 0;
  while (children >> child) {
    if (child == server_) continue;
    ::kill(child, SIGKILL);
    ++killed;
  }
  ASSERT_EQ(killed, 1);
  ASSERT_TRUE(WriteAll(fd.get(), "after"));
  ASSERT_EQ(Ask("barrier"), "ok");
  EXPECT_EQ(ContentOf("file"), "after");
}

TEST_F(BarrierInMemory, HelperHoldsNoFuseDevice) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  ASSERT_EQ(Ask("barrier"), "ok");
  std::ifstream children("/proc/" + std::to_string(keeper_) + "/task/" + std::to_string(keeper_) +
                         "/children");
  pid_t child;
  int looked = 0;
  while (children >> child) {
    if (child == server_) continue;
    ++looked;
    for (int number = 0; number < 64; ++number) {
      char target[PATH_MAX] = {};
      const std::string link = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(number);
      if (::readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
      EXPECT_STRNE(target, "/dev/fuse");
    }
  }
  EXPECT_EQ(looked, 1);
}

TEST_F(BarrierInMemory, RefusesWhenTheMountHasGone) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "x"));
  ASSERT_EQ(::umount2(dir_.c_str(), MNT_DETACH), 0);  // by somebody else; the file is still open
  const std::string answer = Ask("barrier");
  EXPECT_TRUE(answer.starts_with("error ")) << answer;
}

}  // namespace
}  // namespace cairn
