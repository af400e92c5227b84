// BlockReader: how LocalBlockStore reads: cache, location, pack, trash. What it finds damaged goes
// into the quarantine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/block_cache.h"
#include "store/block_index.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/pack_set.h"
#include "store/quarantine.h"

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
    Quarantine& quarantine;
    Clock& clock;
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

  // Drops cached plaintext of a realm, of a block.
  void ForgetRealm(const Id128& realm) { cache_.EraseRealm(realm); }
  void ForgetBlock(const Address& address) { cache_.Erase(address); }

  // Quarantines a place that did not verify (offset QuarantinedFrame::kWholePack: the whole pack)
  // and forgets what was read from it.
  void Distrust(const Id128& realm, const Id128& pack, uint64_t offset, const Address& address);

  uint64_t trash_reads() const { return trash_reads_.load(); }
  uint64_t cache_bytes() { return cache_.bytes(); }

 private:
  Result<std::string> ReadPlain(const Id128& realm, const BlockRef& ref, bool recompute_address);
  Result<std::string> ReadFromTrash(const Id128& realm, const BlockRef& ref);

  const Deps deps_;
  BlockCache cache_;
  std::atomic<bool> closed_ = false;
  std::atomic<uint64_t> trash_reads_ = 0;
};

}  // namespace cairn
