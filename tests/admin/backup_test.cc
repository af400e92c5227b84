// Backups: what was durable is in them, under load too; an unfinished one is refused and taken up;
// a changed byte of one is found.
#include "admin/backup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "store/manifest/backup_verify.h"
#include "tests/admin/admin_world.h"
#include "tests/support/forwarding_file_system.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

std::vector<std::string> NamesIn(const std::string& dir) {
  return HostFileSystem().List(dir).value_or(std::vector<std::string>());
}

void ExpectVerifies(const std::string& set) {
  const auto verified = VerifyBackup(HostFileSystem(), set);
  ASSERT_TRUE(verified) << verified.error().ToString();
  EXPECT_EQ(verified->bad_files, 0u) << verified->bad.front();
  EXPECT_GT(verified->files, 3u);
}

// A copy of a set, with the master key put beside it.
void Restore(const std::string& set, const std::string& master_key, const std::string& to) {
  stdfs::copy(set, to, stdfs::copy_options::recursive);
  stdfs::copy_file(master_key, to + "/master.key");
}

class BackupTest : public testing::Test {
 protected:
  BackupTest() { world_.Start(); }
  std::string Destination() { return temp_ / "backups"; }
  BackupReport MustBackUp(bool with_master_key = false) {
    world_.clock.Advance(1'000'000'000);
    const auto report =
        world_.backup->Run({.destination = Destination(), .with_master_key = with_master_key});
    EXPECT_TRUE(report) << report.error().ToString();
    return report.value_or(BackupReport());
  }

  TempDir temp_;
  AdminWorld world_;
};

TEST_F(BackupTest, RestoredAsItIsOrCopiedItIsWholeAndAnInstanceOfItsOwn) {
  const auto one = world_.Make("one");
  const auto two = world_.Make("two");
  const BackupReport report = MustBackUp();
  EXPECT_EQ(report.packs_linked, 2u);
  EXPECT_FALSE(stdfs::exists(report.path + "/master.key"));
  EXPECT_FALSE(stdfs::exists(world_.dir + "/backup.tmp"));
  ExpectVerifies(report.path);
  world_.Write(one, "later", "after the backup");

  Restore(report.path, world_.dir + "/master.key", temp_ / "restored");
  AdminWorld restored(temp_ / "restored");
  restored.Start();  // while the original is served
  EXPECT_EQ(restored.directory->store(), world_.directory->store());
  EXPECT_NE(restored.directory->instance(), world_.directory->instance());
  EXPECT_GE(restored.directory->open_epoch(), world_.directory->open_epoch() + (1 << 20));
  restored.ExpectWhole(one);
  restored.ExpectWhole(two);
  EXPECT_EQ(restored.Read(one, "later"), "(not_found (errno 2: No such file or directory))");
  restored.ExpectCheckIsClean();
  restored.Write(one, "own", "of the restored one");
  EXPECT_TRUE(restored.collector->Collect({.now = true}));
  restored.ExpectWhole(one);
  EXPECT_FALSE(stdfs::exists(temp_ / "restored/BACKUP"));
  EXPECT_FALSE(stdfs::exists(temp_ / "restored/MANIFEST"));
  restored.Kill();
  restored.Start();
  restored.ExpectWhole(one);
  EXPECT_EQ(world_.Read(one, "later"), "after the backup");
  world_.ExpectCheckIsClean();
  ExpectVerifies(report.path);  // what the copies did since is not in it
}

TEST_F(BackupTest, WhatWasDurableBeforeIsInItAndEverySnapshotInItIsWhole) {
  const auto made = world_.Make("busy");
  std::atomic<bool> stop = false;
  std::atomic<int> written = 0;
  std::thread writer([&] {
    SeededRandom random(7);
    for (int i = 0; !stop; ++i) {
      // Small ones ride in the journal, large ones in the side log.
      world_.Write(made, "f" + std::to_string(i), random.Bytes(i % 5 == 0 ? 100000 : 300));
      written = i + 1;
    }
  });
  std::thread snapshots([&] {
    while (!stop) {
      const auto point = world_.Freeze(made);
      if (!point) ADD_FAILURE() << point.error().ToString();
    }
  });
  for (int round = 0; round < 4; ++round) {
    while (written < 20 * (round + 1)) std::this_thread::yield();
    const int before = written;
    const BackupReport report = MustBackUp();
    ExpectVerifies(report.path);
    const std::string to = temp_ / ("restored" + std::to_string(round));
    Restore(report.path, world_.dir + "/master.key", to);
    AdminWorld restored(to);
    restored.Start();
    SeededRandom random(7);
    for (int i = 0; i < before; ++i) {
      ASSERT_EQ(restored.Read(made, "f" + std::to_string(i)),
                random.Bytes(i % 5 == 0 ? 100000 : 300))
          << "file " << i << " of " << before << " in round " << round;
    }
    int points = 0;
    EXPECT_TRUE(ScanRecords<catalog::PointRecord>(
        *restored.catalog, keys::Below("point"),
        [&](std::string_view, const catalog::PointRecord& point) {
          const auto view = restored.volumes->ViewOf(point.point());
          EXPECT_TRUE(view) << view.error().ToString();
          if (view) {
            EXPECT_EQ(restored.ReadFrom(*view, "sealed"), "busy sealed");
          }
          ++points;
          return true;
        }));
    EXPECT_GT(points, 0);
    restored.ExpectCheckIsClean();
  }
  stop = true;
  writer.join();
  snapshots.join();
  world_.ExpectCheckIsClean();
}

// Calls `then` once, when a file of the staged catalog is opened: the instant is over by then, and
// nothing has been copied yet.
class AfterTheInstant final : public ForwardingFileSystem {
 public:
  AfterTheInstant(FileSystem& to, std::function<void()> then)
      : ForwardingFileSystem(to), then_(std::move(then)) {}
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    if (then_ && path.contains("/backup.tmp/db/")) std::exchange(then_, nullptr)();
    return ForwardingFileSystem::Open(path, options);
  }

