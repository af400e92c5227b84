// NodeCache: decoded tree nodes of all realms, by address, in a bounded amount of memory.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "store/address.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "store/tree_node.h"

namespace cairn {

// Least recently used, in shards (a lock per shard, held for a map operation only). A node that is
// evicted lives on while somebody holds it. Thread-safe. Lost on exit.
class NodeCache {
 public:
  // 64 MiB hold the nodes of some 200k entries (a node's memory is about 3 times its encoding).
  static constexpr size_t kDefaultCapacityBytes = 64u << 20;

  explicit NodeCache(size_t capacity_bytes = kDefaultCapacityBytes);
  NodeCache(const NodeCache&) = delete;
  NodeCache& operator=(const NodeCache&) = delete;

  // nullptr on a miss. `realm` is the realm that the block is stored in (BaseRealm() for a kBase
  // reference).
  std::shared_ptr<const TreeNode> Find(const Id128& realm, const Address& address);

  // A node larger than a shard's share is not kept. If another thread was first, its node stays.
  void Insert(const Id128& realm, const Address& address, std::shared_ptr<const TreeNode> node);

  // Forgets the nodes of a realm whose keys are destroyed.
  void EraseRealm(const Id128& realm);

  struct Stats {
    uint64_t hits = 0;
    uint64_t misses = 0;
    size_t node_count = 0;
    size_t size_bytes = 0;  // <= capacity
  };
  Stats GetStats();

 private:
  struct Key {
    Id128 realm;
    Address address;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      return AddressHash()(k.address) ^ Id128Hash()(k.realm);
    }
  };
  struct Slot {
    Key key;
    std::shared_ptr<const TreeNode> node;
    size_t charge_bytes = 0;
  };
  struct Shard {
    Mutex mutex;
    std::list<Slot> recent GUARDED_BY(mutex);  // most recently used first
    std::unordered_map<Key, std::list<Slot>::iterator, KeyHash> slots GUARDED_BY(mutex);
    size_t size_bytes GUARDED_BY(mutex) = 0;  // == sum of charge_bytes <= capacity of the shard
    uint64_t hits GUARDED_BY(mutex) = 0;
    uint64_t misses GUARDED_BY(mutex) = 0;
  };
  static constexpr size_t kShards = 16;

  Shard& ShardOf(const Address& address) { return shards_[address.bytes[31] % kShards]; }

  const size_t shard_capacity_bytes_;
  std::array<Shard, kShards> shards_;
};

}  // namespace cairn
