// Opening a data directory: who may, which are refused, and that a refusal changes nothing in them.
#include "store/data_directory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "tests/support/faulty_file_system.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

Result<std::unique_ptr<DataDirectory>> OpenDir(const std::string& dir, std::string key_file = {}) {
  return DataDirectory::Open(
      {.fs = HostFileSystem(), .dir = dir, .master_key_file = std::move(key_file)});
}

// Every path below `dir` with its contents, size and modification time.
std::map<std::string, std::string> Snapshot(const std::string& dir) {
  std::map<std::string, std::string> out;
  for (const auto& item : std::filesystem::recursive_directory_iterator(dir)) {
    struct stat st{};
    EXPECT_EQ(lstat(item.path().c_str(), &st), 0);
    out[item.path()] = fmt::format("{} {} {} {}", st.st_mode, st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                                   item.is_regular_file() ? ReadHostFile(item.path()) : "");
  }
  return out;
}

TEST(DataDirectory, IsCreatedAndOpenedAgainWithACountedEpoch) {
  TempDir temp;
  Id128 store;
  Key256 key;
  {
    const auto opened = OpenDir(temp / "d");
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    EXPECT_EQ((*opened)->open_epoch(), 1u);
    store = (*opened)->store();
    key = (*opened)->master_key();
    EXPECT_FALSE(store.is_zero());
  }
  const auto again = OpenDir(temp / "d");
  ASSERT_TRUE(again.has_value()) << again.error().ToString();
  EXPECT_EQ((*again)->open_epoch(), 2u);
  EXPECT_EQ((*again)->store(), store);
  EXPECT_EQ((*again)->master_key(), key);
  for (const auto& item : std::filesystem::recursive_directory_iterator(temp / "d")) {
    struct stat st{};
    ASSERT_EQ(stat(item.path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 077, 0u) << item.path() << " is for its owner only";
  }
}

TEST(DataDirectory, KnowsWhetherAnEarlierOpeningStoredSomething) {
  TempDir temp;
  for (const std::string folder : {"index", "packs", "trash", "volumes"}) {
    const std::string dir = temp / folder;
    EXPECT_FALSE((*OpenDir(dir))->holds_data());
    EXPECT_FALSE((*OpenDir(dir))->holds_data()) << "an initialisation alone is nothing to lose";
    ASSERT_TRUE(HostFileSystem().MakeDir(dir + "/" + folder + "/something"));
    EXPECT_TRUE((*OpenDir(dir))->holds_data()) << folder;
  }
}

TEST(DataDirectory, SecondOpenerIsRefusedWithThePidOfTheFirst) {
  TempDir temp;
  const auto first = OpenDir(temp / "d");
  ASSERT_TRUE(first.has_value());
  const auto second = OpenDir(temp / "d");
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(second.error().message().find("process " + std::to_string(getpid())), std::string::npos)
      << second.error().message();
}

TEST(DataDirectory, NewerFormatIsRefusedAndUntouched) {
  struct Case {
    const char* what;
    DataDirectoryFormat format;
  };
  DataDirectoryFormat newer{.version = 2, .min_reader = 2, .store = {}, .master_key_check = {}};
  DataDirectoryFormat feature{.incompatible = 4, .master_key_check = "0123456789abcdef"};
  DataDirectoryFormat ro_feature{.ro_compatible = 1, .master_key_check = "0123456789abcdef"};
  for (const Case& c : {Case{"version", newer}, Case{"feature", feature}, Case{"ro", ro_feature}}) {
    TempDir temp;
    {
      ASSERT_TRUE(OpenDir(temp / "d").has_value());
    }
    std::string text = EncodeFormat(c.format);
    if (c.format.min_reader > 1) text += "a line of version 2: 1\n";
    WriteHostFile(temp / "d/cairn.format", text);
    const auto before = Snapshot(temp / "d");
    const auto opened = OpenDir(temp / "d");
    ASSERT_FALSE(opened.has_value()) << c.what;
    EXPECT_EQ(opened.error().code(), ErrorCode::kFailedPrecondition) << c.what;
    EXPECT_NE(opened.error().message().find("upgrade"), std::string::npos);
    const Status checked = DataDirectory::CheckFormat(HostFileSystem(), temp / "d");
    ASSERT_FALSE(checked.has_value()) << c.what;
    EXPECT_EQ(checked.error().code(), ErrorCode::kFailedPrecondition) << c.what;
    EXPECT_EQ(Snapshot(temp / "d"), before) << c.what;
  }
}

TEST(DataDirectory, FormatIsCheckedBesideTheProcessThatServes) {
  TempDir temp;
  EXPECT_EQ(DataDirectory::CheckFormat(HostFileSystem(), temp / "d").error().code(),
            ErrorCode::kNotFound);
  const auto served = OpenDir(temp / "d");
  ASSERT_TRUE(served.has_value());
  const auto before = Snapshot(temp / "d");
  EXPECT_TRUE(DataDirectory::CheckFormat(HostFileSystem(), temp / "d").has_value());
  EXPECT_EQ(Snapshot(temp / "d"), before);
  WriteHostFile(temp / "d/cairn.format", "no format");
  EXPECT_EQ(DataDirectory::CheckFormat(HostFileSystem(), temp / "d").error().code(),
            ErrorCode::kDataLoss);
}

// What a power cut leaves of a backup that had just begun.
TEST(DataDirectory, ADirectoryThatWasToBecomeABackupIsNotInitialised) {
  TempDir temp;
  const std::string set = temp / "20250611T021500Z.partial";
  const auto expect_refused = [](const std::string& dir) {
    const auto opened = OpenDir(dir);
    ASSERT_FALSE(opened.has_value()) << dir;
    EXPECT_EQ(opened.error().code(), ErrorCode::kFailedPrecondition) << dir;
    EXPECT_NE(opened.error().message().find("unfinished backup"), std::string::npos)
        << opened.error().message();
  };
  expect_refused(set);
  EXPECT_FALSE(std::filesystem::exists(set));
  std::filesystem::create_directory(set);
  std::filesystem::create_directory_symlink(set, temp / "link");
  for (const std::string& dir : {set, set + "/", set + "/.", temp / "link"}) expect_refused(dir);
  EXPECT_TRUE(std::filesystem::is_empty(set));
  WriteHostFile(set + "/BACKUP.tmp", "cairn ba");
  expect_refused(set);
}

TEST(DataDirectory, RoomForTheNextOpeningIsKeptBehindTheEndOfLockUntilTheDiskIsFull) {
  TempDir temp;
  const std::string dir = temp / "d";
  FaultyFileSystem fs(temp / "scratch");
  const auto kept_bytes = [&] {
    struct stat st{};
    EXPECT_EQ(stat((dir + "/LOCK").c_str(), &st), 0);
    EXPECT_LT(st.st_size, 32);
    return static_cast<uint64_t>(st.st_blocks) * 512;
  };
  const uint64_t wanted = std::min(DataDirectory::kOpeningRoomBytes,
                                   HostFileSystem().Space(temp.path())->total_bytes / 32);
  {
    const auto opened = OpenDir(dir);
    ASSERT_TRUE(opened.has_value());
    EXPECT_LT(kept_bytes(), wanted);
    (*opened)->KeepOpeningRoom();
    EXPECT_GE(kept_bytes(), wanted);
    (*opened)->KeepOpeningRoom();
    EXPECT_LT(kept_bytes(), 2 * wanted);
  }
  EXPECT_TRUE(OpenDir(dir).has_value());
  EXPECT_GE(kept_bytes(), wanted) << "there was room elsewhere";
  WriteHostFile(dir + "/reserve", "");
  std::filesystem::resize_file(dir + "/reserve", 64 << 20);
  fs.SetSpaceLeft(2 << 20);
  EXPECT_TRUE(DataDirectory::Open({.fs = fs, .dir = dir}).has_value());
  EXPECT_GE(kept_bytes(), wanted) << "the reserve file has room";
  std::filesystem::remove(dir + "/reserve");
  EXPECT_TRUE(DataDirectory::Open({.fs = fs, .dir = dir}).has_value());
  EXPECT_LT(kept_bytes(), 16384u);
}

TEST(DataDirectory, CompatibleFeatureBitsAreKept) {
  TempDir temp;
  {
    ASSERT_TRUE(OpenDir(temp / "d").has_value());
  }
  auto format = DecodeFormat(ReadHostFile(temp / "d/cairn.format"));
  ASSERT_TRUE(format.has_value());
  format->compatible = 8;
  WriteHostFile(temp / "d/cairn.format", EncodeFormat(*format));
  {
    ASSERT_TRUE(OpenDir(temp / "d").has_value());
  }
  EXPECT_EQ(DecodeFormat(ReadHostFile(temp / "d/cairn.format"))->compatible, 8u);
}

TEST(DataDirectory, ForeignDirectoryIsRefusedAndUntouched) {
  TempDir temp;
  std::filesystem::create_directories(temp / "d/sub");
  WriteHostFile(temp / "d/notes.txt", "mine");
  const auto before = Snapshot(temp / "d");
  const auto opened = OpenDir(temp / "d");
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(opened.error().message().find("notes.txt"), std::string::npos);
  EXPECT_EQ(Snapshot(temp / "d"), before);
}

TEST(DataDirectory, DataWithoutFormatFileIsRefused) {
  TempDir temp;
  {
    ASSERT_TRUE(OpenDir(temp / "d").has_value());
  }
  std::filesystem::create_directories(temp / "d/packs/00");
  std::filesystem::remove(temp / "d/cairn.format");
  const auto opened = OpenDir(temp / "d");
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().message().find("restore"), std::string::npos);
}

