// The file seam on the host, and the faults of the file system that other tests rely on.
#include "store/base/file_system.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Call = FaultyFileSystem::Call;

std::string Read(const std::string& path) {
  return ReadWholeFile(HostFileSystem(), path, 1 << 20).value_or("<none>");
}

TEST(HostFileSystem, ReadsWritesTruncatesAndLists) {
  TempDir temp;
  FileSystem& fs = HostFileSystem();
  const auto file = fs.Open(temp / "f", {.create = true});
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE((*file)->WriteAt(3, "abc").has_value());
  EXPECT_EQ(*(*file)->SizeBytes(), 6u);
  std::string out(10, 'x');
  EXPECT_EQ(*(*file)->ReadAt(0, out), 6u);
  EXPECT_EQ(out.substr(0, 6), std::string("\0\0\0abc", 6));
  ASSERT_TRUE((*file)->Truncate(4).has_value());
  EXPECT_EQ(*(*file)->ReadAt(0, out), 4u);
  ASSERT_TRUE((*file)->Allocate(0, 8192, true).has_value());
  EXPECT_EQ(*(*file)->SizeBytes(), 4u);
  struct stat st{};
  ASSERT_EQ(stat((temp / "f").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(fs.Open(temp / "f", {.create = true, .exclusive = true}).error().code(),
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(fs.Open(temp / "g", {}).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(fs.MakeDir(temp / "d").has_value());
  ASSERT_TRUE(fs.MakeDir(temp / "d").has_value());
  EXPECT_EQ(*fs.List(temp.path()), (std::vector<std::string>{"d", "f"}));
  EXPECT_EQ(fs.Unlink(temp / "nothing").error().code(), ErrorCode::kNotFound);
}

TEST(HostFileSystem, OpensRegularFilesOnly) {
  TempDir dir;
  const std::string fifo = dir.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, dir.path(), std::string("/dev/null")}) {
    const auto opened = HostFileSystem().Open(path, {.read_only = true});
    ASSERT_FALSE(opened) << path;
    EXPECT_EQ(opened.error().code(), ErrorCode::kInvalidArgument) << path;
  }
}

TEST(WriteFileAtomically, ReplacesWholeOrNotAtAll) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  ASSERT_TRUE(WriteFileAtomically(fs, temp / "f", "old").has_value());
  for (uint64_t step = 1;; ++step) {
    SeededRandom random(step);
    fs.PowerOffAfter(step);
    const bool done = WriteFileAtomically(fs, temp / "f", "a newer one").has_value();
    const bool off = fs.off();
    fs.PowerCut(random);
    const std::string now = Read(temp / "f");
    EXPECT_TRUE(now == "old" || now == "a newer one") << step << ": " << now;
    if (done) {
      EXPECT_EQ(now, "a newer one");
    }
    if (!off) break;
    ASSERT_TRUE(WriteFileAtomically(fs, temp / "f", "old").has_value());
  }
}

TEST(ReadWholeFile, RefusesMoreThanItsLimit) {
  TempDir temp;
  ASSERT_TRUE(WriteFileAtomically(HostFileSystem(), temp / "f", "12345").has_value());
  EXPECT_EQ(*ReadWholeFile(HostFileSystem(), temp / "f", 5), "12345");
  EXPECT_EQ(ReadWholeFile(HostFileSystem(), temp / "f", 4).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST(RemoveTree, RemovesATreeAndFollowsNoLink) {
  TempDir temp;
  std::filesystem::create_directories(temp / "t/a/b");
  std::filesystem::create_directories(temp / "keep");
  ASSERT_TRUE(WriteFileAtomically(HostFileSystem(), temp / "keep/f", "x").has_value());
  std::filesystem::create_symlink(temp / "keep", temp / "t/a/link");
  ASSERT_TRUE(RemoveTree(HostFileSystem(), temp / "t").has_value());
  EXPECT_FALSE(std::filesystem::exists(temp / "t"));
  EXPECT_EQ(Read(temp / "keep/f"), "x");
  EXPECT_TRUE(RemoveTree(HostFileSystem(), temp / "t").has_value()) << "an absent one is fine";
}

TEST(FaultyFileSystem, FailsTheNthCallOfAKind) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  const auto file = *fs.Open(temp / "f", {.create = true});
  fs.FailNth(Call::kWrite, 2, EIO, 2);
  EXPECT_TRUE(file->WriteAt(0, "1").has_value());
  EXPECT_EQ(file->WriteAt(0, "2").error().sys_errno(), EIO);
  EXPECT_EQ(file->WriteAt(0, "3").error().sys_errno(), EIO);
  EXPECT_TRUE(file->WriteAt(1, "4").has_value());
  EXPECT_EQ(Read(temp / "f"), "14");
  EXPECT_EQ(fs.calls(Call::kWrite), 4u);
}

TEST(FaultyFileSystem, SpaceEndsAndComesBackWithAnUnlink) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  const auto file = *fs.Open(temp / "f", {.create = true});
  fs.SetSpaceLeft(10);
  EXPECT_TRUE(file->WriteAt(0, "12345678").has_value());
  EXPECT_EQ(file->WriteAt(8, "9ab").error().code(), ErrorCode::kExhausted);
  EXPECT_TRUE(file->WriteAt(0, "overwrite").has_value()) << "one byte more";
  ASSERT_TRUE(fs.Unlink(temp / "f").has_value());
  const auto next = *fs.Open(temp / "g", {.create = true});
  EXPECT_TRUE(next->WriteAt(0, "0123456789").has_value());
  EXPECT_FALSE(next->WriteAt(10, "x").has_value());
}

// Over many seeds: synced bytes always survive; unsynced ones sometimes do and sometimes do not,
// sector by sector.
TEST(FaultyFileSystem, PowerCutDropsAndTearsOnlyWhatWasNotSynced) {
  int whole = 0, none = 0, torn = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    TempDir temp;
    FaultyFileSystem fs(temp / "scratch");
    {
      const auto file = *fs.Open(temp / "f", {.create = true});
      ASSERT_TRUE(file->WriteAt(0, std::string(2048, 'o')).has_value());
      ASSERT_TRUE(file->Sync().has_value());
      ASSERT_TRUE(fs.SyncDir(temp.path()).has_value());
      ASSERT_TRUE(file->WriteAt(512, std::string(1024, 'n')).has_value());
      SeededRandom random(seed);
      fs.PowerCut(random);
      EXPECT_EQ(file->WriteAt(0, "x").error().sys_errno(), EIO) << "it was open";
    }
    const std::string now = Read(temp / "f");
    ASSERT_EQ(now.size(), 2048u);
    EXPECT_EQ(now.substr(0, 512) + now.substr(1536), std::string(1024, 'o'));
    const bool first = now[512] == 'n', second = now[1024] == 'n';
    EXPECT_EQ(now.substr(512, 512), std::string(512, now[512])) << "a sector is whole";
    whole += first && second;
    none += !first && !second;
    torn += first != second;
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(none, 0);
  EXPECT_GT(torn, 0);
}

TEST(FaultyFileSystem, PowerCutShortensWhatGrewUnsynced) {
  std::set<uint64_t> sizes;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    TempDir temp;
    FaultyFileSystem fs(temp / "scratch");
    const auto file = *fs.Open(temp / "f", {.create = true});
    ASSERT_TRUE(file->WriteAt(0, std::string(1000, 'o')).has_value());
    ASSERT_TRUE(file->Sync().has_value());
    ASSERT_TRUE(fs.SyncDir(temp.path()).has_value());
    ASSERT_TRUE(file->WriteAt(1000, std::string(3000, 'n')).has_value());
    SeededRandom random(seed);
    fs.PowerCut(random);
    const std::string now = Read(temp / "f");
    EXPECT_EQ(now.substr(0, 1000), std::string(1000, 'o'));
    sizes.insert(now.size());
  }
  EXPECT_TRUE(sizes.contains(1000));
  EXPECT_TRUE(sizes.contains(4000));
  EXPECT_GT(sizes.size(), 2u);
}

