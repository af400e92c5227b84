// The catalog on a disk that fails: RocksDB runs over a file system here whose appends and syncs
// can be made to fail.
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <memory>
#include <string>

#include "catalog/local_catalog.h"
#include "catalog/records.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

struct Faults {
  std::atomic<bool> fail_log_sync = false;
  std::atomic<bool> no_space = false;
};

class FaultyFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyFile(std::unique_ptr<rocksdb::FSWritableFile>&& file, Faults& faults)
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
  Faults& faults_;
};

class FaultyRocksFiles : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultyRocksFiles(Faults& faults)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), faults_(faults) {}
  const char* Name() const override { return "FaultyRocksFiles"; }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    const rocksdb::IOStatus status = target()->NewWritableFile(path, options, file, debug);
    if (status.ok() && path.ends_with(".log")) {
      *file = std::make_unique<FaultyFile>(std::move(*file), faults_);
    }
    return status;
  }

 private:
  Faults& faults_;
};

class FaultyCatalog : public testing::Test {
 protected:
  FaultyCatalog() : env_(rocksdb::NewCompositeEnv(std::make_shared<FaultyRocksFiles>(faults_))) {
    auto opened =
        LocalCatalog::Open(HostFileSystem(), master_,
                           {.dir = dir_.path() + "/catalog", .create = true, .env = env_.get()});
    EXPECT_TRUE(opened) << opened.error().ToString();
    catalog_ = *std::move(opened);
  }
  Status Set(std::string_view key, std::string_view value) {
    return catalog_->Run([&](CatalogTransaction& txn) {
      txn.Put(key, value);
      txn.Put(std::string(key) + "/twin", value);
      return Status();
    });
  }

  TempDir dir_;
  Faults faults_;
  std::unique_ptr<rocksdb::Env> env_;
  Key256 master_ = RandomKey();
  std::unique_ptr<LocalCatalog> catalog_;
};

TEST_F(FaultyCatalog, AFailedSyncIsUnavailableAndTheDatabaseReopens) {
  ASSERT_TRUE(Set("org/a", "1"));
  faults_.fail_log_sync = true;
  const Status failed = Set("org/b", "2");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kUnavailable) << failed.error().ToString();
  faults_.fail_log_sync = false;
  EXPECT_EQ(*catalog_->Get("org/a"), "1");  // reopened by this call
  ASSERT_TRUE(Set("org/c", "3"));
  EXPECT_EQ(*catalog_->Get("org/c"), "3");
  // The failed one happened whole or not at all.
  EXPECT_EQ(*catalog_->Get("org/b"), *catalog_->Get("org/b/twin"));
  EXPECT_TRUE(catalog_->Close());
}

TEST_F(FaultyCatalog, ATransactionOverTheFailureIsRefusedAndHoldsTheReopening) {
  ASSERT_TRUE(Set("org/a", "1"));
  auto over = catalog_->Begin();
  ASSERT_EQ(*over->Get("org/a"), "1");
  faults_.fail_log_sync = true;
  ASSERT_FALSE(Set("org/b", "2"));
  faults_.fail_log_sync = false;
  over->Put("org/a", "2");
  EXPECT_EQ(over->Commit().error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(catalog_->Get("org/a").error().code(), ErrorCode::kUnavailable);
  over.reset();
  EXPECT_EQ(*catalog_->Get("org/a"), "1");
}

TEST_F(FaultyCatalog, AFullDiskIsExhaustedAndHealsWhenSpaceIsFreed) {
  ASSERT_TRUE(Set("org/a", "1"));
  faults_.no_space = true;
  const Status failed = Set("org/b", "2");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kExhausted) << failed.error().ToString();
  faults_.no_space = false;
  ASSERT_TRUE(Set("org/c", "3")) << "after space was freed";
  EXPECT_EQ(*catalog_->Get("org/a"), "1");
  EXPECT_EQ(*catalog_->Get("org/b"), *catalog_->Get("org/b/twin"));
}

TEST_F(FaultyCatalog, AValueMovedToAnotherKeyIsFoundAndNamed) {
  const std::string org = "org_00000000000000000000000000000001";
  const std::string good = keys::Session(org, "sess_1"), bad = keys::Session(org, "sess_2");
  catalog::Session session;
  session.set_org(org);
  session.set_id("sess_1");
  ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
    PutRecord(txn, good, session);
    return Status();
  }));
  ASSERT_TRUE(catalog_->Close());
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, dir_.path() + "/catalog/db", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    std::string sealed;
    ASSERT_TRUE(db->Get({}, good, &sealed).ok());
    ASSERT_TRUE(db->Put({}, bad, sealed).ok());
    std::string other_version = sealed;
    other_version[0] = 2;
    ASSERT_TRUE(db->Put({}, keys::Session(org, "sess_3"), other_version).ok());
    ASSERT_TRUE(db->Put({}, keys::Session(org, "sess_4"), sealed.substr(0, 20)).ok());
    ASSERT_TRUE(db->Close().ok());
  }
  auto opened = LocalCatalog::Open(HostFileSystem(), master_, {.dir = dir_.path() + "/catalog"});
  ASSERT_TRUE(opened);
  EXPECT_TRUE((*opened)->Get(good));
  for (const char* id : {"sess_2", "sess_3", "sess_4"}) {
    const auto value = (*opened)->Get(keys::Session(org, id));
    ASSERT_FALSE(value) << id;
    EXPECT_EQ(value.error().code(), ErrorCode::kDataLoss);
    EXPECT_NE(value.error().message().find(id), std::string::npos) << value.error().message();
  }
  std::vector<std::string> damaged;
  ASSERT_TRUE(
      (*opened)->Check([&](std::string_view key, std::string_view) { damaged.emplace_back(key); }));
  EXPECT_EQ(damaged, (std::vector<std::string>{bad, keys::Session(org, "sess_3"),
                                               keys::Session(org, "sess_4")}));
}

}  // namespace
}  // namespace cairn
