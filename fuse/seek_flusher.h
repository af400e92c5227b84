// SeekFlusher: lseek(SEEK_DATA, SEEK_HOLE) on a file that somebody may be writing. The kernel asks
// for it without writing back what is dirty first (measured on 6.18), so the volume would call
// unwritten data a hole, and cp would copy it as one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "fuse/transport.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe. Has one thread of its own: the notification that makes the kernel write back returns
// only when other transport threads have answered the WRITEs, so a transport thread must not wait
// for it.
class SeekFlusher {
 public:
  explicit SeekFlusher(Transport& transport);
  ~SeekFlusher();

  // Writes back the file's dirty pages from `offset` on, then calls `answer(true)`; with false when
  // stopped. `answer` runs on the flusher's thread or, when the flusher has stopped or is
  // overloaded, on the caller's.
  void FlushThen(uint64_t ino, uint64_t offset, std::function<void(bool flushed)> answer);

  // Answers what waits with false and joins the thread. While the transport still serves, or after
  // the connection has ended.
  void Stop();

 private:
  struct Item {
    uint64_t ino;
    uint64_t offset;
    std::function<void(bool)> answer;
  };
  void Loop();

  Transport& transport_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairn
