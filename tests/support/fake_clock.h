// FakeClock: time that stands still until a test moves it.
#pragma once

#include <atomic>

#include "store/base/clock.h"

namespace cairn {

// Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t now_ms = 1'700'000'000'000) : now_ns_(now_ms * 1'000'000) {}
  TimeSpec Now() override {
    const int64_t ns = now_ns_.load();
    return {.seconds = ns / 1'000'000'000,
            .nanoseconds = static_cast<uint32_t>(ns % 1'000'000'000)};
  }
  int64_t MonotonicNs() override { return now_ns_.load(); }
  void AdvanceMs(int64_t ms) { now_ns_.fetch_add(ms * 1'000'000); }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace cairn
