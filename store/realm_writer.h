// RealmWriter: the open pack of one realm and the blocks in it that the index does not know yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/pack_set.h"
#include "store/pack_writer.h"
#include "store/quarantine.h"

namespace cairn {

// A pack that this process wrote or writes. Sessions hold it until they end.
struct LivePack {
  explicit LivePack(std::unique_ptr<PackWriter> w) : writer(std::move(w)) {}
  const std::unique_ptr<PackWriter> writer;
  Mutex mutex;  // held while the pack is retired
  bool settled GUARDED_BY(mutex) = false;
};

// Thread-safe. A block is in pending_ from its append until the index has its pack:
//
//   Store: append -> pending_      pack full, Seal: footer -> fdatasync -> index batch -> out of
//   pending_ failed fdatasync: the file is cut to what is durable, the rest leaves pending_ and its
//   sessions' Sync fails
class RealmWriter {
 public:
  struct Deps {
    FileSystem& fs;
    const KeyRing& keys;
    Clock& clock;
    BlockIndex& index;
    PackSet& packs;
    uint64_t epoch;
    uint64_t pack_bytes;
    Quarantine& quarantine;
    // The index, rebuilding it when it is damaged.
    std::function<Result<std::optional<BlockLocation>>(const Address&)> lookup;
    // Called when the index refused a pack as damaged; adds every settled pack anew.
    std::function<Status()> rebuild;
  };
  RealmWriter(Deps deps, const Id128& realm) : deps_(std::move(deps)), realm_(realm) {}

  struct Pending {
    BlockLocation location;
    std::shared_ptr<LivePack> pack;
  };
  std::optional<Pending> Find(const Address& address);

  // To be read before looking for a block that may then be stored: see Store.
  uint64_t generation() const { return generation_.load(); }

  // Appends unless the block is here by now; `seen_generation` is generation() before the caller's
  // own look-up. With `force` a copy is appended although the index has one (it is damaged).
  // nullopt: the index has it meanwhile, or the open pack has a damaged copy: look it up again.
  // Errors: PackWriter's.
  Result<std::optional<Pending>> Store(const PackWriter::Append& block, uint64_t seen_generation,
                                       bool force);

  // Everything in the pack below `through` is durable on return; on an error the pack is given up.
  Status Sync(const std::shared_ptr<LivePack>& pack, uint64_t through);

  // Seals the open pack, and offers the index again what it had no room for.
  Status Seal();

  // Forgets everything; files are the caller's to remove. Only when no session of the realm lives.
  void Drop();

  struct Totals {
    uint64_t blocks = 0;
    uint64_t stored_bytes = 0;
    uint64_t raw_bytes = 0;
    uint64_t pack_bytes = 0;
  };
  Totals PendingTotals();

 private:
  struct Unindexed {
    std::shared_ptr<LivePack> pack;
    PackSummary summary;
    std::vector<PackEntry> entries;
  };
  Status OpenPackLocked() REQUIRES(append_mutex_);
  Status Retire(const std::shared_ptr<LivePack>& pack, bool abandon);
  Status IndexPack(const Unindexed& pack);
  void ForgetPending(const LivePack* pack, const std::vector<PackEntry>* survivors);

  const Deps deps_;
  const Id128 realm_;
  std::atomic<uint64_t> generation_ = 0;  // counts packs that went from pending_ to the index

  Mutex append_mutex_;  // held over one append, and over the creation of a pack
  std::shared_ptr<LivePack> open_ GUARDED_BY(append_mutex_);
  Mutex pending_mutex_;  // never held over I/O; taken last
  std::unordered_map<Address, Pending, AddressHash> pending_ GUARDED_BY(pending_mutex_);
  std::vector<Unindexed> unindexed_ GUARDED_BY(pending_mutex_);
};

}  // namespace cairn
