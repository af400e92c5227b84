// A table per shard, whose nodes are threaded on three queues: two with plaintexts and one of
// ghosts. Addresses are keyed MACs, so they spread evenly whatever a guest writes, and the last
// byte picks the shard while the first eight are the table's hash.
//
// Making room is a sequence of steps, of which each takes a node off a queue for good, turns one
// into a ghost, moves one from small to main or lowers a counter of main: so it ends. As many
// ghosts are kept as there are plaintexts.
#include "store/block_cache.h"

#include <algorithm>
#include <bit>

namespace cairn {

BlockCache::BlockCache(uint64_t budget_bytes)
    : shard_count_(std::bit_floor(std::clamp<uint64_t>(budget_bytes / kShardBytes, 1, kMaxShards))),
      shard_budget_(budget_bytes / shard_count_),
      shards_(std::make_unique<Shard[]>(shard_count_)) {}

BlockCache::~BlockCache() = default;

uint64_t BlockCache::CostOf(const Node& node) {
  return kNodeBytes +
         (node.item.plain == nullptr ? 0 : node.item.plain->size() + kPlainOverheadBytes);
}

uint64_t BlockCache::Bytes(Shard& shard) {
  return shard.queues[kSmall].bytes + shard.queues[kMain].bytes + shard.queues[kGhost].bytes;
}

void BlockCache::Push(Shard& shard, Node& node, Place place) {
  Queue& queue = shard.queues[place];
  node.place = place;
  node.newer = nullptr;
  node.older = queue.newest;
  (queue.newest == nullptr ? queue.oldest : queue.newest->newer) = &node;
  queue.newest = &node;
  ++queue.count;
  queue.bytes += CostOf(node);
}

void BlockCache::Unlink(Shard& shard, Node& node) {
  Queue& queue = shard.queues[node.place];
  (node.newer == nullptr ? queue.newest : node.newer->older) = node.older;
  (node.older == nullptr ? queue.oldest : node.older->newer) = node.newer;
  --queue.count;
  queue.bytes -= CostOf(node);
}

void BlockCache::Remove(Shard& shard, Node& node) {
  Unlink(shard, node);
  shard.nodes.erase(Address(*node.address));
}

BlockCache::Item BlockCache::Get(const Address& address) {
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto it = shard.nodes.find(address);
  if (it == shard.nodes.end() || it->second.place == kGhost) return {};
  it->second.asked = std::min<uint8_t>(it->second.asked + 1, kMaxAsked);
  return it->second.item;
}

bool BlockCache::Contains(const Address& address) {
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto it = shard.nodes.find(address);
  return it != shard.nodes.end() && it->second.place != kGhost;
}

void BlockCache::Put(const Address& address, const Item& item) {
  if (item.plain->size() + kPlainOverheadBytes + kNodeBytes > shard_budget_) return;
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto [it, is_new] = shard.nodes.try_emplace(address);
  Node& node = it->second;
  if (!is_new) {
    if (node.place != kGhost) return;
    Unlink(shard, node);
  }
  node.address = &it->first;
  node.item = item;
  node.asked = 0;
  Push(shard, node, is_new ? kSmall : kMain);
  while (Bytes(shard) > shard_budget_) EvictStep(shard);
}

void BlockCache::EvictStep(Shard& shard) {
  Queue& small = shard.queues[kSmall];
  Queue& main = shard.queues[kMain];
  Queue& ghosts = shard.queues[kGhost];
  if (ghosts.count > small.count + main.count) return Remove(shard, *ghosts.oldest);
  if (main.count == 0 || (small.count > 0 && small.bytes > shard_budget_ / 10)) {
    Node& node = *small.oldest;
    Unlink(shard, node);
    if (node.asked >= kAskedForMain) {
      node.asked = 0;
      Push(shard, node, kMain);
    } else {
      node.item.plain = nullptr;
      Push(shard, node, kGhost);
    }
    return;
  }
  Node& node = *main.oldest;
  if (node.asked == 0) return Remove(shard, node);
  --node.asked;
  Unlink(shard, node);
  Push(shard, node, kMain);
}

void BlockCache::Erase(const Address& address) {
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto it = shard.nodes.find(address);
  if (it != shard.nodes.end()) Remove(shard, it->second);
}

void BlockCache::EraseRealm(const Id128& realm) {
  for (uint64_t s = 0; s < shard_count_; ++s) {
    Shard& shard = shards_[s];
    MutexLock lock(shard.mutex);
    for (auto it = shard.nodes.begin(); it != shard.nodes.end();) {
      Node& node = (it++)->second;
      if (node.item.realm == realm) Remove(shard, node);
    }
  }
}

uint64_t BlockCache::bytes() {
  uint64_t total = 0;
  for (uint64_t s = 0; s < shard_count_; ++s) {
    MutexLock lock(shards_[s].mutex);
    total += Bytes(shards_[s]);
  }
  return total;
}

}  // namespace cairn
