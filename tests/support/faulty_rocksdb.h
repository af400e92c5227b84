// RocksDB over files whose appends and syncs can be made to fail.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <memory>
#include <string>

namespace cairn {

// To be set at any time. Only logs (*.log) are hit, or every file with `everywhere`.
struct RocksFaults {
  std::atomic<bool> fail_log_sync = false;
  std::atomic<bool> no_space = false;
  std::atomic<bool> everywhere = false;
};

class FaultyRocksFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyRocksFile(std::unique_ptr<rocksdb::FSWritableFile>&& file, RocksFaults& faults)
      : FSWritableFileOwnerWrapper(std::move(file)), faults_(faults) {}
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
    if (faults_.no_space) return rocksdb::IOStatus::NoSpace("injected: no space");
    return target()->Append(data, options, debug);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo& info,
                           rocksdb::IODebugContext* debug) override {
    if (faults_.no_space) return rocksdb::IOStatus::NoSpace("injected: no space");
    return target()->Append(data, options, info, debug);
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                         rocksdb::IODebugContext* debug) override {
    if (faults_.fail_log_sync) return rocksdb::IOStatus::IOError("injected: fsync failed");
    return target()->Sync(options, debug);
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override {
    if (faults_.fail_log_sync) return rocksdb::IOStatus::IOError("injected: fsync failed");
    return target()->Fsync(options, debug);
  }

 private:
  RocksFaults& faults_;
};

class FaultyRocksFiles : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultyRocksFiles(RocksFaults& faults)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), faults_(faults) {}
  const char* Name() const override { return "FaultyRocksFiles"; }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    if (faults_.everywhere && faults_.no_space) {
      return rocksdb::IOStatus::NoSpace("injected: no space");
    }
    const rocksdb::IOStatus status = target()->NewWritableFile(path, options, file, debug);
    if (status.ok() && (faults_.everywhere || path.ends_with(".log"))) {
      *file = std::make_unique<FaultyRocksFile>(std::move(*file), faults_);
    }
    return status;
  }

 private:
  RocksFaults& faults_;
};

// `faults` outlives it, and it every database.
inline std::unique_ptr<rocksdb::Env> FaultyRocksEnv(RocksFaults& faults) {
  return rocksdb::NewCompositeEnv(std::make_shared<FaultyRocksFiles>(faults));
}

}  // namespace cairn
