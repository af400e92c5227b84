// A bounded queue and two threads that take batches of one realm off it. A hint is worth nothing
// once it is late, so nobody ever waits for room: what does not fit is dropped, and its reader
// reads it himself.
#include "store/prefetcher.h"

#include <utility>

namespace cairn {

size_t Prefetcher::Add(const Id128& realm, std::span<const BlockRef> refs) {
  MutexLock lock(mutex_);
  if (stopped_) return 0;
  size_t queued = 0;
  for (const BlockRef& ref : refs) {
    if (bytes_ + ref.raw_length_bytes > max_bytes_) break;
    bytes_ += ref.raw_length_bytes;
    queue_.push_back({.realm = realm, .ref = ref});
    ++queued;
  }
  if (queue_.empty()) return 0;
  while (threads_.size() < kThreads) threads_.emplace_back([this] { Work(); });
  wake_.NotifyOne();
  return queued;
}

void Prefetcher::Work() {
  std::vector<BlockRef> batch;
  while (true) {
    Id128 realm;
    uint64_t batch_bytes = 0;
    batch.clear();
    {
      MutexLock lock(mutex_);
      while (!stopped_ && queue_.empty()) wake_.Wait(mutex_);
      if (stopped_) return;
      realm = queue_.front().realm;
      while (!queue_.empty() && queue_.front().realm == realm && batch.size() < kBatchBlocks) {
        batch.push_back(queue_.front().ref);
        batch_bytes += queue_.front().ref.raw_length_bytes;
        queue_.pop_front();
      }
      if (!queue_.empty()) wake_.NotifyOne();
    }
    fetch_(realm, batch);
    MutexLock lock(mutex_);
    bytes_ -= batch_bytes;
  }
}

void Prefetcher::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (const Wanted& wanted : queue_) bytes_ -= wanted.ref.raw_length_bytes;
    queue_.clear();
    threads.swap(threads_);
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cairn
