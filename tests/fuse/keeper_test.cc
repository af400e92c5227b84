// The three processes: what each one's end does to the others and to whoever uses the mount.
#include "tests/fuse/mount_fixture.h"

namespace cairn {
namespace {

using Keeper = MountTest;

TEST_F(Keeper, MountsWithNosuidAndNodev) {
  Start();
  std::ifstream mounts("/proc/self/mounts");
  std::string line;
  bool found = false;
  while (std::getline(mounts, line)) {
    if (line.find(" " + dir_ + " ") == std::string::npos) continue;
    found = true;
    EXPECT_TRUE(line.starts_with("cairn " + dir_ + " fuse.cairn ")) << line;
    EXPECT_NE(line.find("nosuid,nodev"), std::string::npos) << line;
    EXPECT_NE(line.find("allow_other"), std::string::npos) << line;
    EXPECT_NE(line.find("default_permissions"), std::string::npos) << line;
  }
  EXPECT_TRUE(found);
}

TEST_F(Keeper, EndsWithTheServerAndItsCode) {
  EXPECT_EQ(Launch("/nonexistent/dir", {}).substr(0, 15), "error not_found");
  stdin_.Reset();
  EXPECT_EQ(ExitCode(), 4);
}

TEST_F(Keeper, RefusesADirectoryThatIsMountedAlready) {
  Start();
  const std::string answer = Ask("mount-again");
  EXPECT_TRUE(answer.starts_with("error failed_precondition")) << answer;
  Spill(Path("file"), "still served");
  EXPECT_EQ(ContentOf("file"), "still served");
}

TEST_F(Keeper, SigtermStopsTheServerAndUnmounts) {
  Start();
  Spill(Path("file"), "x");
  // Ours ends with its input; SIGTERM would kill it without its destructors, which is the keeper's
  // affair.
  ::kill(keeper_, SIGTERM);
  EXPECT_EQ(ExitCode(), 128 + SIGTERM);
  EXPECT_FALSE(IsMounted(dir_));
}

TEST_F(Keeper, BusyMountIsNotUnmountedUnlessLazily) {
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "x"));
  const std::string answer = Ask("unmount");
  EXPECT_TRUE(answer.starts_with("error failed_precondition")) << answer;
  ASSERT_TRUE(WriteAll(fd.get(), "y"));  // it is still served
  ASSERT_EQ(Ask("unmount-lazy"), "ok");
  EXPECT_FALSE(IsMounted(dir_));
  EXPECT_EQ(ContentOf("file"), "xy");  // flushed first
  EXPECT_EQ(::fsync(fd.get()), -1);    // the connection has ended
  EXPECT_EQ(Ask("opens"), "0");        // and its opens were given back
}

TEST_F(Keeper, ACoveredMountIsNotSaidToBeUnmounted) {
  Start();
  Spill(Path("file"), "x");
  ASSERT_EQ(::mount("over", dir_.c_str(), "tmpfs", 0, ""), 0) << std::strerror(errno);
  for (const char* how : {"unmount", "unmount-lazy"}) {
    const std::string answer = Ask(how);
    EXPECT_NE(answer.find("mounted over it"), std::string::npos) << answer;
  }
  ASSERT_EQ(::umount(dir_.c_str()), 0);
  EXPECT_EQ(Slurp(Path("file")), "x");  // it is still served
  EXPECT_EQ(Ask("unmount"), "ok");
  EXPECT_FALSE(IsMounted(dir_));
}

TEST_F(Keeper, UnmountWritesBackWhatIsDirtyAndLeavesNothing) {
  Start({"--write-delay-ms", "50"});
  Spill(Path("file"), std::string(2'000'000, 'x'));
  ASSERT_TRUE(Eventually([this] { return Ask("unmount") == "ok"; }));
  EXPECT_FALSE(IsMounted(dir_));
  EXPECT_EQ(StatOf("file").size_bytes, 2'000'000u);
  EXPECT_EQ(Ask("opens"), "0");
}

TEST_F(Keeper, UnmountByHandIsNoticed) {
  Start();
  ASSERT_EQ(::umount2(dir_.c_str(), 0), 0);
  // umount(2) has written everything back, and may return before the server reads that its
  // connection is gone: until then a barrier has nothing to wait for.
  EXPECT_TRUE(Eventually([this] { return Ask("barrier").starts_with("error "); }));
  EXPECT_EQ(Ask("unmount"), "ok");
}

TEST_F(Keeper, KilledServerHangsNobody) {
  Start({"--write-delay-ms", "100000"});
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "x"));
  const pid_t stuck = ::fork();
  if (stuck == 0) ::_exit(::fsync(fd.get()) == 0 ? 0 : 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(::kill(server_, SIGKILL), 0);
  int status = 0;
  ASSERT_TRUE(Eventually([&] { return ::waitpid(stuck, &status, WNOHANG) == stuck; }));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(ExitCode(), 128 + SIGKILL);
  EXPECT_FALSE(IsMounted(dir_));
  EXPECT_EQ(::fsync(fd.get()), -1);
}

TEST_F(Keeper, KilledServerDuringAnUnmountHangsNobody) {
  Start({"--write-delay-ms", "100000"});
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "x"));
  Tell("unmount-lazy");  // its barrier waits for the write
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(::kill(server_, SIGKILL), 0);
  EXPECT_EQ(ExitCode(), 128 + SIGKILL);
  EXPECT_FALSE(IsMounted(dir_));
}

TEST_F(Keeper, KilledKeeperMakesTheServerUnmountAndEnd) {
  Start();
  Spill(Path("file"), "x");
  ASSERT_EQ(::kill(keeper_, SIGKILL), 0);
  EXPECT_TRUE(Eventually([this] { return !IsMounted(dir_); }));
  EXPECT_TRUE(Eventually([this] { return ::kill(server_, 0) != 0; }));
  WaitForExit(10);
}

TEST_F(Keeper, EverythingIsThereAfterANewStart) {
  backing_ = Backing::kJournal;
  Start();
  ASSERT_EQ(::mkdir(Path("dir").c_str(), 0700), 0);
  const std::string big(300'000, 'b');
  Spill(Path("dir/big"), big);
  Spill(Path("small"), "small");
  stdin_.Reset();
  ASSERT_EQ(ExitCode(), 0);
  ASSERT_FALSE(IsMounted(dir_));
  Start();
  EXPECT_EQ(Slurp(Path("dir/big")), big);
  EXPECT_EQ(Slurp(Path("small")), "small");
}

TEST_F(Keeper, MountReplacesOneThatAKillOfAllProcessesLeft) {
  backing_ = Backing::kJournal;
  Start();
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "fsynced"));
  ASSERT_EQ(::fsync(fd.get()), 0);
  ::kill(server_, SIGSTOP);  // so that it cannot unmount when its keeper goes
  ::kill(keeper_, SIGKILL);
  ::kill(server_, SIGKILL);
  ASSERT_TRUE(WaitForExit(20));
  ASSERT_TRUE(Eventually([this] { return Slurp(Path("file")) == "errno 107"; }));
  ASSERT_TRUE(IsMounted(dir_));
  Start();
  EXPECT_EQ(Slurp(Path("file")), "fsynced");
  stdin_.Reset();
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_FALSE(IsMounted(dir_));
}

}  // namespace
}  // namespace cairn
