// LocalCatalog over RocksDB 7.8's OptimisticTransactionDB.
//
// A transaction reads at the snapshot it took when it began and remembers each key it read
// (GetForUpdate). Commit asks RocksDB whether any of them has a newer version than that snapshot
// (in the memtables: a transaction older than those is TryAgain, which is Aborted too), then writes
// one batch and syncs the log.
//
// After each commit the high-water mark gets RocksDB's sequence number, which grows with every
// write. Before the database is opened it is opened for reading alone, to see that it has all that
// the mark says: opening it for writing would delete logs and go on over a gap.
//
// Invariant: nothing is written to a database that reported a background error (with
// paranoid_checks every failed write is one). The listener below marks it broken, before the write
// returns; Current() then closes and reopens it once no transaction holds it. Recovery flushes what
// it replays into a new, synced table, so a page whose fsync failed is never trusted to be on the
// disk. After a lack of space it stays open, and its reads go on, until there seems to be room to
// open it again. (DB::Resume would go on with a log file that has failed; Debian's RocksDB asserts
// that nobody does.)
#include "catalog/local_catalog.h"

#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/utilities/optimistic_transaction_db.h>
#include <rocksdb/utilities/transaction.h>
#include <rocksdb/utilities/write_batch_with_index.h>

#include <atomic>
#include <utility>
#include <vector>

#include "catalog/log_scan.h"
#include "catalog/records.h"
#include "catalog/value_cipher.h"
#include "store/base/high_water_mark.h"
#include "store/base/log.h"
#include "store/base/mutex.h"
#include "store/base/rocksdb_log.h"
#include "store/base/rocksdb_room.h"

namespace cairn {
namespace {

rocksdb::Slice SliceOf(std::string_view bytes) { return {bytes.data(), bytes.size()}; }
std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

bool IsNoSpace(const rocksdb::Status& status) {
  return status.IsNoSpace() || status.subcode() == rocksdb::Status::kNoSpace;
}

Error ToError(const rocksdb::Status& status, std::string_view doing) {
  ErrorCode code = ErrorCode::kInternal;
  if (status.IsCorruption()) {
    code = ErrorCode::kDataLoss;
  } else if (status.IsBusy() || status.IsTryAgain()) {
    code = ErrorCode::kAborted;
  } else if (IsNoSpace(status)) {
    code = ErrorCode::kExhausted;
  } else if (status.IsIOError() || status.IsShutdownInProgress() || status.IsIncomplete()) {
    code = ErrorCode::kUnavailable;
  }
  return Error(code, fmt::format("{}: {}", doing, status.ToString()));
}
std::unexpected<Error> Fail(const rocksdb::Status& status, std::string_view doing) {
  return std::unexpected(ToError(status, doing));
}

// What RocksDB has reported of itself.
struct DbState {
  std::atomic<bool> broken = false;    // an error it cannot go on after
  std::atomic<bool> no_space = false;  // as broken, for want of space: reading goes on
};

// One opening of the database.
struct OpenedDb {
  std::shared_ptr<DbState> state = std::make_shared<DbState>();
  std::unique_ptr<rocksdb::OptimisticTransactionDB> db;
  HighWaterMark* mark = nullptr;
};

// For a batch, and for what RocksDB may write on its account: tables of what is in memory now.
using RoomMaker = std::function<Status(uint64_t bytes)>;
Status MakeRoom(const OpenedDb& opened, const RoomMaker& make_room, uint64_t batch_bytes) {
  constexpr uint64_t kAllowanceBytes = 256 << 10;
  if (!make_room) return {};
  uint64_t in_memory = 0;
  opened.db->GetIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &in_memory);
  return make_room(2 * batch_bytes + in_memory + kAllowanceBytes);
}

class ErrorListener : public rocksdb::EventListener {
 public:
  explicit ErrorListener(std::shared_ptr<DbState> state) : state_(std::move(state)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason /*reason*/,
                         rocksdb::Status* status) override {
    (IsNoSpace(*status) ? state_->no_space : state_->broken).store(true);
    LogError("catalog_background_error", {{"error", status->ToString()}});
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason /*reason*/, rocksdb::Status /*error*/,
                            bool* auto_recovery) override {
    *auto_recovery = false;  // we reopen instead
  }

