// Volumes and snapshots on a disk that fills up: what is refused first, what a full disk seals, and
// what heals it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "store/base/random.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/service_world.h"

namespace cairn {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

// The guard looks at a disk of its own, whose free space is what a test says. Time stands still, so
// whatever waits for it waits for good.
class VolumeSpaceTest : public ServiceWorld {
 protected:
  VolumeSpaceTest() : disk_(dir_ / "scratch") {
    EndLife(/*cleanly=*/true);
    disk_.SetSpaceLeft(100 * kMiB);
    auto opened = SpaceGuard::Open({.fs = disk_,
                                    .dir = dir_.path(),
                                    .clock = clock_,
                                    .limits = {.reserve_bytes = kMiB,
                                               .floor_bytes = kMiB,
                                               .headroom_bytes = 16 * kMiB,
                                               .dirty_bytes_per_mount = kMiB}});
    EXPECT_TRUE(opened);
    space_ = *std::move(opened);
    blocks_.LimitSpace(*space_);
    volumes_ = std::make_unique<VolumeManager>(
        VolumeManagerOptions{
            .volumes_dir = dir_ / "volumes", .epoch = epoch_, .space = space_.get()},
        HostFileSystem(), keys_, blocks_, nodes_, catalog_, clock_, mounts_);
    volumes_->Start();
    snapshots_ = std::make_unique<SnapshotService>(catalog_, blocks_, keys_, HostFileSystem(),
                                                   *volumes_, clock_, epoch_);
  }
  ~VolumeSpaceTest() override {
    EndLife(/*cleanly=*/false);
    StartLife();  // for the base class to end
  }

