// Rotation of the master key: a power cut at any step, and the key that its source gives afterwards
// opens everything.
#include "admin/master_rotation.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "store/master_key.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/store_world.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

Id128 Realm(uint8_t fill) {
  Id128 id;
  id.bytes.fill(fill);
  return id;
}

// A data directory as a daemon opens it.
struct Life {
  std::unique_ptr<DataDirectory> directory;
  std::unique_ptr<KeyStore> keys;
  std::unique_ptr<MasterRotation> rotation;

  static Result<Life> Start(FileSystem& fs, const std::string& dir, const std::string& file = {},
                            const std::string& command = {}) {
    Life life;
    life.directory = CAIRN_TRY(DataDirectory::Open(
        {.fs = fs, .dir = dir, .master_key_file = file, .master_key_command = command}));
    life.keys =
        CAIRN_TRY(KeyStore::Open(fs, life.directory->KeysDir(), life.directory->master_key()));
    life.rotation = std::make_unique<MasterRotation>(fs, *life.directory, *life.keys);
    CAIRN_TRY(life.rotation->Resume());
    if (!life.keys->HasCatalogKey()) CAIRN_TRY(life.keys->CreateCatalogKey());
    return life;
  }
};

void WriteKey(const std::string& path, char digit) {
  WriteHostFile(path, std::string(64, digit) + "\n");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
}

TEST(MasterRotation, ReplacesTheKeyInItsFileAndLeavesNoTraceOfTheOldOne) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  auto life = Life::Start(fs, temp / "d");
  ASSERT_TRUE(life) << life.error().ToString();
  const RealmSecrets realm = *life->keys->CreateRealm(Realm(1));
  const std::string old_key = ReadHostFile(temp / "d/master.key");
  std::filesystem::create_hard_link(temp / "d/master.key", temp / "old");
  const auto rotated = life->rotation->Rotate("");
  ASSERT_TRUE(rotated) << rotated.error().ToString();
  EXPECT_EQ(*rotated, MasterRotation::Outcome::kRotated);
  EXPECT_NE(ReadHostFile(temp / "d/master.key"), old_key);
  EXPECT_EQ(ReadHostFile(temp / "old"), std::string(old_key.size(), '\0')) << "bytes of the file";
  EXPECT_FALSE(std::filesystem::exists(temp / "d/master.key.next"));
  struct stat st{};
  ASSERT_EQ(stat((temp / "d/master.key").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  // This life goes on, and the next opens with the new key only.
  EXPECT_TRUE(life->keys->CreateRealm(Realm(2)));
  EXPECT_TRUE(life->keys->RotateRealm(Realm(1)));
  *life = {};
  auto again = Life::Start(fs, temp / "d");
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->keys->ReadRealm(Realm(1))->wrapping_keys.at(1), realm.wrapping_keys.at(1));
  EXPECT_TRUE(again->keys->ReadRealm(Realm(2)));
  *again = {};
  WriteHostFile(temp / "d/master.key", old_key);
  EXPECT_EQ(Life::Start(fs, temp / "d").error().code(), ErrorCode::kFailedPrecondition);
}

TEST(MasterRotation, CutOffAtAnyStepTheKeyInTheFileOpensEverything) {
  int resumed = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (uint64_t step = 1;; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      ASSERT_LT(step, 200u);
      TempDir temp;
      FaultyFileSystem fs(temp / "scratch");
      RealmSecrets realm;
      CatalogKey catalog;
      std::string old_key;
      bool acknowledged = false;
      bool off = false;
      {
        auto life = Life::Start(fs, temp / "d");
        ASSERT_TRUE(life) << life.error().ToString();
        realm = *life->keys->CreateRealm(Realm(1));
        catalog = *life->keys->ReadCatalogKey();
        old_key = ReadHostFile(temp / "d/master.key");
        fs.PowerOffAfter(step);
        acknowledged = life->rotation->Rotate("").has_value();
        off = fs.off();
      }
      SeededRandom random(seed * 1000 + step);
      fs.PowerCut(random);
      for (int start = 0; start < 2; ++start) {
        auto life = Life::Start(fs, temp / "d");
        ASSERT_TRUE(life) << life.error().ToString();
        const auto keys = life->keys->ReadRealm(Realm(1));
        ASSERT_TRUE(keys) << keys.error().ToString();
        EXPECT_EQ(keys->wrapping_keys, realm.wrapping_keys);
        EXPECT_EQ(keys->address_key, realm.address_key);
        EXPECT_EQ(life->keys->ReadCatalogKey()->key, catalog.key);
        EXPECT_FALSE(life->directory->has_next_master_key());
        EXPECT_FALSE(std::filesystem::exists(temp / "d/master.key.next"));
        const bool changed = ReadHostFile(temp / "d/master.key") != old_key;
        if (acknowledged) {
          EXPECT_TRUE(changed);
        }
        if (changed && !acknowledged) ++resumed;
        EXPECT_TRUE(life->keys->RotateRealm(Realm(1)).has_value() || start > 0);
        realm = *life->keys->ReadRealm(Realm(1));
      }
      if (!off) break;
    }
  }
  EXPECT_GT(resumed, 3) << "some of the cuts must fall behind the point of no return";
}