 private:
  std::shared_ptr<DbState> state_;
};

rocksdb::Options DatabaseOptions(const LocalCatalogOptions& options,
                                 const std::shared_ptr<rocksdb::Cache>& cache,
                                 std::shared_ptr<DbState> state) {
  rocksdb::Options db;
  if (options.env != nullptr) db.env = options.env;
  db.create_if_missing = options.create;
  db.paranoid_checks = true;
  db.wal_recovery_mode = rocksdb::WALRecoveryMode::kAbsoluteConsistency;  // CutTornLog ran before
  db.track_and_verify_wals_in_manifest =
      true;  // the mark tells of the last log, this of the others
  db.max_write_buffer_number = 2;
  db.write_buffer_size = options.write_buffer_bytes;
  // With one column family this only bounds how much of the log is allocated ahead, which was 9 MiB
  // of every data directory.
  db.max_total_wal_size = 1 << 20;
  db.max_background_jobs = 2;
  db.max_open_files = 256;
  db.max_bgerror_resume_count = 0;
  db.manifest_preallocation_size = 256 << 10;
  db.compression = rocksdb::kNoCompression;  // values are ciphertext
  db.info_log = std::make_shared<SilentRocksdbLog>();
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.listeners.push_back(std::make_shared<ErrorListener>(std::move(state)));
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.format_version = 5;
  db.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return db;
}

// `mutex` is shared by a commit and exclusive to a checkpoint, which holds `turn` as well: commits
// that follow each other closely would never let it in. Taken last.
struct Commits {
  Mutex turn;
  SharedMutex mutex;
};

class LocalTransaction : public CatalogTransaction {
 public:
  LocalTransaction(Result<std::shared_ptr<OpenedDb>> opened, const ValueCipher& cipher,
                   const RoomMaker& make_room, Commits& commits)
      : cipher_(cipher), make_room_(make_room), commits_(commits) {
    if (!opened) {
      failed_ = std::move(opened).error();
      return;
    }
    opened_ = *std::move(opened);
    rocksdb::WriteOptions write;
    write.sync = true;
    rocksdb::OptimisticTransactionOptions options;
    options.set_snapshot = true;
    transaction_.reset(opened_->db->BeginTransaction(write, options));
    read_.snapshot = transaction_->GetSnapshot();
  }

  Result<std::optional<std::string>> Get(std::string_view key) override {
    CAIRN_TRY(Usable());
    std::string sealed;
    const rocksdb::Status status = transaction_->GetForUpdate(read_, SliceOf(key), &sealed);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return Fail(status, "reading the catalog");
    return std::optional(CAIRN_TRY(cipher_.Open(key, sealed)));
  }

  void Put(std::string_view key, std::string_view value) override {
    if (!Usable()) return;
    Remember(transaction_->Put(SliceOf(key), cipher_.Seal(key, value)));
    wrote_ = true;
  }

  void Delete(std::string_view key) override {
    if (!Usable()) return;
    Remember(transaction_->Delete(SliceOf(key)));
    wrote_ = true;
  }

  Status Scan(std::string_view begin, std::string_view end,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    CAIRN_TRY(Usable());
    const std::unique_ptr<rocksdb::Iterator> it(transaction_->GetIterator(read_));
    for (it->Seek(SliceOf(begin)); it->Valid() && ViewOf(it->key()) < end; it->Next()) {
      const rocksdb::Status tracked =
          transaction_->GetForUpdate(read_, it->key(), static_cast<std::string*>(nullptr));
      if (!tracked.ok()) return Fail(tracked, "scanning the catalog");
      const std::string key = it->key().ToString();
      const std::string value = CAIRN_TRY(cipher_.Open(key, ViewOf(it->value())));
      if (!visit(key, value)) return {};
    }
    if (!it->status().ok()) return Fail(it->status(), "scanning the catalog");
    return {};
  }

  Status Commit() override {
    CAIRN_TRY(Usable());
    if (!wrote_) return {};  // everything was read at one snapshot
    if (opened_->state->no_space) {
      return Err(ErrorCode::kExhausted, "the catalog found no space and is not open again yet");
    }
    CAIRN_TRY(MakeRoom(*opened_, make_room_,
                       transaction_->GetWriteBatch()->GetWriteBatch()->GetDataSize()));
    {
      MutexLock in_turn(commits_.turn);
    }  // behind a checkpoint that waits
    ReaderLock committing(commits_.mutex);
    const rocksdb::Status status = transaction_->Commit();
    if (!status.ok()) return Fail(status, "committing to the catalog");
    // RocksDB publishes a sequence number once its log is synced.
    opened_->mark->Raise({.generation = 0, .sequence = opened_->db->GetLatestSequenceNumber()});
    return {};
  }

 private:
  Status Usable() const {
    if (failed_) return std::unexpected(*failed_);
    if (opened_->state->broken)
      return Err(ErrorCode::kUnavailable, "the catalog is reopening after an I/O error");
    return {};
  }
  void Remember(const rocksdb::Status& status) {
    if (!status.ok() && !failed_) failed_ = ToError(status, "writing to the catalog");
  }

