// What every Catalog must do (catalog/catalog.h), run on each implementation.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "catalog/local_catalog.h"
#include "catalog/records.h"
#include "tests/support/open_catalog.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// Makes a catalog and opens it again on the same state.
struct Backend {
  const char* name;
  size_t write_buffer_bytes;
};

class CatalogContract : public testing::TestWithParam<Backend> {
 protected:
  CatalogContract() { Reopen(); }

  void Reopen() {
    if (catalog_ != nullptr) {
      ASSERT_TRUE(catalog_->Close());
    }
    catalog_.reset();
    auto opened = OpenCatalogIn(
        dir_.path(), master_,
        {.dir = {}, .create = true, .write_buffer_bytes = GetParam().write_buffer_bytes});
    ASSERT_TRUE(opened) << opened.error().ToString();
    catalog_ = *std::move(opened);
  }

  void Set(std::string_view key, std::string_view value) {
    ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
      txn.Put(key, value);
      return Status();
    }));
  }

  template <typename Reader>
  std::vector<std::string> KeysIn(Reader& reader, std::string_view begin, std::string_view end) {
    std::vector<std::string> found;
    const Status scanned = reader.Scan(begin, end, [&](std::string_view key, std::string_view) {
      found.emplace_back(key);
      return true;
    });
    EXPECT_TRUE(scanned);
    return found;
  }

  std::string ValueOf(std::string_view key) {
    auto value = catalog_->Get(key);
    EXPECT_TRUE(value) << value.error().ToString();
    return value->value_or("(absent)");
  }

  TempDir dir_;
  Key256 master_ = RandomKey();
  std::unique_ptr<Catalog> catalog_;
};

INSTANTIATE_TEST_SUITE_P(Local, CatalogContract,
                         testing::Values(Backend{"default", 8u << 20}, Backend{"tiny", 64u << 10}),
                         [](const auto& param) { return param.param.name; });

TEST_P(CatalogContract, AbsenceIsAValue) {
  auto value = catalog_->Get("org/none");
  ASSERT_TRUE(value);
  EXPECT_FALSE(value->has_value());
  auto txn = catalog_->Begin();
  auto inside = txn->Get("org/none");
  ASSERT_TRUE(inside);
  EXPECT_FALSE(inside->has_value());
}

TEST_P(CatalogContract, CommittedRecordsSurviveReopening) {
  const std::string binary("\0\xff\n/", 4);
  Set("org/a", binary);
  Set("org/b", "");
  Reopen();
  EXPECT_EQ(ValueOf("org/a"), binary);
  EXPECT_EQ(ValueOf("org/b"), "");
}

TEST_P(CatalogContract, NothingIsVisibleBeforeCommitAndNothingStaysWithoutIt) {
  {
    auto txn = catalog_->Begin();
    txn->Put("org/a", "1");
    EXPECT_EQ(ValueOf("org/a"), "(absent)");
    EXPECT_EQ(*txn->Get("org/a"), "1");
  }
  EXPECT_EQ(ValueOf("org/a"), "(absent)");
}

TEST_P(CatalogContract, AllWritesOfATransactionAppearTogether) {
  Set("org/gone", "x");
  ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
    txn.Put("org/a", "1");
    txn.Put("org/b", "2");
    txn.Delete("org/gone");
    return Status();
  }));
  EXPECT_EQ(KeysIn(*catalog_, "org/", "org0"), (std::vector<std::string>{"org/a", "org/b"}));
}

TEST_P(CatalogContract, AChangedReadAbortsTheCommit) {
  Set("org/a", "1");
  auto txn = catalog_->Begin();
  ASSERT_EQ(*txn->Get("org/a"), "1");
  Set("org/a", "2");
  txn->Put("org/b", "from 1");
  const Status committed = txn->Commit();
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kAborted);
  EXPECT_EQ(ValueOf("org/b"), "(absent)");
}

TEST_P(CatalogContract, AnInsertedReadOfAbsenceAbortsTheCommit) {
  auto txn = catalog_->Begin();
  ASSERT_EQ(*txn->Get("org/a"), std::nullopt);
  Set("org/a", "theirs");
  txn->Put("org/a", "mine");
  const Status committed = txn->Commit();
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kAborted);
  EXPECT_EQ(ValueOf("org/a"), "theirs");
}

TEST_P(CatalogContract, AScannedKeyIsARememberedRead) {
  Set("org/a", "1");
  Set("org/b", "1");
  auto txn = catalog_->Begin();
  ASSERT_EQ(KeysIn(*txn, "org/", "org0").size(), 2u);
  ASSERT_TRUE(catalog_->Run([](CatalogTransaction& other) {
    other.Delete("org/b");
    return Status();
  }));
  txn->Put("org/c", "2 seen");
  const Status committed = txn->Commit();
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kAborted);
}

TEST_P(CatalogContract, DisjointTransactionsBothCommit) {
  auto one = catalog_->Begin();
  auto two = catalog_->Begin();
  one->Put("org/a", "1");
  two->Put("org/b", "2");
  EXPECT_TRUE(one->Commit());
  EXPECT_TRUE(two->Commit());
  EXPECT_EQ(ValueOf("org/a") + ValueOf("org/b"), "12");
}

TEST_P(CatalogContract, ReadsOfATransactionAreOfOneMoment) {
  Set("org/a", "1");
  auto txn = catalog_->Begin();
  Set("org/b", "2");
  EXPECT_EQ(*txn->Get("org/a"), "1");
  EXPECT_EQ(*txn->Get("org/b"), std::nullopt);
}

