// A list and a map per shard. Addresses are keyed MACs, so they spread evenly whatever a guest
// writes, and the last byte picks the shard while the first eight are the map's hash.
#include "store/block_cache.h"

namespace cairn {

BlockCache::Item BlockCache::Get(const Address& address) {
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto it = shard.map.find(address);
  if (it == shard.map.end()) return {};
  shard.nodes.splice(shard.nodes.begin(), shard.nodes, it->second);
  return it->second->item;
}

void BlockCache::Put(const Address& address, const Item& item) {
  const uint64_t cost = item.plain->size() + kItemOverheadBytes;
  if (cost > shard_budget_) return;
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  if (shard.map.contains(address)) return;
  shard.nodes.push_front({.address = address, .item = item});
  shard.map[address] = shard.nodes.begin();
  shard.bytes += cost;
  while (shard.bytes > shard_budget_) Remove(shard, std::prev(shard.nodes.end()));
}

void BlockCache::Remove(Shard& shard, std::list<Node>::iterator node) {
  shard.bytes -= node->item.plain->size() + kItemOverheadBytes;
  shard.map.erase(node->address);
  shard.nodes.erase(node);
}

void BlockCache::Erase(const Address& address) {
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto it = shard.map.find(address);
  if (it != shard.map.end()) Remove(shard, it->second);
}

void BlockCache::EraseRealm(const Id128& realm) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (auto node = shard.nodes.begin(); node != shard.nodes.end();) {
      const auto next = std::next(node);
      if (node->item.realm == realm) Remove(shard, node);
      node = next;
    }
  }
}

uint64_t BlockCache::bytes() {
  uint64_t total = 0;
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    total += shard.bytes;
  }
  return total;
}

}  // namespace cairn
