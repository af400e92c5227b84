// The server is killed while a workload runs on its mount: no call fails, no byte is wrong.
#include <dirent.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/xattr.h>

#include <atomic>
#include <map>

#include "store/base/random.h"
#include "tests/fuse/mount_fixture.h"

namespace cairn {
namespace {

// In memory that the workers share with the test.
struct Shared {
  std::atomic<bool> stop;
  std::atomic<uint64_t> rounds;
  std::atomic<int> failures;
  char first_failure[512];
};

class Worker {
 public:
  Worker(Shared& shared, std::string dir, uint64_t seed)
      : shared_(shared), dir_(std::move(dir)), random_(seed) {}

  void Run() {
    if (!Must(::mkdir(dir_.c_str(), 0755) == 0, "mkdir of the worker")) return;
    const UniqueFd held = OpenFile(At("held"), O_RDWR | O_CREAT | O_EXCL);
    if (!Must(held.valid() && ::flock(held.get(), LOCK_EX) == 0, "lock")) return;
    while (!shared_.stop && Round()) ++shared_.rounds;
    // Nobody got it meanwhile.
    const UniqueFd other = OpenFile(At("held"), O_RDWR);
    Must(::flock(other.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK,
         "lock is still held");
  }

 private:
  std::string At(const std::string& name) const { return dir_ + "/" + name; }

  bool Must(bool held, const char* what) {
    if (held) return true;
    const int error = errno;
    if (shared_.failures.fetch_add(1) == 0) {
      std::snprintf(shared_.first_failure, sizeof shared_.first_failure, "%s: round %lu: %s: %s",
                    dir_.c_str(), static_cast<unsigned long>(shared_.rounds.load()), what,
                    std::strerror(error));
    }
    return false;
  }

  std::vector<std::string> Names(const std::string& dir) {
    std::vector<std::string> names;
    DIR* const stream = ::opendir(dir.c_str());
    if (stream == nullptr) return {"opendir"};
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    if (errno != 0) names.emplace_back("readdir");
    ::closedir(stream);
    return names;
  }

  bool Round() {
    const std::string data = random_.Bytes(1 + random_.Below(100000));
    const std::string more = random_.Bytes(1 + random_.Below(3000));
    UniqueFd fd = OpenFile(At("new"), O_RDWR | O_CREAT | O_EXCL);
    if (!Must(fd.valid(), "create, exclusive")) return false;
    if (!Must(WriteAll(fd.get(), data), "write")) return false;
    if (random_.Below(4) == 0 && !Must(::fsync(fd.get()) == 0, "fsync")) return false;
    fd.Reset();
    if (!Must(::rename(At("new").c_str(), At("file").c_str()) == 0, "rename")) return false;
    if (!Must(::access(At("new").c_str(), F_OK) != 0, "the old name is gone")) return false;
    fd = OpenFile(At("file"), O_WRONLY | O_APPEND);
    if (!Must(fd.valid() && WriteAll(fd.get(), more), "append")) return false;
    fd.Reset();
    if (!Must(Slurp(At("file")) == data + more, "contents after append")) return false;

    if (!Must(::link(At("file").c_str(), At("hard").c_str()) == 0, "link")) return false;
    if (!Must(::symlink("hard", At("soft").c_str()) == 0, "symlink")) return false;
    char target[16];
    if (!Must(::readlink(At("soft").c_str(), target, sizeof target) == 4, "readlink")) return false;
    if (!Must(::setxattr(At("file").c_str(), "user.x", "value", 5, XATTR_CREATE) == 0,
              "setxattr") ||
        !Must(::removexattr(At("hard").c_str(), "user.x") == 0, "removexattr")) {
      return false;
    }
    if (!Must(::mkdir(At("dir").c_str(), 0700) == 0, "mkdir")) return false;
    if (!Must(::mknod(At("dir/fifo").c_str(), S_IFIFO | 0600, 0) == 0, "mknod")) return false;
    if (!Must(Names(At("dir")) == std::vector<std::string>{"fifo"}, "readdir")) return false;
    if (!Must(::rmdir(At("dir").c_str()) != 0 && errno == ENOTEMPTY, "rmdir, not empty"))
      return false;
    if (!Must(::unlink(At("dir/fifo").c_str()) == 0, "unlink of the fifo")) return false;
    if (!Must(::rmdir(At("dir").c_str()) == 0, "rmdir")) return false;

    // Open and without a name.
    fd = OpenFile(At("file"), O_RDWR);
    if (!Must(fd.valid(), "open")) return false;
    if (!Must(::unlink(At("file").c_str()) == 0 && ::unlink(At("hard").c_str()) == 0, "unlink")) {
      return false;
    }
    struct stat st{};
    if (!Must(::fstat(fd.get(), &st) == 0 && st.st_nlink == 0, "nlink of an orphan")) return false;
    std::string back(data.size() + more.size(), '\0');
    if (!Must(::pread(fd.get(), back.data(), back.size(), 0) == static_cast<ssize_t>(back.size()) &&
                  back == data + more,
              "contents of an orphan")) {
      return false;
    }
    if (!Must(::ftruncate(fd.get(), 8192) == 0, "truncate")) return false;
    if (!Must(::fallocate(fd.get(), 0, 0, 20000) == 0, "fallocate")) return false;
    char* const map =
        static_cast<char*>(::mmap(nullptr, 20000, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    if (!Must(map != MAP_FAILED, "mmap")) return false;
    std::memset(map + 100, 'm', 5000);
    const bool synced = ::msync(map, 20000, MS_SYNC) == 0;
    ::munmap(map, 20000);
    back.assign(5000, '\0');
    if (!Must(synced && ::pread(fd.get(), back.data(), 5000, 100) == 5000 &&
                  back == std::string(5000, 'm'),
              "mapped bytes")) {
      return false;
    }
    fd.Reset();
    fd = UniqueFd(::open(dir_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!Must(fd.valid() && WriteAll(fd.get(), more), "O_TMPFILE")) return false;
    if (!Must(::unlink(At("soft").c_str()) == 0, "unlink of the symlink")) return false;
    return Must(Names(dir_) == std::vector<std::string>{"held"}, "what is left");
  }

  Shared& shared_;
  const std::string dir_;
  SeededRandom random_;
};

class TakeoverTest : public MountTest {
 protected:
  TakeoverTest() { backing_ = Backing::kJournal; }

  // Replies are late on purpose: a kill between what was done and the word of it is what must be
  // met, and is rare otherwise.
  void StartTakingOver(int reply_delay_us = 0) {
    Start({"--take-over", "--reply-delay-us", std::to_string(reply_delay_us)});
  }

  // The keeper's children that serve or stand by, the oldest first.
  std::vector<pid_t> Servers() const {
    std::vector<pid_t> servers;
    std::ifstream children("/proc/" + std::to_string(keeper_) + "/task/" + std::to_string(keeper_) +
                           "/children");
    for (pid_t child; children >> child;) {
      std::ifstream comm("/proc/" + std::to_string(child) + "/comm");
      std::string name;
      if (std::getline(comm, name) && name == "mount_server") servers.push_back(child);
    }
    return servers;
  }
  // The one that serves; 0: there is none now.
  pid_t ServerNow() const {
    const std::vector<pid_t> servers = Servers();
    return servers.empty() ? 0 : servers.front();
  }
  // Of the next server.
  void AwaitReady() {
    const std::string line = ReadLine();
    ASSERT_TRUE(line.starts_with("ready ")) << line;
    std::istringstream fields(line);
    std::string ready;
    fields >> ready >> server_;
  }
  // Adds what this server has been sent again.
  void CountResends() {
    std::istringstream all(Ask("resends"));
    std::string word;
    all >> word;
    ASSERT_EQ(word, "resends");
    unsigned opcode, seen, answered;
    char colon;
    while (all >> opcode >> colon >> seen >> colon >> answered) {
      seen_[opcode] += seen;
      answered_[opcode] += answered;
    }
  }

  std::map<unsigned, unsigned> seen_, answered_;
};

TEST_F(TakeoverTest, OpenFilesAndTheirContentsSurviveAKill) {
  StartTakingOver();
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "before "));
  UniqueFd orphan = OpenFile(Path("orphan"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(orphan.get(), "nameless"));
  ASSERT_EQ(::unlink(Path("orphan").c_str()), 0);
  for (int life = 0; life < 3; ++life) {
    ::kill(server_, SIGKILL);
    ASSERT_TRUE(WriteAll(fd.get(), "after ")) << std::strerror(errno);
    ASSERT_EQ(::fsync(fd.get()), 0) << std::strerror(errno);
    AwaitReady();
    char back[8];
    ASSERT_EQ(::posix_fadvise(orphan.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    ASSERT_EQ(::pread(orphan.get(), back, 8, 0), 8) << std::strerror(errno);
    EXPECT_EQ(std::string_view(back, 8), "nameless");
  }
  EXPECT_EQ(Slurp(Path("file")), "before after after after ");
  EXPECT_TRUE(Eventually([&] { return Ask("opens") == "2"; })) << "RELEASE comes when it likes";
  fd.Reset();
  orphan.Reset();
  EXPECT_TRUE(Eventually([&] { return Ask("opens") == "0"; }));
}

TEST_F(TakeoverTest, TheNextServerStandsByAndNeitherItsDeathNorItsAbsenceMatters) {
  StartTakingOver();
  const auto stands_by = [&] { return Servers().size() == 2; };
  ASSERT_TRUE(Eventually(stands_by));
  // Nothing outside shows that it has said HELLO; one that has not is not taken.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const pid_t next = Servers().at(1);
  ::kill(server_, SIGKILL);
  AwaitReady();
  EXPECT_EQ(server_, next);
  ASSERT_TRUE(Eventually(stands_by));
  ::kill(Servers().at(1), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Servers().size() == 1; }));
  Spill(Path("file"), "x");
  ::kill(server_, SIGKILL);
  AwaitReady();
  EXPECT_EQ(Slurp(Path("file")), "x");
  ASSERT_TRUE(Eventually(stands_by)) << "after the next READY there is one again";
}

TEST_F(TakeoverTest, AServerThatExitsHandsOver) {
  StartTakingOver();
  UniqueFd fd = OpenFile(Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(fd.get(), "one "));
  Tell("hand-over");
  ASSERT_TRUE(WriteAll(fd.get(), "two"));
  ASSERT_EQ(::fsync(fd.get()), 0);
  AwaitReady();
  EXPECT_EQ(Slurp(Path("file")), "one two");
}

TEST_F(TakeoverTest, AfterSigtermOfTheKeeperNothingIsLeft) {
  StartTakingOver();
  ::kill(server_, SIGKILL);
  AwaitReady();
  Spill(Path("file"), "x");
  ::kill(keeper_, SIGTERM);
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_FALSE(IsMounted(dir_));
}

// As on a kernel before 6.9: what is in flight fails once, everything else goes on.
TEST_F(TakeoverTest, WithoutResendWhatIsInFlightFailsOnceAndTheMountStays) {
  Start({"--take-over", "--no-resend", "--reply-delay-us", "50000"});
  const UniqueFd held = OpenFile(Path("held"), O_RDWR | O_CREAT);
  ASSERT_TRUE(WriteAll(held.get(), "held"));
  int failed = 0;
  for (int life = 0; life < 6; ++life) {
    // Several at once, each answered late.
    std::atomic<int> started = 0;
    std::atomic<int> errors = 0;
    std::vector<std::thread> callers;
    for (int i = 0; i < 6; ++i) {
      callers.emplace_back([&, i] {
        const std::string name = "d" + std::to_string(life) + "." + std::to_string(i);
        ++started;
        if (::mkdir(Path(name).c_str(), 0700) == 0) return;
        EXPECT_EQ(errno, EIO) << std::strerror(errno);
        ++errors;
      });
    }
    while (started < 6) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * life));
    ::kill(server_, SIGKILL);
    for (std::thread& caller : callers) caller.join();
    failed += errors;
    AwaitReady();
    EXPECT_EQ(Slurp(Path("held")), "held");
    ASSERT_TRUE(WriteAll(held.get(), ""));
    struct stat st{};
    EXPECT_EQ(::fstat(held.get(), &st), 0) << std::strerror(errno);
    ASSERT_EQ(::mkdir(Path("after" + std::to_string(life)).c_str(), 0700), 0);
  }
  EXPECT_GT(failed, 0) << "nothing was in flight";
  std::printf("%d of 36 calls were in flight\n", failed);
}

// What the kernel holds and nobody has synced is not lost because the server dies at a bad moment.
TEST_F(TakeoverTest, AServerThatIsKilledBeforeItHasUnmountedIsFollowedByOneThatDoes) {
  StartTakingOver();
  Spill(Path("file"), std::string(300000, 'x'));
  ::kill(server_, SIGKILL);
  ::kill(keeper_, SIGTERM);
  ASSERT_EQ(ExitCode(), 0);
  EXPECT_FALSE(IsMounted(dir_));
  StartTakingOver();
  EXPECT_EQ(Slurp(Path("file")), std::string(300000, 'x'));
}

TEST_F(TakeoverTest, AWorkloadDoesNotNoticeThirtyKills) {
  constexpr int kWorkers = 4;
  const char* const asked = getenv("CAIRN_KILLS");  // ./dev soak takeover
  const bool soak = asked != nullptr;
  const int kills = soak ? std::atoi(asked) : 30;
  ::alarm(static_cast<unsigned>(240 + 2 * kills));
  constexpr uint64_t kSeed = 20260101;
  StartTakingOver(soak ? 500 : 200);
  auto* const shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> workers;
  for (int i = 0; i < kWorkers; ++i) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Worker(*shared, Path("w" + std::to_string(i)), kSeed + static_cast<uint64_t>(i)).Run();
      ::_exit(0);
    }
    workers.push_back(pid);
  }
  SeededRandom random(kSeed);
  int early = 0;
  for (int kill = 0; kill < kills && shared->failures == 0; ++kill) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(200'000)));
    CountResends();
    ::kill(server_, SIGKILL);
    // Now and then the next one too, at whatever it is by then.
    if (random.Below(3) == 0) {
      const pid_t old = server_;
      ASSERT_TRUE(Eventually([&] { return ServerNow() != 0 && ServerNow() != old; }));
      std::this_thread::sleep_for(std::chrono::microseconds(random.Below(30'000)));
      if (const pid_t next = ServerNow(); next != 0 && next != old) {
        ::kill(next, SIGKILL);
        ++early;
        AwaitReady();
        if (server_ == next) AwaitReady();  // it had been ready already
        continue;
      }
    }
    AwaitReady();
  }
  shared->stop = true;
  for (const pid_t worker : workers) {
    int status = 0;
    EXPECT_EQ(::waitpid(worker, &status, 0), worker);
    EXPECT_EQ(status, 0);
  }
  CountResends();
  EXPECT_EQ(shared->failures, 0) << shared->first_failure;
  std::printf("%d kills and %d early ones, %lu rounds of %d workers\n", kills, early,
              static_cast<unsigned long>(shared->rounds.load()), kWorkers);
  for (const auto& [opcode, seen] : seen_) {
    std::printf("  opcode %2u: sent again %u, answered from its record %u\n", opcode, seen,
                answered_[opcode]);
  }
  ::munmap(shared, sizeof(Shared));
  EXPECT_GT(seen_.size(), 0u);
  for (const unsigned opcode : {4, 6, 8, 9, 10, 11, 12, 13, 16, 18, 21, 24, 35, 43, 51}) {
    if (!soak) break;
    EXPECT_GE(answered_[opcode], 20u) << "opcode " << opcode << ": too few to prove anything";
  }
  // About one of 1,400 deaths leaves a count of one behind (docs/decisions/0014): the soak says so;
  // thirty kills must not leave more.
  const auto none_left = [&] {
    const std::string left = Ask("opens");
    return left == "0" || (!soak && left == "1");
  };
  EXPECT_TRUE(Eventually(none_left)) << Ask("list-opens");
}

}  // namespace
}  // namespace cairn
