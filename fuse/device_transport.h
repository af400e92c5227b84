// DeviceTransport: one classic /dev/fuse fd, read by several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "fuse/transport.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct DeviceTransportOptions {
  int threads = 4;                          // requests in progress at once; each costs two buffers
  uint32_t max_payload_bytes = 1u << 20;    // 1 MiB: the kernel's largest request
  std::function<void()> before_reply = {};  // for tests: between what was done and the word of it
};

// Owns the fd, which must be blocking. Never clones it (FUSE_DEV_IOC_CLONE): the keeper holds a
// copy of this one, and a request that a clone had read would be lost with it. Uses SIGURG, with a
// handler that does nothing, to wake its own threads in Stop().
class DeviceTransport final : public Transport {
 public:
  DeviceTransport(UniqueFd fd, const DeviceTransportOptions& options);
  ~DeviceTransport() override;

  Status Start(FuseRequestHandler& handler) override;
  void Stop() override;
  int Send(std::span<const iovec> iov) override;
  uint32_t max_payload_bytes() const override { return options_.max_payload_bytes; }

 private:
  // What one thread can still be working on: no unique number below `bound`. On a cache line of its
  // own.
  struct alignas(64) Slot {
    uint16_t lane = 0;
    std::atomic<uint64_t> bound{0};
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
  std::atomic<bool> ordered_{true};   // unique numbers have come in ascending order so far
  std::atomic<uint64_t> highest_{0};  // unique number delivered
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
