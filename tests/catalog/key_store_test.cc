// Key files: what a rotation and a destruction leave on the disk, after a power cut at every step
// of them as well.
#include "catalog/key_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "store/base/key_check.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

Key256 Filled(uint8_t fill) {
  Key256 key;
  key.fill(fill);
  return key;
}
const Key256 kOld = Filled(1);
const Key256 kNew = Filled(2);

Id128 Realm(uint8_t fill) {
  Id128 id;
  id.bytes.fill(fill);
  return id;
}

// keys/ on a file system whose power can be cut.
struct World {
  World() : dir(temp / "keys"), fs(temp / "scratch") { EXPECT_TRUE(HostFileSystem().MakeDir(dir)); }
  std::unique_ptr<KeyStore> Open(const Key256& master = kOld) {
    auto opened = KeyStore::Open(fs, dir, master);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened ? *std::move(opened) : nullptr;
  }
  std::string Bytes(const Id128& realm) {
    const auto bytes =
        ReadWholeFile(HostFileSystem(), dir + "/" + realm.ToHex() + ".key", kKeyFileBytes);
    EXPECT_TRUE(bytes);
    return bytes.value_or("");
  }
  // All wrapped keys of a file as they lie there.
  std::vector<std::string> Wrapped(const Id128& realm) {
    std::vector<std::string> all;
    const std::string bytes = Bytes(realm);
    for (const size_t at : {size_t{0}, kKeySlotBytes}) {
      const auto slot = DecodeKeySlot(std::string_view(bytes).substr(at, kKeySlotBytes));
      if (!slot) continue;
      if (!slot->wrapped_address_key.empty()) all.push_back(slot->wrapped_address_key);
      for (const auto& [id, wrapped] : slot->wrapped) all.push_back(wrapped);
    }
    return all;
  }

  TempDir temp;
  const std::string dir;
  FaultyFileSystem fs;
};

// Runs `change` with the power cut after each of its steps; `check` sees the world afterwards, and
// whether the change had been acknowledged.
void AtEveryStep(const std::function<void(World&)>& prepare,
                 const std::function<bool(World&)>& change,
                 const std::function<void(World&, bool acknowledged)>& check) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (uint64_t step = 1;; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      ASSERT_LT(step, 200u);
      World world;
      prepare(world);
      SeededRandom random(seed * 1000 + step);
      world.fs.PowerOffAfter(step);
      const bool acknowledged = change(world);
      const bool off = world.fs.off();
      world.fs.PowerCut(random);
      check(world, acknowledged);
      if (!off) break;
    }
  }
}

TEST(KeyStore, KeepsKeysOfRealmsAndOfTheCatalog) {
  World world;
  RealmSecrets made;
  CatalogKey catalog;
  {
    const auto store = world.Open();
    EXPECT_FALSE(store->HasCatalogKey());
    catalog = *store->CreateCatalogKey();
    made = *store->CreateRealm(Realm(1));
    EXPECT_EQ(store->CreateRealm(Realm(1)).error().code(), ErrorCode::kAlreadyExists);
    EXPECT_EQ(store->CreateCatalogKey().error().code(), ErrorCode::kAlreadyExists);
    EXPECT_EQ(store->ReadRealm(Realm(2)).error().code(), ErrorCode::kNotFound);
  }
  const auto store = world.Open();
  EXPECT_EQ(store->ReadCatalogKey()->key, catalog.key);
  const auto read = store->ReadRealm(Realm(1));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->address_key, made.address_key);
  EXPECT_EQ(read->wrapping_keys, made.wrapping_keys);
  EXPECT_EQ(read->current_key_id, 1u);
  const auto other = world.Open(kNew)->ReadRealm(Realm(1));
  EXPECT_EQ(other.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(other.error().message().find(Realm(1).ToHex()), std::string::npos);
}

TEST(KeyStore, ASlotOfAnotherRealmIsNotTaken) {
  World world;
  const auto store = world.Open();
  ASSERT_TRUE(store->CreateRealm(Realm(1)));
  ASSERT_TRUE(store->CreateRealm(Realm(2)));
  std::filesystem::copy_file(world.dir + "/" + Realm(1).ToHex() + ".key",
                             world.dir + "/" + Realm(2).ToHex() + ".key",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(store->ReadRealm(Realm(2)).error().code(), ErrorCode::kDataLoss);
}

TEST(KeyStore, EveryFlippedBitOfASlotIsFound) {
  const KeySlot slot{
      .kind = KeySlotKind::kRealm,
      .generation = 3,
      .realm = Realm(1),
      .master_check = KeyCheck(kOld),
      .current_key_id = 2,
      .wrapped_address_key = std::string(kStoredKeyBytes, 'a'),
      .wrapped = {{1, std::string(kStoredKeyBytes, 'b')}, {2, std::string(kStoredKeyBytes, 'c')}}};
  const std::string good = EncodeKeySlot(slot);
  ASSERT_TRUE(DecodeKeySlot(good));
  EXPECT_EQ(DecodeKeySlot(good)->wrapped, slot.wrapped);
  for (size_t bit = 0; bit < good.size() * 8; bit += 7) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeKeySlot(bad)) << bit;
  }
  EXPECT_FALSE(DecodeKeySlot(std::string(kKeySlotBytes, '\0')));
}

