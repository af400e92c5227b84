// FakeClock: time that stands still until a test moves it.
#pragma once

#include <atomic>

#include "store/base/clock.h"

namespace cairn {

// Thread-safe.
class FakeClock final : public Clock {
 public:
  TimeSpec Now() override {
    const int64_t ns = now_ns_;
    return {ns / 1000000000, static_cast<uint32_t>(ns % 1000000000)};
  }
  int64_t MonotonicNs() override { return now_ns_; }
  TimeSpec Advance(int64_t ns) {
    now_ns_ += ns;
    return Now();
  }

 private:
  std::atomic<int64_t> now_ns_{1700000000123456789};
};

}  // namespace cairn
