// IoRing: many positional reads in flight at once, by io_uring, into buffers of its own; or writes,
// from the caller's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.h"
#include "store/base/mutex.h"

namespace cairn {

// Move-only. Thread-compatible: one thread at a time, any thread. At most kSlots reads or writes
// are in flight; the buffers of reads are slots of one arena that is registered with the kernel
// (pinned) where the limit on locked memory allows it. Destroying it waits for what is in flight.
class IoRing {
 public:
  enum class Use { kReads, kWrites };     // a ring for writes has no arena
  static constexpr unsigned kSlots = 32;  // depth: the disk's rate is reached (decision 9)
  // A 64 KiB block with its frame touches at most this much, wherever it begins.
  static constexpr size_t kSlotBytes = 72 << 10;
  static constexpr size_t kMaxReadBytes = 16 * kSlotBytes;
  static constexpr uint64_t kAlignment = 4096;  // of O_DIRECT: offsets, lengths and buffers

  // Unavailable: the kernel refuses (not built in, switched off, seccomp, out of locked memory).
  static Result<IoRing> Create(Use use);
  IoRing(IoRing&&) noexcept;
  IoRing& operator=(IoRing&&) noexcept;
  ~IoRing();

  // Queues a read of up to kMaxReadBytes. False when there is no room: Wait for another first. `fd`
  // stays open until its completion.
  bool Start(int fd, uint64_t offset, size_t length_bytes, uint64_t tag);

  // Hands a write to the kernel at once. False when kSlots are in flight: Wait for one first. `fd`
  // and `data` stay until its completion, which needs no Release.
  bool StartWrite(int fd, uint64_t offset, std::string_view data, uint64_t tag);

  struct Completion {
    uint64_t tag = 0;
    uint64_t offset = 0;     // as asked for
    ssize_t result = 0;      // bytes read or written, or -errno
    std::span<char> buffer;  // of a read: of the length asked for; until Release
  };
  // Blocks for one completion, only while in_flight() > 0. Hands over to the kernel what is queued,
  // but for a few reads while it has enough others.
  Completion Wait();
  void Release(const Completion& completion);
  unsigned in_flight() const;

 private:
  struct Impl;
  explicit IoRing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A few rings for the whole process: who reads a batch, or writes one, takes one. Thread-safe.
class IoRingPool {
 public:
  // Each ring for reads pins kSlots * kSlotBytes (2.25 MiB) once it is made; none is made before it
  // is needed.
  IoRingPool(IoRing::Use use, size_t max_rings) : use_(use), max_rings_(max_rings) {}

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
  const IoRing::Use use_;
  const size_t max_rings_;
  Mutex mutex_;
  size_t made_ GUARDED_BY(mutex_) = 0;
  bool refused_ GUARDED_BY(mutex_) = false;
  std::vector<IoRing> idle_ GUARDED_BY(mutex_);
};

}  // namespace cairn
