// Calls are matched to replies by id, so that a slow unmount holds nobody up: one thread receives,
// callers wait on a condition. A barrier helper has a socket of its own and is used by one caller
// at a time; idle ones are kept, broken ones are dropped, and the keeper starts others when asked.
#include "fuse/keeper_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "store/base/clock.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr int64_t kCallTimeoutMs = 30'000;
constexpr int64_t kNoLimit = int64_t{1} << 40;
constexpr int64_t kUnmountTimeoutMs = 300'000;  // writes back what is dirty
constexpr size_t kMaxIdleHelpers = 4;

std::unexpected<Error> ErrorOfReply(const Message& reply) {
  const int error = static_cast<int>(reply.error);
  if (error == EBUSY) return Err(ErrorCode::kFailedPrecondition, reply.payload, EBUSY);
  return ErrErrno(error, reply.payload);
}

// umount2 by this very process, for when no keeper is left to do it.
Status UnmountHere(const std::string& dir, uint32_t device_major, uint32_t device_minor,
                   bool lazy) {
  struct statx st{};
  if (::statx(AT_FDCWD, dir.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st) == 0 &&
      (st.stx_dev_major != device_major || st.stx_dev_minor != device_minor)) {
    return {};
  }
  if (::umount2(dir.c_str(), UMOUNT_NOFOLLOW) == 0) return {};
  if (errno == EBUSY && lazy && ::umount2(dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    return {};
  }
  if (errno == EBUSY) return Err(ErrorCode::kFailedPrecondition, "umount2(2) of " + dir, EBUSY);
  return ErrErrno(errno, "umount2(2) of " + dir);
}

}  // namespace

Status ExecUnderKeeper(int argc, char** argv) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return ErrErrno(errno, "readlink /proc/self/exe");
  const std::string self(path, static_cast<size_t>(length));
  std::string keeper = self.substr(0, self.rfind('/') + 1) + "cairn-keeper";
  std::string separator = "--";
  std::string server = self;
  std::vector<char*> words = {keeper.data(), separator.data(), server.data()};
  words.insert(words.end(), argv + std::min(argc, 1), argv + argc);
  words.push_back(nullptr);
  ::execv(keeper.c_str(), words.data());
  return ErrErrno(errno, "cannot run " + keeper);
}

Status BarrierHelper::Run(const MountRequest& mount, const MountedDevice& device,
                          uint32_t generation, std::span<const uint64_t> inodes,
                          int64_t timeout_ms) {
  const int64_t deadline_ms = SystemClock().MonotonicNs() / 1'000'000 + timeout_ms;
  while (!inodes.empty()) {
    const size_t count = std::min(inodes.size(), kMaxBarrierInodes);
    const BarrierRequest request{
        .device_major = device.device_major,
        .device_minor = device.device_minor,
        .generation = generation,
        .dir = mount.dir,
        .inodes = std::vector<uint64_t>(inodes.begin(), inodes.begin() + static_cast<long>(count))};
    const Message message{.type = static_cast<uint16_t>(MessageType::kBarrier),
                          .id = next_id_++,
                          .error = 0,
                          .payload = request.Encode()};
    CAIRN_TRY(channel_.Send(message));
    const int64_t left_ms = deadline_ms - SystemClock().MonotonicNs() / 1'000'000;
    auto received = CAIRN_TRY(channel_.Receive(std::max<int64_t>(left_ms, 0)));
    if (!received || received->message.id != message.id) {
      return Err(ErrorCode::kUnavailable, "the barrier helper is gone", ECONNRESET);
    }
    if (received->message.error != 0) return ErrorOfReply(received->message);
    const BarrierResult result = CAIRN_TRY(BarrierResult::Decode(received->message.payload));
    if (result.failed != 0) {
      return Err(ErrorCode::kDataLoss,
                 fmt::format("barrier: write-back of {} inodes failed, first inode {}",
                             result.failed, result.first_failed_inode),
                 static_cast<int>(result.first_errno));
    }
    inodes = inodes.subspan(count);
  }
  return {};
}

Result<std::unique_ptr<KeeperClient>> KeeperClient::Connect(UniqueFd socket,
                                                            std::function<void()> on_stop) {
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  std::unique_ptr<KeeperClient> client(
      new KeeperClient(Channel(std::move(socket)), std::move(on_stop)));
  client->reader_ = std::thread([raw = client.get()] { raw->ReadReplies(); });
  const ReceivedMessage reply = CAIRN_TRY(client->Call(MessageType::kHello, {}, kNoLimit));
  client->keeper_pid_ = CAIRN_TRY(DecodePid(reply.message.payload));
  return client;
}