  void SetFree(int64_t bytes) {
    disk_.SetSpaceLeft(bytes);
    space_->Maintain();
  }
  std::string ReadyEnvironment() {
    const std::string env = NewEnvironment();
    EXPECT_TRUE(volumes_->EnsureInitialized(kOrg, env));
    EXPECT_TRUE(volumes_->SealEverything());
    return env;
  }
  std::shared_ptr<Volume> Open(const std::string& env) {
    const auto volume = volumes_->OpenForWrite(kOrg, env);
    EXPECT_TRUE(volume) << volume.error().ToString();
    return *volume;
  }
  // As an unlink of the last name.
  static Status Remove(Volume& volume, const std::string& name) {
    return volume.Unlink({}, *volume.View().Resolve("workspace"), name);
  }
  // The sealer looks twice a second.
  static bool Eventually(const std::function<bool()>& is_so) {
    for (int i = 0; i < 600 && !is_so(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return is_so();
  }
  static bool IsSealed(Volume& volume) {
    return volume.head().unsealed().empty() && volume.head().active_records() == 0;
  }

  FakeClock clock_;
  FaultyFileSystem disk_;
  std::unique_ptr<SpaceGuard> space_;
};

TEST_F(VolumeSpaceTest, WhatKeepsIsRefusedBeforeWritesAreAndLeavesNothing) {
  const std::string env = ReadyEnvironment();
  const std::string memory = dir_ / "memory";
  ASSERT_TRUE(WriteFileAtomically(HostFileSystem(), memory, std::string(8 * kMiB, 'm')));
  SetFree(20 * kMiB);  // 3 beside floor and headroom
  PauseRequest request;
  request.memory_path = request.vmstate_path = memory;
  const auto paused = snapshots_->Pause(kOrg, env, request);
  ASSERT_FALSE(paused);
  EXPECT_EQ(paused.error().code(), ErrorCode::kExhausted) << paused.error().ToString();
  EXPECT_TRUE(snapshots_->Create(kOrg, env, "", {})) << "a pause needs more than a snapshot";
  SetFree(17 * kMiB);
  const auto snapshot = snapshots_->Create(kOrg, env, "", {});
  ASSERT_FALSE(snapshot);
  EXPECT_EQ(snapshot.error().code(), ErrorCode::kExhausted);
  EXPECT_NE(snapshot.error().message().find("16.0 MiB for running volumes"), std::string::npos)
      << snapshot.error().message();
  EXPECT_EQ(snapshots_->Fork(kOrg, env, "", false).error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(Env(env).state(), catalog::ENV_READY);
  EXPECT_EQ(mounts_.barriers, 0);
  WriteFile(env, "file", "a running volume goes on");
  EXPECT_EQ(ReadNow(env, "/workspace/file"), "a running volume goes on");
  EXPECT_EQ(snapshots_->List(kOrg, env)->size(), 1u);
}

TEST_F(VolumeSpaceTest, AFirstUseThatFindsNoSpaceCanBeTriedAgain) {
  const std::string env = NewEnvironment();
  SetFree(kMiB);
  const Status refused = volumes_->EnsureInitialized(kOrg, env);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted) << refused.error().ToString();
  EXPECT_TRUE(Env(env).volume().empty()) << "nothing was begun";
  SetFree(100 * kMiB);
  EXPECT_TRUE(volumes_->EnsureInitialized(kOrg, env));
  EXPECT_EQ(Env(env).state(), catalog::ENV_READY);
}

TEST_F(VolumeSpaceTest, AMountOnAFullDiskGoesAndDeletes) {
  const std::string env = ReadyEnvironment();
  WriteFile(env, "file", "x");
  catalog::Session session;
  session.set_id(NewId(kSessionPrefix));
  session.set_org(kOrg);
  session.set_env(env);
  session.set_output_directory("/workspace/outputs/of/it");
  Put(keys::Session(kOrg, session.id()), session);
  catalog::Binding binding;
  binding.set_env(env);
  binding.set_session(session.id());
  binding.set_active(true);
  Put(keys::Binding(kOrg, env, session.id()), binding);
  SetFree(0);
  const auto volume = Open(env);
  const Status mounted = volumes_->Mount(kOrg, env, "/somewhere", {});
  ASSERT_TRUE(mounted) << mounted.error().ToString();
  EXPECT_EQ(volume->Create({}, kRootInode, "new", S_IFREG | 0644, true).error().sys_errno(),
            ENOSPC);
  EXPECT_TRUE(Remove(*volume, "file"));
  EXPECT_TRUE(volume->Sync());
}

// The first seal alone does not fit; together with what deletes its bytes it does.
TEST_F(VolumeSpaceTest, DeletingWhatIsNotSealedYetFreesItsJournalsOnAFullDisk) {
  const std::string env = ReadyEnvironment();
  const auto volume = Open(env);
  SeededRandom random(3);
  WriteFile(env, "large", random.Bytes(2 * kMiB));
  blocks_.FailPuts(true);
  EXPECT_FALSE(volumes_->SealEverything());
  ASSERT_EQ(volume->head().unsealed().size(), 1u);
  SetFree(0);
  blocks_.FailPuts(false);
  const uint64_t blocks = blocks_.put_count();
  // The seal is tried again, and again does not fit. (One under way may set its next try later.)
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(10'000'000'000);
    return space_->GetStatus().refusals[1] > 0;
  }));
  ASSERT_GE(volume->head().unsealed().size(), 1u);
  ASSERT_TRUE(Remove(*volume, "large"));
  for (int i = 0; i < 20 && !IsSealed(*volume); ++i) {
    clock_.Advance(10'000'000'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  EXPECT_TRUE(IsSealed(*volume));
  EXPECT_LT(blocks_.put_count() - blocks, 16u) << "2 MiB are 32 blocks";
  EXPECT_TRUE(Eventually([&] {  // given back once the files are gone
    return space_->GetStatus().set_aside_bytes[static_cast<size_t>(SpaceUse::kUnsealed)] == 0;
  }));
}

TEST_F(VolumeSpaceTest, AFullDiskSealsWhatARefusedWriterWaitsFor) {
  const std::string env = ReadyEnvironment();
  const auto volume = Open(env);
  WriteFile(env, "file", SeededRandom(4).Bytes(400 * kKiB));
  ASSERT_FALSE(IsSealed(*volume));
  SetFree(kMiB);
  ASSERT_TRUE(Eventually([&] { return IsSealed(*volume); }));
}

TEST_F(VolumeSpaceTest, ASealThatFoundNoSpaceIsTriedAgainWhenThereIsSome) {
  const std::string env = ReadyEnvironment();
  const auto volume = Open(env);
  WriteFile(env, "file", SeededRandom(5).Bytes(100 * kKiB));
  SetFree(50 * kMiB);
  blocks_.FailPuts(true);
  EXPECT_FALSE(volumes_->SealEverything());
  ASSERT_EQ(volume->head().unsealed().size(), 1u);
  blocks_.FailPuts(false);
  SetFree(60 * kMiB);
  EXPECT_TRUE(Eventually([&] { return IsSealed(*volume); })) << "no time has passed";
}

// Time stands still here: its deadline never comes.
TEST_F(VolumeSpaceTest, WhoWaitsForSealsThatFailIsToldWhenTheServerStops) {
  const std::string env = ReadyEnvironment();
  blocks_.FailSyncs(true);
  std::atomic<int> made = 0;
  std::string last;
  std::thread snapshots([&] {
    for (int i = 0; i < 1000; ++i) {
      WriteFile(env, "file", "x");
      const auto snapshot = snapshots_->Create(kOrg, env, "", {});
      if (!snapshot) {
        last = snapshot.error().message();
        return;
      }
      ++made;
    }
  });
  int before = 0;
  Eventually([&] { return std::exchange(before, made.load()) > 0 && before == made.load(); });
  volumes_->EndWaits();
  snapshots.join();
  EXPECT_EQ(last, "the server is stopping");
  EXPECT_LT(made, 1000);
  blocks_.FailSyncs(false);
}

TEST_F(VolumeSpaceTest, ASnapshotsStateIsNotMergedWithWhatCameAfterIt) {
  const std::string env = ReadyEnvironment();
  const auto volume = Open(env);
  const std::string data = SeededRandom(6).Bytes(300 * kKiB);
  WriteFile(env, "file", data);
  blocks_.FailPuts(true);
  const auto snapshot = snapshots_->Create(kOrg, env, "", {});
  ASSERT_TRUE(snapshot) << snapshot.error().ToString();
  ASSERT_TRUE(Remove(*volume, "file"));
  EXPECT_FALSE(volumes_->SealEverything());
  ASSERT_EQ(volume->head().unsealed().size(), 2u);
  blocks_.FailPuts(false);
  ASSERT_TRUE(volumes_->SealEverything()) << "both, as seals that found no space";
  EXPECT_TRUE(IsSealed(*volume));
  EXPECT_EQ(ReadFile(*volumes_->ViewOf(snapshot->point()), "/workspace/file"), data);
  EXPECT_NE(ReadNow(env, "/workspace/file"), data);
}

TEST_F(VolumeSpaceTest, WhoWaitsForSealsThatFindNoSpaceIsToldSo) {
  const std::string env = ReadyEnvironment();
  blocks_.FailPuts(true);
  Result<catalog::Snapshot> made = catalog::Snapshot();
  for (int i = 0; i < 5 && made; ++i) {
    WriteFile(env, "file", std::to_string(i));
    made = snapshots_->Create(kOrg, env, "", {});
  }
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), ErrorCode::kExhausted) << made.error().ToString();
}

TEST_F(VolumeSpaceTest, AVolumeThatIsWrittenToHasItsNextJournalMadeAhead) {
  const std::string env = ReadyEnvironment();
  const auto volume = Open(env);
  const auto journals = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "volumes")) {
      count += entry.path().extension() == ".journal" ? 1 : 0;
    }
    return count;
  };
  ASSERT_EQ(journals(), 1u);
  WriteFile(env, "file", "x");
  EXPECT_TRUE(Eventually([&] { return journals() == 2; }));
}

}  // namespace
}  // namespace cairn
