// RocksDB with plain gets, batches and iterators only (no row cache, DeleteRange, async reads or
// ingestion: those have bugs in 7.8). Since entries and marker of a pack are one batch, a database
// that lost its newest batches lacks whole packs, which the store adds again from their footers.
// Every value carries a checksum with its key, so that a wrong value is an error and never a wrong
// location. Layout and rules: docs/formats/index.md.
#include "store/block_index.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <numeric>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/base/file_system.h"
#include "store/base/log.h"
#include "store/base/rocksdb_log.h"
#include "store/base/rocksdb_room.h"

namespace cairn {
namespace {

constexpr char kBlockPrefix = 'B';
constexpr char kPackPrefix = 'P';
constexpr std::string_view kVersionKey = "V";
constexpr uint32_t kVersion = 1;

std::string BlockKey(const Address& address) {
  std::string key(1, kBlockPrefix);
  key += address.view();
  return key;
}

std::string PackKey(const Id128& pack) {
  std::string key(1, kPackPrefix);
  key += pack.view();
  return key;
}

rocksdb::Slice Slice(std::string_view v) { return {v.data(), v.size()}; }
std::string_view View(const rocksdb::Slice& s) { return {s.data(), s.size()}; }

std::unexpected<Error> Damaged(const std::string& what) {
  return Err(ErrorCode::kDataLoss, "block index: " + what);
}

std::string VersionValue(const Id128& store) {
  std::string out;
  ByteWriter w(out);
  w.U32(kVersion);
  w.Bytes(store.view());
  return out;
}

Error FromRocks(const rocksdb::Status& status) {
  if (status.IsNoSpace()) return Error(ErrorCode::kExhausted, "block index: " + status.ToString());
  return Error(ErrorCode::kDataLoss, "block index: " + status.ToString());
}

// After a full disk RocksDB would go on by itself when it sees free space, with the log file that
// has failed; Debian's RocksDB asserts that nobody does. BlockIndex::Write opens it again instead.
class NoRecovery : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason /*reason*/, rocksdb::Status /*error*/,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

// No block cache: keys are random, so a look-up hardly ever finds the table block of another in it,
// and at 20 million blocks filters and table indexes did not fit beside them (a miss took 25 us
// instead of 1.5). They stay with their open files, two bytes a block; a hit is one pread of one
// page.
rocksdb::Options DbOptions(rocksdb::Env* env) {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_align = true;
  rocksdb::Options options;
  if (env != nullptr) options.env = env;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.max_bgerror_resume_count = 0;  // Write does it
  options.listeners.push_back(std::make_shared<NoRecovery>());
  options.manifest_preallocation_size = 256 << 10;
  options.max_write_buffer_number = 2;
  options.write_buffer_size = 16 << 20;
  // With one column family this only bounds how much of the log is allocated ahead: 1.1 x the write
  // buffer without it, which was half of what the database took.
  options.max_total_wal_size = 1 << 20;
  options.max_open_files = 1024;  // of 64 MiB: one that is not open costs a MiB of reading
  options.max_background_jobs = 2;
  options.compression = rocksdb::kNoCompression;  // keys are random, values nearly so
  options.info_log = std::make_shared<SilentRocksdbLog>();
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

std::unexpected<Error> Closed() { return Err(ErrorCode::kUnavailable, "block index is closed"); }

}  // namespace

BlockIndex::BlockIndex(BlockIndexOptions options) : options_(std::move(options)) {}

BlockIndex::~BlockIndex() { IgnoreError(Close(), "a cache: what is lost is indexed again"); }

Result<std::unique_ptr<BlockIndex>> BlockIndex::Open(const BlockIndexOptions& options) {
  std::unique_ptr<BlockIndex> index(new BlockIndex(options));
  {
    WriterLock lock(index->db_mutex_);
    const Status opened = index->OpenLocked();
    if (opened) return index;
    if (opened.error().code() == ErrorCode::kExhausted) return std::unexpected(opened.error());
    LogError("index_unusable", {{"dir", options.dir}, {"error", opened.error().ToString()}});
  }
  CAIRN_TRY(index->Clear());
  return index;
}

Status BlockIndex::OpenLocked() {
  MakeRoomToOpen(options_.env != nullptr ? *options_.env : *rocksdb::Env::Default(), options_.dir,
                 options_.make_room);
  rocksdb::DB* db = nullptr;
  rocksdb::Options options = DbOptions(options_.env);
  options.allow_fallocate = MayAllocateAhead(*options.env, options_.dir);
  const rocksdb::Status opened = rocksdb::DB::Open(options, options_.dir, &db);
  if (!opened.ok()) return std::unexpected(FromRocks(opened));
  db_.reset(db);
  write_failed_ = false;
  std::string version;
  const rocksdb::Status read = db_->Get(rocksdb::ReadOptions(), Slice(kVersionKey), &version);
  if (read.IsNotFound()) {
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    it->SeekToFirst();
    if (it->Valid()) return Damaged("no version record");
    const rocksdb::Status written =
        db_->Put(rocksdb::WriteOptions(), Slice(kVersionKey), VersionValue(options_.store));
    if (!written.ok()) return std::unexpected(FromRocks(written));
    return {};
  }
  if (!read.ok()) return std::unexpected(FromRocks(read));
  if (version != VersionValue(options_.store)) return Damaged("of another store or version");
  return {};
}

Status BlockIndex::Clear() {
  MutexLock write_lock(write_mutex_);
  WriterLock lock(db_mutex_);
  db_.reset();
  read_only_ = false;
  const rocksdb::Status destroyed = rocksdb::DestroyDB(options_.dir, DbOptions(options_.env));
  // What RocksDB no longer recognises as its own files goes with the folder.
  const Status removed = RemoveTree(HostFileSystem(), options_.dir);
  if (!removed) return removed;
  if (!destroyed.ok()) {
    LogWarning("index_destroy", {{"dir", options_.dir}, {"error", destroyed.ToString()}});
  }
  return OpenLocked();
}

Result<std::optional<std::string>> BlockIndex::GetLocked(const std::string& key) {
  if (db_ == nullptr) return Closed();
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return std::unexpected(FromRocks(status));
  return std::optional<std::string>(std::move(value));
}

Result<std::optional<BlockLocation>> BlockIndex::FindLocked(const Address& address) {
  const std::string key = BlockKey(address);
  const std::optional<std::string> value = CAIRN_TRY(GetLocked(key));
  if (!value) return std::optional<BlockLocation>();
  return std::optional<BlockLocation>(CAIRN_TRY(DecodeBlockLocation(key, *value)));
}

// RocksDB refuses every write after one that met a full disk, be it one of its own; its reads go
// on. It is opened again when there seems to be room for that; if there is none after all, it is
// opened for reading alone.
Status BlockIndex::Write(rocksdb::WriteBatch& batch, bool sync) {
  CAIRN_TRY(MakeRoom(batch.GetDataSize()));
  rocksdb::WriteOptions options;
  options.sync = sync;
  for (bool reopened = false;; reopened = true) {
    {
      ReaderLock lock(db_mutex_);
      if (db_ == nullptr) return Closed();
      if (!read_only_ && !write_failed_) {
        const rocksdb::Status status = db_->Write(options, &batch);
        if (status.ok()) return {};
        if (!status.IsNoSpace()) return std::unexpected(FromRocks(status));
        write_failed_ = true;
        if (reopened) return std::unexpected(FromRocks(status));
      }
    }
    WriterLock lock(db_mutex_);
    if (db_ == nullptr) return Closed();
    db_.reset();
    const Status opened = OpenLocked();
    read_only_ = !opened;
    if (opened) {
      LogWarning("index_reopened", {{"dir", options_.dir}});
      continue;
    }
    rocksdb::DB* db = nullptr;
    const rocksdb::Status readable =
        rocksdb::DB::OpenForReadOnly(DbOptions(options_.env), options_.dir, &db);
    db_.reset(db);
    if (!readable.ok()) return std::unexpected(FromRocks(readable));
    return opened;
  }
}

// For the batch, and for what RocksDB may write on its account: tables of what is in memory now.
Status BlockIndex::MakeRoom(uint64_t batch_bytes) {
  constexpr uint64_t kAllowanceBytes = 256 << 10;
  if (!options_.make_room) return {};
  uint64_t in_memory = 0;
  {
    ReaderLock lock(db_mutex_);
    if (db_ != nullptr) {
      db_->GetIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &in_memory);
    }
  }
  return options_.make_room(2 * batch_bytes + in_memory + kAllowanceBytes);
}

Result<std::optional<BlockLocation>> BlockIndex::Get(const Address& address) {
  ReaderLock lock(db_mutex_);
  return FindLocked(address);
}

// Sorted and without repetitions: MultiGet of RocksDB 7.8 answers wrongly for keys that are there
// twice, and looks up neighbours together.
Status BlockIndex::GetMany(std::span<const Address> addresses,
                           std::span<std::optional<BlockLocation>> found) {
  CAIRN_CHECK(found.size() == addresses.size());
  if (addresses.size() == 1) {
    found[0] = CAIRN_TRY(Get(addresses[0]));
    return {};
  }
  std::vector<size_t> order(addresses.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) -> const Address& { return addresses[i]; });
  std::vector<std::string> keys;
  keys.reserve(order.size());
  for (size_t n = 0; n < order.size(); ++n) {
    if (n > 0 && addresses[order[n]] == addresses[order[n - 1]]) continue;
    keys.push_back(BlockKey(addresses[order[n]]));
  }
  std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
  std::vector<rocksdb::PinnableSlice> values(keys.size());
  std::vector<rocksdb::Status> statuses(keys.size());
  ReaderLock lock(db_mutex_);
  if (db_ == nullptr) return Closed();
  db_->MultiGet(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), keys.size(), slices.data(),
                values.data(), statuses.data(), true);
  size_t key = 0;
  for (size_t n = 0; n < order.size(); ++n) {
    if (n > 0 && addresses[order[n]] == addresses[order[n - 1]]) {
      found[order[n]] = found[order[n - 1]];
      continue;
    }
    const size_t k = key++;
    if (statuses[k].IsNotFound()) {
      found[order[n]].reset();
      continue;
    }
    if (!statuses[k].ok()) return std::unexpected(FromRocks(statuses[k]));
    found[order[n]] = CAIRN_TRY(DecodeBlockLocation(keys[k], View(values[k])));
  }
  return {};
}