  const ValueCipher& cipher_;
  const RoomMaker& make_room_;
  Commits& commits_;
  std::optional<Error> failed_;
  std::shared_ptr<OpenedDb> opened_;  // outlives transaction_
  std::unique_ptr<rocksdb::Transaction> transaction_;
  rocksdb::ReadOptions read_;
  bool wrote_ = false;
};

class LocalCatalogImpl : public LocalCatalog {
 public:
  LocalCatalogImpl(FileSystem& fs, const LocalCatalogOptions& options, const CatalogKey& key)
      : fs_(fs),
        options_(options),
        cipher_(key.key, key.key_id),
        cache_(rocksdb::NewLRUCache(options.cache_bytes, 2)) {}

  ~LocalCatalogImpl() override {
    MutexLock lock(mutex_);
    opened_.reset();
  }

  Status OpenDatabase(bool create) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    options_.create = create;
    Status status = Reopen();
    options_.create = false;
    return status;
  }

  std::unique_ptr<CatalogTransaction> Begin() override {
    return std::make_unique<LocalTransaction>(Current(), cipher_, options_.make_room, commits_);
  }

  Result<std::optional<std::string>> Get(std::string_view key) override {
    const std::shared_ptr<OpenedDb> opened = CAIRN_TRY(Current());
    std::string sealed;
    const rocksdb::Status status = opened->db->Get({}, SliceOf(key), &sealed);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return Fail(status, "reading the catalog");
    return std::optional(CAIRN_TRY(cipher_.Open(key, sealed)));
  }

  Status Scan(std::string_view begin, std::string_view end,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    const std::shared_ptr<OpenedDb> opened = CAIRN_TRY(Current());
    const std::unique_ptr<rocksdb::Iterator> it(opened->db->NewIterator({}));
    for (it->Seek(SliceOf(begin)); it->Valid() && ViewOf(it->key()) < end; it->Next()) {
      const std::string_view key = ViewOf(it->key());
      const std::string value = CAIRN_TRY(cipher_.Open(key, ViewOf(it->value())));
      if (!visit(key, value)) return {};
    }
    if (!it->status().ok()) return Fail(it->status(), "scanning the catalog");
    return {};
  }

