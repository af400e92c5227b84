// DeviceTransport: one classic /dev/fuse fd, read by several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "fuse/request_progress.h"
#include "fuse/transport.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct DeviceTransportOptions {
  int threads =
      4;  // requests in progress at once, at most RequestProgress::kLanes; two buffers each
  uint32_t max_payload_bytes = 1u << 20;    // 1 MiB: the kernel's largest request
  std::function<void()> before_reply = {};  // for tests: between what was done and the word of it
};

// Owns the fd, which must be blocking. Never clones it (FUSE_DEV_IOC_CLONE): the keeper holds a
// copy of this one, and a request that a clone had read would be lost with it. Uses SIGURG, with a
// handler that does nothing, to wake its own threads in Stop().
class DeviceTransport final : public Transport {
 public:
  // `progress`: null for a connection that no other server will take over.
  DeviceTransport(UniqueFd fd, const DeviceTransportOptions& options,
                  std::unique_ptr<RequestProgress> progress = nullptr);
  ~DeviceTransport() override;

  Status Start(FuseRequestHandler& handler) override;
  void Stop() override;
  int Send(std::span<const iovec> iov) override;
  // Before Start, where the kernel does not send requests again: those that the server before this
  // one may have taken and not answered fail with EIO. How many did.
  uint64_t FailUnanswered();
  uint32_t max_payload_bytes() const override { return options_.max_payload_bytes; }

 private:
  struct Slot {
    uint16_t lane;
    std::atomic<uint64_t>& bound;  // what it can still be working on: in progress_
    std::atomic<bool> exited{false};
  };
  class Buffer;

  void Loop(Slot& slot);
  void Deliver(Slot& slot, std::span<char> bytes, std::span<char> scratch);
  uint64_t ReplyFloor() const;
  void Close();

  const UniqueFd fd_;
  const DeviceTransportOptions options_;
  FuseRequestHandler* handler_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> ordered_{true};  // unique numbers have come in ascending order so far
  const std::unique_ptr<RequestProgress> progress_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
