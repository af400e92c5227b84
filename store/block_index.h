// BlockIndex: where each block lies. A RocksDB cache of the pack footers: docs/formats/index.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/index_value.h"

namespace rocksdb {
class DB;
class Env;
class WriteBatch;
}  // namespace rocksdb

namespace cairn {

struct BlockIndexOptions {
  std::string dir;
  Id128 store;  // another store's index is not opened but emptied
  // Asked before each write for so many bytes: its error is returned instead of writing. Null: not
  // asked.
  std::function<Status(uint64_t bytes)> make_room = {};
  rocksdb::Env* env = nullptr;  // not owned; null: the host's files. For tests with faults
};

// Thread-safe. Errors: Exhausted (no space: what was asked for is not written, reads go on, and the
// first write for which there is space again succeeds),
// Unavailable (closed), DataLoss (a value or RocksDB itself is damaged: Clear it and add the packs
// again). Nothing is synced unless it says so.
class BlockIndex {
 public:
  // Opens or creates. A database that cannot be used is deleted and begun anew: Packs() is empty
  // then.
  static Result<std::unique_ptr<BlockIndex>> Open(const BlockIndexOptions& options);
  ~BlockIndex();

  Result<std::optional<BlockLocation>> Get(const Address& address);
  // Get of each, in one call of RocksDB's; `found` is as long as `addresses`.
  Status GetMany(std::span<const Address> addresses, std::span<std::optional<BlockLocation>> found);

  // One batch: all entries and the marker. An address that is already there moves to this pack and
  // is not condemned.
  Status AddPack(const PackSummary& pack, uint64_t epoch, const std::vector<PackEntry>& entries);

  // The markers, by pack id.
  Result<std::vector<PackSummary>> Packs();

  // Replaces a pack, in one synced batch: `moved` entries now lie in `replacement`, `removed` ones
  // are gone, the old marker too. Entries that lie in neither pack any more are left alone. With
  // `condemn_cycle` not 0, a removed entry must carry that tag still; Aborted when one does not (a
  // writer resurrected it), and nothing is changed.
  struct Replacement {
    Id128 old_pack;
    std::optional<PackSummary> replacement;
    std::vector<PackEntry> moved;
    std::vector<Address> removed;
    uint64_t condemn_cycle = 0;
  };
  Status ReplacePack(const Replacement& change);

  // Compare-and-swap of the condemn cycle. False: the block is gone or carries another tag.
  Result<bool> SetCondemnCycle(const Address& address, uint64_t expected, uint64_t desired);

  // Deletes the database and begins an empty one.
  Status Clear();

  // All entries in address order. The callback returns false to stop.
  Status ForEach(const std::function<bool(const BlockLocation& location)>& visit);
  // RocksDB's own checksums of every file.
  Status VerifyChecksums();

  // Flushes and closes; later calls give Unavailable.
  Status Close();

 private:
  explicit BlockIndex(BlockIndexOptions options);
  Status OpenLocked() REQUIRES(db_mutex_);
  Status Write(rocksdb::WriteBatch& batch, bool sync) REQUIRES(write_mutex_) EXCLUDES(db_mutex_);
  Status MakeRoom(uint64_t batch_bytes) EXCLUDES(db_mutex_);
  Result<std::optional<std::string>> GetLocked(const std::string& key) REQUIRES_SHARED(db_mutex_);
  Result<std::optional<BlockLocation>> FindLocked(const Address& address)
      REQUIRES_SHARED(db_mutex_);

  const BlockIndexOptions options_;
  Mutex write_mutex_;     // read-modify-write of entries; taken before db_mutex_
  SharedMutex db_mutex_;  // exclusive to open, close and clear
  std::unique_ptr<rocksdb::DB> db_ GUARDED_BY(db_mutex_);
  bool read_only_ GUARDED_BY(db_mutex_) = false;  // there was no space to open it for writing
  std::atomic<bool> write_failed_ = false;        // on a full disk: to be opened again first
};

}  // namespace cairn
