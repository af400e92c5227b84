// GroupCommit: one fdatasync for all who wait for one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "store/base/error.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe. Of those who wait in Through, one (the leader) calls `sync`; the others are served
// by its result. Before it does, it may wait for company, the last of which leads in its place:
//
//   window = 0                            while the last sync ended with nobody else waiting
//   window <= duration of the last sync   else, and only until as many wait as did then
//
// so a single writer never waits, and a group that falls apart costs one window once: what its
// members would have cost each other is at least a sync.
class GroupCommit {
 public:
  // `written_end`: what is below it would be made durable by a sync that begins now. `sync` is
  // called by one thread at a time; both are called without a lock held.
  GroupCommit(std::function<uint64_t()> written_end, std::function<Status()> sync,
              uint64_t synced_end)
      : written_end_(std::move(written_end)), sync_(std::move(sync)), synced_end_(synced_end) {}

  // All below `through`, which is at most written_end(), is durable on return. The error of a sync
  // goes to its leader; the others, and everybody from then on, get Unavailable: it is never
  // retried.
  Status Through(uint64_t through);

  // No sync succeeds from now on, one that is running included. Returns what stays durable.
  uint64_t Fail();

  uint64_t synced_end();
  size_t waiting();    // callers in Through that are not served yet
  uint64_t windows();  // how often a leader waited for company

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kIdle, kGathering, kSyncing };
  struct Waited {
    Status status;
    bool synced = false;  // a sync of this caller has ended: the others are to be told
  };

  Waited Wait(uint64_t through) EXCLUDES(mutex_);
  bool AwaitCompany() REQUIRES(mutex_);
  Status Sync() REQUIRES(mutex_);

  const std::function<uint64_t()> written_end_;
  const std::function<Status()> sync_;

  Mutex mutex_;
  CondVar ended_;  // a sync has ended, or never will
  State state_ GUARDED_BY(mutex_) = State::kIdle;
  bool failed_ GUARDED_BY(mutex_) = false;
  // What those who are not served yet wait for, the leader included: one that is served and has not
  // run since is no company.
  std::vector<uint64_t> waiting_ GUARDED_BY(mutex_);
  size_t expected_ GUARDED_BY(mutex_) = 1;  // served and not served when the last sync ended
  Clock::duration last_sync_ GUARDED_BY(mutex_){};
  uint64_t windows_ GUARDED_BY(mutex_) = 0;
  uint64_t synced_end_ GUARDED_BY(mutex_);
};

}  // namespace cairn
