// The only way the code learns the time, so that tests can set it.
#pragma once

#include <compare>
#include <cstdint>

namespace cairn {

// Seconds since 1970 (signed: 1901 to 2446 fit) and nanoseconds in [0, 1e9).
struct TimeSpec {
  int64_t seconds = 0;
  uint32_t nanoseconds = 0;
  bool operator==(const TimeSpec&) const = default;
  auto operator<=>(const TimeSpec&) const = default;
};

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeSpec Now() = 0;         // CLOCK_REALTIME: times in inodes and records
  virtual int64_t MonotonicNs() = 0;  // CLOCK_MONOTONIC: durations and deadlines
  int64_t NowMs() {
    const TimeSpec now = Now();
    return now.seconds * 1000 + now.nanoseconds / 1000000;
  }
};

// The machine's clock. Lives for the whole process.
Clock& SystemClock();

}  // namespace cairn
