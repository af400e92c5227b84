// LocalBlockStore: a BlockStore that keeps packs in a data directory, and what a collector and a
// checker need of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/block_reader.h"
#include "store/block_store.h"
#include "store/block_writer.h"
#include "store/key_ring.h"
#include "store/pack_set.h"
#include "store/pack_verifier.h"
#include "store/quarantine.h"
#include "store/writer_gate.h"

namespace cairn {

struct LocalBlockStoreOptions {
  FileSystem& fs;
  std::string dir;  // the data directory: packs/, trash/ and index/ are in it
  KeyRing& keys;
  Clock& clock;
  Id128 store;                          // the data directory's UUID
  uint64_t epoch = 1;                   // its open epoch
  uint64_t pack_bytes = 32ull << 20;    // a pack is sealed when it has grown to this
  uint64_t cache_bytes = 128ull << 20;  // verified plaintext
  rocksdb::Env* index_env = nullptr;    // not owned; null: the host's files. For tests with faults
  size_t open_readers = 128;            // pack files kept open for reading
  // Threads that help with large batches of puts and seal full packs; 0: the callers do all of it.
  size_t put_threads = std::thread::hardware_concurrency();
  // Threads that help with batches of reads. One: two keep a disk busy, and each takes a ring.
  size_t read_threads = std::thread::hardware_concurrency() > 1 ? 1 : 0;
  uint64_t put_bytes = 32ull << 20;  // memory for blocks that are being put
  SpaceGuard* space = nullptr;       // outlives the store; null: writes until the disk says no
};

// One thing that a check found wrong.
struct StoreDamage {
  std::string where;  // path of the pack, or of the index
  std::string what;   // names the structure: "pack header: ...", "frame at 1234: ..."
  std::vector<Address> addresses =
      {};  // blocks that cannot be read because of it (none: nothing is lost)
  // Of a pack's damage:
  Id128 realm = {};
  Id128 pack = {};
  uint64_t offset = QuarantinedFrame::kWholePack;  // of the frame
  bool whole_pack = false;                         // no block of the pack can be read
};

// Thread-safe. Outlives its sessions. Destroying it without Close leaves the packs as a kill would.
class LocalBlockStore final : public BlockStore {
 public:
  // Indexes packs that the index does not know, or all of them. Errors: FailedPrecondition (a pack
  // of a newer format), Exhausted, Internal. A damaged pack is logged and does not hinder.
  static Result<std::unique_ptr<LocalBlockStore>> Open(const LocalBlockStoreOptions& options);
  ~LocalBlockStore() override;

  using BlockStore::BeginWrite;
  Result<std::unique_ptr<WriteSession>> BeginWrite(const Id128& realm,
                                                   const WriteBudget& budget) override;
  Result<Block> Get(const Id128& realm, const BlockRef& ref) override;
  std::vector<Result<Block>> GetMany(const Id128& realm, std::span<const BlockRef> refs,
                                     const ReadOptions& options) override;
  void Prefetch(const Id128& realm, std::span<const BlockRef> refs) override;
  Status Verify(const Id128& realm, const BlockRef& ref) override;
  BlockStoreStats Stats() override;

  // Seals the open packs, joins the threads and closes the index; sessions that still live get
  // Unavailable from then on.
  Status Close();

  // A session that fills the base realm, which every organization reads. Not part of BlockStore:
  // what acts for an organization cannot ask for it. Errors: BeginWrite's.
  Result<std::unique_ptr<WriteSession>> BeginBaseWrite(const WriteBudget& budget);
  Result<std::unique_ptr<WriteSession>> BeginBaseWrite() { return BeginBaseWrite(WriteBudget()); }

  // Drops cached plaintext and unwrapped data keys of a realm whose keys left the key ring.
  void ForgetRealm(const Id128& realm);

  // ---- for a collector (store/pack_maintenance.cc) ----

  // Waits for live sessions to end and holds new ones off while the result lives. Unavailable after
  // `timeout_ms`.
  Result<WritersHeld> HoldWriters(int64_t timeout_ms);

  // Seals the open pack of a realm (of all realms), so that it is listed and can be rewritten.
  Status SealOpenPacks();

