// One loop over two things: signals (signalfd: SIGTERM, SIGINT, SIGCHLD) and the server's socket.
// Mounts happen in the loop; each unmount has a thread of its own, because umount2 writes back what
// is dirty through the server, or the one that follows it, and may take long. When no other
// follows, the loop aborts the connection, and umount2 returns.
//
// Order at the end: last server reaped -> connections aborted (fusectl, or the last close of
// /dev/fuse)
// -> lazy unmounts -> unmount threads joined -> barrier helpers killed and reaped.
//
// The next server stands by: while one serves, another is executed and linked already, and waits
// for the answer to its HELLO, so that a death costs neither.
//
// Upgrade: the next server is started from the file that came with UPGRADE, and when it is not
// READY in time, the one after it from the file before. The keeper itself is replaced by execve(2)
// between two messages, when no thread but the loop's runs.
//
// Invariants: every fd here is close-on-exec (a barrier helper must never hold /dev/fuse), but in
// the moment of that execve; no path below a mount of ours is opened. Sources: mount(2), fuse(4),
// execveat(2), sd_notify(3).
#include "fuse/keeper/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "fuse/keeper/channel.h"
#include "fuse/keeper/keeper_state.h"
#include "fuse/keeper/kept_mounts.h"
#include "fuse/keeper/mount_point.h"
#include "fuse/keeper/protocol.h"
#include "fuse/keeper/server_process.h"
#include "fuse/keeper/service_manager.h"
#include "fuse/keeper/socket_file.h"
#include "fuse/keeper/spawn.h"
#include "store/base/log.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr int kPrSetIoFlusher = 57;  // PR_SET_IO_FLUSHER, Linux 5.6
constexpr std::string_view kKeeperOomScore = "-1000";
constexpr int kHelperReapTries = 200;  // 2 s
constexpr int kMostFailedStarts = 12;  // in a row
constexpr int64_t kFirstDelayMs = 50;
constexpr int64_t kMostDelayMs = 5000;
constexpr int kProbeMs = 10'000;

