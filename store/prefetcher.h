// Prefetcher: reads blocks before they are asked for, in threads of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "store/base/mutex.h"
#include "store/block_store.h"

namespace cairn {

// Thread-safe. States: idle (no thread yet) --Add--> running --Stop--> stopped (for good).
class Prefetcher {
 public:
  // Blocks that one call of Fetch gets: as many reads as are worth having in flight.
  static constexpr size_t kBatchBlocks = 32;
  // Two: one reads while the other decrypts.
  static constexpr size_t kThreads = 2;

  // Reads the blocks into the cache.
  using Fetch = std::function<void(const Id128& realm, std::span<const BlockRef> refs)>;
  // The plaintexts of what waits or is being fetched take at most `max_bytes`.
  Prefetcher(uint64_t max_bytes, Fetch fetch) : max_bytes_(max_bytes), fetch_(std::move(fetch)) {}
  ~Prefetcher() { Stop(); }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Queues what there is room for and drops the rest; starts the threads the first time. Returns
  // how many it queued: none once it was stopped.
  size_t Add(const Id128& realm, std::span<const BlockRef> refs);

  // Drops what waits, lets the calls of Fetch that run end and joins the threads.
  void Stop();

 private:
  struct Wanted {
    Id128 realm;
    BlockRef ref;
  };
  void Work();

  const uint64_t max_bytes_;
  const Fetch fetch_;
  Mutex mutex_;  // never held over Fetch
  CondVar wake_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;  // waiting or being fetched; <= max_bytes_
  std::deque<Wanted> queue_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

}  // namespace cairn
