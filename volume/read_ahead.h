// ReadAhead: sees from the reads of files which of them are read in order, and says what to fetch
// before it is asked for.
#pragma once

#include <array>
#include <cstdint>

#include "store/base/mutex.h"
#include "volume/inode.h"

namespace cairn {

// Thread-safe. Remembers the kFiles files that were read last, by a hash of their numbers: two that
// share a place forget each other.
//
// A file's second read in order begins it; its window starts at twice the read, at least
// kFirstWindowBytes, and doubles up to kLastWindowBytes each time the reader has come to its
// middle. A read elsewhere ends it. In order is what begins where the furthest read ended, or up to
// four of its lengths further on: a kernel that reads ahead itself sends its requests from several
// threads. An older one that comes late changes nothing.
class ReadAhead {
 public:
  static constexpr size_t kFiles = 64;
  static constexpr uint64_t kFirstWindowBytes = 256 << 10;
  static constexpr uint64_t kLastWindowBytes = 4 << 20;

  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;  // == begin: nothing
  };
  // Notes a read of [offset, offset + length) of a file and returns what to fetch. Nothing is
  // returned twice while the file is read in order.
  Range Note(InodeNumber ino, uint64_t offset, uint64_t length_bytes, uint64_t file_bytes);

 private:
  struct File {
    InodeNumber ino = kNoInode;
    uint64_t next = 0;     // where the furthest read ended
    uint64_t fetched = 0;  // up to here was returned
    uint64_t window = 0;
    uint32_t streak = 0;  // reads in order
  };

  Mutex mutex_;
  std::array<File, kFiles> files_ GUARDED_BY(mutex_);
};

}  // namespace cairn
