// ReplyLog: which replies to a FUSE connection may not have reached the kernel yet.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "store/base/id128.h"
#include "volume/head.h"

namespace cairn {

// Exact without a word from the transport about each reply: a lane is one thread, which answers a
// request before it takes the next, so only the last record of each lane can be undelivered.
// Thread-compatible.
class ReplyLog {
 public:
  ReplyLog() = default;
  explicit ReplyLog(const Id128& connection) : connection_(connection) {}  // zero: keeps nothing

  // Those of other connections are left out. `reply.reply_floor` says what has reached the kernel.
  void Add(const ReplyRecord& reply);

  // The threads that the lanes were are gone: what they left unanswered moves to lanes that no
  // thread has, where the records of their successors leave it alone until the floor passes it.
  void MoveToOldLanes();

  // In ascending order of `unique`.
  std::vector<ReplyRecord> Undelivered();

 private:
  Id128 connection_;
  uint64_t floor_ = 0;
  std::map<uint16_t, ReplyRecord> last_of_lane_;
};

}  // namespace cairn