// A rotation that is cut off together with the deletion of an organization, whose first write is
// torn: the slot of the new key is neither destroyed nor whole.
TEST(MasterRotation, ASlotOfTheNewKeyThatTheSameCrashSpoiltIsWrittenAgain) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  RealmSecrets realm;
  {
    auto life = Life::Start(fs, temp / "d");
    ASSERT_TRUE(life) << life.error().ToString();
    realm = *life->keys->CreateRealm(Realm(1));
    Key256 next;
    next.fill(9);
    ASSERT_TRUE(WriteMasterKeyFile(fs, temp / "d/master.key.next", next));
    ASSERT_TRUE(life->keys->PrepareMaster(next));
    ASSERT_TRUE(life->directory->SetNextMasterKey(next));
  }
  FlipBit(temp / "d/keys/" + Realm(1).ToHex() + ".key", kKeySlotBytes + 100);
  auto life = Life::Start(fs, temp / "d");
  ASSERT_TRUE(life) << life.error().ToString();
  EXPECT_FALSE(life->directory->has_next_master_key());
  const auto keys = life->keys->ReadRealm(Realm(1));
  ASSERT_TRUE(keys) << keys.error().ToString();
  EXPECT_EQ(keys->wrapping_keys, realm.wrapping_keys);
}

TEST(MasterRotation, WithAnOperatorsKeyBothOpenUntilItsSourceGivesTheNewOne) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  WriteKey(temp / "key", 'a');
  WriteKey(temp / "new", 'b');
  auto life = Life::Start(fs, temp / "d", temp / "key");
  ASSERT_TRUE(life) << life.error().ToString();
  ASSERT_TRUE(life->keys->CreateRealm(Realm(1)));
  EXPECT_EQ(life->rotation->Finish().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(life->rotation->Rotate(temp / "absent").error().code(), ErrorCode::kFailedPrecondition);
  const auto begun = life->rotation->Rotate(temp / "new");
  ASSERT_TRUE(begun) << begun.error().ToString();
  EXPECT_EQ(*begun, MasterRotation::Outcome::kPending);
  const auto early = life->rotation->Finish();
  EXPECT_EQ(early.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(life->rotation->Rotate("").error().code(), ErrorCode::kFailedPrecondition)
      << "a key of our own would lock the operator's out";
  ASSERT_TRUE(life->keys->CreateRealm(Realm(2))) << "this life knows both keys";
  *life = {};
  {  // a restart with the old key: nothing is decided, and nothing is made that only it opens
    auto old_one = Life::Start(fs, temp / "d", temp / "key");
    ASSERT_TRUE(old_one) << old_one.error().ToString();
    EXPECT_TRUE(old_one->keys->ReadRealm(Realm(2)));
    EXPECT_FALSE(old_one->keys->CreateRealm(Realm(3)));
  }
  {
    auto old_one = Life::Start(fs, temp / "d", temp / "key");
    WriteKey(temp / "key", 'b');
    const auto ended = old_one->rotation->Finish();
    ASSERT_TRUE(ended) << ended.error().ToString();
    EXPECT_TRUE(old_one->keys->CreateRealm(Realm(3)));
  }
  WriteKey(temp / "key", 'a');
  EXPECT_FALSE(Life::Start(fs, temp / "d", temp / "key"));
  WriteKey(temp / "key", 'b');
  auto last = Life::Start(fs, temp / "d", temp / "key");
  ASSERT_TRUE(last);
  for (const uint8_t realm : {1, 2, 3}) EXPECT_TRUE(last->keys->ReadRealm(Realm(realm)));
}

TEST(MasterRotation, AStartThatIsGivenTheNewKeyEndsIt) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  WriteKey(temp / "key", 'a');
  WriteKey(temp / "new", 'b');
  const std::string command = "cat " + temp / "key";
  auto life = Life::Start(fs, temp / "d", {}, command);
  ASSERT_TRUE(life) << life.error().ToString();
  ASSERT_TRUE(life->keys->CreateRealm(Realm(1)));
  const auto refused = life->rotation->Rotate("");
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("--new-key"), std::string::npos);
  ASSERT_TRUE(life->rotation->Rotate(temp / "new"));
  *life = {};
  WriteKey(temp / "key", 'b');
  auto again = Life::Start(fs, temp / "d", {}, command);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_FALSE(again->directory->has_next_master_key());
  EXPECT_TRUE(again->keys->RotateRealm(Realm(1)));
}

}  // namespace
}  // namespace cairn