  // Realms that have packs, with or without keys.
  std::vector<Id128> ListRealms();
  // Packs of a realm that are no longer written.
  std::vector<PackSummary> ListPacks(const Id128& realm);
  struct PackBlock {
    PackEntry entry;
    bool indexed_here = false;  // false: the index has another copy or none; the bytes are garbage
    uint64_t epoch = 0;
    uint64_t condemn_cycle = 0;
  };
  Result<std::vector<PackBlock>> ListBlocks(const Id128& pack);

  // Whether the realm has the block, as a write would see it (trash does not count).
  Result<bool> Contains(const Id128& realm, const BlockRef& ref);

  // Compare-and-swap of a block's condemn cycle (0: not condemned). False: it is gone or carries
  // another tag. A write that finds a condemned block resurrects it (sets 0).
  Result<bool> Condemn(const Address& address, uint64_t expected_cycle, uint64_t desired_cycle);

  using AddressSet = std::unordered_set<Address, AddressHash>;
  struct RewriteOptions {
    bool now = false;            // unlink the old file instead of moving it to the trash
    uint64_t condemn_cycle = 0;  // not 0: blocks outside `keep` without this tag are kept too
  };
  struct RewriteResult {
    uint64_t kept_blocks = 0;
    uint64_t dropped_blocks = 0;
    uint64_t bytes_before = 0;
    uint64_t bytes_after = 0;
  };
  // Copies the blocks of `keep` into a new pack (decrypted and encrypted again, durable), moves the
  // index over with a synced write, and removes the old file. Without blocks to keep there is no
  // new pack. Requires writers held off, or a condemn cycle. Errors: NotFound, FailedPrecondition
  // (still being written), DataLoss (a block to keep is damaged: nothing is changed), Aborted (a
  // block was resurrected meanwhile: list anew), Exhausted.
  Result<RewriteResult> RewritePack(const Id128& pack, const AddressSet& keep,
                                    const RewriteOptions& options);
  // RewritePack with nothing to keep.
  Result<RewriteResult> DropPack(const Id128& pack, const RewriteOptions& options);

  // Unlinks what lies in the trash for at least `older_than_ms`; returns the bytes freed.
  Result<uint64_t> PurgeTrash(int64_t older_than_ms);

  // Unlinks all packs of a realm, trash included, and forgets its blocks; returns the bytes freed.
  // Needs no keys: take them out of the key ring first, so that no session begins meanwhile.
  // FailedPrecondition while a session of the realm lives; InvalidArgument for the base realm.
  Result<uint64_t> DropRealm(const Id128& realm);

  // How many reads only the trash could satisfy since the store was opened. Not 0: something live
  // was collected, so a collector must stop and delete nothing.
  uint64_t trash_reads() const { return reader_.trash_reads(); }

  // ---- for a backup ----

  struct PackFile {
    Id128 pack;
    Id128 realm;
    std::string path;
    bool open = false;  // still being written; any other never changes
  };
  // All of them, damaged ones too.
  std::vector<PackFile> ListPackFiles();

  // ---- for a checker (store/store_check.cc) ----

  struct IndexRebuild {
    uint64_t packs_total = 0;
    uint64_t packs = 0;   // indexed so far
    uint64_t blocks = 0;  // of them
    struct LeftOut {
      std::string where;
      std::string why;
    };
    std::vector<LeftOut> left_out = {};  // at most kMaxLeftOut packs and parts of packs
    static constexpr size_t kMaxLeftOut = 1000;
  };
  using RebuildProgress = std::function<void(const IndexRebuild& so_far)>;
  // Deletes the index and builds it from the packs alone. Reads that are not cached and writes wait
  // meanwhile. What no pack says is lost with the old index: condemn cycles
  // (docs/formats/index.md).
  Result<IndexRebuild> RebuildIndex(const RebuildProgress& progress = {});

  std::vector<Id128> ListAllPacks();  // ascending
  // Header, footer, digest and every frame; with the realm's keys also tag, codec and address. An
  // error is one of the machine; damage is a value. NotFound: no such pack (any more). Every bad
  // frame goes into the quarantine; one that nothing refers to (the index has another copy, or
  // none) is no damage. A quarantined frame that verifies leaves the quarantine.
  Result<std::vector<StoreDamage>> VerifyPack(const Id128& pack);

