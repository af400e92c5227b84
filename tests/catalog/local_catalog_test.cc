// What the RocksDB catalog promises beyond the contract: crashes lose nothing acknowledged, damage
// is found and named.
#include "catalog/local_catalog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "catalog/records.h"
#include "catalog/value_cipher.h"
#include "tests/support/open_catalog.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

const std::string kOrgId = "org_00000000000000000000000000000001";

Key256 TestKey(uint8_t fill) {
  Key256 key;
  key.fill(fill);
  return key;
}

std::string EnvId(int number) { return "env_" + keys::Number(0) + keys::Number(number); }

std::string EnvRecord(int number) {
  catalog::Environment env;
  env.set_org(kOrgId);
  env.set_id(EnvId(number));
  env.set_name("canary-name-of-an-environment-" + std::to_string(number));
  return env.SerializeAsString();
}

class LocalCatalogTest : public testing::Test {
 protected:
  Result<std::unique_ptr<LocalCatalog>> Open(bool create = true, uint8_t master = 1) {
    return OpenCatalogIn(dir_.path(), TestKey(master), {.dir = {}, .create = create});
  }
  std::unique_ptr<LocalCatalog> MustOpen() {
    auto opened = Open();
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened ? *std::move(opened) : nullptr;
  }

  static Status PutEnv(Catalog& catalog, int number) {
    return catalog.Run([&](CatalogTransaction& txn) {
      txn.Put(keys::Environment(kOrgId, EnvId(number)), EnvRecord(number));
      return Status();
    });
  }
  static int CountEnvs(Catalog& catalog) {
    int count = 0;
    const keys::Range range = keys::Below("env", kOrgId);
    const Status scanned =
        catalog.Scan(range.begin, range.end, [&](std::string_view, std::string_view) {
          ++count;
          return true;
        });
    EXPECT_TRUE(scanned) << scanned.error().ToString();
    return count;
  }
  static std::vector<std::string> Damages(Catalog& catalog) {
    std::vector<std::string> found;
    const Status checked = catalog.Check([&](std::string_view key, std::string_view what) {
      found.push_back(std::string(key) + " | " + std::string(what));
    });
    EXPECT_TRUE(checked) << checked.error().ToString();
    return found;
  }

  std::vector<std::string> DbFiles(std::string_view suffix) const {
    std::vector<std::string> found;
    for (const auto& entry : stdfs::directory_iterator(dir_.path() + "/catalog/db")) {
      if (entry.path().string().ends_with(suffix)) found.push_back(entry.path().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  static void FlipByte(const std::string& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.is_open()) << path;
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }

  // Runs `body` in a child that is then killed as by kill -9, so that nothing is closed or flushed.
  template <typename Body>
  void InKilledChild(Body body) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      body();
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  void LeaveLogOf(int envs) {
    InKilledChild([&] {
      auto catalog = Open();
      if (!catalog) _exit(2);
      for (int i = 0; i < envs; ++i) {
        if (!PutEnv(**catalog, i)) _exit(3);
      }
    });
  }
  // As a power cut does: it was never synced.
  void LoseMark() const { stdfs::resize_file(Mark(), 0); }
  std::string Mark() const { return dir_.path() + "/catalog/committed"; }
  std::string LastLog() const {
    std::string last;
    for (const std::string& path : DbFiles(".log")) {
      if (stdfs::file_size(path) > 0) last = path;
    }
    return last;
  }

  TempDir dir_;
};

TEST_F(LocalCatalogTest, OpenWithoutCreateIsNotFoundAndMakesNothing) {
  EXPECT_EQ(Open(false).error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(stdfs::exists(dir_.path() + "/catalog"));
}

TEST_F(LocalCatalogTest, AnotherMasterKeyIsRefusedNamingTheFile) {
  ASSERT_TRUE(MustOpen()->Close());
  const auto opened = Open(true, 2);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(opened.error().message().find("keys/catalog.key"), std::string::npos);
}

TEST_F(LocalCatalogTest, ALostKeyFileIsNeverReplaced) {
  ASSERT_TRUE(MustOpen()->Close());
  stdfs::remove(dir_.path() + "/keys/catalog.key");
  EXPECT_EQ(Open().error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(stdfs::exists(dir_.path() + "/keys/catalog.key"));
}

TEST_F(LocalCatalogTest, ADirectoryFromBeforeKeyFilesIsRefusedAndSaysWhy) {
  ASSERT_TRUE(MustOpen()->Close());
  stdfs::rename(dir_.path() + "/keys/catalog.key", dir_.path() + "/catalog/key");
  const auto opened = Open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(opened.error().message().find("never released"), std::string::npos);
  EXPECT_FALSE(stdfs::exists(dir_.path() + "/keys/catalog.key"));
}

TEST_F(LocalCatalogTest, ADamagedKeyFileIsRefused) {
  ASSERT_TRUE(MustOpen()->Close());
  const std::string path = dir_.path() + "/keys/catalog.key";
  for (const uint64_t offset : {0, 8, 10, 12, 16, 24, 40, 48, 56, 116, 120, 8000, 8190}) {
    FlipByte(path, offset);
    const auto opened = Open();
    ASSERT_FALSE(opened) << offset;
    EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss) << offset;
    FlipByte(path, offset);
  }
  ASSERT_TRUE(Open());
}

TEST_F(LocalCatalogTest, ASecondProcessIsUnavailable) {
  const auto catalog = MustOpen();
  const auto second = Open();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable) << second.error().ToString();
}

TEST_F(LocalCatalogTest, CloseLeavesAnEmptyLog) {
  auto catalog = MustOpen();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(PutEnv(*catalog, i));
  ASSERT_NE(LastLog(), "");
  ASSERT_TRUE(catalog->Close());
  EXPECT_EQ(LastLog(), "");
  EXPECT_EQ(CountEnvs(*MustOpen()), 10);
}

TEST_F(LocalCatalogTest, CloseRefusesWhileATransactionLives) {
  auto catalog = MustOpen();
  auto txn = catalog->Begin();
  EXPECT_EQ(catalog->Close().error().code(), ErrorCode::kUnavailable);
  txn.reset();
  EXPECT_TRUE(catalog->Close());
}

TEST_F(LocalCatalogTest, ValuesAreInNoFileInPlainText) {
  auto catalog = MustOpen();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(PutEnv(*catalog, i));
  const auto holds_canary = [&] {
    bool found = false;
    for (const auto& entry : stdfs::recursive_directory_iterator(dir_.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::stringstream bytes;
      bytes << file.rdbuf();
      found |= bytes.str().find("canary-name") != std::string::npos;
    }
    return found;
  };
  EXPECT_FALSE(holds_canary());  // in the log
  ASSERT_TRUE(catalog->Close());
  EXPECT_FALSE(holds_canary());  // in tables
}

TEST_F(LocalCatalogTest, AKillLosesNothingAcknowledged) {
  // The child tells each commit through a pipe after it was acknowledged, until it is killed in the
  // middle of one.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(ends[0]);
    auto catalog = Open();
    if (!catalog) _exit(2);
    for (int32_t i = 0; PutEnv(**catalog, i); ++i) {
      if (write(ends[1], &i, sizeof i) != sizeof i) break;
    }
    _exit(3);
  }
  close(ends[1]);
  int32_t acknowledged = -1;
  while (acknowledged < 300) {
    ASSERT_EQ(read(ends[0], &acknowledged, sizeof acknowledged),
              static_cast<ssize_t>(sizeof acknowledged));
  }
  kill(child, SIGKILL);
  int32_t more = 0;
  while (read(ends[0], &more, sizeof more) == static_cast<ssize_t>(sizeof more))
    acknowledged = more;
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  auto catalog = MustOpen();
  ASSERT_NE(catalog, nullptr);
  for (int i = 0; i <= acknowledged; ++i) {
    const auto value = catalog->Get(keys::Environment(kOrgId, EnvId(i)));
    ASSERT_TRUE(value) << value.error().ToString();
    EXPECT_EQ(value->value_or("lost"), EnvRecord(i)) << i << " of " << acknowledged;
  }
  EXPECT_LE(CountEnvs(*catalog), acknowledged + 2);
  EXPECT_EQ(Damages(*catalog), std::vector<std::string>());
}

TEST_F(LocalCatalogTest, ATornLogTailIsCut) {
  LeaveLogOf(20);
  const std::string log = LastLog();
  stdfs::resize_file(log, stdfs::file_size(log) - 5);
  LoseMark();
  auto catalog = MustOpen();
  ASSERT_NE(catalog, nullptr);
  EXPECT_EQ(CountEnvs(*catalog), 19);
  ASSERT_TRUE(catalog->Close());
  EXPECT_EQ(CountEnvs(*MustOpen()), 19);
}

TEST_F(LocalCatalogTest, AnAcknowledgedCommitThatIsMissingRefusesTheOpenAndChangesNothing) {
  LeaveLogOf(20);
  const std::string log = LastLog();
  const std::string whole = *ReadWholeFile(HostFileSystem(), log, 1 << 30);
  const auto refused = [&](const std::string& what) {
    const auto before = DbFiles("");
    const auto opened = Open();
    ASSERT_FALSE(opened) << what;
    EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss) << opened.error().ToString();
    EXPECT_NE(opened.error().message().find("20 were acknowledged"), std::string::npos)
        << opened.error().ToString();
    EXPECT_EQ(DbFiles(""), before) << what;
  };
  // Torn at a byte, cut at a commit, empty, gone.
  for (const size_t kept : {whole.size() - 5, whole.size() / 20 * 10, size_t{0}}) {
    stdfs::resize_file(log, kept);
    refused(std::to_string(kept) + " bytes left");
    EXPECT_EQ(stdfs::file_size(log), kept);
  }
  stdfs::remove(log);
  refused("no log");
  ASSERT_TRUE(WriteFileAtomically(HostFileSystem(), log, whole));
  auto catalog = MustOpen();
  ASSERT_NE(catalog, nullptr);
  EXPECT_EQ(CountEnvs(*catalog), 20);
  // Also after everything went from logs to tables, and in later lives.
  ASSERT_TRUE(catalog->Close());
  catalog.reset();
  LeaveLogOf(21);
  const auto tables = DbFiles(".sst");
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(CountEnvs(*MustOpen()), 21);
}

TEST_F(LocalCatalogTest, TheOlderOfTwoLogsMayNotBeMissingOrCutEither) {
  // Killed while what the older log holds is not a table yet.
  InKilledChild([&] {
    auto catalog = OpenCatalogIn(dir_.path(), TestKey(1),
                                 {.dir = {}, .create = true, .write_buffer_bytes = 64u << 10});
    if (!catalog) _exit(2);
    const auto logs = [this] {
      const auto files = DbFiles(".log");
      return std::count_if(files.begin(), files.end(),
                           [](const std::string& path) { return stdfs::file_size(path) > 0; });
    };
    for (int i = 0; logs() < 2; ++i) {
      if (i > 200000 || !PutEnv(**catalog, i)) _exit(3);
    }
  });
  const auto logs = DbFiles(".log");
  ASSERT_EQ(logs.size(), 2u);
  const std::string older = *ReadWholeFile(HostFileSystem(), logs[0], 1 << 30);
  const auto refused = [&](const std::string& what) {
    const auto opened = Open();
    ASSERT_FALSE(opened) << what;
    EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss) << opened.error().ToString();
  };
  stdfs::remove(logs[0]);
  refused("removed");
  for (const size_t kept : {size_t{0}, older.size() / 2}) {
    ASSERT_TRUE(WriteFileAtomically(HostFileSystem(), logs[0], older.substr(0, kept)));
    refused(std::to_string(kept) + " bytes left");
  }
  ASSERT_TRUE(WriteFileAtomically(HostFileSystem(), logs[0], older));
  auto catalog = MustOpen();
  ASSERT_NE(catalog, nullptr);
  const int envs = CountEnvs(*catalog);
  EXPECT_GT(envs, 100);
  EXPECT_TRUE((*catalog->Get(keys::Environment(kOrgId, EnvId(envs - 1)))).has_value());
}

