// HighWaterMark: a small file beside a log that says how far the log is known to be durable. The
// log is synced, the mark is not: so it never says more than is true, and after a kill (the kernel
// still has its page) it says exactly what was acknowledged. A log that ends before it, or is not
// there, was damaged and not torn by a crash.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"

namespace cairn {

// What a log numbers its records by. Compared in this order.
struct LogPosition {
  uint64_t generation = 0;  // 0 in a log that has none
  uint64_t sequence = 0;    // of the last record that is durable
  auto operator<=>(const LogPosition&) const = default;
};

// Layout: docs/formats/high_water_mark.md. Thread-safe.
class HighWaterMark {
 public:
  // Opens `path`, or makes it; then its blocks are allocated and durable, its name once the caller
  // has synced the directory. A file that does not verify is as an empty one, and logged.
  static Result<std::unique_ptr<HighWaterMark>> Open(FileSystem& fs, const std::string& path);

  // What a file says, without changing it. Nothing: it is absent, empty or does not verify.
  static Result<std::optional<LogPosition>> Read(FileSystem& fs, const std::string& path);

  // The highest position raised to, before this opening too.
  std::optional<LogPosition> position() const;

  // Call it only with what is durable. Not synced; lower positions change nothing. A write that
  // fails leaves the mark lower than it could be and is logged, once.
  void Raise(LogPosition position);

 private:
  HighWaterMark(std::unique_ptr<File> file, std::optional<LogPosition> position)
      : file_(std::move(file)), position_(position) {}

  const std::unique_ptr<File> file_;
  mutable Mutex mutex_;
  std::optional<LogPosition> position_ GUARDED_BY(mutex_);
  bool failed_ GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