TEST(DataDirectory, EveryFlippedBitOfTheFormatIsFound) {
  const std::string good = EncodeFormat({.store = BaseRealm(),
                                         .open_epoch = 17,
                                         .master_key_check = "0123456789abcdef",
                                         .next_master_key_check = "fedcba9876543210",
                                         .instance = BaseRealm(),
                                         .home = "- 1.000000002"});
  ASSERT_TRUE(DecodeFormat(good).has_value());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeFormat(bad).has_value()) << "bit " << bit << "\n" << bad;
  }
  for (size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(DecodeFormat(good.substr(0, n)).has_value());
}

TEST(DataDirectory, DamagedFormatIsDataLoss) {
  TempDir temp;
  {
    ASSERT_TRUE(OpenDir(temp / "d").has_value());
  }
  FlipBit(temp / "d/cairn.format", 60);
  const auto before = Snapshot(temp / "d");
  EXPECT_EQ(OpenDir(temp / "d").error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(Snapshot(temp / "d"), before);
}

TEST(DataDirectory, MasterKeyMustBePrivatePresentAndTheRightOne) {
  TempDir temp;
  {
    ASSERT_TRUE(OpenDir(temp / "d").has_value());
  }
  const std::string key = temp / "d/master.key";
  const std::string good = ReadHostFile(key);
  ASSERT_EQ(chmod(key.c_str(), 0640), 0);
  EXPECT_EQ(OpenDir(temp / "d").error().code(), ErrorCode::kFailedPrecondition);
  ASSERT_EQ(chmod(key.c_str(), 0600), 0);
  std::string other = good;
  other[0] = other[0] == '0' ? '1' : '0';
  WriteHostFile(key, other);
  EXPECT_EQ(OpenDir(temp / "d").error().code(), ErrorCode::kFailedPrecondition);
  WriteHostFile(key, "short");
  EXPECT_EQ(OpenDir(temp / "d").error().code(), ErrorCode::kInvalidArgument);
  std::filesystem::remove(key);
  const auto missing = OpenDir(temp / "d");
  EXPECT_EQ(missing.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(key)) << "a lost key is never replaced by a new one";
  WriteHostFile(key, good);
  EXPECT_TRUE(OpenDir(temp / "d").has_value());
}

TEST(DataDirectory, MasterKeyMayLieElsewhere) {
  TempDir temp;
  const std::string key = temp / "key";
  EXPECT_EQ(OpenDir(temp / "d", key).error().code(), ErrorCode::kFailedPrecondition);
  WriteHostFile(key, std::string(64, 'a') + "\n");
  ASSERT_EQ(chmod(key.c_str(), 0600), 0);
  const auto opened = OpenDir(temp / "d", key);
  ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
  EXPECT_FALSE(std::filesystem::exists(temp / "d/master.key"));
  EXPECT_EQ((*opened)->master_key()[0], 0xaa);
}

TEST(DataDirectory, MasterKeyMayComeFromACommand) {
  TempDir temp;
  const auto open = [&](const std::string& command) {
    return DataDirectory::Open(
        {.fs = HostFileSystem(), .dir = temp / "d", .master_key_command = command});
  };
  {
    const auto opened = open("printf '%064d' 7");
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    EXPECT_FALSE(std::filesystem::exists(temp / "d/master.key"));
    EXPECT_EQ((*opened)->master_key()[31], 0x07);
  }
  EXPECT_EQ(open("printf '%064d' 8").error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(open("exit 1").error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(open("printf '%064d' 7"));
}

TEST(DataDirectory, ACopyOfOneThatIsServedIsRefusedWithThePidAndThePathOfTheOther) {
  TempDir temp;
  const auto first = OpenDir(temp / "d");
  ASSERT_TRUE(first.has_value());
  std::filesystem::copy(temp / "d", temp / "copy", std::filesystem::copy_options::recursive);
  const auto before = Snapshot(temp / "copy");
  const auto second = OpenDir(temp / "copy");
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(second.error().message().find("process " + std::to_string(getpid())), std::string::npos)
      << second.error().message();
  EXPECT_NE(second.error().message().find(" in " + temp / "d"), std::string::npos)
      << second.error().message();
  EXPECT_EQ(Snapshot(temp / "copy"), before);
}

TEST(DataDirectory, ACopyIsRefusedUntilItIsAdoptedAsAnInstanceOfItsOwn) {
  TempDir temp;
  Id128 store;
  Id128 instance;
  uint64_t epoch = 0;
  {
    const auto opened = OpenDir(temp / "d");
    ASSERT_TRUE(opened.has_value());
    store = (*opened)->store();
    instance = (*opened)->instance();
    epoch = (*opened)->open_epoch();
  }
  std::filesystem::copy(temp / "d", temp / "copy", std::filesystem::copy_options::recursive);
  const auto refused = OpenDir(temp / "copy");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("--adopt"), std::string::npos);
  const auto original = OpenDir(temp / "d");  // goes on as ever
  ASSERT_TRUE(original.has_value()) << original.error().ToString();
  EXPECT_EQ((*original)->instance(), instance);
  EXPECT_EQ((*original)->open_epoch(), epoch + 1);
  {
    const auto adopted =
        DataDirectory::Open({.fs = HostFileSystem(), .dir = temp / "copy", .adopt = true});
    ASSERT_TRUE(adopted.has_value()) << adopted.error().ToString();
    EXPECT_EQ((*adopted)->store(), store);
    EXPECT_NE((*adopted)->instance(), instance);
    EXPECT_GE((*adopted)->open_epoch(), epoch + (1 << 20));
  }
  EXPECT_TRUE(OpenDir(temp / "copy").has_value()) << "it is at home now";
}

TEST(DataDirectory, ARenamedDirectoryIsNoCopy) {
  TempDir temp;
  ASSERT_TRUE(OpenDir(temp / "d").has_value());
  std::filesystem::rename(temp / "d", temp / "e");
  const auto opened = OpenDir(temp / "e");
  EXPECT_TRUE(opened.has_value()) << opened.error().ToString();
}

TEST(DataDirectory, AnotherMachineIsRefusedAndAnUnknownOneIsNot) {
  TempDir temp;
  const auto open = [&](const std::string& machine, bool adopt = false) {
    WriteHostFile(temp / "machine-id", machine);
    return DataDirectory::Open({.fs = HostFileSystem(),
                                .dir = temp / "d",
                                .adopt = adopt,
                                .machine_id_file = temp / "machine-id"});
  };
  const std::string one(32, '1');
  const std::string two(32, '2');
  Id128 instance;
  {
    const auto opened = open(one + "\n");
    ASSERT_TRUE(opened.has_value());
    instance = (*opened)->instance();
  }
  EXPECT_EQ(open(two).error().code(), ErrorCode::kFailedPrecondition);
  {
    const auto same = open(one);
    ASSERT_TRUE(same.has_value()) << "a machine that it did not move to changes nothing";
    EXPECT_EQ((*same)->instance(), instance);
  }
  {
    const auto adopted = open(two, true);
    ASSERT_TRUE(adopted.has_value()) << adopted.error().ToString();
    EXPECT_NE((*adopted)->instance(), instance);
  }
  EXPECT_TRUE(open("").has_value()) << "an image without a machine id";
}

TEST(DataDirectory, TwoMasterKeysOpenItWhileTheFormatNamesBoth) {
  TempDir temp;
  const auto key_file = [&](char digit) {
    const std::string path = temp / std::string("key_") + digit;
    WriteHostFile(path, std::string(64, digit) + "\n");
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  };
  Key256 next;
  next.fill(0xbb);
  {
    const auto opened = OpenDir(temp / "d", key_file('a'));
    ASSERT_TRUE(opened.has_value());
    EXPECT_FALSE((*opened)->has_next_master_key());
    ASSERT_TRUE((*opened)->SetNextMasterKey(next));
  }
  for (const char digit : {'a', 'b'}) {
    const auto opened = OpenDir(temp / "d", key_file(digit));
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    EXPECT_TRUE((*opened)->has_next_master_key());
    EXPECT_EQ((*opened)->IsNextMasterKey((*opened)->master_key()), digit == 'b');
  }
  EXPECT_FALSE(OpenDir(temp / "d", key_file('c')).has_value());
  {
    const auto opened = OpenDir(temp / "d", key_file('a'));
    ASSERT_TRUE((*opened)->SetMasterKey(next));
  }
  EXPECT_FALSE(OpenDir(temp / "d", key_file('a')).has_value());
  EXPECT_TRUE(OpenDir(temp / "d", key_file('b')).has_value());
}

TEST(DataDirectory, AbsentOneIsNotCreatedUnlessAsked) {
  TempDir temp;
  const auto opened =
      DataDirectory::Open({.fs = HostFileSystem(), .dir = temp / "d", .create = false});
  EXPECT_EQ(opened.error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(temp / "d"));
}

TEST(DataDirectory, InitialisationCutOffAtAnyStepIsCompleted) {
  for (uint64_t step = 1;; ++step) {
    TempDir temp;
    FaultyFileSystem fs(temp / "scratch");
    SeededRandom random(step);
    const DataDirectoryOptions options{.fs = fs, .dir = temp / "d"};
    fs.PowerOffAfter(step);
    const bool done = DataDirectory::Open(options).has_value();
    const bool off = fs.off();
    fs.PowerCut(random);
    const auto opened = DataDirectory::Open(options);
    ASSERT_TRUE(opened.has_value()) << "step " << step << ": " << opened.error().ToString();
    if (!off) {
      EXPECT_TRUE(done);
      EXPECT_EQ((*opened)->open_epoch(), 2u) << "an opening that was acknowledged is counted";
      break;
    }
  }
}

}  // namespace
}  // namespace cairn
