// Undelivered = the last record of each lane, less what is below the floor.
#include "volume/reply_log.h"

#include <algorithm>

namespace cairn {

void ReplyLog::Add(const ReplyRecord& reply) {
  if (reply.connection.is_zero() || reply.connection != connection_) return;
  floor_ = std::max(floor_, reply.reply_floor);
  last_of_lane_[reply.lane] = reply;
}

void ReplyLog::MoveToOldLanes() {
  std::map<uint16_t, ReplyRecord> moved;
  uint16_t lane = kFirstOldLane;
  for (ReplyRecord& reply : Undelivered()) {
    reply.lane = lane++;
    moved[reply.lane] = reply;
  }
  last_of_lane_ = std::move(moved);
}

std::vector<ReplyRecord> ReplyLog::Undelivered() {
  std::erase_if(last_of_lane_, [this](const auto& lane) { return lane.second.unique < floor_; });
  std::vector<ReplyRecord> replies;
  for (const auto& [lane, reply] : last_of_lane_) replies.push_back(reply);
  std::ranges::sort(replies, {}, &ReplyRecord::unique);
  // A generation that is not sealed yet still has what its successor repeats.
  const auto twice = std::ranges::unique(replies, {}, &ReplyRecord::unique);
  replies.erase(twice.begin(), twice.end());
  return replies;
}

}  // namespace cairn
