// Reading the master key. What is checked of a file is checked of the open one. A command runs in a
// process group of its own with a closed standard input and no descriptor of ours (posix_spawn(3):
// this process has threads); its standard output is read up to one byte more than a key has, its
// standard error is ours, so that a key service's message reaches the log. Buffers that held a key
// are wiped.
#include "store/master_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "store/base/hex.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr size_t kHexDigits = 64;
constexpr size_t kMaxBytes = kHexDigits + 1;  // and a newline

struct Buffer {
  std::array<char, kMaxBytes + 1> bytes{};  // one more, to see that there is too much
  size_t size = 0;
  ~Buffer() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

Result<Key256> Parse(const Buffer& text, const std::string& of) {
  const bool shape =
      text.size == kHexDigits || (text.size == kMaxBytes && text.bytes[kHexDigits] == '\n');
  auto raw = shape ? HexDecode({text.bytes.data(), kHexDigits})
                   : Result<std::string>(Err(ErrorCode::kInvalidArgument));
  if (!raw) {
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is not 64 hex digits and a newline ({}{} bytes)", of,
                    text.size > kMaxBytes ? "more than " : "", std::min(text.size, kMaxBytes)));
  }
  Key256 key;
  std::ranges::copy(*raw, key.begin());
  OPENSSL_cleanse(raw->data(), raw->size());
  return key;
}

Result<Key256> ReadFile(const std::string& path) {
  const std::string name = "master key file " + path;
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno == ENOENT) {
    return Err(ErrorCode::kFailedPrecondition,
               name + " is missing: without it nothing here can be read");
  }
  if (!fd.valid()) return ErrErrno(errno, "open " + path);
  struct stat st{};
  if (fstat(fd.get(), &st) != 0) return ErrErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode)) {
    return Err(ErrorCode::kFailedPrecondition, name + " is not a regular file");
  }
  constexpr mode_t kOwnersOnly = S_IRUSR | S_IWUSR;
  if ((st.st_mode & 07777 & ~kOwnersOnly) != 0) {
    return Err(ErrorCode::kFailedPrecondition,
               fmt::format("{} has mode {:04o}, not 0600: others may read or change it. chmod 600 "
                           "it, and replace the key if they may have",
                           name, st.st_mode & 07777));
  }
  if (st.st_uid != geteuid()) {
    return Err(ErrorCode::kFailedPrecondition,
               fmt::format("{} belongs to user {}, not to the daemon's user {}: chown it", name,
                           st.st_uid, geteuid()));
  }
  Buffer text;
  const ssize_t got = pread(fd.get(), text.bytes.data(), text.bytes.size(), 0);
  if (got < 0) return ErrErrno(errno, "read " + path);
  text.size = static_cast<size_t>(got);
  return Parse(text, name);
}

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  // False: still running at the deadline.
  bool Wait(std::chrono::steady_clock::time_point deadline, int& status) {
    for (;;) {
      const pid_t got = waitpid(pid_, &status, WNOHANG);
      if (got == pid_) {
        pid_ = 0;
        return true;
      }
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  pid_t pid_;
};

Result<pid_t> Spawn(const std::string& command, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string shell = "/bin/sh";
  std::string flag = "-c";
  std::string text = command;
  char* const argv[] = {shell.data(), flag.data(), text.data(), nullptr};
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/bin/sh", &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) return ErrErrno(failed, "start the master key command");
  return pid;
}

Result<Key256> RunCommand(const std::string& command, int64_t timeout_ms) {
  const std::string name = "the master key command";  // its text may hold a secret, too
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrErrno(errno, "pipe");
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const auto late = [&] {
    return Err(ErrorCode::kUnavailable,
               fmt::format("{} did not end within {} ms", name, timeout_ms));
  };
  Child child(CAIRN_TRY(Spawn(command, out.get())));
  out.Reset();
  Buffer text;
  while (text.size < text.bytes.size()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return late();
    pollfd ready{.fd = in.get(), .events = POLLIN, .revents = 0};
    const int polled = poll(&ready, 1, static_cast<int>(left.count()));
    if (polled < 0 && errno != EINTR) return ErrErrno(errno, "poll");
    if (polled <= 0) continue;
    const ssize_t got =
        read(in.get(), text.bytes.data() + text.size, text.bytes.size() - text.size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrErrno(errno, "read of the master key command's output");
    if (got == 0) break;
    text.size += static_cast<size_t>(got);
  }
  if (text.size > kMaxBytes) return Parse(text, "output of " + name);  // its rest is not read
  int status = 0;
  if (!child.Wait(deadline, status)) return late();
  if (WIFSIGNALED(status)) {
    return Err(ErrorCode::kFailedPrecondition,
               fmt::format("{} was ended by signal {}", name, WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return Err(ErrorCode::kFailedPrecondition,
               fmt::format("{} ended with status {}", name, WEXITSTATUS(status)));
  }
  return Parse(text, "output of " + name);
}

}  // namespace

Result<Key256> ReadMasterKey(const MasterKeySource& source) {
  return source.command.empty() ? ReadFile(source.file)
                                : RunCommand(source.command, source.timeout_ms);
}

std::string EncodeMasterKey(const Key256& key) {
  return HexEncode({reinterpret_cast<const char*>(key.data()), key.size()}) + "\n";
}

Status WriteMasterKeyFile(FileSystem& fs, const std::string& path, const Key256& key) {
  std::string text = EncodeMasterKey(key);
  Status written = WriteFileAtomically(fs, path, text);
  OPENSSL_cleanse(text.data(), text.size());
  return written;
}

Status DestroyMasterKeyFile(FileSystem& fs, const std::string& path) {
  if (!CAIRN_TRY(fs.Exists(path))) return {};
  {
    const std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {}));
    CAIRN_TRY(file->WriteAt(0, std::string(CAIRN_TRY(file->SizeBytes()), '\0')));
    CAIRN_TRY(file->Sync());
  }
  CAIRN_TRY(fs.Unlink(path));
  const size_t slash = path.rfind('/');
  return fs.SyncDir(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace cairn
