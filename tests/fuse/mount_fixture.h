// A mount_server under a real keeper, mounted on a directory of its own, for one test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/hex.h"
#include "store/base/unique_fd.h"

namespace cairn {

// The directory of the test program, where the others are too.
inline std::string BinDir() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string self(path, static_cast<size_t>(length));
  return self.substr(0, self.rfind('/') + 1);
}

// Polls until `condition` holds or `seconds` have passed; says which.
inline bool Eventually(const std::function<bool()>& condition, int seconds = 20) {
  for (int i = 0; i < seconds * 100; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

inline bool IsMounted(const std::string& dir) {
  std::ifstream mounts("/proc/self/mounts");
  std::string line;
  while (std::getline(mounts, line)) {
    if (line.find(" " + dir + " ") != std::string::npos) return true;
  }
  return false;
}

enum class Backing { kMemory, kJournal };

class MountTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/fuse", R_OK | W_OK) != 0) {
      GTEST_SKIP() << "no usable /dev/fuse: " << std::strerror(errno)
                   << "; load the fuse module and run as root";
    }
    ::alarm(240);  // a hang ends the program
    char name[] = "/tmp/cairn_fuse_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }

  void TearDown() override {
    stdin_.Reset();  // the server ends with its input, and the keeper with the server
    if (keeper_ > 0 && !WaitForExit(20)) {
      ADD_FAILURE() << "keeper " << keeper_ << " did not end by itself";
      ::kill(server_, SIGKILL);
      ::kill(keeper_, SIGKILL);
      ::waitpid(keeper_, nullptr, 0);
    }
    if (!dir_.empty()) {
      if (IsMounted(dir_)) {
        ADD_FAILURE() << dir_ << " was left mounted";
        ::umount2(dir_.c_str(), MNT_DETACH);
      }
      ::rmdir(dir_.c_str());
    }
    if (!journal_dir_.empty()) IgnoreError(RemoveTree(HostFileSystem(), journal_dir_), "temporary");
    ::alarm(0);
  }

  // Starts keeper and server; returns the server's first line ("ready ..." or "error ...").
  std::string Launch(const std::string& dir, std::vector<std::string> arguments) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return "no pipe";
    std::vector<std::string> words = {BinDir() + "cairn-keeper", "--", BinDir() + "mount_server",
                                      dir};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    keeper_ = ::fork();
    if (keeper_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = UniqueFd(in[1]);
    stdout_ = UniqueFd(out[0]);
    const std::string line = ReadLine();
    std::istringstream fields(line);
    std::string ready;
    fields >> ready >> server_;
    return line;
  }

  void Start(std::vector<std::string> arguments = {}) {
    if (backing_ == Backing::kJournal) {
      if (journal_dir_.empty()) journal_dir_ = dir_ + ".journal";
      arguments.insert(arguments.end(), {"--journal", journal_dir_});
    }
    const std::string line = Launch(dir_, arguments);
    ASSERT_TRUE(line.starts_with("ready ")) << line;
  }

  std::string ReadLine(int timeout_ms = 60'000) {
    while (true) {
      const size_t end = unread_.find('\n');
      if (end != std::string::npos) {
        const std::string line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return line;
      }
      pollfd waiter{.fd = stdout_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&waiter, 1, timeout_ms) <= 0) return "no answer in time";
      char buffer[65536];
      const ssize_t count = ::read(stdout_.get(), buffer, sizeof buffer);
      if (count <= 0) return "end of output";
      unread_.append(buffer, static_cast<size_t>(count));
    }
  }

  void Tell(const std::string& line) {
    const std::string bytes = line + "\n";
    EXPECT_EQ(::write(stdin_.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }

  std::string Ask(const std::string& line) {
    Tell(line);
    return ReadLine();
  }

  // What the server's volume holds under `path`.
  std::string ContentOf(const std::string& path) {
    const std::string answer = Ask("read " + path);
    if (!answer.starts_with("x")) return answer;
    return HexDecode(answer.substr(1)).value_or("bad hex");
  }
  struct Stat {
    uint64_t ino = 0;
    uint64_t size_bytes = 0;
    int64_t mtime_ns = 0;
    int64_t ctime_ns = 0;
    uint32_t mode = 0;
    uint32_t nlink = 0;
  };
  Stat StatOf(const std::string& path) {
    Stat stat;
    std::istringstream fields(Ask("stat " + path));
    fields >> stat.ino >> stat.size_bytes >> stat.mtime_ns >> stat.ctime_ns >> stat.mode >>
        stat.nlink;
    return stat;
  }

  bool WaitForExit(int seconds) {
    return Eventually(
        [this] {
          if (keeper_ > 0 && ::waitpid(keeper_, &status_, WNOHANG) == keeper_) keeper_ = -1;
          return keeper_ < 0;
        },
        seconds);
  }
  // The keeper's exit code, or -1: killed, or still there.
  int ExitCode(int seconds = 20) {
    if (!WaitForExit(seconds) || !WIFEXITED(status_)) return -1;
    return WEXITSTATUS(status_);
  }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }

  Backing backing_ = Backing::kMemory;
  std::string dir_;
  std::string journal_dir_;
  pid_t keeper_ = -1;
  pid_t server_ = -1;
  UniqueFd stdin_;
  UniqueFd stdout_;
  std::string unread_;
  int status_ = 0;
};

// The same over both kinds of volume.
class MountTestOverBoth : public MountTest, public testing::WithParamInterface<Backing> {
 protected:
  MountTestOverBoth() { backing_ = GetParam(); }
};

inline std::string BackingName(const testing::TestParamInfo<Backing>& info) {
  return info.param == Backing::kMemory ? "Memory" : "Journal";
}

// The whole of a file, or "errno N".
inline std::string Slurp(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "errno " + std::to_string(errno);
  std::string all;
  char buffer[65536];
  ssize_t count;
  while ((count = ::read(fd.get(), buffer, sizeof buffer)) > 0) {
    all.append(buffer, static_cast<size_t>(count));
  }
  return count == 0 ? all : "errno " + std::to_string(errno);
}

inline UniqueFd OpenFile(const std::string& path, int flags, mode_t mode = 0644) {
  return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC, mode));
}

inline bool WriteAll(int fd, std::string_view data) {
  return ::write(fd, data.data(), data.size()) == static_cast<ssize_t>(data.size());
}

inline void Spill(const std::string& path, std::string_view data) {
  UniqueFd fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
  ASSERT_TRUE(fd.valid()) << path << ": " << std::strerror(errno);
  ASSERT_TRUE(WriteAll(fd.get(), data));
}

// A child process that runs `body` until it ends or this object does: then it is killed.
class BackgroundChild {
 public:
  explicit BackgroundChild(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  ~BackgroundChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  BackgroundChild(const BackgroundChild&) = delete;
  BackgroundChild& operator=(const BackgroundChild&) = delete;

 private:
  const pid_t pid_;
};

// Runs `body` in a child process as uid and gid `id` (0: as we are); its exit code, or -1 if it
// took longer than `seconds` (then it is killed).
inline int InChild(const std::function<int()>& body, uint32_t id = 0, int seconds = 30) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (id != 0 && (::setgid(id) != 0 || ::setuid(id) != 0)) ::_exit(99);
    ::_exit(body());
  }
  int status = 0;
  if (!Eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, seconds)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, WNOHANG);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

}  // namespace cairn
