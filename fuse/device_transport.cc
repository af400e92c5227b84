// Each thread: publish a bound -> read(2) one request into its buffer -> check the header ->
// publish the request's number -> handler -> again.
//
// Buffers are prefaulted (MAP_POPULATE): if the process were killed while the kernel copies a
// request into a page that is not there yet, the request would end in EIO instead of being sent
// again to the next server.
//
// The bound makes the reply floor right without a lock around read: the kernel queues requests in
// ascending order of `unique` and hands them out in that order, so what a thread will read after it
// loaded highest_ is above it. FORGET and INTERRUPT do not follow that order and are left out; a
// request that does not either switches the floor off for good.
//
// Sources: fuse(4), include/uapi/linux/fuse.h, fs/fuse/dev.c (fuse_dev_do_read: ENOENT for an
// interrupted request, ENODEV once unmounted, ECONNABORTED after an abort).
#include "fuse/device_transport.h"

#include <fmt/format.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr uint64_t kResendBit = uint64_t{1} << 63;  // FUSE_UNIQUE_RESEND, Linux 6.9
constexpr size_t kHeaderRoomBytes = 4096;           // as libfuse: header and fixed part of a WRITE
constexpr int kWakeSignal = SIGURG;
constexpr uint64_t kIdle = RequestProgress::kIdle;

void InstallWakeHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_handler = [](int) {};  // no SA_RESTART: read(2) must return EINTR
    ::sigaction(kWakeSignal, &action, nullptr);
  });
}

bool InQueueOrder(uint32_t opcode) {
  return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT &&
         opcode != FUSE_NOTIFY_REPLY;
}

}  // namespace

class DeviceTransport::Buffer {
 public:
  explicit Buffer(size_t size)
      : data_(::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)),
        size_(size) {
    CAIRN_CHECK(data_ != MAP_FAILED);
  }
  ~Buffer() { ::munmap(data_, size_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::span<char> bytes() const { return {static_cast<char*>(data_), size_}; }

 private:
  void* const data_;
  const size_t size_;
};

DeviceTransport::DeviceTransport(UniqueFd fd, const DeviceTransportOptions& options,
                                 std::unique_ptr<RequestProgress> progress)
    : fd_(std::move(fd)),
      options_(options),
      progress_(progress != nullptr ? std::move(progress) : RequestProgress::Private()) {}

DeviceTransport::~DeviceTransport() { Stop(); }

Status DeviceTransport::Start(FuseRequestHandler& handler) {
  if (!fd_.valid()) return Err(ErrorCode::kInvalidArgument, "no fd for the FUSE transport");
  if (options_.threads < 1 || options_.threads > RequestProgress::kLanes) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("{} threads for a mount: 1 to {}",
                                                        options_.threads, RequestProgress::kLanes));
  }
  InstallWakeHandler();
  handler_ = &handler;
  for (int i = 0; i < RequestProgress::kLanes; ++i) progress_->bound(i).store(0);
  for (int i = 0; i < options_.threads; ++i) {
    slots_.push_back(std::unique_ptr<Slot>(
        new Slot{.lane = static_cast<uint16_t>(i), .bound = progress_->bound(i)}));
    // Not only in the thread: between two servers there is always somebody's bound.
    slots_.back()->bound.store(progress_->highest().load() + 1);
  }
  for (auto& slot : slots_) threads_.emplace_back([this, raw = slot.get()] { Loop(*raw); });
  return {};
}

void DeviceTransport::Stop() {
  stopping_.store(true);
  for (size_t i = 0; i < threads_.size(); ++i) {
    // A signal that lands between the flag's check and read(2) is lost: send until the thread is
    // out.
    while (!slots_[i]->exited.load()) {
      ::pthread_kill(threads_[i].native_handle(), kWakeSignal);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    threads_[i].join();
  }
  threads_.clear();
}

void DeviceTransport::Loop(Slot& slot) {
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, kWakeSignal);
  ::pthread_sigmask(SIG_UNBLOCK, &wake, nullptr);  // whoever starts us may have blocked everything
  const Buffer buffer(options_.max_payload_bytes + kHeaderRoomBytes);
  const Buffer scratch(options_.max_payload_bytes);
  while (!stopping_.load()) {
    slot.bound.store(progress_->highest().load() + 1);
    const ssize_t count = ::read(fd_.get(), buffer.bytes().data(), buffer.bytes().size());
    if (count > 0) {
      Deliver(slot, buffer.bytes().first(static_cast<size_t>(count)), scratch.bytes());
      continue;
    }
    if (count < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
    if (count < 0 && errno != ENODEV && errno != ECONNABORTED) {
      LogError("fuse_read_failed", {{"errno", errno}});
    }
    Close();
    break;
  }
  slot.bound.store(kIdle);
  slot.exited.store(true);
}

void DeviceTransport::Deliver(Slot& slot, std::span<char> bytes, std::span<char> scratch) {
  fuse_in_header header;
  if (bytes.size() < sizeof header) {
    LogError("fuse_short_request", {{"bytes", bytes.size()}});
    return;
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.len != bytes.size()) {
    LogError("fuse_request_length", {{"bytes", bytes.size()}, {"header", header.len}});
    return;
  }
  FuseRequest request{.lane = slot.lane,
                      .unique = header.unique & ~kResendBit,
                      .resent = (header.unique & kResendBit) != 0,
                      .opcode = header.opcode,
                      .node = header.nodeid,
                      .uid = header.uid,
                      .gid = header.gid,
                      .pid = header.pid,
                      .bytes = bytes,
                      .scratch = scratch};
  if (InQueueOrder(request.opcode) && !request.resent) {
    if (request.unique < slot.bound.load() && ordered_.exchange(false)) {
      LogWarning("fuse_unique_out_of_order", {{"unique", request.unique}});
    }
    slot.bound.store(request.unique);
    uint64_t highest = progress_->highest().load();
    while (highest < request.unique &&
           !progress_->highest().compare_exchange_weak(highest, request.unique)) {
    }
  } else if (request.resent) {
    slot.bound.store(std::min(slot.bound.load(), request.unique));
  }
  request.reply_floor = ReplyFloor();
  handler_->HandleRequest(request);
}

uint64_t DeviceTransport::ReplyFloor() const {
  if (!ordered_.load()) return 0;
  uint64_t floor = kIdle;
  for (const auto& slot : slots_) floor = std::min(floor, slot->bound.load());
  return floor;
}

uint64_t DeviceTransport::FailUnanswered() {
  constexpr uint64_t kStep = 2;  // odd numbers are interrupts
  const RequestProgress::Unanswered left = progress_->left();
  uint64_t failed = 0;
  for (uint64_t unique = std::max(left.first & ~uint64_t{1}, kStep); unique <= left.last;
       unique += kStep) {
    fuse_out_header answer{.len = sizeof answer, .error = -EIO, .unique = unique};
    // ENOENT: it was answered, is still to be read, or does not exist.
    failed += ::write(fd_.get(), &answer, sizeof answer) == sizeof answer ? 1 : 0;
  }
  return failed;
}

void DeviceTransport::Close() {
  if (!closed_.exchange(true)) handler_->HandleClosed();
}

int DeviceTransport::Send(std::span<const iovec> iov) {
  if (options_.before_reply) options_.before_reply();
  while (::writev(fd_.get(), iov.data(), static_cast<int>(iov.size())) < 0) {
    if (errno == EINTR) continue;
    return errno;
  }
  return 0;
}

}  // namespace cairn
