// One loop over two things: signals (signalfd: SIGTERM, SIGINT, SIGCHLD) and the server's socket.
// Mounts happen in the loop; each unmount has a thread of its own, because umount2 writes back what
// is dirty through the server, or the one that follows it, and may take long. When no other
// follows, the loop aborts the connection, and umount2 returns.
//
// Order at the end: last server reaped -> connections aborted (fusectl, or the last close of
// /dev/fuse)
// -> lazy unmounts -> unmount threads joined -> barrier helpers killed and reaped.
//
// Invariants: every fd here is close-on-exec (a barrier helper must never hold /dev/fuse); no path
// below a mount of ours is opened; the mount's root is only looked at with AT_STATX_DONT_SYNC,
// which asks no server. Sources: mount(2), fuse(4), statx(2), Documentation/filesystems/fuse.rst of
// the kernel (fusectl).
#include "fuse/keeper/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "fuse/keeper/channel.h"
#include "fuse/keeper/protocol.h"
#include "store/base/log.h"
#include "store/base/mutex.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr int kPrSetIoFlusher = 57;  // PR_SET_IO_FLUSHER, Linux 5.6
constexpr std::string_view kKeeperOomScore = "-1000";
constexpr std::string_view kServerOomScore = "-800";
constexpr int kHelperReapTries = 200;  // 2 s
constexpr int kMostFailedStarts = 12;  // in a row
constexpr int64_t kFirstDelayMs = 50;
constexpr int64_t kMostDelayMs = 5000;

// Writes a kernel control file; false when it is not there or refuses.
bool WriteControl(const char* path, std::string_view value) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written =
      ::write(fd, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  ::close(fd);
  return written;
}

struct Device {
  uint32_t major = 0;
  uint32_t minor = 0;
  bool operator==(const Device&) const = default;
};

// The device that the directory `dir` is on, without a request to any FUSE server for `dir` itself.
// Nothing: errno says why.
std::optional<Device> DeviceOf(const std::string& dir) {
  struct statx st{};
  const int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  if (::statx(AT_FDCWD, dir.c_str(), flags, STATX_TYPE, &st) != 0) return std::nullopt;
  if (!S_ISDIR(st.stx_mode)) {
    errno = ENOTDIR;
    return std::nullopt;
  }
  return Device{st.stx_dev_major, st.stx_dev_minor};
}

// Whether a filesystem is mounted anywhere in our namespace; proc_pid_mountinfo(5).
bool IsMountedAnywhere(const Device& device) {
  std::ifstream mounts("/proc/self/mountinfo");
  const std::string wanted = fmt::format("{}:{}", device.major, device.minor);
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, number;
    if (fields >> id >> parent >> number && number == wanted) return true;
  }
  return false;
}

