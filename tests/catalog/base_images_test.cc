// Records of base images: names, what is incomplete, and Environments that start from one.
#include <gtest/gtest.h>

#include <functional>

#include "tests/catalog/registry_fixture.h"
#include "tests/support/mem_catalog.h"

namespace cairn {
namespace {

const std::string kRoot(40, 'r');  // the catalog does not look into it

catalog::BaseImage MustComplete(Registry& registry, const std::string& name) {
  auto image = registry.BeginBaseImage(name);
  EXPECT_TRUE(image) << image.error().ToString();
  image->set_root(kRoot);
  image->set_hash_seed(11);
  image->set_next_ino(500);
  image->set_inodes(400);
  image->set_bytes(1'000'000);
  image->set_complete(true);
  EXPECT_TRUE(registry.UpdateBaseImage(*image));
  return *image;
}

class BaseImageRecords : public RegistryFixture {
 protected:
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto images = registry_->ListBaseImages();
    EXPECT_TRUE(images);
    for (const auto& image : *images) names.push_back(image.name());
    return names;
  }
  Ruled<Created<catalog::Environment>> Start(const std::string& base, uint64_t quota_bytes = 0,
                                             uint64_t quota_inodes = 0) {
    return registry_->CreateEnvironment(
        org_,
        {.name = "e", .quota_bytes = quota_bytes, .quota_inodes = quota_inodes, .base = base});
  }
};

TEST_F(BaseImageRecords, ANameIsTakenOnceAndFreeAfterItsDeletion) {
  const auto first = MustComplete(*registry_, "tools");
  Advance(1);
  MustComplete(*registry_, "compilers");
  EXPECT_EQ(registry_->BeginBaseImage("tools").error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(registry_->GetBaseImage("tools")->SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(Names(), (std::vector<std::string>{"tools", "compilers"}));
  Reopen();
  ASSERT_TRUE(registry_->DeleteBaseImage("tools"));
  EXPECT_EQ(registry_->DeleteBaseImage("tools").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(registry_->GetBaseImage("tools").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(Names(), std::vector<std::string>{"compilers"});
  Advance(1);
  EXPECT_NE(MustComplete(*registry_, "tools").id(), first.id());
  ASSERT_TRUE(catalog_->Check(
      [](std::string_view key, std::string_view what) { ADD_FAILURE() << key << ": " << what; }));
}

TEST_F(BaseImageRecords, NamesAreNotEmptyAndBounded) {
  EXPECT_EQ(registry_->BeginBaseImage("").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(registry_->BeginBaseImage(std::string(256, 'n')));
  EXPECT_EQ(registry_->BeginBaseImage(std::string(257, 'n')).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(BaseImageRecords, NoNameIsInAKey) {
  MustComplete(*registry_, "operators-secret");
  size_t keys = 0;
  ASSERT_TRUE(catalog_->Scan("base", "base~", [&](std::string_view key, std::string_view) {
    ++keys;
    EXPECT_FALSE(key.contains("operators")) << key;
    return true;
  }));
  EXPECT_EQ(keys, 2u);
}

TEST_F(BaseImageRecords, AnIncompleteOneServesNobodyAndMakesRoom) {
  const auto image = registry_->BeginBaseImage("half");
  ASSERT_TRUE(image);
  EXPECT_EQ(registry_->GetBaseImage("half").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(Start("half").error().error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(registry_->DeleteBaseImage("half").error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(Names(), std::vector<std::string>{"half"});
  const auto kept = MustComplete(*registry_, "whole");  // its import removes "half"
  EXPECT_EQ(Names(), std::vector<std::string>{"whole"});
  EXPECT_EQ(registry_->UpdateBaseImage(*image).error().code(), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(registry_->BeginBaseImage("half"));
  EXPECT_EQ(*registry_->RemoveIncompleteBaseImages(), 1u);
  EXPECT_EQ(*registry_->RemoveIncompleteBaseImages(), 0u);
  EXPECT_EQ(Names(), std::vector<std::string>{"whole"});
}

TEST_F(BaseImageRecords, ACompleteOneDoesNotChange) {
  auto image = MustComplete(*registry_, "tools");
  image.set_root(std::string(40, 'x'));
  EXPECT_EQ(registry_->UpdateBaseImage(image).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(registry_->GetBaseImage("tools")->root(), kRoot);
}

TEST_F(BaseImageRecords, EnvironmentsOfEveryOrganizationStartWithItsRootAndOutliveIt) {
  const auto image = MustComplete(*registry_, "tools");
  const auto one = Start("tools");
  const auto two = registry_->CreateEnvironment(other_, {.base = "tools"});
  const auto session = registry_->CreateSession(org_, {.environment = {.base = "tools"}});
  ASSERT_TRUE(one && two && session);
  ASSERT_TRUE(registry_->DeleteBaseImage("tools"));
  const auto inlined = registry_->GetEnvironment(org_, session->record.env());
  ASSERT_TRUE(inlined);
  for (const catalog::Environment& env : {one->record, two->record, *inlined}) {
    EXPECT_EQ(env.state(), catalog::ENV_PENDING);
    EXPECT_EQ(env.base_image(), image.id());
    EXPECT_EQ(env.base_image_name(), "tools");
    const auto volume = *GetRecord<catalog::Volume>(*catalog_, keys::Volume(env.volume()));
    ASSERT_TRUE(volume);
    EXPECT_EQ(volume->root(), kRoot);
    EXPECT_EQ(volume->org(), env.org());
    EXPECT_EQ(volume->env(), env.id());
    EXPECT_EQ(volume->hash_seed(), 11u);
    EXPECT_EQ(volume->next_ino(), 500u);
    EXPECT_EQ(volume->base_inodes(), 400u);
    EXPECT_EQ(volume->base_bytes(), 1'000'000u);
    EXPECT_FALSE(volume->initialized());
  }
  EXPECT_NE(one->record.volume(), two->record.volume());
}

TEST_F(BaseImageRecords, AQuotaThatTheImageFillsIsRefused) {
  MustComplete(*registry_, "tools");
  EXPECT_EQ(Start("tools", 1'000'000).error().error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Start("tools", 0, 401).error().error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Start("tools", 1'000'001, 402));
  EXPECT_EQ(Start("none").error().error().code(), ErrorCode::kNotFound);
}

// A catalog that lets somebody else act between what a transaction read and its commit.
class InterruptedCatalog final : public Catalog {
 public:
  explicit InterruptedCatalog(Catalog& below) : below_(below) {}
  std::function<void()> before_commit;

  std::unique_ptr<CatalogTransaction> Begin() override {
    return std::make_unique<Transaction>(*this, below_.Begin());
  }
  Result<std::optional<std::string>> Get(std::string_view key) override { return below_.Get(key); }
  Status Scan(std::string_view begin, std::string_view end,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    return below_.Scan(begin, end, visit);
  }
  Status Check(const std::function<void(std::string_view, std::string_view)>& damage) override {
    return below_.Check(damage);
  }
  Status Close() override { return {}; }

 private:
  class Transaction final : public CatalogTransaction {
   public:
    Transaction(InterruptedCatalog& catalog, std::unique_ptr<CatalogTransaction> below)
        : catalog_(catalog), below_(std::move(below)) {}
    Result<std::optional<std::string>> Get(std::string_view key) override {
      return below_->Get(key);
    }
    void Put(std::string_view key, std::string_view value) override { below_->Put(key, value); }
    void Delete(std::string_view key) override { below_->Delete(key); }
    Status Scan(std::string_view begin, std::string_view end,
                const std::function<bool(std::string_view, std::string_view)>& visit) override {
      return below_->Scan(begin, end, visit);
    }
    Status Commit() override {
      if (const auto act = std::exchange(catalog_.before_commit, {})) act();
      return below_->Commit();
    }

   private:
    InterruptedCatalog& catalog_;
    const std::unique_ptr<CatalogTransaction> below_;
  };
  Catalog& below_;
};

TEST(BaseImageRaces, ADeletionWhileAnEnvironmentStartsComesBeforeOrAfterIt) {
  TempDir dir;
  FakeClock clock;
  MemCatalog records;
  InterruptedCatalog catalog(records);
  ASSERT_TRUE(HostFileSystem().MakeDir(dir / "keys"));
  const auto key_store = *KeyStore::Open(HostFileSystem(), dir / "keys", Key256{});
  const auto registry = *Registry::Open(catalog, clock, *key_store);
  const std::string org = registry->CreateOrganization("one")->org;
  MustComplete(*registry, "tools");
  catalog.before_commit = [&] { ASSERT_TRUE(registry->DeleteBaseImage("tools")); };
  const auto made = registry->CreateEnvironment(org, {.base = "tools"});
  ASSERT_FALSE(made) << "its root may be collected already";
  EXPECT_EQ(made.error().error().code(), ErrorCode::kNotFound);
}

TEST(BaseImageRaces, TwoImportsOfOneNameAreNotBothBegun) {
  TempDir dir;
  FakeClock clock;
  MemCatalog records;
  InterruptedCatalog catalog(records);
  ASSERT_TRUE(HostFileSystem().MakeDir(dir / "keys"));
  const auto key_store = *KeyStore::Open(HostFileSystem(), dir / "keys", Key256{});
  const auto registry = *Registry::Open(catalog, clock, *key_store);
  // The first commit of Begin is the removal of what is incomplete: nothing to remove, no write.
  catalog.before_commit = [&] {
    catalog.before_commit = [&] { MustComplete(*registry, "tools"); };
  };
  EXPECT_EQ(registry->BeginBaseImage("tools").error().code(), ErrorCode::kAlreadyExists);
}

}  // namespace
}  // namespace cairn