TEST(KeyStore, RotationKeepsOldVersionsAndEndsAtItsLimit) {
  World world;
  const auto store = world.Open();
  const RealmSecrets first = *store->CreateRealm(Realm(1));
  for (size_t version = 2; version <= kMaxKeyVersions; ++version) {
    ASSERT_TRUE(store->RotateRealm(Realm(1))) << version;
  }
  EXPECT_EQ(store->RotateRealm(Realm(1)).error().code(), ErrorCode::kExhausted);
  const auto last = store->ReadRealm(Realm(1));
  EXPECT_EQ(last->wrapping_keys.size(), kMaxKeyVersions);
  EXPECT_EQ(last->wrapping_keys.at(1), first.wrapping_keys.at(1));
  EXPECT_EQ(last->current_key_id, kMaxKeyVersions);
  EXPECT_EQ(world.Wrapped(Realm(1)).size(), kMaxKeyVersions + 1) << "the other slot is erased";
}

TEST(KeyStore, ARotationCutOffAtAnyStepLeavesEveryVersionThatWasEverUsed) {
  RealmSecrets before;
  AtEveryStep([&](World& world) { before = *world.Open()->CreateRealm(Realm(1)); },
              [](World& world) { return world.Open()->RotateRealm(Realm(1)).has_value(); },
              [&](World& world, bool acknowledged) {
                const auto store = world.Open();
                const auto after = store->ReadRealm(Realm(1));
                ASSERT_TRUE(after) << after.error().ToString();
                EXPECT_EQ(after->address_key, before.address_key);
                EXPECT_EQ(after->wrapping_keys.at(1), before.wrapping_keys.at(1));
                if (acknowledged) {
                  EXPECT_EQ(after->current_key_id, 2u);
                }
                ASSERT_TRUE(store->ForgetOtherMasters());
                EXPECT_EQ(world.Wrapped(Realm(1)).size(), 1 + after->wrapping_keys.size());
              });
}

