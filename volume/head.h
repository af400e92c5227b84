// Head: the write side of one volume. It owns the chain of layers, the active generation's journal
// and side log, and turns transactions into one journal record each. It knows keys and payloads,
// not POSIX; volume/volume.h does.
//
// Order of one commit: encrypt payload -> write it (journal stream if small, else side log) ->
// write the journal record
// -> apply to the active delta -> return. Nothing is synced: Sync() makes everything committed so
// far durable (side log first if it has unsynced bytes, then the journal: one fdatasync in the
// usual case), and is shared by concurrent callers.
//
// Invariants
//   applied_lsn == written_lsn >= synced_lsn
//   A record's payload is written before the record, and recovery counts a record only if its tag
//   and every payload tag verify; it stops at the first record that does not. The delta of a
//   generation == the fold of its journal's valid records.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/clock.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/space_guard.h"
#include "volume/layer.h"

namespace cairn {

// Who asked, for takeover: a request is answered from this record if the kernel sends it again. All
// zero: nobody.
struct ReplyRecord {
  Id128 connection = {};
  uint64_t unique = 0;  // FUSE request number, bit 63 masked
  uint16_t opcode = 0;
  uint16_t lane = 0;    // of the thread that served it, below kFirstOldLane; volume/reply_log.h
  int32_t status = 0;   // 0 or -errno, as replied
  InodeNumber ino = 0;  // entry the reply names, if any
  uint64_t value = 0;   // bytes written, or what the opcode's reply needs (docs/formats/journal.md)
  uint64_t reply_floor = 0;  // replies to requests below this are known to have reached the kernel
};

inline constexpr uint16_t kFirstOldLane = 0x8000;

// One atomic change. Built by one thread, committed once.
class Transaction {
 public:
  void Put(std::string key, Entry entry);
  void Delete(std::string key);
  // Covers [offset, offset + length) of a file with a hole (any length, also to the end of all
  // offsets).
  void PutHole(InodeNumber ino, uint64_t offset, uint64_t length_bytes);
  // Covers [offset, offset + data.size()) with data; cut at the grid by Head. `data` must live
  // until Commit returns.
  void PutData(InodeNumber ino, uint64_t offset, std::string_view data);
  void SetReply(const ReplyRecord& reply) { reply_ = reply; }
  // next_ino is a maximum: transactions may commit out of its order.
  void SetNextInode(InodeNumber next) { next_ino_ = next; }
  // What the transaction adds to the volume's totals: CountEntry of what it puts, less that of what
  // it replaces and deletes.
  void AddTotals(int64_t inodes, int64_t bytes) { added_inodes_ = inodes, added_bytes_ = bytes; }
  // Whose budget it is written from. kFreeing: it lets go of space, and is written while there is
  // any at all.
  void SetSpaceUse(SpaceUse use) { space_use_ = use; }
  // Journaled change of an orphan's open count.
  void SetOpenCount(InodeNumber ino, int32_t change) { open_ino_ = ino, open_change_ = change; }
  bool empty() const { return ops_.empty() && open_change_ == 0; }

  struct Op {
    enum class Kind : uint8_t { kPut = 1, kDelete = 2, kHole = 3, kData = 4 } kind;
    std::string key;      // kPut, kDelete
    Entry entry;          // kPut
    InodeNumber ino = 0;  // kHole, kData
    uint64_t offset = 0;
    uint64_t length_bytes = 0;
    std::string_view data;  // kData
  };
  const std::vector<Op>& ops() const { return ops_; }
  std::vector<Op> TakeOps() && { return std::move(ops_); }
  const ReplyRecord& reply() const { return reply_; }
  InodeNumber next_ino() const { return next_ino_; }
  int64_t added_inodes() const { return added_inodes_; }
  int64_t added_bytes() const { return added_bytes_; }
  SpaceUse space_use() const { return space_use_; }
  InodeNumber open_ino() const { return open_ino_; }
  int32_t open_change() const { return open_change_; }

