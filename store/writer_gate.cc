// A counter under a mutex. Hold closes the gate first and waits then, so that a stream of short
// sessions cannot keep a collector out for ever; it waits in steps, since a wake-up may be
// spurious.
#include "store/writer_gate.h"

#include <chrono>

#include "store/base/check.h"

namespace cairn {

Status WriterGate::Enter(const Id128& realm) {
  MutexLock lock(mutex_);
  while (held_ && !closed_) changed_.Wait(mutex_);
  if (closed_) return Err(ErrorCode::kUnavailable, "the block store is shutting down");
  ++live_total_;
  ++live_[realm];
  return {};
}

void WriterGate::Leave(const Id128& realm) {
  MutexLock lock(mutex_);
  const auto it = live_.find(realm);
  CAIRN_CHECK(it != live_.end() && live_total_ > 0);
  --live_total_;
  if (--it->second == 0) live_.erase(it);
  changed_.NotifyAll();
}

Status WriterGate::Hold(int64_t timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(mutex_);
  if (held_) return Err(ErrorCode::kFailedPrecondition, "writers are already held off");
  held_ = true;
  while (live_total_ > 0 && !closed_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    changed_.WaitFor(mutex_, left.count());
  }
  if (live_total_ == 0 && !closed_) return {};
  held_ = false;
  changed_.NotifyAll();
  if (closed_) return Err(ErrorCode::kUnavailable, "the block store is shutting down");
  return Err(ErrorCode::kUnavailable,
             std::to_string(live_total_) + " write sessions did not end in time");
}

void WriterGate::Release() {
  MutexLock lock(mutex_);
  held_ = false;
  changed_.NotifyAll();
}

void WriterGate::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

uint64_t WriterGate::Live(const Id128& realm) {
  MutexLock lock(mutex_);
  const auto it = live_.find(realm);
  return it == live_.end() ? 0 : it->second;
}

}  // namespace cairn