TEST_F(LocalCatalogTest, ADamagedMarkSaysNothing) {
  LeaveLogOf(3);
  FlipByte(Mark(), 24);
  EXPECT_EQ(CountEnvs(*MustOpen()), 3);
  LeaveLogOf(4);
  stdfs::remove(LastLog());
  EXPECT_FALSE(Open());  // it was begun again
}

TEST_F(LocalCatalogTest, AFlippedByteAnywhereInTheLogRefusesTheOpen) {
  LeaveLogOf(4);
  const std::string log = LastLog();
  const uint64_t size = stdfs::file_size(log);
  for (uint64_t offset = 0; offset < size; offset += offset % 245 < 16 ? 1 : 29) {
    FlipByte(log, offset);
    const auto opened = Open();
    ASSERT_FALSE(opened) << "byte " << offset << " of " << size;
    EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss) << opened.error().ToString();
    EXPECT_NE(opened.error().message().find(log), std::string::npos) << opened.error().ToString();
    FlipByte(log, offset);
    ASSERT_EQ(stdfs::file_size(log), size);
  }
  EXPECT_EQ(CountEnvs(*MustOpen()), 4);  // refusing changed nothing
}

TEST_F(LocalCatalogTest, ALogTailWithAMissingSectorIsCut) {
  LeaveLogOf(20);
  const std::string log = LastLog();
  // One more commit, whose last sector never reached the disk.
  const uint64_t sector = (stdfs::file_size(log) - 20) / 512 * 512;
  const uint64_t size = stdfs::file_size(log);
  ASSERT_GT(size - sector, 8u);
  stdfs::resize_file(log, sector);
  stdfs::resize_file(log, size);
  LoseMark();
  const auto catalog = MustOpen();
  ASSERT_NE(catalog, nullptr);
  EXPECT_GE(CountEnvs(*catalog), 17);
  EXPECT_LT(CountEnvs(*catalog), 20);
}

