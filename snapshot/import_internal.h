// What imports into an Environment and into the base realm have in common (decision 13).
#pragma once

#include "store/base/clock.h"
#include "store/tree.h"

namespace cairn {

// Four times as large as a seal makes them: what an import writes is rarely changed, and a seal
// that changes such a node splits it.
inline constexpr TreeOptions kImportNodes{.target_bytes = 64 << 10, .max_bytes = 96 << 10};

// An import is one change of its volume: all that it makes has one ctime and one btime. They cost 3
// bytes each in a node otherwise, since nothing compresses nanoseconds.
class InstantClock final : public Clock {
 public:
  explicit InstantClock(Clock& clock) : clock_(clock), now_(clock.Now()) {}
  TimeSpec Now() override { return now_; }
  int64_t MonotonicNs() override { return clock_.MonotonicNs(); }

 private:
  Clock& clock_;
  const TimeSpec now_;
};

}  // namespace cairn