TEST_P(CatalogContract, ScanIsOrderedBoundedAndStops) {
  for (const char* key : {"env/b", "env/a", "env/c", "env0", "enu/z"}) Set(key, key);
  EXPECT_EQ(KeysIn(*catalog_, "env/", "env0"),
            (std::vector<std::string>{"env/a", "env/b", "env/c"}));
  int seen = 0;
  ASSERT_TRUE(catalog_->Scan("env/", "env0", [&](std::string_view key, std::string_view value) {
    EXPECT_EQ(key, value);
    return ++seen < 2;
  }));
  EXPECT_EQ(seen, 2);
}

TEST_P(CatalogContract, ScanBackwardIsScanReversed) {
  for (const char* key : {"env/b", "env/a", "env/c", "env0", "enu/z"}) Set(key, key);
  const auto keys_back = [&](std::string_view begin, std::string_view end, size_t limit) {
    std::vector<std::string> found;
    EXPECT_TRUE(
        catalog_->ScanBackward(begin, end, [&](std::string_view key, std::string_view value) {
          EXPECT_EQ(key, value);
          found.emplace_back(key);
          return found.size() < limit;
        }));
    return found;
  };
  EXPECT_EQ(keys_back("env/", "env0", 9), (std::vector<std::string>{"env/c", "env/b", "env/a"}));
  EXPECT_EQ(keys_back("env/", "env/c", 9), (std::vector<std::string>{"env/b", "env/a"}));
  EXPECT_EQ(keys_back("env/b", "zzz", 2), (std::vector<std::string>{"env0", "env/c"}));
  EXPECT_TRUE(keys_back("x", "y", 9).empty());
}

TEST_P(CatalogContract, AScanInATransactionSeesItsOwnWrites) {
  Set("env/a", "1");
  Set("env/b", "1");
  auto txn = catalog_->Begin();
  txn->Delete("env/a");
  txn->Put("env/c", "2");
  txn->Put("env0", "outside");
  EXPECT_EQ(KeysIn(*txn, "env/", "env0"), (std::vector<std::string>{"env/b", "env/c"}));
  EXPECT_EQ(KeysIn(*catalog_, "env/", "env0"), (std::vector<std::string>{"env/a", "env/b"}));
}

TEST_P(CatalogContract, RunRetriesUntilEveryIncrementCounts) {
  Set("org/n", "0");
  constexpr int kThreads = 8, kRounds = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds;) {
        const Status status = catalog_->Run([](CatalogTransaction& txn) -> Status {
          const auto value = CAIRN_TRY(txn.Get("org/n"));
          txn.Put("org/n", std::to_string(std::stoi(*value) + 1));
          return {};
        });
        if (status) {
          ++i;
        } else {
          ASSERT_EQ(status.error().code(), ErrorCode::kAborted) << status.error().ToString();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ValueOf("org/n"), std::to_string(kThreads * kRounds));
}

TEST_P(CatalogContract, AnErrorOfTheBodyEndsRunWithoutAWrite) {
  int runs = 0;
  const Status status = catalog_->Run([&](CatalogTransaction& txn) -> Status {
    ++runs;
    txn.Put("org/a", "1");
    return Err(ErrorCode::kNotFound, "no such thing");
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "no such thing");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(ValueOf("org/a"), "(absent)");
}

TEST_P(CatalogContract, CheckIsSilentOnSoundRecordsAndNamesUnknownOnes) {
  catalog::Organization org;
  org.set_id("org_00000000000000000000000000000001");
  Set(keys::Organization(org.id()), org.SerializeAsString());
  Reopen();
  std::vector<std::string> damaged;
  const auto report = [&](std::string_view key, std::string_view what) {
    damaged.push_back(std::string(key) + ": " + std::string(what));
  };
  ASSERT_TRUE(catalog_->Check(report));
  EXPECT_EQ(damaged, std::vector<std::string>());
  Set("nonsense/x", "1");
  Set(keys::Organization("org_00000000000000000000000000000002"), org.SerializeAsString());
  ASSERT_TRUE(catalog_->Check(report));
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_NE(damaged[0].find("nonsense/x"), std::string::npos) << damaged[0];
  EXPECT_NE(damaged[1].find("its id is another's"), std::string::npos) << damaged[1];
}

TEST_P(CatalogContract, ManyRecordsOverManyFlushesAllStay) {
  const std::string value(1000, 'v');
  for (int batch = 0; batch < 20; ++batch) {
    ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
      for (int i = 0; i < 50; ++i) txn.Put("turn/" + keys::Number(batch * 50 + i), value);
      return Status();
    }));
  }
  Reopen();
  EXPECT_EQ(KeysIn(*catalog_, "turn/", "turn0").size(), 1000u);
}

TEST_P(CatalogContract, AClosedCatalogRefuses) {
  ASSERT_TRUE(catalog_->Close());
  EXPECT_EQ(catalog_->Get("org/a").error().code(), ErrorCode::kFailedPrecondition);
  auto txn = catalog_->Begin();
  EXPECT_EQ(txn->Get("org/a").error().code(), ErrorCode::kFailedPrecondition);
  txn->Put("org/a", "1");
  EXPECT_EQ(txn->Commit().error().code(), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cairn