 private:
  std::vector<Op> ops_;
  ReplyRecord reply_;
  InodeNumber next_ino_ = 0;
  int64_t added_inodes_ = 0;
  int64_t added_bytes_ = 0;
  SpaceUse space_use_ = SpaceUse::kWriting;
  InodeNumber open_ino_ = 0;
  int32_t open_change_ = 0;
};

// What the volume record (catalog) says of a volume when it is opened.
struct HeadOptions {
  Id128 volume;
  Id128 realm;
  std::string dir;  // host directory of this volume's journals; created if absent
  uint64_t sealed_through_generation = 0;  // journals up to it are stale and are removed
  std::shared_ptr<const Layer>
      base;  // the tree sealed through that generation, or the layer that a fork starts from
  InodeNumber next_ino = kFirstFreeInode;
  uint64_t base_inodes = 0;  // totals of `base`
  uint64_t base_bytes = 0;
  uint64_t small_payload_limit_bytes =
      32 * 1024;                           // up to this a payload rides in the journal stream
  uint64_t journal_chunk_bytes = 4 << 20;  // preallocated and zeroed in steps of this
  SpaceGuard* space = nullptr;             // outlives the head; null: until the disk says no
  // The FUSE connection that outlived the process which had the volume open before; zero: none did.
  Id128 live_connection;
};

struct HeadState {
  InodeNumber next_ino =
      kFirstFreeInode;  // above every number ever used, from the record and the journals
  uint64_t total_inodes = 0;
  uint64_t total_bytes = 0;
};

// Thread-safe. After an I/O error of a write or sync the head is failed for good: every Commit and
// Sync answers EROFS or EIO, reads go on.
class Head {
 public:
  virtual ~Head() = default;

  // Opens (or begins) the volume: replays every journal of `dir` above sealed_through_generation,
  // each becomes a frozen layer, and starts a new active generation after the newest (a recovered
  // journal is never appended to). Errors: DataLoss names file and offset when a journal is damaged
  // before its end (a torn tail is not damage).
  static Result<std::unique_ptr<Head>> Open(FileSystem& fs, KeyRing& keys, BlockStore& store,
                                            const HeadOptions& options);

  // Volatile on return, but in the kernel: survives a kill of this process. Reads see it at once.
  // Errors: Exhausted (ENOSPC; nothing changed), PermissionDenied with EROFS (failed or closed
  // head). What it will take to seal the transaction is set aside with what it takes now.
  virtual Status Commit(Transaction&& transaction) = 0;

  // Durable on return: everything committed before the call.
  virtual Status Sync() = 0;

  // Rotates: the active generation becomes frozen and durable, a new one begins. The caller holds
  // writers off (no Commit runs during the call). Returns the frozen layer. O(1) in the
  // filesystem's size. A generation without records is frozen all the same. Exhausted (nothing
  // changed) only when PrepareNext has not made the next generation's files.
  virtual Result<std::shared_ptr<const Layer>> Freeze() = 0;
  // Makes the files of the next generation ahead, unless they are there: the next Freeze is shorter
  // then and takes no space. Beside everything else. Exhausted: there is none for that now.
  virtual Status PrepareNext() = 0;

  // The chain as readers see it now.
  virtual std::shared_ptr<const Layer> current() const = 0;
  // Frozen, not yet sealed, oldest first.
  virtual std::vector<std::shared_ptr<const Layer>> unsealed() const = 0;
  // After the catalog names the root of `generation` (frozen, unsealed): swaps the layer, forgets
  // the unsealed ones below it, then unlinks the files of all of them.
  virtual Status FinishSeal(uint64_t generation, std::shared_ptr<const TreeReader> tree) = 0;

  // The generation that takes writes, and how much of its two files a copy may take: whole records
  // and their payloads, which never change.
  struct ActiveExtent {
    uint64_t generation = 0;
    uint64_t journal_bytes = 0;
    uint64_t side_bytes = 0;
  };
  virtual ActiveExtent active_extent() const = 0;

  virtual HeadState state() const = 0;
  // Replies to the live connection that Open found in the journals, oldest first, without those
  // below its reply floor.
  virtual const std::vector<ReplyRecord>& recovered_replies() const = 0;
  // Whose replies are kept from now on for a server that takes over: those not below the floor go
  // along into each new generation, since the seal of an old one removes its journal. Zero:
  // nobody's.
  virtual void SetLiveConnection(const Id128& connection) = 0;
  // Size of the active generation, without replies that went along, for deciding on an automatic
  // seal.
  virtual uint64_t active_records() const = 0;
  virtual uint64_t active_payload_bytes() const = 0;
  // What is set aside for sealing all generations, the active one included. 0 without a guard.
  virtual uint64_t unsealed_bytes() const = 0;
  // Exhausted unless so much could be written now.
  virtual Status CheckRoom(SpaceUse use, uint64_t bytes) const = 0;
  virtual bool failed() const = 0;
};

// The generation of a file of a volume's directory by its name; nullopt: not a journal or side log.
struct LogFileId {
  uint64_t generation = 0;
  bool is_journal = false;
};
std::optional<LogFileId> ParseLogFileName(std::string_view name);

// Replay of one journal for `cairn check`: parses and verifies every record of every journal in
// `dir`, changes nothing.
struct JournalReport {
  std::string file;
  uint64_t records = 0;
  std::string damage;  // empty: clean
};
Result<std::vector<JournalReport>> CheckJournals(FileSystem& fs, KeyRing& keys, const Id128& realm,
                                                 const Id128& volume, const std::string& dir,
                                                 uint64_t sealed_through_generation);

}  // namespace cairn
