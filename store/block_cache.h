// BlockCache: verified plaintexts, by address, within a budget.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "store/address.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "store/block_store.h"

namespace cairn {

// Thread-safe. Lost on exit.
//
// Which block goes when there is no room is S3-FIFO's choice (J. Yang et al., "FIFO queues are all
// you need for cache eviction", SOSP 2023). Restores, exports and read-ahead bring in far more
// blocks than will be asked for again, and least recently used would let each of them throw out
// what every Environment of a template reads. Here a new block enters a small queue, a tenth of the
// room, and only one that was asked for twice while there goes on to the main queue:
//
//   Put --> small --asked for twice--> main --not asked for since its last turn--> gone
//     |       \--else--> ghost (its address only)     \--asked for--> main again
//     \--its ghost is still there--> main
//
// A hit changes one counter, so that readers hold a shard's lock for a look-up only and allocate
// nothing. 2Q and LRU-K would do as well against scans, but move a node at every hit.
class BlockCache {
 public:
  // A block is counted with its length plus what its bookkeeping takes; one larger than a shard's
  // share of the budget is not kept.
  explicit BlockCache(uint64_t budget_bytes);
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  struct Item {
    Id128 realm;
    BlockKind kind = BlockKind::kData;
    Block plain;  // null: not cached
  };
  // Counts as asking for it.
  Item Get(const Address& address);
  // Whether it is there; does not count.
  bool Contains(const Address& address);
  // Keeps what is there already.
  void Put(const Address& address, const Item& item);
  void Erase(const Address& address);
  void EraseRealm(const Id128& realm);
  uint64_t bytes();  // <= budget

 private:
  // What a node costs beside its plaintext: itself, its slot in the table, the shared string's
  // header and the allocator's rounding (tests/store/block_cache_test.cc compares with malloc).
  static constexpr uint64_t kNodeBytes = 192;
  static constexpr uint64_t kPlainOverheadBytes = 96;
  static constexpr uint64_t kShardBytes = 4 << 20;
  static constexpr uint64_t kMaxShards = 16;
  static constexpr uint8_t kMaxAsked = 3;
  static constexpr uint8_t kAskedForMain = 2;

  enum Place : uint8_t { kSmall, kMain, kGhost };
  struct Node {
    Item item;  // plain is null in a ghost
    Place place = kSmall;
    uint8_t asked = 0;
    Node* newer = nullptr;
    Node* older = nullptr;
    const Address* address = nullptr;  // the table's key
  };
  struct Queue {
    Node* newest = nullptr;
    Node* oldest = nullptr;
    uint64_t count = 0;
    uint64_t bytes = 0;
  };
  struct Shard {
    Mutex mutex;
    std::unordered_map<Address, Node, AddressHash> nodes GUARDED_BY(mutex);
    Queue queues[3] GUARDED_BY(mutex);  // by Place; their bytes together <= shard_budget_
  };

  Shard& ShardOf(const Address& address) { return shards_[address.bytes[31] & (shard_count_ - 1)]; }
  static uint64_t CostOf(const Node& node);
  static uint64_t Bytes(Shard& shard) REQUIRES(shard.mutex);
  static void Push(Shard& shard, Node& node, Place place) REQUIRES(shard.mutex);
  static void Unlink(Shard& shard, Node& node) REQUIRES(shard.mutex);
  static void Remove(Shard& shard, Node& node) REQUIRES(shard.mutex);
  void EvictStep(Shard& shard) REQUIRES(shard.mutex);

  const uint64_t shard_count_;  // a power of two
  const uint64_t shard_budget_;
  const std::unique_ptr<Shard[]> shards_;
};

}  // namespace cairn