TEST(FaultyFileSystem, UnsyncedTruncateKeepsOldBytesOrIsDone) {
  std::set<std::string> states;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    TempDir temp;
    FaultyFileSystem fs(temp / "scratch");
    const auto file = *fs.Open(temp / "f", {.create = true});
    ASSERT_TRUE(file->WriteAt(0, std::string(1024, 'o')).has_value());
    ASSERT_TRUE(file->Sync().has_value());
    ASSERT_TRUE(fs.SyncDir(temp.path()).has_value());
    ASSERT_TRUE(file->Truncate(512).has_value());
    SeededRandom random(seed);
    fs.PowerCut(random);
    states.insert(Read(temp / "f"));
  }
  EXPECT_TRUE(states == (std::set<std::string>{std::string(512, 'o'), std::string(1024, 'o')}));
}

TEST(FaultyFileSystem, PowerCutUndoesNamesWhoseFolderWasNotSynced) {
  int created = 0, renamed = 0, unlinked = 0;
  constexpr int kSeeds = 40;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    TempDir temp;
    FaultyFileSystem fs(temp / "scratch");
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(WriteFileAtomically(fs, temp / name, name).has_value());
    }
    {
      const auto file = *fs.Open(temp / "new", {.create = true});
      ASSERT_TRUE(file->WriteAt(0, "new").has_value());
      ASSERT_TRUE(file->Sync().has_value());
    }
    ASSERT_TRUE(fs.Rename(temp / "a", temp / "b").has_value());
    ASSERT_TRUE(fs.Unlink(temp / "c").has_value());
    SeededRandom random(seed);
    fs.PowerCut(random);
    created += Read(temp / "new") == "new";
    const bool moved = Read(temp / "b") == "a";
    EXPECT_EQ(Read(temp / "a"), moved ? "<none>" : "a");
    if (!moved) {
      EXPECT_EQ(Read(temp / "b"), "b");
    }
    renamed += moved;
    const bool gone = Read(temp / "c") == "<none>";
    if (!gone) {
      EXPECT_EQ(Read(temp / "c"), "c");
    }
    unlinked += gone;
  }
  for (const int n : {created, renamed, unlinked}) {
    EXPECT_GT(n, 0);
    EXPECT_LT(n, kSeeds);
  }
}

TEST(FaultyFileSystem, SyncedNamesSurviveAPowerCut) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    TempDir temp;
    FaultyFileSystem fs(temp / "scratch");
    ASSERT_TRUE(fs.MakeDir(temp / "d").has_value());
    ASSERT_TRUE(fs.SyncDir(temp.path() + "/").has_value());
    ASSERT_TRUE(WriteFileAtomically(fs, temp / "d/f", "x").has_value());
    SeededRandom random(seed);
    fs.PowerCut(random);
    EXPECT_EQ(Read(temp / "d/f"), "x");
  }
}

TEST(FaultyFileSystem, PowerOffStopsEverything) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  const auto file = *fs.Open(temp / "f", {.create = true});
  fs.PowerOffAfter(2);
  EXPECT_TRUE(file->WriteAt(0, "a").has_value());
  EXPECT_FALSE(file->WriteAt(1, "b").has_value());
  EXPECT_TRUE(fs.off());
  std::string out(1, 'x');
  EXPECT_FALSE(file->ReadAt(0, out).has_value());
  EXPECT_FALSE(fs.Open(temp / "f", {}).has_value());
  EXPECT_FALSE(fs.List(temp.path()).has_value());
}

}  // namespace
}  // namespace cairn