TEST_F(LocalCatalogTest, CheckNamesAFlippedByteInTheLiveLog) {
  auto catalog = MustOpen();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(PutEnv(*catalog, i));
  EXPECT_EQ(Damages(*catalog), std::vector<std::string>());
  const std::string log = LastLog();
  FlipByte(log, stdfs::file_size(log) / 2);
  const auto damages = Damages(*catalog);
  ASSERT_EQ(damages.size(), 1u);
  EXPECT_NE(damages[0].find(".log"), std::string::npos) << damages[0];
}

TEST_F(LocalCatalogTest, CheckNamesAFlippedByteInATableAndItsOwner) {
  auto catalog = MustOpen();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(PutEnv(*catalog, i));
  ASSERT_TRUE(catalog->Close());
  const auto tables = DbFiles(".sst");
  ASSERT_EQ(tables.size(), 1u);
  FlipByte(tables[0], stdfs::file_size(tables[0]) / 3);
  auto opened = Open();
  ASSERT_TRUE(opened) << opened.error().ToString();
  const auto damages = Damages(**opened);
  ASSERT_GE(damages.size(), 1u);
  EXPECT_NE(damages[0].find(stdfs::path(tables[0]).filename()), std::string::npos) << damages[0];
  EXPECT_NE(damages[0].find(kOrgId), std::string::npos) << damages[0];
  // A reader of the damaged block gets DataLoss, never other bytes.
  int lost = 0;
  for (int i = 0; i < 200; ++i) {
    const auto value = (*opened)->Get(keys::Environment(kOrgId, EnvId(i)));
    if (!value) {
      EXPECT_EQ(value.error().code(), ErrorCode::kDataLoss);
      ++lost;
    } else {
      EXPECT_EQ(**value, EnvRecord(i));
    }
  }
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace cairn
