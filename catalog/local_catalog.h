// LocalCatalog: the Catalog in one directory, by RocksDB's optimistic transactions. Layout,
// recovery rules and what is not used: docs/formats/catalog.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "catalog/catalog.h"
#include "catalog/key_store.h"
#include "store/base/file_system.h"

namespace rocksdb {
class Env;
}

namespace cairn {

struct LocalCatalogOptions {
  std::string dir;                       // ".../catalog"; its parent exists
  bool create = false;                   // make key and database if there is neither
  size_t cache_bytes = 16u << 20;        // blocks of tables
  size_t write_buffer_bytes = 8u << 20;  // of each of two memtables
  rocksdb::Env* env = nullptr;           // not owned; null: the host's files. For tests with faults
  // Asked before each commit for so many bytes: its error is returned instead of writing. Null: not
  // asked.
  std::function<Status(uint64_t bytes)> make_room = {};
};

// Thread-safe. Owner: cmd. What Commit acknowledged survives a kill and a power cut.
class LocalCatalog : public Catalog {
 public:
  // Replays the log. NotFound: no catalog there (and not `create`). PermissionDenied: another
  // master key. FailedPrecondition: its key is where no released program put it. Unavailable:
  // another process has it open. DataLoss: committed bytes are damaged or the key file is gone;
  // nothing was changed. `keys` is not used after it returned.
  static Result<std::unique_ptr<LocalCatalog>> Open(FileSystem& fs, KeyStore& keys,
                                                    const LocalCatalogOptions& options);

  // A copy of the database as it is at one instant, in `dir`, which must not exist (its parent
  // does): tables are hard links where that can be. Commits wait meanwhile. Durable on return.
  virtual Status Checkpoint(const std::string& dir) = 0;
  // Reads such a copy from its first record to its last, each opened and checked; changes nothing
  // in it. DataLoss.
  static Status ReadCheckpoint(
      KeyStore& keys, const std::string& dir,
      const std::function<void(std::string_view key, std::string_view value)>& visit);

  // Besides the contract of Catalog: after an I/O error everything is Unavailable until the
  // transactions in flight are gone; then the next call reopens the database. Without space commits
  // are Exhausted and reads go on; once there is space and no transaction in flight, the next call
  // reopens it too. Check also reads every table and the log.
  //
  // Close flushes, so that a stopped daemon leaves an empty log; Unavailable if transactions are
  // still alive. A destroyed catalog that was not closed is as after a kill.
};

}  // namespace cairn