  // The same in steps, so that it can be paced, stopped and resumed. Thread-compatible; holds no
  // lock between the steps. A pack that is rewritten or dropped meanwhile is `gone`, which is no
  // damage. Lives no longer than the store.
  class Verification {
   public:
    struct Step {
      uint64_t bytes = 0;            // read
      uint64_t blocks = 0;           // verified, good or not
      uint64_t damaged_garbage = 0;  // bad frames that nothing refers to
      std::vector<StoreDamage> damage;
      bool done = false;
      bool gone = false;  // with done
    };
    // About `budget_bytes` further; errors as of VerifyPack.
    Result<Step> Next(uint64_t budget_bytes);
    uint64_t offset() const;  // BeginVerify can go on from here
    // The realm has no keys: checksums and digest alone are verified.
    bool locked() const;
    ~Verification();

   private:
    friend class LocalBlockStore;
    Verification(LocalBlockStore& store, PackSet::Known known)
        : store_(store), known_(std::move(known)) {}
    void Judge(const PackVerifier::Fault& fault);
    Status JudgeMissing();
    LocalBlockStore& store_;
    const PackSet::Known known_;
    std::unique_ptr<PackVerifier> verifier_;  // null: the file is missing
    Step step_;
  };
  // `from_offset`: where an earlier one had come to. NotFound: no such pack.
  Result<std::unique_ptr<Verification>> BeginVerify(const Id128& pack, uint64_t from_offset);
  // Seals the pack if it is the open one of its realm.
  Status SealPack(const Id128& pack);

  // Quarantined places where the index still points, and all of them.
  struct QuarantineCounts {
    uint64_t blocks = 0;  // not healed
    uint64_t packs = 0;   // held as a whole
    uint64_t places = 0;
  };
  Result<QuarantineCounts> CountQuarantine();
  bool HasPack(const Id128& pack) { return packs_.Find(pack).has_value(); }
  // Whether a read of the block would go to this place.
  Result<bool> LiesAt(const Id128& realm, const Address& address, const Id128& pack,
                      uint64_t offset);
  // Addresses that the index has in `pack`, at most `limit`.
  Result<std::vector<Address>> AddressesIn(const Id128& pack, size_t limit);
  // RocksDB's checksums; every entry agrees with its pack; every block of every pack is indexed.
  Result<std::vector<StoreDamage>> VerifyIndex();

 private:
  explicit LocalBlockStore(const LocalBlockStoreOptions& options);
  Result<std::unique_ptr<WriteSession>> Begin(const Id128& realm, const WriteBudget& budget);
  Status Recover();
  struct Unindexed {
    PackSet::PackFile file;
    uint64_t epoch = 0;
    int64_t created_ms = 0;
  };
  // Indexes the files in the order in which they were written.
  Result<IndexRebuild> AddPacks(const std::vector<PackSet::PackFile>& files,
                                const RebuildProgress& progress);
  Status AddOnePack(const Unindexed& pack, IndexRebuild& done);
  void LeaveOut(const PackSet::PackFile& file, const std::string& why, IndexRebuild& done);
  Status LookUpIndex(std::span<const Address> addresses,
                     std::span<std::optional<BlockLocation>> found);
  Result<IndexRebuild> RebuildLocked(const RebuildProgress& progress) REQUIRES(maintenance_mutex_);
  Result<std::vector<PackBlock>> ListBlocksLocked(const Id128& pack, const PackReader& reader)
      REQUIRES(maintenance_mutex_);
  Result<PackSummary> CopyBlocksLocked(const PackReader& from, const std::vector<PackEntry>& blocks,
                                       std::vector<PackEntry>& moved) REQUIRES(maintenance_mutex_);
  Status RemoveFileLocked(const Id128& realm, const Id128& pack, bool now)
      REQUIRES(maintenance_mutex_);

  const LocalBlockStoreOptions options_;
  PackSet packs_;
  std::unique_ptr<BlockIndex> index_;
  const std::unique_ptr<Quarantine> quarantine_;
  BlockReader reader_;
  BlockWriter writer_;
  std::atomic<bool> closed_ = false;

  Mutex maintenance_mutex_;  // one rewrite, drop or rebuild at a time
  SharedMutex
      index_gate_;  // look-ups share it; a rebuild holds it, so that none sees half an index
  bool index_whole_ GUARDED_BY(index_gate_) = true;
};

}  // namespace cairn