Status BlockIndex::AddPack(const PackSummary& pack, uint64_t epoch,
                           const std::vector<PackEntry>& entries) {
  rocksdb::WriteBatch batch;
  for (const PackEntry& entry : entries) {
    const std::string key = BlockKey(entry.address);
    batch.Put(key, EncodeBlockLocation(key, {.pack = pack.pack, .entry = entry, .epoch = epoch}));
  }
  const std::string key = PackKey(pack.pack);
  batch.Put(key, EncodePackMarker(key, pack));
  MutexLock write_lock(write_mutex_);
  return Write(batch, false);
}

Result<std::vector<PackSummary>> BlockIndex::Packs() {
  ReaderLock lock(db_mutex_);
  if (db_ == nullptr) return Closed();
  std::vector<PackSummary> packs;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(std::string(1, kPackPrefix)); it->Valid(); it->Next()) {
    const std::string_view key = View(it->key());
    if (key.empty() || key[0] != kPackPrefix) break;
    packs.push_back(CAIRN_TRY(DecodePackMarker(key, View(it->value()))));
  }
  if (!it->status().ok()) return std::unexpected(FromRocks(it->status()));
  return packs;
}

Status BlockIndex::ReplacePack(const Replacement& change) {
  MutexLock write_lock(write_mutex_);
  rocksdb::WriteBatch batch;
  for (const PackEntry& entry : change.moved) {
    std::optional<BlockLocation> location = CAIRN_TRY(Get(entry.address));
    if (!location || location->pack != change.old_pack) continue;
    location->pack = change.replacement->pack;
    location->entry = entry;
    const std::string key = BlockKey(entry.address);
    batch.Put(key, EncodeBlockLocation(key, *location));
  }
  for (const Address& address : change.removed) {
    const std::optional<BlockLocation> location = CAIRN_TRY(Get(address));
    if (!location || location->pack != change.old_pack) continue;
    if (change.condemn_cycle != 0 && location->condemn_cycle != change.condemn_cycle) {
      return Err(ErrorCode::kAborted,
                 "block " + address.ToHex() + " was resurrected since it was condemned");
    }
    batch.Delete(BlockKey(address));
  }
  batch.Delete(PackKey(change.old_pack));
  if (change.replacement) {
    const std::string key = PackKey(change.replacement->pack);
    batch.Put(key, EncodePackMarker(key, *change.replacement));
  }
  return Write(batch, true);
}

