// RealmWriter: the open pack of one realm and the blocks in it that the index does not know yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/pack_set.h"
#include "store/pack_writer.h"
#include "store/quarantine.h"
#include "store/worker_pool.h"

namespace cairn {

// A pack that this process wrote or writes. Sessions hold it until they end.
struct LivePack {
  explicit LivePack(std::unique_ptr<PackWriter> w) : writer(std::move(w)) {}
  const std::unique_ptr<PackWriter> writer;
  Mutex mutex;  // held while the pack is retired
  bool settled GUARDED_BY(mutex) = false;
};

// Thread-safe. A block is in pending_ from the moment its place in a pack is reserved until the
// index has its pack:
//
//   Store: reserve, pending_ -> encrypt, write     pack full, Seal: footer -> fdatasync -> index
//   batch -> out of pending_
//
//   failed write or fdatasync: the file is cut to what is whole or durable, the rest leaves
//   pending_ and its sessions' Sync fails
class RealmWriter {
 public:
  struct Deps {
    FileSystem& fs;
    const KeyRing& keys;
    Clock& clock;
    BlockIndex& index;
    PackSet& packs;
    Quarantine& quarantine;
    WorkerPool& pool;  // retires full packs
    uint64_t epoch;
    uint64_t pack_bytes;
    // The index, rebuilding it when it is damaged: BlockIndex::GetMany.
    std::function<Status(std::span<const Address>, std::span<std::optional<BlockLocation>>)> lookup;
    // Called when the index refused a pack as damaged; adds every settled pack anew.
    std::function<Status()> rebuild;
  };
  RealmWriter(Deps deps, const Id128& realm) : deps_(std::move(deps)), realm_(realm) {}

  struct Pending {
    BlockLocation location;
    std::shared_ptr<LivePack> pack;
  };
  // For a reader: nullopt as long as the block is not written.
  std::optional<Pending> Find(const Address& address);
  // For writers: what has a place that is not known to be lost; `found` is as long as `addresses`.
  // Rely on it only once its pack's WaitWritten says so.
  void FindMany(std::span<const Address> addresses, std::span<std::optional<Pending>> found);

  // To be read before looking for blocks that may then be stored: see Store.
  uint64_t generation() const { return generation_.load(); }

  struct Block {
    PackWriter::Frame frame;
    bool force = false;  // store a copy although the index has one (it is damaged)
    // Where it is now. Null: the index has it meanwhile, or a pack that is not settled has a
    // damaged copy: look it up again.
    std::shared_ptr<LivePack> pack = nullptr;
    uint64_t end_offset = 0;
  };
  // Stores those of `blocks` that are not here by now; `seen_generation` is generation() before
  // the caller's own look-up. `room`: for all frames. Frames are written with one call (two, where
  // a pack becomes full), and are in their pack for good once its WaitWritten says so. After an
  // error some may be stored. Errors: PackWriter's.
  Status Store(std::span<Block> blocks, uint64_t seen_generation, std::span<char> room);

  // Everything in the pack below `through` is durable on return; on an error the pack is given up.
  Status Sync(const std::shared_ptr<LivePack>& pack, uint64_t through);

  // Seals the packs that are not settled, and offers the index again what it had no room for.
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
  // Blocks of one Store with places one after the other.
  struct Run {
    std::shared_ptr<LivePack> pack;
    PackWriter::Reservation reservation;
    std::vector<PackWriter::Frame> frames;
  };
  struct Placed {
    std::vector<Run> runs;
    std::vector<std::shared_ptr<LivePack>> full;  // to be retired once the runs are written
  };
  Status PlaceBlocks(std::span<Block> blocks, uint64_t seen_generation, Placed& placed);
  Result<std::vector<Block*>> MissingLocked(std::span<Block> blocks, uint64_t seen_generation)
      REQUIRES(append_mutex_);
  Status OpenPackLocked() REQUIRES(append_mutex_);
  void CloseOpenLocked(const std::shared_ptr<LivePack>& pack) REQUIRES(append_mutex_);
  void RetireFull(const std::shared_ptr<LivePack>& pack);
  Status Retire(const std::shared_ptr<LivePack>& pack, bool abandon);
  Status Settle(const std::shared_ptr<LivePack>& pack, bool abandon) REQUIRES(pack->mutex);
  Status IndexPack(const Unindexed& pack);
  void ForgetPending(const LivePack* pack, const std::vector<PackEntry>* survivors);

  const Deps deps_;
  const Id128 realm_;
  std::atomic<uint64_t> generation_ = 0;  // counts packs that went from pending_ to the index

  Mutex append_mutex_;  // held over the creation of a pack, else over no I/O
  bool have_dir_ GUARDED_BY(append_mutex_) = false;
  std::shared_ptr<LivePack> open_ GUARDED_BY(append_mutex_);
  std::vector<std::shared_ptr<LivePack>> full_ GUARDED_BY(append_mutex_);  // not settled
  Mutex pending_mutex_;  // never held over I/O; taken last
  std::unordered_map<Address, Pending, AddressHash> pending_ GUARDED_BY(pending_mutex_);
  std::vector<Unindexed> unindexed_ GUARDED_BY(pending_mutex_);
};

}  // namespace cairn