KeeperClient::~KeeperClient() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  channel_.Shutdown();
  reader_.join();
}

bool KeeperClient::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

void KeeperClient::ReadReplies() {
  while (true) {
    auto received = channel_.Receive();
    if (!received) {
      LogError("keeper_bad_reply", {{"error", received.error().ToString()}});
      if (received.error().code() == ErrorCode::kInvalidArgument) continue;
    }
    if (!received || !*received) break;
    if ((*received)->message.type == static_cast<uint16_t>(MessageType::kStop)) {
      if (on_stop_) on_stop_();
      continue;
    }
    MutexLock lock(mutex_);
    const auto waiter = waiters_.find((*received)->message.id);
    if (waiter == waiters_.end()) continue;  // its caller gave up
    waiter->second->reply = std::move(**received);
    waiter->second->done = true;
    waiters_.erase(waiter);
    replied_.NotifyAll();
  }
  bool stopping;
  {
    MutexLock lock(mutex_);
    lost_ = true;
    stopping = stopping_;
    replied_.NotifyAll();
  }
  if (!stopping) {
    LogError("keeper_lost");
    if (on_stop_) on_stop_();
  }
}

Result<ReceivedMessage> KeeperClient::Call(MessageType type, std::string payload,
                                           int64_t timeout_ms, int fd) {
  Waiter waiter;
  Message request{.type = static_cast<uint16_t>(type), .payload = std::move(payload)};
  const int64_t deadline_ms = SystemClock().MonotonicNs() / 1'000'000 + timeout_ms;
  {
    MutexLock lock(mutex_);
    if (lost_) return Err(ErrorCode::kUnavailable, "the keeper is gone");
    request.id = next_id_++;
    waiters_[request.id] = &waiter;
  }
  const Status sent = channel_.Send(request, fd);
  MutexLock lock(mutex_);
  while (sent && !waiter.done && !lost_) {
    const int64_t left_ms = deadline_ms - SystemClock().MonotonicNs() / 1'000'000;
    if (left_ms <= 0) break;
    replied_.WaitFor(mutex_, left_ms);
  }
  waiters_.erase(request.id);
  CAIRN_TRY(sent);
  if (!waiter.done) {
    return Err(ErrorCode::kUnavailable, lost_ ? "the keeper is gone" : "the keeper does not answer",
               ETIMEDOUT);
  }
  if (waiter.reply.message.error != 0) return ErrorOfReply(waiter.reply.message);
  return std::move(waiter.reply);
}

Result<MountedDevice> KeeperClient::Mount(const MountRequest& request, int file) {
  ReceivedMessage reply =
      CAIRN_TRY(Call(MessageType::kMount, request.Encode(), kCallTimeoutMs, file));
  const MountReply mount = CAIRN_TRY(MountReply::Decode(reply.message.payload));
  if (!reply.fd.valid()) return Err(ErrorCode::kInternal, "the keeper sent no /dev/fuse");
  MutexLock lock(mutex_);
  mounts_[request.connection] = KnownMount{
      .dir = request.dir, .device_major = mount.device_major, .device_minor = mount.device_minor};
  return MountedDevice{.fuse = std::move(reply.fd),
                       .device_major = mount.device_major,
                       .device_minor = mount.device_minor};
}

Status KeeperClient::Upgrade(const UpgradeRequest& request, int program) {
  CAIRN_TRY(Call(MessageType::kUpgrade, request.Encode(), kCallTimeoutMs, program));
  return {};
}

Result<UpgradeOutcome> KeeperClient::LastUpgrade() {
  const auto reply = Call(MessageType::kUpgradeOutcome, {}, kCallTimeoutMs);
  if (!reply && reply.error().sys_errno() == EOPNOTSUPP) return UpgradeOutcome{};
  if (!reply) return std::unexpected(reply.error());
  return UpgradeOutcome::Decode(reply->message.payload);
}

