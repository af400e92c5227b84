// Mutexes that clang's thread-safety analysis understands (-Wthread-safety -Werror in the clang
// preset). The order in which they may be taken is docs/LOCKING.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define CAIRN_TSA(x) __attribute__((x))
#else
#define CAIRN_TSA(x)
#endif

#define CAPABILITY(x) CAIRN_TSA(capability(x))
#define SCOPED_CAPABILITY CAIRN_TSA(scoped_lockable)
#define GUARDED_BY(x) CAIRN_TSA(guarded_by(x))
#define PT_GUARDED_BY(x) CAIRN_TSA(pt_guarded_by(x))
#define REQUIRES(...) CAIRN_TSA(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) CAIRN_TSA(requires_shared_capability(__VA_ARGS__))
#define ACQUIRE(...) CAIRN_TSA(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) CAIRN_TSA(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) CAIRN_TSA(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) CAIRN_TSA(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) CAIRN_TSA(release_generic_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) CAIRN_TSA(try_acquire_capability(__VA_ARGS__))
#define EXCLUDES(...) CAIRN_TSA(locks_excluded(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS CAIRN_TSA(no_thread_safety_analysis)

namespace cairn {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  bool TryLock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CAPABILITY("shared_mutex") SharedMutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  void LockShared() ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void UnlockShared() RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~WriterLock() RELEASE() { mutex_.Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.LockShared();
  }
  ~ReaderLock() RELEASE_GENERIC() { mutex_.UnlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// Waits with a Mutex held. Spurious wake-ups happen: wait in a loop on the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  // False when `timeout_ms` passed first.
  bool WaitFor(Mutex& mutex, int64_t timeout_ms) REQUIRES(mutex) {
    return WaitUntil(mutex,
                     std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms));
  }
  // False when `deadline` passed first.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool woken = cond_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace cairn
