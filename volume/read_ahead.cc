// The rule is that of Linux's page cache (mm/readahead.c) with less state: one stream a file.
// Invariant of a file that is read in order: fetched <= next + window.
#include "volume/read_ahead.h"

#include <algorithm>

namespace cairn {

ReadAhead::Range ReadAhead::Note(InodeNumber ino, uint64_t offset, uint64_t length_bytes,
                                 uint64_t file_bytes) {
  constexpr uint64_t kSpread = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio
  constexpr uint64_t kLateReads = 4;
  const uint64_t end = offset + length_bytes;
  MutexLock lock(mutex_);
  File& file = files_[(ino * kSpread >> 32) % kFiles];
  const uint64_t slack = kLateReads * length_bytes;
  const bool known = file.ino == ino;
  if (known && end <= file.next && end + slack >= file.next) return {};  // late
  if (!known || offset < file.next || offset > file.next + slack) {
    file = {.ino = ino, .next = end, .streak = offset == 0 ? 1u : 0u};
    return {};
  }
  file.next = end;
  if (++file.streak < 2) return {};
  file.fetched = std::max(file.fetched, end);
  if (file.window == 0) {
    file.window = std::clamp(2 * length_bytes, kFirstWindowBytes, kLastWindowBytes);
  } else if (file.fetched - end > file.window / 2) {
    return {};
  } else {
    file.window = std::min(2 * file.window, kLastWindowBytes);
  }
  const Range range{.begin = file.fetched,
                    .end = std::max(file.fetched, std::min(end + file.window, file_bytes))};
  file.fetched = range.end;
  return range;
}

}  // namespace cairn
