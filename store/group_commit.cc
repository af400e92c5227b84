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
  const Waited waited = Wait(through);
  // With the lock held each of them would wake only to wait for it.
  if (waited.synced) ended_.NotifyAll();
  return waited.status;
}

GroupCommit::Waited GroupCommit::Wait(uint64_t through) {
  MutexLock lock(mutex_);
  if (synced_end_ >= through) return {};
  waiting_.push_back(through);
  Waited result;
  while (result.status && synced_end_ < through) {
    if (failed_) {
      result.status = Abandoned();
    } else if (state_ == State::kIdle && waiting_.size() < expected_) {
      if (AwaitCompany()) result = {.status = Sync(), .synced = true};
    } else if (state_ != State::kSyncing && waiting_.size() >= expected_) {
      result = {.status = Sync(), .synced = true};
    } else {
      ended_.Wait(mutex_);
    }
  }
  if (!result.status) std::erase(waiting_, through);
  return result;
}

// False when another has taken the group over: the one whom it waited for.
bool GroupCommit::AwaitCompany() {
  const Clock::time_point deadline =
      Clock::now() + std::min<Clock::duration>(last_sync_, kMaxWindow);
  state_ = State::kGathering;
  const uint64_t window = ++windows_;
  bool in_time = true;
  while (in_time && !failed_ && state_ == State::kGathering && windows_ == window) {
    in_time = ended_.WaitUntil(mutex_, deadline);
  }
  if (state_ != State::kGathering || windows_ != window) return false;
  state_ = State::kIdle;
  return !failed_;
}

Status GroupCommit::Sync() {
  state_ = State::kSyncing;
  const Clock::time_point begun = Clock::now();
  mutex_.Unlock();
  const uint64_t end = written_end_();
  Status synced = sync_();
  mutex_.Lock();
  last_sync_ = Clock::now() - begun;
  state_ = State::kIdle;
  if (!synced) {
    failed_ = true;
    return synced;
  }
  if (failed_) return Abandoned();
  synced_end_ = std::max(synced_end_, end);
  expected_ = waiting_.size();
  std::erase_if(waiting_, [end = synced_end_](uint64_t through) { return through <= end; });
  return {};
}

uint64_t GroupCommit::Fail() {
  MutexLock lock(mutex_);
  failed_ = true;
  ended_.NotifyAll();
  return synced_end_;
}

uint64_t GroupCommit::synced_end() {
  MutexLock lock(mutex_);
  return synced_end_;
}

size_t GroupCommit::waiting() {
  MutexLock lock(mutex_);
  return waiting_.size();
}

uint64_t GroupCommit::windows() {
  MutexLock lock(mutex_);
  return windows_;
}

}  // namespace cairn
