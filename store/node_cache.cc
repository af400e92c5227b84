// The cache of decoded tree nodes: an LRU list and a hash map per shard. Nodes are immutable and
// named by content, so nothing is ever invalidated; an entry is dropped for space, or with its
// realm. Loading happens outside, without a lock; two threads that load the same node both decode
// it and the first insertion stays. Invariant of a shard: size_bytes == sum of charges <= its
// share.
#include "store/node_cache.h"

#include <utility>

namespace cairn {
namespace {

constexpr size_t kSlotOverheadBytes = 128;  // list and map nodes

}  // namespace

NodeCache::NodeCache(size_t capacity_bytes) : shard_capacity_bytes_(capacity_bytes / kShards) {}

std::shared_ptr<const TreeNode> NodeCache::Find(const Id128& realm, const Address& address) {
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  const auto it = shard.slots.find(Key{realm, address});
  if (it == shard.slots.end()) {
    ++shard.misses;
    return nullptr;
  }
  ++shard.hits;
  shard.recent.splice(shard.recent.begin(), shard.recent, it->second);
  return it->second->node;
}

void NodeCache::Insert(const Id128& realm, const Address& address,
                       std::shared_ptr<const TreeNode> node) {
  const size_t charge_bytes = node->memory_bytes() + kSlotOverheadBytes;
  if (charge_bytes > shard_capacity_bytes_) return;
  const Key key{realm, address};
  Shard& shard = ShardOf(address);
  MutexLock lock(shard.mutex);
  if (shard.slots.contains(key)) return;
  while (shard.size_bytes + charge_bytes > shard_capacity_bytes_) {
    const Slot& oldest = shard.recent.back();
    shard.size_bytes -= oldest.charge_bytes;
    shard.slots.erase(oldest.key);
    shard.recent.pop_back();
  }
  shard.recent.push_front(Slot{key, std::move(node), charge_bytes});
  shard.slots.emplace(key, shard.recent.begin());
  shard.size_bytes += charge_bytes;
}

void NodeCache::EraseRealm(const Id128& realm) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (auto it = shard.recent.begin(); it != shard.recent.end();) {
      if (it->key.realm == realm) {
        shard.size_bytes -= it->charge_bytes;
        shard.slots.erase(it->key);
        it = shard.recent.erase(it);
      } else {
        ++it;
      }
    }
  }
}

NodeCache::Stats NodeCache::GetStats() {
  Stats stats;
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    stats.hits += shard.hits;
    stats.misses += shard.misses;
    stats.node_count += shard.slots.size();
    stats.size_bytes += shard.size_bytes;
  }
  return stats;
}

}  // namespace cairn
