// TokenBucket: how long to wait so that bytes go by at a bounded rate.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cairn {

// Thread-compatible. In any span of t seconds at most rate x (t + 1) bytes are let through, and the
// last taking: time that went by without a taking is credited, up to one second of it.
class TokenBucket {
 public:
  // `rate_bytes` a second, at least 1.
  TokenBucket(uint64_t rate_bytes, int64_t now_ns)
      : rate_bytes_(std::max<uint64_t>(1, rate_bytes)), ready_ns_(now_ns) {}

  // `bytes` have been taken: nanoseconds from `now_ns` until the next may be.
  int64_t Take(uint64_t bytes, int64_t now_ns) {
    ready_ns_ = std::max(ready_ns_, now_ns - kNanoseconds);
    const double cost_ns = static_cast<double>(bytes) / static_cast<double>(rate_bytes_) * 1e9;
    // A rate of a few bytes must not overflow.
    ready_ns_ += static_cast<int64_t>(std::min(cost_ns, 3600.0 * kNanoseconds));
    return std::max<int64_t>(0, ready_ns_ - now_ns);
  }

 private:
  static constexpr int64_t kNanoseconds = 1000000000;
  uint64_t rate_bytes_;
  int64_t ready_ns_;
};

}  // namespace cairn
