// WorkerPool: threads that help whoever has a divisible job, and run what may happen later.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "store/base/mutex.h"

namespace cairn {

// Thread-safe. With 0 threads, and once stopped, everything runs in the caller.
class WorkerPool {
 public:
  explicit WorkerPool(size_t threads);
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  size_t threads() const { return threads_.size(); }

  // Calls run(0) ... run(parts - 1), each once, on this thread and on idle ones of the pool; all
  // have returned when it does. Not from inside a part or a task.
  void Run(size_t parts, const std::function<void(size_t part)>& run);

  // Queues a task. False: nothing was queued, because the pool has no threads, is stopped, or has
  // kMaxTasks waiting: do it yourself.
  bool Submit(std::function<void()> task);

  // Joins the threads. Parts that no thread has begun are left to the callers of Run; tasks that
  // none has begun are dropped.
  void Stop();

  static constexpr size_t kMaxTasks = 16;

 private:
  struct Job;
  size_t TakePart(Job& job) REQUIRES(mutex_);
  void Work();

  Mutex mutex_;
  CondVar wake_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::deque<Job*> jobs_ GUARDED_BY(mutex_);  // with parts that nobody has begun
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // filled by the constructor, joined by Stop
};

}  // namespace cairn