Result<bool> BlockIndex::SetCondemnCycle(const Address& address, uint64_t expected,
                                         uint64_t desired) {
  MutexLock write_lock(write_mutex_);
  std::optional<BlockLocation> location = CAIRN_TRY(Get(address));
  if (!location || location->condemn_cycle != expected) return false;
  location->condemn_cycle = desired;
  rocksdb::WriteBatch batch;
  const std::string key = BlockKey(address);
  batch.Put(key, EncodeBlockLocation(key, *location));
  CAIRN_TRY(Write(batch, false));
  return true;
}

Status BlockIndex::ForEach(const std::function<bool(const BlockLocation& location)>& visit) {
  ReaderLock lock(db_mutex_);
  if (db_ == nullptr) return Closed();
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
  for (it->Seek(std::string(1, kBlockPrefix)); it->Valid(); it->Next()) {
    const std::string_view key = View(it->key());
    if (key.empty() || key[0] != kBlockPrefix) break;
    if (!visit(CAIRN_TRY(DecodeBlockLocation(key, View(it->value()))))) return {};
  }
  if (!it->status().ok()) return std::unexpected(FromRocks(it->status()));
  return {};
}

Status BlockIndex::VerifyChecksums() {
  ReaderLock lock(db_mutex_);
  if (db_ == nullptr) return Closed();
  const rocksdb::Status status = db_->VerifyChecksum();
  if (!status.ok()) return std::unexpected(FromRocks(status));
  return {};
}

Status BlockIndex::Close() {
  WriterLock lock(db_mutex_);
  if (db_ == nullptr) return {};
  const rocksdb::Status flushed =
      read_only_ ? rocksdb::Status() : db_->Flush(rocksdb::FlushOptions());
  const rocksdb::Status closed = db_->Close();
  db_.reset();
  if (!flushed.ok()) return std::unexpected(FromRocks(flushed));
  if (!closed.ok()) return std::unexpected(FromRocks(closed));
  return {};
}

}  // namespace cairn
