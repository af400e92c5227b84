// BlockCache: verified plaintexts, by address, within a budget.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "store/address.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "store/block_store.h"

namespace cairn {

// Thread-safe. Sharded by address; least recently used goes first. A block is counted with its
// length plus what its bookkeeping takes; one larger than a shard's share is not kept.
class BlockCache {
 public:
  explicit BlockCache(uint64_t budget_bytes) : shard_budget_(budget_bytes / kShards) {}

  struct Item {
    Id128 realm;
    BlockKind kind = BlockKind::kData;
    Block plain;  // null: not cached
  };
  Item Get(const Address& address);
  void Put(const Address& address, const Item& item);
  void Erase(const Address& address);
  void EraseRealm(const Id128& realm);
  uint64_t bytes();

 private:
  static constexpr size_t kShards = 16;
  static constexpr uint64_t kItemOverheadBytes = 160;
  struct Node {
    Address address;
    Item item;
  };
  struct Shard {
    Mutex mutex;
    std::list<Node> nodes GUARDED_BY(mutex);  // most recently used first
    std::unordered_map<Address, std::list<Node>::iterator, AddressHash> map GUARDED_BY(mutex);
    uint64_t bytes GUARDED_BY(mutex) = 0;
  };
  Shard& ShardOf(const Address& address) { return shards_[address.bytes[31] % kShards]; }
  static void Remove(Shard& shard, std::list<Node>::iterator node) REQUIRES(shard.mutex);

  const uint64_t shard_budget_;
  std::array<Shard, kShards> shards_;
};

}  // namespace cairn
