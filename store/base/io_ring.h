// IoRing: many positional reads in flight at once, by io_uring, into buffers of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "store/base/error.h"
#include "store/base/mutex.h"

namespace cairn {

// Move-only. Thread-compatible: one thread at a time, any thread. At most kSlots reads are in
// flight; their buffers are slots of one arena that is registered with the kernel (pinned) where
// the limit on locked memory allows it. Destroying it waits for what is in flight.
class IoRing {
 public:
  static constexpr unsigned kSlots = 32;  // depth: the disk's rate is reached (decision 9)
  // A 64 KiB block with its frame touches at most this much, wherever it begins.
  static constexpr size_t kSlotBytes = 72 << 10;
  static constexpr size_t kMaxReadBytes = 16 * kSlotBytes;
  static constexpr uint64_t kAlignment = 4096;  // of O_DIRECT: offsets, lengths and buffers

  // Unavailable: the kernel refuses (not built in, switched off, seccomp, out of locked memory).
  static Result<IoRing> Create();
  IoRing(IoRing&&) noexcept;
  IoRing& operator=(IoRing&&) noexcept;
  ~IoRing();

  // Queues a read of up to kMaxReadBytes. False when there is no room: Wait for another first. `fd`
  // stays open until its completion.
  bool Start(int fd, uint64_t offset, size_t length_bytes, uint64_t tag);

  struct Completion {
    uint64_t tag = 0;
    uint64_t offset = 0;     // as asked for
    ssize_t result = 0;      // bytes read, or -errno
    std::span<char> buffer;  // of the length asked for; until Release
  };
  // Hands over to the kernel what is queued and blocks for one completion. Only while in_flight() >
  // 0.
  Completion Wait();
  void Release(const Completion& completion);
  unsigned in_flight() const;

 private:
  struct Impl;
  explicit IoRing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A few rings for the whole process: who reads a batch takes one. Thread-safe.
class IoRingPool {
 public:
  // Each ring pins kSlots * kSlotBytes (2.25 MiB) once it is made; none is made before it is
  // needed.
  explicit IoRingPool(size_t max_rings) : max_rings_(max_rings) {}

  // A ring until the lease is destroyed; nullopt when all are taken or the kernel gives none
  // (logged once).
  class Lease {
   public:
    Lease(IoRingPool& pool, IoRing ring) : pool_(&pool), ring_(std::move(ring)) {}
    Lease(Lease&& other) noexcept
        : pool_(other.pool_), ring_(std::exchange(other.ring_, std::nullopt)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    IoRing& operator*() { return *ring_; }
    IoRing* operator->() { return &*ring_; }

   private:
    IoRingPool* pool_;
    std::optional<IoRing> ring_;
  };
  std::optional<Lease> Take();

 private:
  const size_t max_rings_;
  Mutex mutex_;
  size_t made_ GUARDED_BY(mutex_) = 0;
  bool refused_ GUARDED_BY(mutex_) = false;
  std::vector<IoRing> idle_ GUARDED_BY(mutex_);
};

}  // namespace cairn
