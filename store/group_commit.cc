// Without the window N writers settle into two groups of N/2: those that the running sync covers,
// and those that came during it; each group then waits for the other's sync. With it the leader
// lets the writers that were just served come back first. How many to expect is what the end of the
// last sync saw, and a group is not waited for longer than a sync lasts: at that price the next
// sync would have taken the late ones along anyway (PostgreSQL's commit_delay, with both its
// numbers measured instead of set).
#include "store/group_commit.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kMaxWindow(5);

std::unexpected<Error> Abandoned() {
  return Err(ErrorCode::kUnavailable, "an earlier write or fdatasync of this file failed");
}

}  // namespace

Status GroupCommit::Through(uint64_t through) {
  MutexLock lock(mutex_);
  if (synced_end_ >= through) return {};
  ++waiting_;
  if (gathering_ && waiting_ >= expected_) {
    company_.NotifyOne();
  }
  Status result;
  while (synced_end_ < through) {
    if (failed_) {
      result = Abandoned();
      break;
    }
    if (leading_) {
      ended_.Wait(mutex_);
      continue;
    }
    result = Lead();
    if (!result) break;
  }
  --waiting_;
  return result;
}

Status GroupCommit::Lead() {
  leading_ = true;
  if (waiting_ < expected_) AwaitCompany();
  if (failed_) {
    leading_ = false;
    return Abandoned();
  }
  const Clock::time_point begun = Clock::now();
  mutex_.Unlock();
  const uint64_t end = written_end_();
  Status synced = sync_();
  mutex_.Lock();
  last_sync_ = Clock::now() - begun;
  expected_ = waiting_;
  leading_ = false;
  ended_.NotifyAll();
  if (!synced) {
    failed_ = true;
    return synced;
  }
  if (failed_) return Abandoned();
  synced_end_ = std::max(synced_end_, end);
  return {};
}

void GroupCommit::AwaitCompany() {
  const Clock::time_point deadline =
      Clock::now() + std::min<Clock::duration>(last_sync_, kMaxWindow);
  gathering_ = true;
  ++windows_;
  while (waiting_ < expected_ && !failed_ && company_.WaitUntil(mutex_, deadline)) {
  }
  gathering_ = false;
}

uint64_t GroupCommit::Fail() {
  MutexLock lock(mutex_);
  failed_ = true;
  ended_.NotifyAll();
  company_.NotifyOne();
  return synced_end_;
}

uint64_t GroupCommit::synced_end() {
  MutexLock lock(mutex_);
  return synced_end_;
}

size_t GroupCommit::waiting() {
  MutexLock lock(mutex_);
  return waiting_;
}

uint64_t GroupCommit::windows() {
  MutexLock lock(mutex_);
  return windows_;
}

}  // namespace cairn
