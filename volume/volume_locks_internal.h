// The two kinds of locks that a Volume takes before Head's own: the gate and the inode locks. Their
// order is in docs/LOCKING.md; the analysis of clang cannot follow a set of locks chosen at run
// time, so these classes check nothing and keep the order themselves.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <utility>

#include "store/base/mutex.h"
#include "volume/inode.h"

namespace cairn {

// A gate that every operation passes and that Freeze closes. Closing gets in under any load:
// whoever arrives after the closer waits behind it (the turnstile), so it waits only for operations
// that are inside already. Thread-safe; passing is not recursive.
class Gate {
 public:
  class Pass {
   public:
    explicit Pass(Gate& gate) NO_THREAD_SAFETY_ANALYSIS : gate_(gate) {
      if (gate_.closing_.load(std::memory_order_acquire) > 0) {
        gate_.turnstile_.Lock();
        gate_.turnstile_.Unlock();
      }
      gate_.inside_.LockShared();
    }
    ~Pass() NO_THREAD_SAFETY_ANALYSIS { gate_.inside_.UnlockShared(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Gate& gate_;
  };

  class Closed {
   public:
    explicit Closed(Gate& gate) NO_THREAD_SAFETY_ANALYSIS : gate_(gate) {
      gate_.closing_.fetch_add(1, std::memory_order_acq_rel);
      gate_.turnstile_.Lock();
      gate_.inside_.Lock();
    }
    ~Closed() NO_THREAD_SAFETY_ANALYSIS {
      gate_.inside_.Unlock();
      gate_.closing_.fetch_sub(1, std::memory_order_acq_rel);
      gate_.turnstile_.Unlock();
    }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

   private:
    Gate& gate_;
  };

 private:
  std::atomic<int> closing_{0};
  Mutex turnstile_;
  SharedMutex inside_;
};

// One lock per inode, striped. A holder of several takes the stripes in ascending order, each once.
class InodeLocks {
 public:
  static constexpr size_t kMaxHeld = 4;

  // Exclusive on up to kMaxHeld inodes; kNoInode is skipped.
  class Exclusive {
   public:
    Exclusive(InodeLocks& locks,
              std::initializer_list<InodeNumber> inodes) NO_THREAD_SAFETY_ANALYSIS : locks_(locks) {
      for (const InodeNumber ino : inodes) {
        if (ino != kNoInode) held_[count_++] = StripeOf(ino);
      }
      std::sort(held_.begin(), held_.begin() + count_);
      count_ = std::unique(held_.begin(), held_.begin() + count_) - held_.begin();
      for (size_t i = 0; i < count_; ++i) locks_.stripes_[held_[i]].Lock();
    }
    ~Exclusive() NO_THREAD_SAFETY_ANALYSIS {
      for (size_t i = count_; i > 0; --i) locks_.stripes_[held_[i - 1]].Unlock();
    }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    InodeLocks& locks_;
    std::array<size_t, kMaxHeld> held_{};
    size_t count_ = 0;
  };

  class Shared {
   public:
    Shared(InodeLocks& locks, InodeNumber ino) NO_THREAD_SAFETY_ANALYSIS
        : stripe_(locks.stripes_[StripeOf(ino)]) {
      stripe_.LockShared();
    }
    ~Shared() NO_THREAD_SAFETY_ANALYSIS { stripe_.UnlockShared(); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

   private:
    SharedMutex& stripe_;
  };

 private:
  static constexpr size_t kStripes = 1024;
  static size_t StripeOf(InodeNumber ino) { return ino % kStripes; }

  std::array<SharedMutex, kStripes> stripes_;
};

}  // namespace cairn