// After a kill -9 of keeper and server together their mounts stay in the tree, dead: statfs(2)
// fails with ENOTCONN at once. A new mount would otherwise cover the dead one and reveal it again
// at its end.
void DetachDeadMounts(const std::string& dir) {
  constexpr int kMostStacked = 16;
  for (int i = 0; i < kMostStacked; ++i) {
    struct statfs st{};
    if (::statfs(dir.c_str(), &st) == 0 || errno != ENOTCONN) return;
    LogWarning("keeper_detaching_dead_mount", {{"dir", dir}});
    if (::umount2(dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) return;
  }
}

struct Mount {
  std::string dir;
  Device device;
  UniqueFd fuse;
  UniqueFd file;     // the server's memory that outlives it
  std::string init;  // the kernel's INIT request, for who takes the mount over
  MountRequest request;
};

class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options) : options_(options) {}

  int Run() {
    if (!Prepare()) return 1;
    Loop();
    CleanUp();
    return ExitCode();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  bool Prepare() {
    ::prctl(kPrSetIoFlusher, 1, 0, 0, 0);  // refused without CAP_SYS_RESOURCE: no matter
    if (!WriteControl("/proc/self/oom_score_adj", kKeeperOomScore)) {
      LogWarning("keeper_oom_score_unchanged", {{"error", std::strerror(errno)}});
    }
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set, signal);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) {
      LogError("keeper_signalfd_failed", {{"errno", errno}});
      return false;
    }
    return StartServer();
  }

  bool StartServer() {
    auto pair = Channel::MakePair();
    if (!pair) {
      LogError("keeper_socket_failed", {{"error", pair.error().ToString()}});
      return false;
    }
    channel_ = std::make_shared<Channel>(std::move(pair->first));
    const Channel end = std::move(pair->second);
    connected_ = true;
    ready_ = false;
    std::vector<std::string> words = options_.server_command;
    words.push_back("--keeper-fd");
    words.push_back(fmt::format("{}", end.fd()));
    server_pid_ = Spawn(words, end.fd(), end.fd(), kServerOomScore);
    if (server_pid_ < 0) return false;
    LogInfo("keeper_started_server", {{"pid", server_pid_}, {"program", words[0]}});
    if (stopping_) TellToStop();
    return true;
  }

  void TellToStop() {
    const Message stop{.type = static_cast<uint16_t>(MessageType::kStop), .payload = {}};
    IgnoreError(channel_->Send(stop), "it is gone: its exit is handled by the loop");
  }

  bool HasMounts() {
    MutexLock lock(mutex_);
    return !mounts_.empty();
  }

  // Forks and execs; the child keeps `inherited` as fd `as`.
  pid_t Spawn(const std::vector<std::string>& words, int inherited, int as, std::string_view oom) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) LogError("keeper_fork_failed", {{"errno", errno}});
    if (pid != 0) return pid;
    // The child of a process with threads: async-signal-safe calls only.
    WriteControl("/proc/self/oom_score_adj", oom);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (inherited == as) {
      ::fcntl(inherited, F_SETFD, 0);
    } else {
      ::dup2(inherited, as);
    }
    ::execvp(argv[0], argv.data());
    const char* why = std::strerror(errno);
    const char* const parts[] = {"cairn-keeper: cannot run ", argv[0], ": ", why, "\n"};
    for (const char* part : parts) {
      [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, part, std::strlen(part));
    }
    ::_exit(127);
  }

  void Loop() {
    while (!done_) {
      pollfd fds[2] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                       {.fd = connected_ ? channel_->fd() : -1, .events = POLLIN, .revents = 0}};
      if (::poll(fds, 2, PollTimeoutMs()) < 0 && errno != EINTR) {
        LogError("keeper_poll_failed", {{"errno", errno}});
        if (server_pid_ < 0) return;
        ::kill(server_pid_, SIGTERM);
        ::waitpid(server_pid_, &server_status_, 0);
        return;
      }
      if (fds[0].revents != 0) HandleSignals();
      if (fds[1].revents != 0 && connected_) connected_ = HandleOneMessage();
      if (server_pid_ < 0 && !done_ && Clock::now() >= start_at_ && !StartServer()) done_ = true;
      JoinFinishedWorkers();
    }
  }

  int PollTimeoutMs() const {
    if (server_pid_ >= 0) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(start_at_ - Clock::now());
    return static_cast<int>(std::max<int64_t>(left.count(), 0));
  }

  void HandleSignals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo != SIGCHLD) Stop(static_cast<int>(info.ssi_signo));
    }
    int status;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid == server_pid_) {
        HandleServerExit(status);
      } else {
        helpers_.erase(pid);
      }
    }
  }

  // A server that is able to take over is told; to another the signal itself is passed on.
  void Stop(int signal) {
    LogInfo("keeper_stopping_server", {{"signal", signal}});
    stopping_ = true;
    if (server_pid_ < 0) {
      done_ = !HasMounts();  // else the next one unmounts: what their kernels hold is not lost
    } else if (!ever_ready_) {
      ::kill(server_pid_, SIGTERM);
    } else {
      TellToStop();
    }
  }

  void HandleServerExit(int status) {
    server_pid_ = -1;
    server_status_ = status;
    connected_ = false;
    if (!ever_ready_ || (stopping_ && !HasMounts())) {
      done_ = true;
      return;
    }
    failed_starts_ = ready_ ? 0 : failed_starts_ + 1;
    LogWarning("keeper_server_gone", {{"status", status}, {"failed_starts", failed_starts_}});
    if (failed_starts_ == kMostFailedStarts) {
      LogError("keeper_gives_up");
      done_ = true;
      return;
    }
    const int64_t delay_ms =
        failed_starts_ < 2 ? 0 : std::min(kFirstDelayMs << (failed_starts_ - 2), kMostDelayMs);
    start_at_ = Clock::now() + std::chrono::milliseconds(delay_ms);
  }

  // False at the end of the stream: the server is about to exit.
  bool HandleOneMessage() {
    auto received = channel_->Receive();
    if (!received) {
      LogWarning("keeper_bad_message", {{"error", received.error().ToString()}});
      return received.error().code() == ErrorCode::kInvalidArgument;
    }
    if (!*received) return false;
    const Message& message = (*received)->message;
    UniqueFd& fd = (*received)->fd;
    switch (static_cast<MessageType>(message.type)) {
      case MessageType::kHello:
        Reply(message, EncodePid(static_cast<uint32_t>(::getpid())));
        break;
      case MessageType::kMount:
        HandleMount(message, std::move(fd));
        break;
      case MessageType::kUnmount:
        HandleUnmount(message);
        break;
      case MessageType::kStartBarrier:
        HandleStartBarrier(message);
        break;
      case MessageType::kSaveInit:
        HandleSaveInit(message);
        break;
      case MessageType::kList:
        HandleList(message);
        break;
      case MessageType::kTake:
      case MessageType::kTakeFile:
      case MessageType::kAbandon:
        HandleConnection(message);
        break;
      case MessageType::kReady:
        ready_ = ever_ready_ = true;
        Reply(message, {});
        break;
      default:
        Fail(message, EOPNOTSUPP, "no such message");
    }
    return true;
  }

  void Reply(const Message& request, std::string payload, int fd = -1) {
    Reply(*channel_, request, std::move(payload), fd);
  }
  void Fail(const Message& request, int error, std::string text) {
    Fail(*channel_, request, error, std::move(text));
  }

  static void Reply(const Channel& channel, const Message& request, std::string payload,
                    int fd = -1) {
    const Message reply{.type = static_cast<uint16_t>(request.type | kReplyBit),
                        .id = request.id,
                        .error = 0,
                        .payload = std::move(payload)};
    IgnoreError(channel.Send(reply, fd), "the server is gone: its exit is handled by the loop");
  }

  static void Fail(const Channel& channel, const Message& request, int error, std::string text) {
    const Message reply{.type = static_cast<uint16_t>(request.type | kReplyBit),
                        .id = request.id,
                        .error = static_cast<uint32_t>(error),
                        .payload = std::move(text)};
    IgnoreError(channel.Send(reply), "the server is gone: its exit is handled by the loop");
  }

  void HandleMount(const Message& message, UniqueFd file) {
    const auto request = MountRequest::Decode(message.payload);
    if (!request) return Fail(message, EPROTO, request.error().message());
    DetachDeadMounts(request->dir);
    const auto before = DeviceOf(request->dir);
    if (!before) {
      const int error = errno;
      return Fail(message, error,
                  fmt::format("{}: name an existing directory", std::strerror(error)));
    }
    {
      MutexLock lock(mutex_);
      for (const auto& [connection, mount] : mounts_) {
        if (connection != request->connection && mount.device != *before) continue;
        return Fail(
            message, EBUSY,
            mount.dir == request->dir
                ? std::string("something is mounted there already: unmount it first")
                : fmt::format("that is inside the mount at {}: name another directory", mount.dir));
      }
    }
    UniqueFd fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (!fuse.valid()) {
      const int error = errno;
      return Fail(message, error, fmt::format("cannot open /dev/fuse: {}", std::strerror(error)));
    }
    const uint32_t flags = request->flags;
    std::string text = fmt::format("fd={},rootmode=40000,user_id=0,group_id=0", fuse.get());
    if ((flags & MountRequest::kAllowOther) != 0) text += ",allow_other";
    if ((flags & MountRequest::kDefaultPermissions) != 0) text += ",default_permissions";
    if (request->max_read_bytes != 0) text += fmt::format(",max_read={}", request->max_read_bytes);
    unsigned long mount_flags = 0;
    if ((flags & MountRequest::kNoSuid) != 0) mount_flags |= MS_NOSUID;
    if ((flags & MountRequest::kNoDev) != 0) mount_flags |= MS_NODEV;
    if ((flags & MountRequest::kNoExec) != 0) mount_flags |= MS_NOEXEC;
    if ((flags & MountRequest::kReadOnly) != 0) mount_flags |= MS_RDONLY;
    const char* dir = request->dir.c_str();
    if (::mount("cairn", dir, "fuse.cairn", mount_flags, text.c_str()) != 0) {
      const int error = errno;
      return Fail(message, error,
                  fmt::format("mount(2) on {}: {}", request->dir, std::strerror(error)));
    }
    const auto device = DeviceOf(request->dir);
    if (!device || *device == *before) {
      ::umount2(dir, MNT_DETACH | UMOUNT_NOFOLLOW);
      return Fail(message, EIO, fmt::format("the mount on {} is not visible", request->dir));
    }
    const int fuse_fd = fuse.get();
    {
      MutexLock lock(mutex_);
      mounts_[request->connection] = Mount{.dir = request->dir,
                                           .device = *device,
                                           .fuse = std::move(fuse),
                                           .file = std::move(file),
                                           .init = {},
                                           .request = *request};
    }
    LogInfo("keeper_mounted", {{"dir", request->dir}, {"device", device->minor}});
    Reply(message,
          MountReply{.device_major = device->major, .device_minor = device->minor}.Encode(),
          fuse_fd);
  }

  void HandleUnmount(const Message& message) {
    const auto request = UnmountRequest::Decode(message.payload);
    if (!request) return Fail(message, EPROTO, request.error().message());
    std::string dir;
    Device device;
    {
      MutexLock lock(mutex_);
      const auto found = mounts_.find(request->connection);
      if (found == mounts_.end()) return Fail(message, ENOENT, "no such mount");
      dir = found->second.dir;
      device = found->second.device;
    }
    auto done = std::make_shared<std::atomic<bool>>(false);
    // The answer is for this server, should another have come by then.
    std::thread thread([this, channel = channel_, message, request = *request, dir, device, done] {
      Unmount(*channel, message, request, dir, device);
      done->store(true);
    });
    workers_.push_back(Worker{.thread = std::move(thread), .done = std::move(done)});
  }

  void Unmount(const Channel& channel, const Message& message, const UnmountRequest& request,
               const std::string& dir, const Device& device) {
    int error = 0;
    if (DeviceOf(dir) != device) {
      if (IsMountedAnywhere(device)) {
        return Fail(channel, message, EBUSY,
                    fmt::format("cannot unmount {}: something else is mounted over it, or it was "
                                "moved: unmount that, or move it back, first",
                                dir));
      }
      // Otherwise somebody else has unmounted it already.
    } else {
      if (::umount2(dir.c_str(), UMOUNT_NOFOLLOW) != 0) error = errno;
      if (error == EBUSY && request.lazy) {
        error = ::umount2(dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0 ? errno : 0;
      }
    }
    if (error != 0) {
      return Fail(channel, message, error,
                  fmt::format("cannot unmount {}: {}{}", dir, std::strerror(error),
                              error == EBUSY
                                  ? ": a process works in it or has a file open there; end it, or "
                                    "use --force to detach it now"
                                  : ""));
    }
    {
      // Closes our copy of the fd. After a lazy unmount the server's copy carries the connection
      // until the last file is closed.
      MutexLock lock(mutex_);
      mounts_.erase(request.connection);
    }
    LogInfo("keeper_unmounted", {{"dir", dir}});
    Reply(channel, message, {});
  }

  void HandleStartBarrier(const Message& message) {
    auto pair = Channel::MakePair();
    if (!pair) return Fail(message, pair.error().sys_errno(), pair.error().message());
    const pid_t pid =
        Spawn({options_.barrier_program}, pair->second.fd(), kBarrierHelperFd, kKeeperOomScore);
    if (pid < 0) return Fail(message, EAGAIN, "cannot start the barrier helper");
    helpers_.insert(pid);
    Reply(message, EncodePid(static_cast<uint32_t>(pid)), pair->first.fd());
  }

  void HandleList(const Message& message) {
    std::vector<Id128> connections;
    MutexLock lock(mutex_);
    for (const auto& [connection, mount] : mounts_) connections.push_back(connection);
    Reply(message, EncodeConnections(connections));
  }

  void HandleConnection(const Message& message) {
    const auto connection = DecodeConnection(message.payload);
    if (!connection) return Fail(message, EPROTO, connection.error().message());
    MutexLock lock(mutex_);
    const auto found = mounts_.find(*connection);
    if (found == mounts_.end()) return Fail(message, ENOENT, "no such mount");
    const Mount& mount = found->second;
    switch (static_cast<MessageType>(message.type)) {
      case MessageType::kTake:
        return Reply(message,
                     TakeReply{.device_major = mount.device.major,
                               .device_minor = mount.device.minor,
                               .init = mount.init,
                               .mount = mount.request}
                         .Encode(),
                     mount.fuse.get());
      case MessageType::kTakeFile:
        if (!mount.file.valid()) return Fail(message, ENOENT, "no file came with that mount");
        return Reply(message, {}, mount.file.get());
      default:
        Abandon(found->second);
        mounts_.erase(found);
        return Reply(message, {});
    }
  }

  // Nobody serves it any more: whoever waits for an answer gets an error instead.
  void Abandon(Mount& mount) {
    LogWarning("keeper_aborting_connection", {{"dir", mount.dir}});
    WriteControl(fmt::format("/sys/fs/fuse/connections/{}/abort", mount.device.minor).c_str(), "1");
    mount.fuse.Reset();  // the last fd of the connection: aborts it where fusectl is not mounted
    if (DeviceOf(mount.dir) == mount.device) {
      ::umount2(mount.dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    }
  }

  // Once INIT has been answered the bdi is ours to tune (the answer itself lowers its read-ahead).
  void HandleSaveInit(const Message& message) {
    auto request = SaveInitRequest::Decode(message.payload);
    if (!request) return Fail(message, EPROTO, request.error().message());
    {
      MutexLock lock(mutex_);
      const auto found = mounts_.find(request->connection);
      if (found == mounts_.end()) return Fail(message, ENOENT, "no such mount");
      Mount& mount = found->second;
      mount.init = std::move(request->init);
      const uint32_t read_ahead_kib = request->answered ? mount.request.read_ahead_kib : 0;
      const uint64_t max_dirty_bytes = request->answered ? mount.request.max_dirty_bytes : 0;
      const std::string bdi =
          fmt::format("/sys/class/bdi/{}:{}/", mount.device.major, mount.device.minor);
      if (read_ahead_kib != 0 &&
          !WriteControl((bdi + "read_ahead_kb").c_str(), fmt::format("{}", read_ahead_kib))) {
        LogWarning("keeper_read_ahead_unchanged", {{"dir", mount.dir}});
      }
      if (max_dirty_bytes != 0 &&
          !WriteControl((bdi + "max_bytes").c_str(), fmt::format("{}", max_dirty_bytes))) {
        LogWarning("keeper_dirty_limit_unchanged", {{"dir", mount.dir}});
      }
    }
    Reply(message, {});
  }

  void JoinFinishedWorkers() {
    for (auto worker = workers_.begin(); worker != workers_.end();) {
      if (!worker->done->load()) {
        ++worker;
        continue;
      }
      worker->thread.join();
      worker = workers_.erase(worker);
    }
  }

  void CleanUp() {
    std::map<Id128, Mount> left;
    {
      MutexLock lock(mutex_);
      left.swap(mounts_);
    }
    for (auto& [connection, mount] : left) Abandon(mount);
    for (Worker& worker : workers_) worker.thread.join();
    for (const pid_t pid : helpers_) ::kill(pid, SIGKILL);
    // A bound, since nobody may hang: what is left after it is reaped by init.
    for (int i = 0; i < kHelperReapTries && !helpers_.empty(); ++i) {
      std::erase_if(helpers_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
      if (!helpers_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  int ExitCode() const {
    if (WIFSIGNALED(server_status_)) {
      LogError("keeper_server_killed", {{"signal", WTERMSIG(server_status_)}});
      return 128 + WTERMSIG(server_status_);
    }
    return WEXITSTATUS(server_status_);
  }

  const KeeperOptions options_;
  UniqueFd signals_;
  std::shared_ptr<Channel> channel_;  // to the server that runs, or ran last
  pid_t server_pid_ = -1;             // -1: none runs
  bool connected_ = false;            // to that server
  bool ready_ = false;                // that server serves
  bool ever_ready_ = false;           // some server has been: deaths are followed by another one
  bool stopping_ = false;
  bool done_ = false;
  int failed_starts_ = 0;  // in a row
  Clock::time_point start_at_;
  int server_status_ = 0;
  std::set<pid_t> helpers_;
  std::list<Worker> workers_;  // unmounts in flight; the loop's thread only

  Mutex mutex_;
  std::map<Id128, Mount> mounts_ GUARDED_BY(mutex_);
};

}  // namespace

int RunKeeper(const KeeperOptions& options) { return Keeper(options).Run(); }

}  // namespace cairn