  Status ScanBackward(
      std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view, std::string_view)>& visit) override {
    const std::shared_ptr<OpenedDb> opened = CAIRN_TRY(Current());
    const std::unique_ptr<rocksdb::Iterator> it(opened->db->NewIterator({}));
    it->SeekForPrev(SliceOf(end));
    if (it->Valid() && ViewOf(it->key()) == end) it->Prev();
    for (; it->Valid() && ViewOf(it->key()) >= begin; it->Prev()) {
      const std::string_view key = ViewOf(it->key());
      const std::string value = CAIRN_TRY(cipher_.Open(key, ViewOf(it->value())));
      if (!visit(key, value)) return {};
    }
    if (!it->status().ok()) return Fail(it->status(), "scanning the catalog");
    return {};
  }

  Status Check(const std::function<void(std::string_view, std::string_view)>& damage) override {
    const std::shared_ptr<OpenedDb> opened = CAIRN_TRY(Current());
    CheckTables(*opened->db, damage);
    CheckLogs(*opened->db, damage);
    rocksdb::ReadOptions read;
    read.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> it(opened->db->NewIterator(read));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      const std::string_view key = ViewOf(it->key());
      const auto value = cipher_.Open(key, ViewOf(it->value()));
      if (!value) {
        damage(key, value.error().message());
      } else if (const Status sound = VerifyRecord(key, *value); !sound) {
        damage(key, sound.error().message());
      }
    }
    if (!it->status().ok())
      damage("", "records after this cannot be read: " + it->status().ToString());
    return {};
  }

  // The flush empties the log, which nothing is written to until the copy is there: so the copy is
  // of one instant. (RocksDB's checkpoint without a flush is not to be relied on in 7.8.)
  Status Checkpoint(const std::string& dir) override {
    const std::shared_ptr<OpenedDb> opened = CAIRN_TRY(Current());
    MutexLock turn(commits_.turn);
    WriterLock no_commits(commits_.mutex);
    if (opened->state->broken || opened->state->no_space) {
      return Err(ErrorCode::kUnavailable, "the catalog is reopening after an I/O error");
    }
    rocksdb::FlushOptions flush;
    flush.wait = true;
    rocksdb::Status status = opened->db->Flush(flush);
    if (!status.ok()) return Fail(status, "flushing the catalog");
    rocksdb::Checkpoint* made = nullptr;
    status = rocksdb::Checkpoint::Create(opened->db->GetBaseDB(), &made);
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    if (status.ok()) status = checkpoint->CreateCheckpoint(dir, /*log_size_for_flush=*/0);
    if (!status.ok()) return Fail(status, "copying the catalog to " + dir);
    return {};
  }

  Status Close() override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return {};
    if (opened_.use_count() > 1) {
      return Err(ErrorCode::kUnavailable, "transactions of the catalog are still in use");
    }
    closed_ = true;
    if (opened_ == nullptr) return {};
    rocksdb::Status status;
    if (!opened_->state->broken && !opened_->state->no_space) {
      rocksdb::FlushOptions flush;
      flush.wait = true;
      status = opened_->db->Flush(flush);
    }
    const rocksdb::Status closing = opened_->db->Close();
    opened_.reset();
    if (!status.ok()) return Fail(status, "flushing the catalog");
    if (!closing.ok()) return Fail(closing, "closing the catalog");
    return {};
  }

 private:
  std::string DbPath() const { return options_.dir + "/db"; }

  // The open database; reopens a broken one (with mutex_ held over that I/O: nobody could do
  // anything else).
  Result<std::shared_ptr<OpenedDb>> Current() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return Err(ErrorCode::kFailedPrecondition, "the catalog is closed");
    if (opened_ != nullptr && !opened_->state->broken) {
      if (!opened_->state->no_space) return opened_;
      if (opened_.use_count() > 1 || !MakeRoom(*opened_, options_.make_room, 0)) return opened_;
    } else if (opened_.use_count() > 1) {
      return Err(ErrorCode::kUnavailable, "the catalog is reopening after an I/O error");
    }
    CAIRN_TRY(Reopen());
    LogWarning("catalog_reopened", {{"dir", options_.dir}});
    return opened_;
  }

  Status Reopen() REQUIRES(mutex_) {
    opened_.reset();
    if (mark_ == nullptr) {
      mark_ = CAIRN_TRY(HighWaterMark::Open(fs_, options_.dir + "/committed"));
      CAIRN_TRY(fs_.SyncDir(options_.dir));
    }
    auto opened = std::make_shared<OpenedDb>();
    opened->mark = mark_.get();
    rocksdb::Options options = DatabaseOptions(options_, cache_, opened->state);
    options.allow_fallocate = MayAllocateAhead(*options.env, DbPath());
    const std::optional<LogPosition> committed = mark_->position();
    CAIRN_TRY(CutTornLog(fs_, DbPath(), [&]() -> Status {
      return committed ? HasCommitted(options, committed->sequence) : Status();
    }));
    MakeRoomToOpen(*options.env, DbPath(), options_.make_room);
    rocksdb::OptimisticTransactionDBOptions transactions;
    transactions.occ_lock_buckets = 4096;  // the default of a million mutexes is 40 MB
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::OptimisticTransactionDB* db = nullptr;
    const rocksdb::Status status = rocksdb::OptimisticTransactionDB::Open(
        options, transactions, DbPath(),
        {rocksdb::ColumnFamilyDescriptor(rocksdb::kDefaultColumnFamilyName, options)}, &handles,
        &db);
    if (!status.ok()) return Fail(status, "opening the catalog " + DbPath());
    opened->db.reset(db);
    for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);
    opened_ = std::move(opened);
    return {};
  }

  // A torn tail, which is still there, holds nothing that was acknowledged.
  Status HasCommitted(rocksdb::Options options, uint64_t sequence) const {
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, DbPath(), &db);
    if (!status.ok()) return Fail(status, "opening the catalog " + DbPath());
    const uint64_t last = db->GetLatestSequenceNumber();
    delete db;
    if (last >= sequence) return {};
    return Err(
        ErrorCode::kDataLoss,
        fmt::format("{}: commits through {} were acknowledged, and what is there ends at {}: "
                    "a log or table is missing or shortened",
                    DbPath(), sequence, last));
  }

  // A compaction replaces tables meanwhile; those that are looked at stay until then.
  void CheckTables(rocksdb::DB& db,
                   const std::function<void(std::string_view, std::string_view)>& damage) {
    const rocksdb::Status held = db.DisableFileDeletions();
    if (!held.ok()) return damage("", "tables cannot be held: " + held.ToString());
    std::vector<rocksdb::LiveFileMetaData> tables;
    db.GetLiveFilesMetaData(&tables);
    for (const rocksdb::LiveFileMetaData& table : tables) {
      const std::string path = table.db_path + table.name;
      rocksdb::Options options = db.GetOptions();
      options.table_factory.reset(rocksdb::NewBlockBasedTableFactory({}));
      rocksdb::SstFileReader reader(options);
      rocksdb::Status status = reader.Open(path);
      if (status.ok()) status = reader.VerifyChecksum();
      if (!status.ok()) {
        damage(table.smallestkey,
               fmt::format("table {} (records {} to {}): {}", path, table.smallestkey,
                           table.largestkey, status.ToString()));
      }
    }
    const rocksdb::Status let_go = db.EnableFileDeletions(/*force=*/false);
    if (!let_go.ok()) damage("", "tables cannot be let go: " + let_go.ToString());
  }

  // Commits wait while the logs are copied into memory, so that none is seen half-written.
  void CheckLogs(rocksdb::DB& db,
                 const std::function<void(std::string_view, std::string_view)>& damage) {
    const rocksdb::Status locked = db.LockWAL();
    if (!locked.ok()) {
      damage("", "logs cannot be read: " + locked.ToString());
      return;
    }
    auto logs = ReadLogs(fs_, DbPath());
    const rocksdb::Status unlocked = db.UnlockWAL();
    if (!unlocked.ok()) damage("", "logs: " + unlocked.ToString());
    if (!logs) {
      damage("", "logs cannot be read: " + logs.error().ToString());
      return;
    }
    for (const CatalogLog& log : *logs) {
      const LogScan scan = ScanLog(log.bytes, false);
      if (scan.end != LogScan::End::kWhole) {
        damage("", fmt::format("log {}: {}", log.path, scan.what));
      }
    }
  }

  FileSystem& fs_;
  LocalCatalogOptions options_;
  const ValueCipher cipher_;
  const std::shared_ptr<rocksdb::Cache> cache_;
  Commits commits_;
  Mutex mutex_;
  std::unique_ptr<HighWaterMark> mark_ GUARDED_BY(mutex_);
  std::shared_ptr<OpenedDb> opened_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace

