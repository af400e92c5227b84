// A registry over a catalog in a directory of the test's own, with a clock that the test moves.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/local_catalog.h"
#include "catalog/operations.h"
#include "catalog/registry.h"
#include "catalog/snapshots.h"
#include "catalog/turns.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_dir.h"

namespace cairn {

class RegistryFixture : public testing::Test {
 protected:
  RegistryFixture() {
    Reopen();
    org_ = registry_->CreateOrganization("one")->org;
    other_ = registry_->CreateOrganization("two")->org;
  }

  void Reopen() {
    registry_.reset();
    if (catalog_ != nullptr) {
      EXPECT_TRUE(catalog_->Close());
    }
    catalog_.reset();
    EXPECT_TRUE(HostFileSystem().MakeDir(dir_.path() + "/keys"));
    auto keys = KeyStore::Open(HostFileSystem(), dir_.path() + "/keys", master_);
    EXPECT_TRUE(keys) << keys.error().ToString();
    key_store_ = *std::move(keys);
    auto opened = LocalCatalog::Open(HostFileSystem(), *key_store_,
                                     {.dir = dir_.path() + "/catalog", .create = true});
    EXPECT_TRUE(opened) << opened.error().ToString();
    catalog_ = *std::move(opened);
    auto registry = Registry::Open(*catalog_, clock_, *key_store_,
                                   {.is_mounted = [this](const catalog::Environment& env) {
                                     return mounted_.contains(env.id());
                                   }});
    EXPECT_TRUE(registry) << registry.error().ToString();
    registry_ = *std::move(registry);
  }

  // ---- what most tests need ----
  void Advance(int64_t ms) { clock_.Advance(ms * 1000000); }
  std::string NewEnvironment() {
    Advance(1);
    auto made = registry_->CreateEnvironment(org_, {.name = "e"});
    EXPECT_TRUE(made);
    return made->record.id();
  }
  catalog::Session NewSession(const std::string& attach_to = "") {
    Advance(1);
    SessionSpec spec;
    spec.attach_to = attach_to;
    auto made = registry_->CreateSession(org_, spec);
    EXPECT_TRUE(made) << made.error().message();
    return made ? made->record : catalog::Session();
  }
  catalog::Environment Env(const std::string& id) {
    auto env = registry_->GetEnvironment(org_, id, true);
    EXPECT_TRUE(env);
    return env ? *env : catalog::Environment();
  }
  template <typename Change>
  void Alter(const std::string& env_id, Change change) {
    ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) -> Status {
      catalog::Environment env = CAIRN_TRY(FindEnvironment(txn, org_, env_id));
      change(env);
      TouchEnvironment(txn, env);
      return {};
    }));
  }
  catalog::Snapshot NewSnapshot(const std::string& env, bool pinned = false) {
    Advance(1);
    catalog::Snapshot snapshot;
    snapshot.set_id(NewId(kSnapshotPrefix));
    snapshot.set_org(org_);
    snapshot.set_env(env);
    snapshot.set_created_ms(clock_.NowMs());
    snapshot.set_pinned(pinned);
    EXPECT_TRUE(
        catalog_->Run([&](CatalogTransaction& txn) { return PutNewSnapshot(txn, snapshot); }));
    return snapshot;
  }
  int CountKeys(std::string_view first) {
    int count = 0;
    const keys::Range range = keys::Below(first);
    EXPECT_TRUE(catalog_->Scan(range.begin, range.end, [&](std::string_view, std::string_view) {
      ++count;
      return true;
    }));
    return count;
  }
  void ExpectSound() {
    EXPECT_TRUE(catalog_->Check(
        [](std::string_view key, std::string_view what) { ADD_FAILURE() << key << ": " << what; }));
  }

  TempDir dir_;
  Key256 master_ = RandomKey();
  FakeClock clock_;
  std::set<std::string> mounted_;
  std::unique_ptr<KeyStore> key_store_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Registry> registry_;
  std::string org_;
  std::string other_;
};

// The machine code of a refusal, or "" for an answer.
template <typename T>
std::string CodeOf(const Ruled<T>& answer) {
  return answer ? "" : answer.error().code();
}

}  // namespace cairn
