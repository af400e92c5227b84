// A job lives on the stack of the thread that called Run, which takes parts of it like any worker
// and then waits for those that others have begun: so a job ends even when no worker is free or
// left. Parts take milliseconds, so one mutex hands them out. Jobs take turns, part by part; tasks
// go first, because what they free (a full pack's memory) is what jobs may soon wait for.
#include "store/worker_pool.h"

#include <utility>

namespace cairn {

// Its fields are under the pool's mutex_.
struct WorkerPool::Job {
  const std::function<void(size_t)>& run;
  const size_t parts;
  size_t next = 0;     // the first part that nobody has begun
  size_t running = 0;  // on the pool's threads
  CondVar ended;
};

WorkerPool::WorkerPool(size_t threads) {
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

// The job at the front of jobs_ goes to the back, or out when this was its last part.
size_t WorkerPool::TakePart(Job& job) {
  std::erase(jobs_, &job);
  if (!stopped_ && job.next + 1 < job.parts) jobs_.push_back(&job);
  return job.next++;
}

void WorkerPool::Run(size_t parts, const std::function<void(size_t part)>& run) {
  if (threads_.empty() || parts <= 1) {
    for (size_t part = 0; part < parts; ++part) run(part);
    return;
  }
  Job job{.run = run, .parts = parts, .ended = {}};
  {
    MutexLock lock(mutex_);
    if (!stopped_) jobs_.push_back(&job);
  }
  wake_.NotifyAll();
  while (true) {
    size_t part = 0;
    {
      MutexLock lock(mutex_);
      if (job.next == job.parts) break;
      part = TakePart(job);
    }
    run(part);
  }
  MutexLock lock(mutex_);
  while (job.running > 0) job.ended.Wait(mutex_);
}

bool WorkerPool::Submit(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (threads_.empty() || stopped_ || tasks_.size() >= kMaxTasks) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.NotifyOne();
  return true;
}

void WorkerPool::Work() {
  while (true) {
    std::function<void()> task;
    Job* job = nullptr;
    size_t part = 0;
    {
      MutexLock lock(mutex_);
      while (!stopped_ && tasks_.empty() && jobs_.empty()) wake_.Wait(mutex_);
      if (stopped_) return;
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else {
        job = jobs_.front();
        part = TakePart(*job);
        ++job->running;
      }
    }
    if (job == nullptr) {
      task();
      continue;
    }
    job->run(part);
    MutexLock lock(mutex_);
    if (--job->running == 0) job->ended.NotifyAll();
  }
}

void WorkerPool::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    jobs_.clear();
    tasks_.clear();
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace cairn