class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options) : options_(options) {
    for (auto& [name, fd] : options.files) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      files_[name] = UniqueFd(fd);
    }
  }
  explicit Keeper(const KeeperState& state)
      : options_{.server_command = state.server_command,
                 .barrier_program = state.barrier_program,
                 .files = {}} {
    Resume(state);
  }

  int Run() {
    if (!Prepare()) return 1;
    if (server_pid_ < 0) {
      program_ = OpenProgram(options_.server_command[0]);
      if (!StartServer()) return 1;
    } else if (ready_ && !stopping_) {
      StartStandby();
    }
    Loop();
    CleanUp();
    return ExitCode();
  }

 private:
  using Clock = std::chrono::steady_clock;
  // The program of an UPGRADE that has not ended.
  struct Candidate {
    Id128 id;
    UniqueFd program;
    std::chrono::milliseconds ready_timeout;
    bool started = false;
  };
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
    return true;
  }

  // The keeper before this one, in the same process, has left all this.
  void Resume(const KeeperState& state) {
    for (const int fd : state.Descriptors()) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    program_ = UniqueFd(state.program);
    channel_ = std::make_shared<Channel>(UniqueFd(state.channel));
    server_pid_ = state.server_pid == 0 ? -1 : state.server_pid;
    connected_ = state.connected;
    ready_ = state.ready;
    ever_ready_ = state.ever_ready;
    stopping_ = state.stopping;
    failed_starts_ = static_cast<int>(state.failed_starts);
    helpers_.insert(state.helpers.begin(), state.helpers.end());
    outcome_ = state.outcome;
    for (const KeeperState::File& file : state.files) Keep(file.name, UniqueFd(file.fd));
    mounts_.Resume(state.mounts);
    LogInfo("keeper_replaced", {{"mounts", state.mounts.size()}});
    Message asked{.type = static_cast<uint16_t>(MessageType::kReplaceKeeper), .payload = {}};
    asked.id = state.message_id;
    Reply(asked, {});
  }

  KeeperState State(uint64_t message_id) {
    KeeperState state{.server_command = options_.server_command,
                      .barrier_program = options_.barrier_program,
                      .program = program_.get(),
                      .server_pid = server_pid_ < 0 ? 0 : server_pid_,
                      .channel = channel_->fd(),
                      .connected = connected_,
                      .ready = ready_,
                      .ever_ready = ever_ready_,
                      .stopping = stopping_,
                      .failed_starts = static_cast<uint32_t>(failed_starts_),
                      .message_id = message_id,
                      .helpers = {helpers_.begin(), helpers_.end()},
                      .outcome = outcome_,
                      .files = {},
                      .mounts = mounts_.State()};
    for (const auto& [name, file] : files_) state.files.push_back({.fd = file.get(), .name = name});
    return state;
  }

  bool StartServer() {
    auto standby = candidate_ ? std::nullopt : standby_.Take();
    const bool stood_by = standby.has_value();
    if (!standby) {
      if (candidate_) {
        candidate_->started = true;
        ready_by_ = Clock::now() + candidate_->ready_timeout;
      }
      standby =
          StartServerProcess(options_.server_command, candidate_ ? candidate_->program : program_);
    }
    if (standby->pid < 0) return false;
    server_pid_ = standby->pid;
    channel_ = std::move(standby->channel);
    connected_ = true;
    ready_ = false;
    LogInfo(
        "keeper_started_server",
        {{"pid", server_pid_}, {"program", options_.server_command[0]}, {"stood_by", stood_by}});
    if (stopping_) TellToStop();
    return true;
  }

  void StartStandby() { standby_.Start(options_.server_command, program_); }

  void TellToStop() {
    const Message stop{.type = static_cast<uint16_t>(MessageType::kStop), .payload = {}};
    IgnoreError(channel_->Send(stop), "it is gone: its exit is handled by the loop");
  }

  void Loop() {
    while (!done_) {
      pollfd fds[3] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                       {.fd = connected_ ? channel_->fd() : -1, .events = POLLIN, .revents = 0},
                       {.fd = standby_.fd(), .events = POLLIN, .revents = 0}};
      if (::poll(fds, 3, PollTimeoutMs()) < 0 && errno != EINTR) {
        LogError("keeper_poll_failed", {{"errno", errno}});
        if (server_pid_ < 0) return;
        ::kill(server_pid_, SIGTERM);
        ::waitpid(server_pid_, &server_status_, 0);
        return;
      }
      if (fds[2].revents != 0) standby_.HandleMessage();
      if (fds[0].revents != 0) HandleSignals();
      if (fds[1].revents != 0 && connected_) connected_ = HandleOneMessage();
      if (server_pid_ < 0 && !done_ && Clock::now() >= start_at_ && !StartServer()) done_ = true;
      if (AwaitsCandidate() && Clock::now() >= ready_by_) {
        FellBack(fmt::format("it was not ready within {} ms", candidate_->ready_timeout.count()));
        ::kill(server_pid_, SIGKILL);
      }
      JoinFinishedWorkers();
    }
  }

  // A new program has been started and is not READY.
  bool AwaitsCandidate() const { return server_pid_ >= 0 && candidate_ && candidate_->started; }

  void FellBack(std::string why) {
    LogError("keeper_upgrade_failed", {{"why", why}});
    outcome_ = {.id = candidate_->id, .state = UpgradeOutcome::kFellBack, .why = std::move(why)};
    candidate_.reset();
  }

  int PollTimeoutMs() const {
    if (server_pid_ >= 0 && !AwaitsCandidate()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        (server_pid_ >= 0 ? ready_by_ : start_at_) - Clock::now());
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
      } else if (standby_.Reaped(pid)) {
        continue;
      } else {
        helpers_.erase(pid);
      }
    }
  }

  // A server that is able to take over is told; to another the signal itself is passed on.
  void Stop(int signal) {
    LogInfo("keeper_stopping_server", {{"signal", signal}});
    stopping_ = true;
    standby_.End();
    if (server_pid_ < 0) {
      done_ = mounts_.empty();  // else the next one unmounts: what their kernels hold is not lost
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
    if (!ever_ready_ || (stopping_ && mounts_.empty())) {
      done_ = true;
      return;
    }
    const bool upgrades = candidate_.has_value();
    if (candidate_ && candidate_->started) FellBack(HowItEnded(status));
    failed_starts_ = ready_ || upgrades ? 0 : failed_starts_ + 1;
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

  static std::string HowItEnded(int status) {
    return WIFSIGNALED(status)
               ? fmt::format("it was ended by signal {} before it was ready", WTERMSIG(status))
               : fmt::format("it ended with status {} before it was ready", WEXITSTATUS(status));
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
        HandleReady(message);
        break;
      case MessageType::kUpgrade:
        HandleUpgrade(message, std::move(fd));
        break;
      case MessageType::kUpgradeOutcome:
        Reply(message, AwaitsCandidate() ? UpgradeOutcome{.id = candidate_->id,
                                                          .state = UpgradeOutcome::kUnderWay,
                                                          .why = {}}
                                               .Encode()
                                         : outcome_.Encode());
        break;
      case MessageType::kKeepFile:
      case MessageType::kKeptFile:
        HandleFile(message, std::move(fd));
        break;
      case MessageType::kReplaceKeeper:
        HandleReplaceKeeper(message, fd);
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

  void Fail(const Message& request, const Error& error) {
    Fail(request, error.sys_errno(), error.message());
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
    const auto attached = mounts_.Attach(*request, std::move(file));
    if (!attached) return Fail(message, attached.error());
    Reply(message, attached->reply.Encode(), attached->fuse);
  }

  void HandleUnmount(const Message& message) {
    const auto request = UnmountRequest::Decode(message.payload);
    if (!request) return Fail(message, EPROTO, request.error().message());
    auto done = std::make_shared<std::atomic<bool>>(false);
    // The answer is for this server, should another have come by then.
    std::thread thread([this, channel = channel_, message, request = *request, done] {
      const Status detached = mounts_.Detach(request.connection, request.lazy);
      detached ? Reply(*channel, message, {})
               : Fail(*channel, message, detached.error().sys_errno(), detached.error().message());
      done->store(true);
    });
    workers_.push_back(Worker{.thread = std::move(thread), .done = std::move(done)});
  }

  void HandleStartBarrier(const Message& message) {
    auto pair = Channel::MakePair();
    if (!pair) return Fail(message, pair.error().sys_errno(), pair.error().message());
    const pid_t pid = Spawn({.words = {options_.barrier_program},
                             .program = -1,
                             .inherited = pair->second.fd(),
                             .as = kBarrierHelperFd,
                             .oom_score = kKeeperOomScore});
    if (pid < 0) return Fail(message, EAGAIN, "cannot start the barrier helper");
    helpers_.insert(pid);
    Reply(message, EncodePid(static_cast<uint32_t>(pid)), pair->first.fd());
  }

  void HandleList(const Message& message) {
    Reply(message, EncodeConnections(mounts_.Connections()));
  }

  void HandleConnection(const Message& message) {
    const auto connection = DecodeConnection(message.payload);
    if (!connection) return Fail(message, EPROTO, connection.error().message());
    if (message.type == static_cast<uint16_t>(MessageType::kAbandon)) {
      const Status aborted = mounts_.Abort(*connection);
      return aborted ? Reply(message, {}) : Fail(message, aborted.error());
    }
    const auto mount = mounts_.Find(*connection);
    if (!mount) return Fail(message, mount.error());
    if (message.type == static_cast<uint16_t>(MessageType::kTake)) {
      return Reply(message, mount->reply.Encode(), mount->fuse);
    }
    if (mount->file < 0) return Fail(message, ENOENT, "no file came with that mount");
    Reply(message, {}, mount->file);
  }

  void HandleReady(const Message& message) {
    if (candidate_ && candidate_->started) {
      program_ = std::move(candidate_->program);
      outcome_ = {.id = candidate_->id, .state = UpgradeOutcome::kDone, .why = {}};
      LogInfo("keeper_upgraded", {{"pid", server_pid_}});
      candidate_.reset();
    }
    if (!ever_ready_) TellServiceManager("READY=1");
    ready_ = ever_ready_ = true;
    Reply(message, {});
    if (!stopping_) StartStandby();
  }

  void HandleUpgrade(const Message& message, UniqueFd program) {
    const auto request = UpgradeRequest::Decode(message.payload);
    if (!request) return Fail(message, EPROTO, request.error().message());
    if (!program.valid()) return Fail(message, EBADF, "no program came with it");
    if (stopping_) return Fail(message, EBUSY, "everything is about to stop");
    if (candidate_) return Fail(message, EBUSY, "another upgrade is under way");
    candidate_ = Candidate{.id = request->id,
                           .program = std::move(program),
                           .ready_timeout = std::chrono::milliseconds(request->ready_timeout_ms)};
    Reply(message, {});
  }

  // Servers' own sockets have files that go with the last of them; the service manager's stay.
  void Keep(const std::string& name, UniqueFd file) {
    if (name.starts_with("listen:")) {
      if (auto socket = SocketFileOf(file.get())) socket_files_[name] = *std::move(socket);
    }
    files_[name] = std::move(file);
  }

  void HandleFile(const Message& message, UniqueFd file) {
    const auto name = DecodeFileName(message.payload);
    if (!name) return Fail(message, EPROTO, name.error().message());
    if (message.type == static_cast<uint16_t>(MessageType::kKeepFile)) {
      if (!file.valid()) return Fail(message, EBADF, "no file came with it");
      Keep(*name, std::move(file));
      return Reply(message, {});
    }
    const auto found = files_.find(*name);
    if (found == files_.end()) return Fail(message, ENOENT, "no such file");
    Reply(message, {}, found->second.get());
  }

  // Returns only when the program was not executed.
  void HandleReplaceKeeper(const Message& message, const UniqueFd& program) {
    if (!program.valid()) return Fail(message, EBADF, "no program came with it");
    if (!workers_.empty() || candidate_ || stopping_) {
      return Fail(message, EBUSY, "an unmount, an upgrade or a stop is under way: try again");
    }
    standby_.End();
    const KeeperState state = State(message.id);
    const std::string bytes = state.Encode();
    const UniqueFd file(::memfd_create("cairn-keeper-state", MFD_CLOEXEC));
    if (!file.valid() ||
        ::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      return Fail(message, EIO, "cannot write down the state");
    }
    std::string name = "cairn-keeper";
    std::string verb = "--can-resume";
    std::string number = fmt::format("{}", file.get());
    const pid_t probe = Spawn({.words = {name, verb, number},
                               .program = program.get(),
                               .inherited = file.get(),
                               .as = file.get()});
    if (!EndsWell(probe, kProbeMs)) {
      StartStandby();
      return Fail(message, EPROTO, "the new keeper does not understand this one's state");
    }
    std::vector<int> kept = state.Descriptors();
    kept.push_back(file.get());
    for (const int fd : kept) ::fcntl(fd, F_SETFD, 0);
    verb = "--resume";
    char* const argv[] = {name.data(), verb.data(), number.data(), nullptr};
    ::execveat(program.get(), "", argv, environ, AT_EMPTY_PATH);
    const int error = errno;
    for (const int fd : kept) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    StartStandby();
    Fail(message, error, "cannot execute the new keeper");
  }

  void HandleSaveInit(const Message& message) {
    auto request = SaveInitRequest::Decode(message.payload);
    if (!request) return Fail(message, EPROTO, request.error().message());
    const Status saved = mounts_.SaveInit(*std::move(request));
    saved ? Reply(message, {}) : Fail(message, saved.error());
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
    standby_.End();
    for (const auto& [name, file] : socket_files_) RemoveSocketFile(file);
    mounts_.AbortAll();
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
  UniqueFd program_;  // of the server; none: its path is executed, and fails as it should
  std::optional<Candidate> candidate_;
  Clock::time_point ready_by_;  // of a candidate that has been started
  UpgradeOutcome outcome_;
  StandbyServer standby_;
  std::map<std::string, UniqueFd> files_;
  std::map<std::string, SocketFile> socket_files_;
  int server_status_ = 0;
  std::set<pid_t> helpers_;
  std::list<Worker> workers_;  // unmounts in flight; the loop's thread only
  KeptMounts mounts_;
};

}  // namespace

int RunKeeper(const KeeperOptions& options) { return Keeper(options).Run(); }
int RunKeeper(const KeeperState& state) { return Keeper(state).Run(); }

}  // namespace cairn