Result<std::unique_ptr<LocalCatalog>> LocalCatalog::Open(FileSystem& fs, KeyStore& keys,
                                                         const LocalCatalogOptions& options) {
  const bool has_key = keys.HasCatalogKey();
  const bool has_database = CAIRN_TRY(fs.Exists(options.dir + "/db/CURRENT"));
  if (!has_key && has_database && CAIRN_TRY(fs.Exists(options.dir + "/key"))) {
    return Err(ErrorCode::kFailedPrecondition,
               options.dir +
                   " was made before keys had files of their own, by a program that was "
                   "never released: export with that one, import here");
  }
  if (!has_key && has_database) {
    return Err(ErrorCode::kDataLoss,
               "keys/catalog.key is missing: nothing in the catalog can be read without it");
  }
  if (!has_database && !options.create) {
    return Err(ErrorCode::kNotFound, "there is no catalog in " + options.dir);
  }
  if (!has_database) {
    CAIRN_TRY(fs.MakeDir(options.dir));
    CAIRN_TRY(fs.MakeDir(options.dir + "/db"));
    CAIRN_TRY(fs.SyncDir(options.dir));
  }
  const CatalogKey key =
      has_key ? CAIRN_TRY(keys.ReadCatalogKey()) : CAIRN_TRY(keys.CreateCatalogKey());
  auto catalog = std::make_unique<LocalCatalogImpl>(fs, options, key);
  CAIRN_TRY(catalog->OpenDatabase(!has_database));
  return catalog;
}

Status LocalCatalog::ReadCheckpoint(
    KeyStore& keys, const std::string& dir,
    const std::function<void(std::string_view key, std::string_view value)>& visit) {
  const CatalogKey key = CAIRN_TRY(keys.ReadCatalogKey());
  const ValueCipher cipher(key.key, key.key_id);
  rocksdb::Options options;
  options.paranoid_checks = true;
  options.max_open_files = 64;
  options.info_log = std::make_shared<SilentRocksdbLog>();
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, dir, &opened);
  if (!status.ok()) return Fail(status, "opening the copy of the catalog " + dir);
  const std::unique_ptr<rocksdb::DB> db(opened);
  rocksdb::ReadOptions read;
  read.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(read));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const std::string record = it->key().ToString();
    const std::string value = CAIRN_TRY(cipher.Open(record, ViewOf(it->value())));
    if (Status sound = VerifyRecord(record, value); !sound) {
      return std::unexpected(std::move(sound).error().WithContext(record));
    }
    visit(record, value);
  }
  if (!it->status().ok()) return Fail(it->status(), "reading the copy of the catalog");
  return {};
}

}  // namespace cairn
