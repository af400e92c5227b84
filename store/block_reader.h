// BlockReader: how LocalBlockStore reads: cache, reads in flight, location, pack, trash. What it
// finds damaged goes into the quarantine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/block_cache.h"
#include "store/block_index.h"
#include "store/block_store.h"
#include "store/frame_batch.h"
#include "store/key_ring.h"
#include "store/pack_set.h"
#include "store/prefetcher.h"
#include "store/quarantine.h"
#include "store/worker_pool.h"

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
    size_t threads;  // that help with large batches
    // Where blocks of a realm lie now; nullopt: in no pack.
    std::function<Status(const Id128& realm, std::span<const Address>,
                         std::span<std::optional<BlockLocation>>)>
        locate;
  };
  explicit BlockReader(Deps deps);

  // BlockStore's.
  Result<Block> Get(const Id128& realm, const BlockRef& ref);
  std::vector<Result<Block>> GetMany(const Id128& realm, std::span<const BlockRef> refs,
                                     const ReadOptions& options);
  void Prefetch(const Id128& realm, std::span<const BlockRef> refs);
  Status Verify(const Id128& realm, const BlockRef& ref);

  // Reads give Unavailable from now on (cached blocks are still served); joins its threads.
  void Close();

  // Drops cached plaintext of a realm, of a block. Reads that are under way put none back.
  void ForgetRealm(const Id128& realm);
  void ForgetBlock(const Address& address);

  // Quarantines a place that did not verify (offset QuarantinedFrame::kWholePack: the whole pack)
  // and forgets what was read from it.
  void Distrust(const Id128& realm, const Id128& pack, uint64_t offset, const Address& address);

  uint64_t trash_reads() const { return trash_reads_.load(); }
  uint64_t cache_bytes() { return cache_.bytes(); }

 private:
  // A block that somebody reads right now; others wait for it instead of reading it too. Guarded by
  // flights_mutex_.
  struct Flight {
    bool landed = false;
    Result<Block> result;
  };
  struct FlightKey {
    Id128 owner;  // the realm that the block is stored in
    BlockRef ref;
    bool operator==(const FlightKey&) const = default;
  };
  struct FlightHash {
    size_t operator()(const FlightKey& key) const { return AddressHash()(key.ref.address); }
  };
  // One that this call reads.
  struct Claim {
    size_t index = 0;  // of its result
    FlightKey key;
    std::shared_ptr<Flight> flight;
  };

  Block FindCached(const FlightKey& key);
  void Keep(const FlightKey& key, const Block& block, uint64_t forgets);
  void ReadClaims(std::span<const Claim> claims,
                  const std::function<void(const Claim&, Result<std::string>)>& done);
  void FindFrames(const Id128& owner, std::span<const Claim> claims,
                  std::span<std::optional<FrameRead>> frames);
  Result<std::string> ReadPlain(const Id128& realm, const BlockRef& ref, bool recompute_address);
  Result<std::string> ReadFromTrash(const Id128& realm, const BlockRef& ref);

  const Deps deps_;
  BlockCache cache_;
  std::atomic<bool> closed_ = false;
  std::atomic<uint64_t> trash_reads_ = 0;
  std::atomic<uint64_t> forgets_ = 0;  // counts ForgetRealm and ForgetBlock
  Mutex flights_mutex_;
  CondVar flight_landed_;
  std::unordered_map<FlightKey, std::shared_ptr<Flight>, FlightHash> flights_
      GUARDED_BY(flights_mutex_);
  WorkerPool pool_;
  Prefetcher prefetcher_;  // last: its threads use the rest
};

}  // namespace cairn
