// The catalog on a disk that fails: RocksDB runs over a file system here whose appends and syncs
// can be made to fail.
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <memory>
#include <string>

#include "catalog/local_catalog.h"
#include "catalog/records.h"
#include "tests/support/faulty_rocksdb.h"
#include "tests/support/open_catalog.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class FaultyCatalog : public testing::Test {
 protected:
  FaultyCatalog() : env_(FaultyRocksEnv(faults_)) {
    auto opened = OpenCatalogIn(dir_.path(), master_,
                                {.dir = {},
                                 .create = true,
                                 .env = env_.get(),
                                 .make_room = [this](uint64_t bytes) -> Status {
                                   asked_bytes_ = bytes;
                                   if (no_room_) return Err(ErrorCode::kExhausted, "no room");
                                   return {};
                                 }});
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
  uint64_t asked_bytes_ = 0;
  bool no_room_ = false;
  RocksFaults faults_;
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
  no_room_ = true;
  EXPECT_EQ(*catalog_->Get("org/a"), "1") << "reads go on";
  auto reads = catalog_->Begin();
  EXPECT_EQ(*reads->Get("org/a"), "1");
  EXPECT_EQ(Set("org/b", "2").error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(*reads->Get("org/a"), "1") << "in a transaction too";
  faults_.no_space = false;
  no_room_ = false;
  EXPECT_EQ(Set("org/b", "2").error().code(), ErrorCode::kExhausted) << "it is being read";
  reads.reset();
  ASSERT_TRUE(Set("org/c", "3")) << "after space was freed";
  EXPECT_EQ(*catalog_->Get("org/a"), "1");
  EXPECT_EQ(*catalog_->Get("org/b"), *catalog_->Get("org/b/twin"));
}

TEST_F(FaultyCatalog, WhatCommitsAroundAFullDiskIsThereAfterAKill) {
  ASSERT_TRUE(Set("org/a", "1"));
  faults_.no_space = true;
  ASSERT_FALSE(Set("org/b", "2"));
  faults_.no_space = false;
  ASSERT_TRUE(Set("org/c", "3"));
  catalog_.reset();
  auto opened = OpenCatalogIn(dir_.path(), master_, {.dir = {}});
  ASSERT_TRUE(opened) << opened.error().ToString();
  EXPECT_EQ(*(*opened)->Get("org/a"), "1");
  EXPECT_EQ(*(*opened)->Get("org/c/twin"), "3");
  EXPECT_EQ(*(*opened)->Get("org/b"), *(*opened)->Get("org/b/twin"));
}

TEST_F(FaultyCatalog, ACommitAsksForRoomAndIsNotTriedWithoutIt) {
  ASSERT_TRUE(Set("org/a", std::string(100000, 'x')));
  EXPECT_GT(asked_bytes_, 400000u) << "twice the batch";
  ASSERT_TRUE(Set("org/b", "2"));
  EXPECT_GT(asked_bytes_, 400000u) << "and what is in memory";
  asked_bytes_ = 0;
  EXPECT_TRUE(catalog_->Get("org/a"));
  EXPECT_EQ(asked_bytes_, 0u) << "reads ask for nothing";
  no_room_ = true;
  const Status refused = Set("org/c", "3");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  no_room_ = false;
  EXPECT_EQ(*catalog_->Get("org/c"), std::nullopt);
  EXPECT_TRUE(Set("org/c", "3"));
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
  auto opened = OpenCatalogIn(dir_.path(), master_, {.dir = {}});
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
