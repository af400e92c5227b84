// The machine's clock (clock_gettime(2)).
#include "store/base/clock.h"

#include <ctime>

namespace cairn {
namespace {

class MachineClock final : public Clock {
 public:
  TimeSpec Now() override {
    timespec ts{};
    clock_gettime(CLOCK_REALTIME, &ts);
    return {ts.tv_sec, static_cast<uint32_t>(ts.tv_nsec)};
  }
  int64_t MonotonicNs() override {
    timespec ts{};
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return int64_t{ts.tv_sec} * 1000000000 + ts.tv_nsec;
  }
};

}  // namespace

Clock& SystemClock() {
  static MachineClock clock;
  return clock;
}

}  // namespace cairn