 private:
  std::function<void()> then_;
};

TEST_F(BackupTest, OfAJournalThatIsBeingWrittenItHasWhatWasThereAtItsInstantAndNoMore) {
  const auto made = world_.Make("one");
  const std::string small(200, 's');
  const std::string large(100'000, 'l');  // in the side log
  world_.Write(made, "small before", small);
  world_.Write(made, "large before", large);
  int after = 0;
  AfterTheInstant fs(world_.fs, [&] {
    ++after;
    world_.Write(made, "small after", small);
    world_.Write(made, "large after", large);
  });
  Backup backup({.fs = fs,
                 .clock = world_.clock,
                 .directory = *world_.directory,
                 .keys = *world_.keys,
                 .catalog = *world_.catalog,
                 .store = *world_.store,
                 .volumes = *world_.volumes,
                 .collector = *world_.collector});
  const auto report = backup.Run({.destination = Destination(), .with_master_key = true});
  ASSERT_TRUE(report) << report.error().ToString();
  ASSERT_EQ(after, 1);
  ExpectVerifies(report->path);
  AdminWorld served(report->path);
  served.Start();
  served.ExpectWhole(made);
  EXPECT_EQ(served.Read(made, "small before"), small);
  EXPECT_EQ(served.Read(made, "large before"), large);
  for (const char* name : {"small after", "large after"}) {
    EXPECT_EQ(served.Read(made, name), "(not_found (errno 2: No such file or directory))") << name;
    EXPECT_EQ(world_.Read(made, name).size(), name[0] == 's' ? small.size() : large.size());
  }
}

// What gives a volume another root waits until the journals of the copied catalog are taken.
TEST_F(BackupTest, NoRollBackAndNoSliceOfAnImportIsCommittedWithinItsInstant) {
  const auto made = world_.Make("one");
  const auto point = world_.Freeze(made);
  ASSERT_TRUE(point);
  ASSERT_TRUE(world_.volumes->WaitSealed(point->point(), 60000));
  world_.Write(made, "later", "after the point");
  ASSERT_TRUE(world_.volumes->WaitSealed(world_.Freeze(made)->point(), 60000));
  const auto root = [&] {
    return GetRecord<catalog::Volume>(*world_.catalog, keys::Volume(made.volume.view()))
        ->value()
        .root();
  };
  const std::function<Status()> changes[] = {
      [&] {
        return world_.volumes->RollBack(made.org, made.env, point->point(),
                                        [](CatalogTransaction&) { return Status(); });
      },
      [&] {
        return world_.volumes->Import(made.org, made.env, [](Volume& volume) -> Status {
          CAIRN_TRY(volume.MakeDir(OpContext(), kRootInode, "imported", 0755));
          return {};
        });
      },
  };
  for (const auto& change : changes) {
    EXPECT_EQ(world_.Read(made, "sealed"), "one sealed");  // open: opening it would wait as well
    const std::string before = root();
    Status changed;
    std::thread other;
    const auto instant = [&]() -> Status {
      other = std::thread([&] { changed = change(); });
      return {};
    };
    int taken = 0;
    const auto take = [&](const VolumeManager::JournalFile&) -> Status {
      if (taken++ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT_EQ(root(), before);
      return {};
    };
    EXPECT_TRUE(world_.volumes->WithJournalsHeld(instant, take));
    other.join();
    EXPECT_GT(taken, 0);
    EXPECT_TRUE(changed) << changed.error().ToString();
    EXPECT_NE(root(), before) << "afterwards it is done";
  }
}

TEST_F(BackupTest, ASecondOneKeepsThePacksOfTheFirst) {
  const auto made = world_.Make("one");
  const BackupReport first = MustBackUp();
  EXPECT_EQ(first.packs_kept, 0u);
  world_.Write(made, "more", SeededRandom(3).Bytes(300000));
  ASSERT_TRUE(world_.volumes->WaitSealed(world_.Freeze(made)->point(), 60000));
  const BackupReport second = MustBackUp();
  EXPECT_EQ(second.packs_kept, first.packs_linked);
  EXPECT_GT(second.packs_linked, 0u);
  EXPECT_NE(second.path, first.path);
  ExpectVerifies(first.path);
  ExpectVerifies(second.path);
  EXPECT_EQ(*NewestBackupSet(HostFileSystem(), Destination(), {}), second.path);
  stdfs::remove_all(first.path);  // sets are independent of each other
  ExpectVerifies(second.path);
}

TEST_F(BackupTest, TheMasterKeyIsInItOnlyWhenAskedFor) {
  const auto made = world_.Make("one");
  const BackupReport report = MustBackUp(true);
  struct stat st{};
  ASSERT_EQ(stat((report.path + "/master.key").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  AdminWorld served(report.path);
  served.Start();
  served.ExpectWhole(made);
}

TEST_F(BackupTest, ADeletedOrganizationIsInNoLaterOne) {
  const auto gone = world_.Make("gone");
  const auto kept = world_.Make("kept");
  const BackupReport before = MustBackUp();
  ASSERT_TRUE(world_.removal->Delete(gone.org));
  const BackupReport after = MustBackUp(true);
  EXPECT_TRUE(stdfs::exists(before.path + "/keys/" + gone.realm.ToHex() + ".key"));
  EXPECT_FALSE(stdfs::exists(after.path + "/keys/" + gone.realm.ToHex() + ".key"));
  EXPECT_FALSE(stdfs::exists(after.path + "/packs/" + gone.realm.ToHex()));
  AdminWorld served(after.path);
  served.Start();
  served.ExpectWhole(kept);
}

TEST_F(BackupTest, DestinationsThatHoldOtherThingsAreRefused) {
  world_.Make("one");
  const auto run = [&](const std::string& to) {
    return world_.backup->Run({.destination = to}).error().code();
  };
  EXPECT_EQ(run("relative"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run(world_.dir + "/inside"), ErrorCode::kInvalidArgument);
  stdfs::remove(world_.dir + "/inside");
  EXPECT_EQ(run(world_.temp.path()), ErrorCode::kInvalidArgument) << "the data directory is in it";
  stdfs::create_directories(temp_ / "home");
  WriteHostFile(temp_ / "home/notes.txt", "mine");
  EXPECT_EQ(run(temp_ / "home"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(NamesIn(temp_ / "home"), std::vector<std::string>{"notes.txt"});
  const BackupReport set = MustBackUp();
  EXPECT_EQ(run(set.path), ErrorCode::kInvalidArgument) << "a set is no destination";
}

TEST_F(BackupTest, WaitsForNoCollectionAndLetsNoneRun) {
  world_.Make("one");
  const auto held = world_.collector->Hold();
  EXPECT_EQ(world_.backup->Run({.destination = Destination()}).error().code(),
            ErrorCode::kUnavailable);
}

TEST_F(BackupTest, AFullDestinationLeavesAnUnfinishedOneThatIsRefusedAndTakenUp) {
  const auto made = world_.Make("one");
  const BackupReport first = MustBackUp();
  world_.fs.SetSpaceLeft(20000);
  const auto failed = world_.backup->Run({.destination = Destination()});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kExhausted) << failed.error().ToString();
  EXPECT_FALSE(stdfs::exists(world_.dir + "/backup.tmp"));
  world_.fs.SetSpaceLeft(-1);
  std::string partial;
  for (const std::string& name : NamesIn(Destination())) {
    if (name.ends_with(".partial")) partial = Destination() + "/" + name;
  }
  ASSERT_FALSE(partial.empty());
  AdminWorld served(partial);
  const Status refused = served.Open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("unfinished"), std::string::npos);
  EXPECT_EQ(VerifyBackup(HostFileSystem(), partial).error().code(), ErrorCode::kFailedPrecondition);
  ExpectVerifies(first.path);
  const BackupReport second = MustBackUp();
  EXPECT_FALSE(stdfs::exists(partial));
  ExpectVerifies(second.path);
  EXPECT_EQ(NamesIn(Destination()).size(), 2u);
}

// Of a backup that had just begun a power cut may leave an empty directory, which nothing else says
// anything about (that a start there is refused: data_directory_test.cc).
TEST_F(BackupTest, AnEmptyUnfinishedOneGoesAndOneOfSomebodyElseStays) {
  world_.Make("one");
  const std::string empty = Destination() + "/20200101T000000Z.partial";
  const std::string foreign = Destination() + "/20200102T000000Z.partial";
  stdfs::create_directories(empty);
  stdfs::create_directories(foreign);
  WriteHostFile(foreign + "/file", "x");
  const BackupReport report = MustBackUp();
  ExpectVerifies(report.path);
  EXPECT_FALSE(stdfs::exists(empty));
  EXPECT_TRUE(stdfs::exists(foreign + "/file"));
}

TEST_F(BackupTest, ALostOrChangedFileIsFound) {
  world_.Make("one");
  const BackupReport report = MustBackUp();
  const BackupMarker marker = *ReadBackupMarker(HostFileSystem(), report.path);
  const auto entries = ReadManifest(HostFileSystem(), report.path, marker);
  ASSERT_TRUE(entries);
  for (const ManifestEntry& entry : *entries) {
    if (entry.size_bytes == 0) continue;
    const std::string set = temp_ / "changed";
    stdfs::remove_all(set);
    stdfs::copy(report.path, set, stdfs::copy_options::recursive);
    FlipBit(set + "/" + entry.path, entry.size_bytes / 2);
    auto verified = VerifyBackup(HostFileSystem(), set);
    ASSERT_TRUE(verified);
    EXPECT_EQ(verified->bad_files, 1u);
    EXPECT_EQ(verified->bad.at(0).find(entry.path), 0u) << verified->bad.at(0);
    stdfs::remove(set + "/" + entry.path);
    EXPECT_EQ(VerifyBackup(HostFileSystem(), set)->bad_files, 1u);
    // A start sees a lost file, too.
    AdminWorld served(set);
    EXPECT_EQ(served.Open().error().code(), ErrorCode::kDataLoss) << entry.path;
  }
  const std::string set = temp_ / "more";
  stdfs::copy(report.path, set, stdfs::copy_options::recursive);
  WriteHostFile(set + "/packs/stranger", "x");
  EXPECT_EQ(VerifyBackup(HostFileSystem(), set)->bad.at(0),
            "packs/stranger: is not named by MANIFEST");
  for (const char* own : {"MANIFEST", "BACKUP"}) {
    const std::string bad = temp_ / own;
    stdfs::copy(report.path, bad, stdfs::copy_options::recursive);
    FlipBit(bad + "/" + own, 30);
    EXPECT_EQ(VerifyBackup(HostFileSystem(), bad).error().code(), ErrorCode::kDataLoss) << own;
  }
}

TEST(BackupCrash, ThePowerCutAtAnyStepLeavesOldSetsWholeAndNoHalfOneThatLooksWhole) {
  int unfinished = 0;
  uint64_t step = 1;
  for (;; step += 3) {
    SCOPED_TRACE("step " + std::to_string(step));
    ASSERT_LT(step, 600u);
    AdminWorld world;
    world.Start();
    const auto made = world.Make("one");
    const std::string destination = world.temp / "backups";
    const auto first = world.backup->Run({.destination = destination});
    ASSERT_TRUE(first) << first.error().ToString();
    world.clock.Advance(1'000'000'000);
    world.Write(made, "more", "more");
    world.fs.PowerOffAfter(step);
    const bool acknowledged = world.backup->Run({.destination = destination}).has_value();
    const bool off = world.fs.off();
    world.Kill();
    SeededRandom random(step);
    world.fs.PowerCut(random);
    ExpectVerifies(first->path);
    int complete = 0;
    for (const std::string& name : NamesIn(destination)) {
      const std::string set = destination + "/" + name;
      const auto verified = VerifyBackup(HostFileSystem(), set);
      if (verified) {
        EXPECT_EQ(verified->bad_files, 0u) << name << " " << verified->bad.front();
        ++complete;
      } else {
        ++unfinished;
        AdminWorld served(set);
        EXPECT_FALSE(served.Open()) << name;
      }
    }
    if (acknowledged) {
      EXPECT_EQ(complete, 2);
    }
    world.Start();
    EXPECT_FALSE(stdfs::exists(world.dir + "/backup.tmp"));
    world.ExpectWhole(made);
    world.clock.Advance(1'000'000'000);
    const auto again = world.backup->Run({.destination = destination, .with_master_key = true});
    ASSERT_TRUE(again) << again.error().ToString();
    ExpectVerifies(again->path);
    AdminWorld served(again->path);
    served.Start();
    served.ExpectWhole(made);
    EXPECT_EQ(served.Read(made, "more"), "more");
    if (!off) break;
  }
  EXPECT_GT(unfinished, 5);
}

}  // namespace
}  // namespace cairn