Status KeeperClient::ReplaceKeeper(int program) {
  const auto reply = Call(MessageType::kReplaceKeeper, {}, kCallTimeoutMs, program);
  if (!reply && reply.error().sys_errno() == EPROTO) {
    return Err(ErrorCode::kFailedPrecondition, reply.error().message());
  }
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Status KeeperClient::KeepFile(const std::string& name, int fd) {
  CAIRN_TRY(Call(MessageType::kKeepFile, name, kCallTimeoutMs, fd));
  return {};
}

Result<UniqueFd> KeeperClient::KeptFile(const std::string& name) {
  ReceivedMessage reply = CAIRN_TRY(Call(MessageType::kKeptFile, name, kCallTimeoutMs));
  if (!reply.fd.valid()) return Err(ErrorCode::kInternal, "the keeper sent no file");
  return std::move(reply.fd);
}

Result<std::vector<Id128>> KeeperClient::ListMounts() {
  const ReceivedMessage reply = CAIRN_TRY(Call(MessageType::kList, {}, kCallTimeoutMs));
  return DecodeConnections(reply.message.payload);
}

Result<TakenMount> KeeperClient::Take(const Id128& connection) {
  ReceivedMessage reply =
      CAIRN_TRY(Call(MessageType::kTake, EncodeConnection(connection), kCallTimeoutMs));
  if (!reply.fd.valid()) return Err(ErrorCode::kInternal, "the keeper sent no /dev/fuse");
  TakeReply taken = CAIRN_TRY(TakeReply::Decode(reply.message.payload));
  TakenMount mount{.request = std::move(taken.mount),
                   .device = {.fuse = std::move(reply.fd),
                              .device_major = taken.device_major,
                              .device_minor = taken.device_minor},
                   .init = std::move(taken.init),
                   .file = {}};
  auto file = Call(MessageType::kTakeFile, EncodeConnection(connection), kCallTimeoutMs);
  if (file) {
    mount.file = std::move(file->fd);
  } else if (file.error().code() != ErrorCode::kNotFound) {
    return std::unexpected(std::move(file).error());
  }
  MutexLock lock(mutex_);
  mounts_[connection] = KnownMount{.dir = mount.request.dir,
                                   .device_major = taken.device_major,
                                   .device_minor = taken.device_minor};
  return mount;
}

Status KeeperClient::Abandon(const Id128& connection) {
  CAIRN_TRY(Call(MessageType::kAbandon, EncodeConnection(connection), kCallTimeoutMs));
  MutexLock lock(mutex_);
  mounts_.erase(connection);
  return {};
}

Status KeeperClient::Ready() {
  CAIRN_TRY(Call(MessageType::kReady, {}, kCallTimeoutMs));
  return {};
}

Status KeeperClient::Unmount(const Id128& connection, bool lazy) {
  KnownMount mount;
  {
    MutexLock lock(mutex_);
    const auto found = mounts_.find(connection);
    if (found == mounts_.end()) return Err(ErrorCode::kNotFound, "no such mount");
    mount = found->second;
  }
  const UnmountRequest request{.connection = connection, .lazy = lazy};
  auto reply = Call(MessageType::kUnmount, request.Encode(), kUnmountTimeoutMs);
  if (!reply) {
    if (!lost()) return std::unexpected(std::move(reply).error());
    CAIRN_TRY(UnmountHere(mount.dir, mount.device_major, mount.device_minor, lazy));
  }
  MutexLock lock(mutex_);
  mounts_.erase(connection);
  return {};
}

Status KeeperClient::SaveInit(const Id128& connection, std::string_view init, bool answered) {
  const SaveInitRequest request{
      .connection = connection, .answered = answered, .init = std::string(init)};
  CAIRN_TRY(Call(MessageType::kSaveInit, request.Encode(), kCallTimeoutMs));
  return {};
}

Result<std::unique_ptr<BarrierHelper>> KeeperClient::AcquireHelper() {
  {
    MutexLock lock(mutex_);
    if (!idle_helpers_.empty()) {
      std::unique_ptr<BarrierHelper> helper = std::move(idle_helpers_.back());
      idle_helpers_.pop_back();
      return helper;
    }
  }
  ReceivedMessage reply = CAIRN_TRY(Call(MessageType::kStartBarrier, {}, kCallTimeoutMs));
  const uint32_t pid = CAIRN_TRY(DecodePid(reply.message.payload));
  if (!reply.fd.valid()) return Err(ErrorCode::kInternal, "the keeper sent no helper socket");
  return std::make_unique<BarrierHelper>(Channel(std::move(reply.fd)), pid);
}

void KeeperClient::ReturnHelper(std::unique_ptr<BarrierHelper> helper) {
  MutexLock lock(mutex_);
  if (idle_helpers_.size() < kMaxIdleHelpers) idle_helpers_.push_back(std::move(helper));
}

}  // namespace cairn