TEST(KeyStore, ADestroyedKeyIsInNoByteOfItsFile) {
  World world;
  const auto store = world.Open();
  ASSERT_TRUE(store->CreateRealm(Realm(1)));
  ASSERT_TRUE(store->RotateRealm(Realm(1)));
  const std::vector<std::string> wrapped = world.Wrapped(Realm(1));
  ASSERT_EQ(wrapped.size(), 3u);
  EXPECT_EQ(store->RemoveDestroyed(Realm(1)).error().code(), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(store->DestroyRealm(Realm(1)));
  ASSERT_TRUE(store->DestroyRealm(Realm(1)));
  const std::string bytes = world.Bytes(Realm(1));
  for (const std::string& key : wrapped) EXPECT_EQ(bytes.find(key), std::string::npos);
  EXPECT_EQ(store->ReadRealm(Realm(1)).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(store->ListRealms()->at(0).second, KeyStore::RealmState::kDestroyed);
  ASSERT_TRUE(store->RemoveDestroyed(Realm(1)));
  ASSERT_TRUE(store->RemoveDestroyed(Realm(1)));
  ASSERT_TRUE(store->DestroyRealm(Realm(1)));
  EXPECT_TRUE(store->ListRealms()->empty());
}

// Also while the master key is being rotated: then both slots hold the keys.
class KeyDestruction : public testing::TestWithParam<bool> {};

TEST_P(KeyDestruction, CutOffAtAnyStepIsWholeOrNotBegunAndIsEndedByTheNextOpening) {
  std::vector<std::string> wrapped;
  int kept = 0;
  int destroyed = 0;
  AtEveryStep(
      [&](World& world) {
        const auto store = world.Open();
        ASSERT_TRUE(store->CreateRealm(Realm(1)));
        ASSERT_TRUE(store->RotateRealm(Realm(1)));
        if (GetParam()) {
          ASSERT_TRUE(store->PrepareMaster(kNew));
        }
        wrapped = world.Wrapped(Realm(1));
        ASSERT_EQ(wrapped.size(), GetParam() ? 6u : 3u);
      },
      [](World& world) { return world.Open()->DestroyRealm(Realm(1)).has_value(); },
      [&](World& world, bool acknowledged) {
        const auto store = world.Open();
        const auto keys = store->ReadRealm(Realm(1));
        if (keys) {
          EXPECT_FALSE(acknowledged);
          ++kept;
          return;
        }
        ++destroyed;
        ASSERT_EQ(keys.error().code(), ErrorCode::kFailedPrecondition) << keys.error().ToString();
        const std::string bytes = world.Bytes(Realm(1));
        for (const std::string& key : wrapped) {
          for (size_t at = 0; at + 16 <= key.size(); at += 4) {
            EXPECT_EQ(bytes.find(key.substr(at, 16)), std::string::npos);
          }
        }
      });
  EXPECT_GT(kept, 0);
  EXPECT_GT(destroyed, 1);
}

INSTANTIATE_TEST_SUITE_P(KeyStore, KeyDestruction, testing::Bool());

TEST(KeyStore, ACreationCutOffAtAnyStepIsThereWholeOrNotAtAll) {
  AtEveryStep([](World&) {},
              [](World& world) { return world.Open()->CreateRealm(Realm(1)).has_value(); },
              [](World& world, bool acknowledged) {
                const auto store = world.Open();
                const auto keys = store->ReadRealm(Realm(1));
                if (!keys) {
                  EXPECT_EQ(keys.error().code(), ErrorCode::kNotFound);
                }
                if (acknowledged) {
                  EXPECT_TRUE(keys);
                }
                for (const auto& item : std::filesystem::directory_iterator(world.dir)) {
                  EXPECT_EQ(item.path().extension(), ".key");
                }
              });
}

TEST(KeyStore,
     ACreationCutOffDuringARotationOfTheMasterKeyLeavesNothingThatOneOfTheTwoDoesNotOpen) {
  AtEveryStep([](World&) {},
              [](World& world) {
                const auto store = world.Open();
                return store->PrepareMaster(kNew) && store->CreateRealm(Realm(1)).has_value();
              },
              [](World& world, bool acknowledged) {
                for (const Key256& master : {kOld, kNew}) {
                  const auto store = world.Open(master);
                  EXPECT_TRUE(store->OpensWith(master));
                  if (acknowledged) {
                    EXPECT_TRUE(store->ReadRealm(Realm(1)));
                  }
                }
              });
}

TEST(KeyStore, WithTwoMasterKeysEitherOpensEverything) {
  World world;
  const auto store = world.Open();
  const CatalogKey catalog = *store->CreateCatalogKey();
  const RealmSecrets realm = *store->CreateRealm(Realm(1));
  EXPECT_EQ(store->PrepareMaster(kOld).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->OpensWith(kNew).error().code(), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(store->PrepareMaster(kNew));
  EXPECT_EQ(store->RotateRealm(Realm(1)).error().code(), ErrorCode::kFailedPrecondition);
  const RealmSecrets later = *store->CreateRealm(Realm(2));
  for (const Key256& master : {kOld, kNew}) {
    const auto opened = world.Open(master);
    EXPECT_TRUE(opened->OpensWith(master));
    EXPECT_EQ(opened->ReadCatalogKey()->key, catalog.key);
    EXPECT_EQ(opened->ReadRealm(Realm(1))->wrapping_keys, realm.wrapping_keys);
    EXPECT_EQ(opened->ReadRealm(Realm(1))->address_key, realm.address_key);
    EXPECT_EQ(opened->ReadRealm(Realm(2))->wrapping_keys, later.wrapping_keys);
  }
  ASSERT_TRUE(store->AdoptMaster(kNew));
  EXPECT_EQ(store->ReadRealm(Realm(1))->wrapping_keys, realm.wrapping_keys);
  EXPECT_TRUE(store->RotateRealm(Realm(1)));
  EXPECT_EQ(world.Open(kOld)->ReadRealm(Realm(1)).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(world.Open(kOld)->ReadCatalogKey().error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(world.Wrapped(Realm(2)).size(), 2u) << "what the old one wrapped is erased";
}

TEST(KeyStore, NothingIsMadeThatOnlyAKeyOnItsWayOutOpens) {
  World world;
  const auto store = world.Open();
  ASSERT_TRUE(store->CreateRealm(Realm(1)));
  store->SetOtherMasterPending();
  EXPECT_EQ(store->CreateRealm(Realm(2)).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(store->RotateRealm(Realm(1)).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(store->ReadRealm(Realm(1)));
  EXPECT_TRUE(store->DestroyRealm(Realm(1)));
}

TEST(KeyStore, AFileThatDoesNotOpenStopsTheRotationBeforeAnythingIsWritten) {
  World world;
  const auto store = world.Open();
  ASSERT_TRUE(store->CreateRealm(Realm(1)));
  ASSERT_TRUE(world.Open(kNew)->CreateRealm(Realm(2)));
  const std::string before = world.Bytes(Realm(1));
  const Status prepared = store->PrepareMaster(Filled(3));
  ASSERT_FALSE(prepared);
  EXPECT_NE(prepared.error().message().find(Realm(2).ToHex()), std::string::npos);
  EXPECT_EQ(world.Bytes(Realm(1)), before);
}

}  // namespace
}  // namespace cairn
