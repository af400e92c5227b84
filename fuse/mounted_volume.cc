// Mount: keeper mounts and sends the fd -> threads serve it -> INIT answered (its bytes go to the
// keeper). Barrier: tell the server the helper's pid -> list the inodes with a writable open -> the
// helper fsyncs each by handle. An open that is being answered while the list is made holds no data
// yet; a close in progress has written back before its RELEASE. Unmount: umount2 in the keeper
// writes back through our threads and ends the connection; the threads see ENODEV and are joined.
//
// This process never opens a path of its own mount: it could not exit any more (measured: D state
// in fuse_flush).
#include "fuse/mounted_volume.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "store/base/log.h"

namespace cairn {
namespace {

constexpr int64_t kInitTimeoutMs = 30'000;

}  // namespace

Result<std::unique_ptr<MountedVolume>> MountedVolume::Mount(KeeperClient& keeper, Volume& volume,
                                                            const FuseMountOptions& options) {
  std::unique_ptr<MountedVolume> mounted(new MountedVolume(keeper, volume, options));
  MountRequest& request = mounted->request_;
  request.connection = Id128::Random();
  request.dir = options.dir;
  request.flags = (options.nosuid ? MountRequest::kNoSuid : 0u) |
                  (options.nodev ? MountRequest::kNoDev : 0u) |
                  (options.noexec ? MountRequest::kNoExec : 0u) |
                  (options.read_only ? MountRequest::kReadOnly : 0u) |
                  (options.allow_other ? MountRequest::kAllowOther : 0u) |
                  (options.default_permissions ? MountRequest::kDefaultPermissions : 0u);
  request.read_ahead_kib = options.read_ahead_kib;
  request.max_dirty_bytes = options.max_dirty_bytes;
  request.cookie = options.cookie;
  UniqueFd opens(::memfd_create("cairn-opens", MFD_CLOEXEC));
  if (!opens.valid()) return ErrErrno(errno, "memfd_create");
  auto table = CAIRN_TRY(OpenTable::OnFile(UniqueFd(::fcntl(opens.get(), F_DUPFD_CLOEXEC, 0))));
  volume.BeginConnection(request.connection, std::move(table));
  auto device = keeper.Mount(request, opens.get());
  if (!device) {
    volume.EndConnection();
    mounted->closed_.store(true);
    MutexLock lock(mounted->unmount_mutex_);
    mounted->stopped_ = true;
    return std::unexpected(std::move(device).error());
  }
  mounted->device_.device_major = device->device_major;
  mounted->device_.device_minor = device->device_minor;
  CAIRN_TRY(mounted->Serve(std::move(device->fuse), opens.get(), nullptr));
  // A helper takes 10 ms to start: one is idle before the first barrier, which may be part of a
  // pause.
  auto helper = keeper.AcquireHelper();
  if (helper) keeper.ReturnHelper(std::move(*helper));
  return mounted;
}

Result<std::shared_ptr<OpenTable>> MountedVolume::OpensOf(const TakenMount& taken) {
  if (!taken.file.valid()) return Err(ErrorCode::kDataLoss, "no open table came with the mount");
  return OpenTable::OnFile(UniqueFd(::fcntl(taken.file.get(), F_DUPFD_CLOEXEC, 0)));
}

Result<std::unique_ptr<MountedVolume>> MountedVolume::TakeOver(KeeperClient& keeper, Volume& volume,
                                                               TakenMount taken,
                                                               const FuseMountOptions& options) {
  std::unique_ptr<MountedVolume> mounted(new MountedVolume(keeper, volume, options));
  mounted->request_ = std::move(taken.request);
  mounted->device_.device_major = taken.device.device_major;
  mounted->device_.device_minor = taken.device.device_minor;
  const Status serves = mounted->Serve(std::move(taken.device.fuse), taken.file.get(), &taken.init);
  if (!serves) {
    mounted->HandOver();  // the mount is not ours to end
    return std::unexpected(serves.error());
  }
  return mounted;
}

// Without an INIT that anybody saved the kernel's is still to come, or comes again.
Status MountedVolume::Serve(UniqueFd fuse, int file, const std::string* taken_init) {
  auto progress = CAIRN_TRY(RequestProgress::OnFile(file));
  transport_ = std::make_unique<DeviceTransport>(
      std::move(fuse),
      DeviceTransportOptions{.threads = options_.threads, .before_reply = options_.before_reply},
      std::move(progress));
  VolumeServerOptions server_options;
  server_options.connection = request_.connection;
  server_options.writeback_cache = options_.writeback_cache;
  server_options.on_init = [this](std::string_view init, bool answered) {
    const Status saved = keeper_.SaveInit(request_.connection, init, answered);
    if (!saved) LogWarning("fuse_init_not_saved", {{"error", saved.error().ToString()}});
  };
  server_options.on_closed = [this] {
    closed_.store(true);
    if (options_.on_closed) options_.on_closed();
  };
  server_options.on_writers = options_.on_writers;
  if (taken_init != nullptr) server_options.replies = volume_.RecoveredReplies();
  server_ = CAIRN_TRY(VolumeServer::Create(volume_, *transport_, server_options));
  if (taken_init != nullptr) {
    if (!taken_init->empty()) CAIRN_TRY(server_->TakeOver(*taken_init));
    CAIRN_TRY(TakeRequestsOver());
  }
  CAIRN_TRY(transport_->Start(*server_));
  if (!server_->WaitForInit(kInitTimeoutMs)) {
    return Err(ErrorCode::kUnavailable, "the kernel did not finish INIT of " + request_.dir);
  }
  return {};
}

// What the server before this one took and did not answer comes again, or, before Linux 6.9, fails
// once: its callers would wait for ever.
Status MountedVolume::TakeRequestsOver() {
  const Status resent = options_.resends
                            ? server_->AskForResend()
                            : Status(Err(ErrorCode::kUnavailable, "not asked for", EINVAL));
  if (resent || resent.error().sys_errno() != EINVAL) return resent;
  server_->AnswerTakenInit();
  const uint64_t failed = transport_->FailUnanswered();
  LogWarning("fuse_requests_failed", {{"dir", dir()}, {"requests", failed}});
  return {};
}

MountedVolume::~MountedVolume() {
  bool stopped;
  {
    MutexLock lock(unmount_mutex_);
    stopped = stopped_;
  }
  if (stopped) return;
  const Status unmounted = keeper_.Unmount(request_.connection, /*lazy=*/true);
  if (!unmounted) LogWarning("fuse_unmount_failed", {{"error", unmounted.error().ToString()}});
  Stop();
}

Status MountedVolume::Barrier() {
  MutexLock lock(barrier_mutex_);
  if (closed()) return Err(ErrorCode::kFailedPrecondition, dir() + " is not mounted any more");
  const Status done = RunBarrier();
  // A helper that had died while it was idle is found out only now: once more with another.
  if (!done && done.error().code() == ErrorCode::kUnavailable &&
      done.error().sys_errno() != ETIMEDOUT) {
    return RunBarrier();
  }
  return done;
}

Status MountedVolume::RunBarrier() {
  const std::vector<InodeNumber> inodes = volume_.WritableOpens();
  if (inodes.empty()) return {};
  std::unique_ptr<BarrierHelper> helper = CAIRN_TRY(keeper_.AcquireHelper());
  server_->SetBarrierPid(helper->pid());
  const Status done =
      helper->Run(request_, device_, volume_.rollback_epoch(), inodes, options_.barrier_timeout_ms);
  server_->SetBarrierPid(0);
  if (done || done.error().code() != ErrorCode::kUnavailable) {
    keeper_.ReturnHelper(std::move(helper));
  }
  return done;
}

Status MountedVolume::Unmount(bool lazy) {
  MutexLock lock(unmount_mutex_);
  if (stopped_) return {};
  if (lazy && !closed()) {
    const Status flushed = Barrier();
    if (!flushed)
      LogWarning("fuse_lazy_unmount_unflushed", {{"error", flushed.error().ToString()}});
  }
  CAIRN_TRY(keeper_.Unmount(request_.connection, lazy));
  Stop();
  stopped_ = true;
  return {};
}

void MountedVolume::HandOver() {
  MutexLock unmount(unmount_mutex_);
  if (stopped_) return;
  stopped_ = true;
  Stop(/*hand_over=*/true);
}

void MountedVolume::Stop(bool hand_over) {
  MutexLock lock(barrier_mutex_);
  if (server_ != nullptr) server_->StopFlusher();
  if (transport_ != nullptr) transport_->Stop();
  if (!hand_over) {
    if (server_ != nullptr) server_->ReleaseLeftOpens();
    volume_.EndConnection();
  }
  closed_.store(true);
  server_.reset();
  transport_.reset();  // closes our fd: the last one, so a connection with open files ends here
}

}  // namespace cairn
