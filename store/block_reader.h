// BlockReader: how LocalBlockStore reads: cache, location, pack, trash; and which blocks it found
// damaged.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/block_cache.h"
#include "store/block_index.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/pack_set.h"

namespace cairn {

// A block moves at most once in a collector's pass; more than a few moves during one call is a bug.
inline constexpr int kMaxMoves = 8;

// Thread-safe. Owned by one LocalBlockStore.
class BlockReader {
 public:
  struct Deps {
    FileSystem& fs;
    const KeyRing& keys;
    PackSet& packs;
    uint64_t cache_bytes;
    // Where a block of a realm lies now; nullopt: in no pack.
    std::function<Result<std::optional<BlockLocation>>(const Id128& realm, const Address&)> locate;
  };
  explicit BlockReader(Deps deps) : deps_(std::move(deps)), cache_(deps_.cache_bytes) {}

  // BlockStore's.
  Result<Block> Get(const Id128& realm, const BlockRef& ref);
  Status Verify(const Id128& realm, const BlockRef& ref);

  // Reads give Unavailable from now on (cached blocks are still served).
  void Close() { closed_.store(true); }

  // Drops cached plaintext of a realm.
  void ForgetRealm(const Id128& realm) { cache_.EraseRealm(realm); }

  // Blocks that read as damaged: a write of the same bytes stores them again instead of trusting
  // the index, and then calls Heal.
  bool IsDamaged(const Address& address);
  void Heal(const Address& address);

  uint64_t trash_reads() const { return trash_reads_.load(); }
  uint64_t cache_bytes() { return cache_.bytes(); }

 private:
  Result<std::string> ReadPlain(const Id128& realm, const BlockRef& ref);
  Result<std::string> ReadFromTrash(const Id128& realm, const BlockRef& ref);
  void MarkDamaged(const Address& address);

  const Deps deps_;
  BlockCache cache_;
  std::atomic<bool> closed_ = false;
  std::atomic<uint64_t> trash_reads_ = 0;
  Mutex damaged_mutex_;
  std::unordered_set<Address, AddressHash> damaged_ GUARDED_BY(damaged_mutex_);
};

}  // namespace cairn
