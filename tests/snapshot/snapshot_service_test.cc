// Snapshots, forks, pause and resume over real volumes: what they hold, what a failure leaves, what
// a restart finds.
#include "snapshot/snapshot_service.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "catalog/ids.h"
#include "catalog/operations.h"
#include "snapshot/memory_image.h"
#include "store/base/random.h"
#include "tests/support/service_world.h"

namespace cairn {
namespace {

class SnapshotServiceTest : public ServiceWorld {
 protected:
  std::string HostFile(const std::string& name, const std::string& data) {
    const std::string path = dir_.path() + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(HostFileSystem(), path, data));
    return path;
  }
  std::string HostRead(const std::string& path) {
    const auto data = ReadWholeFile(HostFileSystem(), path, 64 << 20);
    return data ? *data : "(" + data.error().ToString() + ")";
  }
  std::string InSnapshot(const catalog::Snapshot& snapshot, const std::string& path) {
    const auto view = volumes_->ViewOf(snapshot.point());
    return view ? ReadFile(*view, path) : "(" + view.error().ToString() + ")";
  }
};

TEST_F(SnapshotServiceTest, FirstUseMakesWorkspaceOnceForRacingCallers) {
  const std::string env = NewEnvironment();
  std::vector<std::thread> racers;
  std::atomic<int> failures = 0;
  for (int i = 0; i < 20; ++i) {
    racers.emplace_back([&] { failures += volumes_->EnsureInitialized(kOrg, env) ? 0 : 1; });
  }
  for (auto& racer : racers) racer.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(Env(env).state(), catalog::ENV_READY);
  size_t volume_count = 0;
  ASSERT_TRUE(ScanRecords<catalog::Volume>(catalog_, keys::Below("volume"),
                                           [&](std::string_view, const catalog::Volume&) {
                                             ++volume_count;
                                             return true;
                                           }));
  EXPECT_EQ(volume_count, 1u);
  const auto view = volumes_->ViewNow(kOrg, env);
  ASSERT_TRUE(view);
  const auto inode = view->GetInode(*view->Resolve("/workspace/outputs"));
  ASSERT_TRUE(inode);
  EXPECT_EQ(inode->uid, 1000u);
  EXPECT_EQ(inode->gid, 1001u);
}

TEST_F(SnapshotServiceTest, MountMakesTheOutputDirectoriesOfAttachedSessions) {
  const std::string env = NewEnvironment();
  catalog::Session session;
  session.set_id(NewId(kSessionPrefix));
  session.set_org(kOrg);
  session.set_env(env);
  session.set_output_directory("/workspace/.outputs/" + session.id());
  Put(keys::Session(kOrg, session.id()), session);
  catalog::Binding binding;
  binding.set_env(env);
  binding.set_session(session.id());
  binding.set_active(true);
  Put(keys::Binding(kOrg, env, session.id()), binding);
  ASSERT_TRUE(volumes_->Mount(kOrg, env, "/somewhere", {}));
  const auto view = volumes_->ViewNow(kOrg, env);
  ASSERT_TRUE(view);
  const auto ino = view->Resolve(session.output_directory());
  ASSERT_TRUE(ino) << ino.error().ToString();
  EXPECT_EQ(view->GetInode(*ino)->uid, 1000u);
  ASSERT_TRUE(volumes_->Unmount(kOrg, env, false));
  ASSERT_TRUE(volumes_->Mount(kOrg, env, "/somewhere", {})) << "again, with the directory there";
  ASSERT_TRUE(volumes_->Unmount(kOrg, env, false));
}

TEST_F(SnapshotServiceTest, SnapshotKeepsItsStateWhileTheVolumeGoesOn) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "one");
  const auto first = snapshots_->Create(kOrg, env, "first", {});
  ASSERT_TRUE(first) << first.error().ToString();
  WriteFile(env, "a", "two");
  const auto second = snapshots_->Create(kOrg, env, "second", {});
  ASSERT_TRUE(second);
  WriteFile(env, "a", "three");
  EXPECT_EQ(InSnapshot(*first, "/workspace/a"), "one");
  EXPECT_EQ(InSnapshot(*second, "/workspace/a"), "two");
  ASSERT_TRUE(volumes_->WaitSealed(second->point(), 10000));
  EXPECT_EQ(InSnapshot(*first, "/workspace/a"), "one");
  EXPECT_EQ(InSnapshot(*second, "/workspace/a"), "two");
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "three");
  EXPECT_EQ(snapshots_->Get(kOrg, first->id())->durability(), catalog::DURABILITY_SEALED);
}

TEST_F(SnapshotServiceTest, WhoLostTheAnswerFindsItByTheOperationOfHisOwn) {
  const std::string env = NewEnvironment();
  const std::string other = NewEnvironment();
  const std::string one = NewId(kOperationPrefix);
  EXPECT_EQ(GetOperation(catalog_, kOrg, one).error().code(), ErrorCode::kNotFound);
  const auto snapshot = snapshots_->Create(kOrg, env, "first", {}, one);
  ASSERT_TRUE(snapshot) << snapshot.error().ToString();
  const auto operation = GetOperation(catalog_, kOrg, one);
  ASSERT_TRUE(operation);
  EXPECT_EQ(operation->phase(), "done");
  EXPECT_EQ(operation->result(), snapshot->id());
  const auto again = snapshots_->Create(kOrg, env, "first", {}, one);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->id(), snapshot->id());
  EXPECT_EQ(snapshots_->List(kOrg, env)->size(), 1u);
  const auto conflict = snapshots_->Create(kOrg, other, "", {}, one);
  ASSERT_FALSE(conflict);
  EXPECT_EQ(conflict.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(conflict.error().message().starts_with(refusals::kIdempotencyConflict));
  EXPECT_EQ(snapshots_->Create(kOrg, env, "", {}, "mine").error().code(),
            ErrorCode::kInvalidArgument);

  const std::string two = NewId(kOperationPrefix);
  const auto fork = snapshots_->Fork(kOrg, env, "fork", false, two);
  ASSERT_TRUE(fork) << fork.error().ToString();
  EXPECT_EQ(snapshots_->Fork(kOrg, env, "fork", false, two)->id(), fork->id());
  EXPECT_FALSE(snapshots_->Fork(kOrg, env, "fork", false, one));
  EXPECT_NE(snapshots_->Fork(kOrg, env, "fork", false)->id(), fork->id());
}

TEST_F(SnapshotServiceTest, SnapshotRunsTheBarrierOfAMount) {
  const std::string env = NewEnvironment();
  ASSERT_TRUE(volumes_->Mount(kOrg, env, "/somewhere", {}));
  ASSERT_TRUE(snapshots_->Create(kOrg, env, "", {}));
  EXPECT_EQ(mounts_.barriers, 1);
  mounts_.fail_barrier = true;
  const auto failed = snapshots_->Create(kOrg, env, "", {});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(snapshots_->List(kOrg, env)->size(), 1u);
  mounts_.fail_barrier = false;
  ASSERT_TRUE(volumes_->Unmount(kOrg, env, false));
}

TEST_F(SnapshotServiceTest, UnsealedSnapshotAndForkSurviveAKill) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", std::string(300000, 'x'));
  blocks_.FailPuts(true);  // the sealer cannot get anywhere
  const auto snapshot = snapshots_->Create(kOrg, env, "", {});
  ASSERT_TRUE(snapshot);
  const auto fork = snapshots_->Fork(kOrg, snapshot->id(), "fork", false);
  ASSERT_TRUE(fork) << fork.error().ToString();
  WriteFile(fork->id(), "b", "in the fork");
  WriteFile(env, "a", "changed");
  EXPECT_EQ(snapshots_->Get(kOrg, snapshot->id())->durability(), catalog::DURABILITY_LOCAL);
  EndLife(/*cleanly=*/false);
  StartLife();
  EXPECT_EQ(InSnapshot(*snapshot, "/workspace/a"), std::string(300000, 'x'));
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/a"), std::string(300000, 'x'));
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/b"), "in the fork");
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "changed");
  EndLife(/*cleanly=*/true);
  StartLife();
  EXPECT_EQ(snapshots_->Get(kOrg, snapshot->id())->durability(), catalog::DURABILITY_SEALED);
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/a"), std::string(300000, 'x'));
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/b"), "in the fork");
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "changed");
}

TEST_F(SnapshotServiceTest, ForksDivergeAndOutliveTheirSource) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "common");
  blocks_.FailPuts(true);
  const auto fork = snapshots_->Fork(kOrg, env, "fork", false);
  ASSERT_TRUE(fork) << fork.error().ToString();
  blocks_.FailPuts(false);
  WriteFile(env, "a", "origin");
  WriteFile(fork->id(), "c", "fork only");
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/a"), "common");
  // The source goes: what the fork stands on is sealed first.
  auto record = Env(env);
  record.set_state(catalog::ENV_DELETING);
  Put(keys::Environment(kOrg, env), record);
  ASSERT_TRUE(volumes_->Revoke(kOrg, env));
  const auto volume = Read<catalog::Volume>(keys::Volume(record.volume()));
  ASSERT_TRUE(volumes_->RemoveVolume(volume));
  EXPECT_FALSE(
      *HostFileSystem().Exists(dir_.path() + "/volumes/" + Id128::FromView(volume.id()).ToHex()));
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/a"), "common");
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/c"), "fork only");
  EndLife(true);
  StartLife();
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/a"), "common");
}

TEST_F(SnapshotServiceTest, PauseAndResumeGiveBackMemoryAndDisk) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "disk");
  std::string memory = SeededRandom(1).Bytes(3 << 20);
  memory += std::string(5 << 20, '\0');
  const std::string memory_file = HostFile("memory", memory);
  const std::string state_file = HostFile("state", "registers");
  const auto paused = snapshots_->Pause(
      kOrg, env, {.memory_path = memory_file, .vmstate_path = state_file, .vmm = {}, .name = "p"});
  ASSERT_TRUE(paused) << paused.error().ToString();
  EXPECT_EQ(Env(env).state(), catalog::ENV_SUSPENDED);
  EXPECT_FALSE(volumes_->OpenForWrite(kOrg, env)) << "a suspended disk takes no write";
  EXPECT_FALSE(snapshots_->Pause(
      kOrg, env, {.memory_path = memory_file, .vmstate_path = state_file, .vmm = {}, .name = ""}));

  EndLife(/*cleanly=*/false);
  StartLife();
  const std::string out = dir_.path() + "/out", state_out = dir_.path() + "/state_out";
  const auto resumed = snapshots_->Resume(
      kOrg, env, {.memory_path = out, .vmstate_path = state_out, .snapshot = ""});
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  EXPECT_EQ(HostRead(out), memory);
  EXPECT_EQ(HostRead(state_out), "registers");
  EXPECT_EQ(resumed->restore_count, 1u);
  EXPECT_EQ(resumed->snapshot.id(), paused->id());
  EXPECT_EQ(Env(env).state(), catalog::ENV_READY);
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "disk");
  WriteFile(env, "a", "goes on");
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "goes on");
}

TEST_F(SnapshotServiceTest, PauseRecordsTheGenerationIdThatTheGuestWasGiven) {
  const std::string env = NewEnvironment();
  const std::string memory = HostFile("memory", std::string(5000, 'm'));
  const std::string state = HostFile("state", "state");
  const auto head_of = [&](const catalog::Snapshot& snapshot) {
    const auto reader =
        MemoryImageReader::Open(blocks_, realm_, *BlockRef::Decode(snapshot.memory_image()));
    EXPECT_TRUE(reader);
    return (*reader)->head();
  };
  const PauseRequest pause{.memory_path = memory, .vmstate_path = state, .vmm = {}, .name = ""};
  const auto first = snapshots_->Pause(kOrg, env, pause);
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_TRUE(head_of(*first).vm_generation_id.is_zero()) << "none was given yet";
  const auto resumed =
      snapshots_->Resume(kOrg, env, {.memory_path = memory, .vmstate_path = "", .snapshot = ""});
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  const auto second = snapshots_->Pause(kOrg, env, pause);
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_EQ(head_of(*second).vm_generation_id.ToHex(), resumed->vm_generation_id);
  EXPECT_EQ(head_of(*second).restore_count, 1u);
  EXPECT_EQ(second->vm_generation_id(), Env(env).vm_generation_id());
  const auto fork = snapshots_->Fork(kOrg, second->id(), "fork", /*with_memory=*/true);
  ASSERT_TRUE(fork) << fork.error().ToString();
  const auto pair = snapshots_->Get(kOrg, fork->suspended_snapshot());
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair->vm_generation_id(), second->vm_generation_id());
}

TEST_F(SnapshotServiceTest, SecondPauseStoresOnlyWhatChanged) {
  const std::string env = NewEnvironment();
  std::string memory = SeededRandom(2).Bytes(4 << 20);
  const std::string file = HostFile("memory", memory);
  ASSERT_TRUE(snapshots_->Pause(kOrg, env,
                                {.memory_path = file, .vmstate_path = "", .vmm = {}, .name = ""}));
  ASSERT_TRUE(
      snapshots_->Resume(kOrg, env, {.memory_path = file, .vmstate_path = "", .snapshot = ""}));
  memory[1 << 20] ^= 1;
  HostFile("memory", memory);
  const uint64_t before = blocks_.put_count();
  const auto again = snapshots_->Pause(
      kOrg, env, {.memory_path = file, .vmstate_path = "", .vmm = {}, .name = ""});
  ASSERT_TRUE(again);
  ASSERT_TRUE(volumes_->WaitSealed(again->point(), 10000));
  // One chunk, one map, one image head, and the disk's root record.
  EXPECT_LE(blocks_.put_count() - before, 6u);
}

TEST_F(SnapshotServiceTest, FailedPauseLeavesTheEnvironmentRunning) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "1");
  const std::string file = HostFile("memory", SeededRandom(3).Bytes(1 << 20));
  blocks_.FailPuts(true);
  const auto paused = snapshots_->Pause(
      kOrg, env, {.memory_path = file, .vmstate_path = "", .vmm = {}, .name = ""});
  ASSERT_FALSE(paused);
  EXPECT_EQ(paused.error().code(), ErrorCode::kExhausted);
  blocks_.FailPuts(false);
  EXPECT_EQ(Env(env).state(), catalog::ENV_READY);
  WriteFile(env, "a", "2");
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "2");
  EXPECT_TRUE(snapshots_->List(kOrg, env)->empty());
  const auto missing = snapshots_->Pause(
      kOrg, env,
      {.memory_path = dir_.path() + "/absent", .vmstate_path = "", .vmm = {}, .name = ""});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
}

TEST_F(SnapshotServiceTest, DamagedMemoryIsNeverResumedAndNothingChanges) {
  const std::string env = NewEnvironment();
  const std::string file = HostFile("memory", SeededRandom(4).Bytes(1 << 20));
  const auto paused = snapshots_->Pause(
      kOrg, env, {.memory_path = file, .vmstate_path = "", .vmm = {}, .name = ""});
  ASSERT_TRUE(paused);
  blocks_.Damage(BlockRef::Decode(paused->memory_image())->address);
  const std::string out = dir_.path() + "/out";
  const auto resumed =
      snapshots_->Resume(kOrg, env, {.memory_path = out, .vmstate_path = "", .snapshot = ""});
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(*HostFileSystem().Exists(out));
  EXPECT_EQ(Env(env).state(), catalog::ENV_SUSPENDED);
  EXPECT_EQ(Env(env).suspended_snapshot(), paused->id());
  // Cold boot from the disk alone is possible, but only when asked for.
  ASSERT_TRUE(snapshots_->Resume(kOrg, env,
                                 {.memory_path = "",
                                  .vmstate_path = "",
                                  .snapshot = "",
                                  .allow_older = false,
                                  .disk_only = true}));
  EXPECT_EQ(Env(env).state(), catalog::ENV_READY);
}

TEST_F(SnapshotServiceTest, OlderSnapshotNeedsToBeAllowedAndRollsTheDiskBack) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "old");
  const auto old = snapshots_->Create(kOrg, env, "old", {});
  ASSERT_TRUE(old);
  WriteFile(env, "a", "new");
  const std::string file = HostFile("memory", "m");
  ASSERT_TRUE(snapshots_->Pause(kOrg, env,
                                {.memory_path = file, .vmstate_path = "", .vmm = {}, .name = ""}));
  const auto refused =
      snapshots_->Resume(kOrg, env, {.memory_path = "", .vmstate_path = "", .snapshot = old->id()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "new");
  const auto resumed = snapshots_->Resume(
      kOrg, env,
      {.memory_path = "", .vmstate_path = "", .snapshot = old->id(), .allow_older = true});
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "old");
  WriteFile(env, "b", "after");
  EndLife(true);
  StartLife();
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "old");
  EXPECT_EQ(ReadNow(env, "/workspace/b"), "after");
  EXPECT_EQ(Read<catalog::Volume>(keys::Volume(Env(env).volume())).rollback_epoch(), 1u);
}

TEST_F(SnapshotServiceTest, RollBackLeavesNobodyOnTheOldState) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "old");
  const auto old = snapshots_->Create(kOrg, env, "old", {});
  ASSERT_TRUE(old);
  WriteFile(env, "a", "new");
  std::vector<std::thread> waiting;
  std::vector<Result<catalog::Snapshot>> taken(4, Err(ErrorCode::kInternal));
  const Status rolled_back = volumes_->RollBack(kOrg, env, old->point(), [&](CatalogTransaction&) {
    // Whoever looks just before the commit sees the old state, and keeps nothing open of it.
    EXPECT_EQ(ReadNow(env, "/workspace/a"), "new");
    // Whoever comes now takes its turn afterwards.
    for (auto& snapshot : taken) {
      waiting.emplace_back([&] { snapshot = snapshots_->Create(kOrg, env, "", {}); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return Status();
  });
  ASSERT_TRUE(rolled_back) << rolled_back.error().ToString();
  for (auto& thread : waiting) thread.join();
  ASSERT_TRUE(volumes_->Thaw(kOrg, env));
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "old");
  WriteFile(env, "a", "goes on");
  for (const auto& snapshot : taken) {
    ASSERT_TRUE(snapshot) << snapshot.error().ToString();
    EXPECT_EQ(InSnapshot(*snapshot, "/workspace/a"), "old");
  }
  EndLife(true);
  StartLife();
  EXPECT_EQ(ReadNow(env, "/workspace/a"), "goes on");
}

TEST_F(SnapshotServiceTest, ThawLeavesThePauseThatCameAfterItAlone) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "1");
  auto frozen = volumes_->FreezeForPause(kOrg, env);
  ASSERT_TRUE(frozen) << frozen.error().ToString();
  const auto volume = volumes_->OpenForWrite(kOrg, env);
  ASSERT_TRUE(volume);
  ASSERT_TRUE(volumes_->Thaw(kOrg, env)) << "of the resume before";
  EXPECT_TRUE((*volume)->GetStatus().read_only) << "the memory is being captured";
  frozen->reset();
  EXPECT_FALSE((*volume)->GetStatus().read_only) << "that pause failed";
}

TEST_F(SnapshotServiceTest, MountThatWaitedForADeletionIsRefused) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "1");
  const catalog::Environment record = Env(env);
  std::thread mounting;
  Status mounted;
  const auto frozen = volumes_->Freeze(
      kOrg, env, [&](CatalogTransaction&, const catalog::PointRecord&, const FsView&) -> Status {
        mounting = std::thread([&] { mounted = volumes_->Mount(kOrg, env, "/somewhere", {}); });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits for the freeze
        catalog::Environment deleting = record;
        deleting.set_state(catalog::ENV_DELETING);
        Put(keys::Environment(kOrg, env), deleting);
        return {};
      });
  ASSERT_TRUE(frozen) << frozen.error().ToString();
  mounting.join();
  ASSERT_FALSE(mounted);
  EXPECT_EQ(mounted.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(mounts_.MountedAt(Id128::FromView(record.volume())), "");
}

TEST_F(SnapshotServiceTest, SealsCallbackRunsOutsideOfItsSession) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "1");
  std::atomic<uint64_t> sessions = 99;
  volumes_->OnSealed([&](const catalog::PointRecord&) { sessions = blocks_.live_sessions(); });
  const auto snapshot = snapshots_->Create(kOrg, env, "", {});
  ASSERT_TRUE(snapshot);
  EndLife(true);
  EXPECT_EQ(sessions, 0u) << "a callback that begins a session would wait for a collector for ever";
  StartLife();
}

TEST_F(SnapshotServiceTest, PauseNeverWaitsForAFifo) {
  const std::string env = NewEnvironment();
  const std::string fifo = dir_.path() + "/fifo";
  const std::string file = HostFile("memory", "m");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const bool memory : {true, false}) {
    const auto paused = snapshots_->Pause(kOrg, env,
                                          {.memory_path = memory ? fifo : file,
                                           .vmstate_path = memory ? file : fifo,
                                           .vmm = {},
                                           .name = ""});
    ASSERT_FALSE(paused);
    EXPECT_EQ(paused.error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_NE(Env(env).state(), catalog::ENV_SUSPENDED);
}

TEST_F(SnapshotServiceTest, ForkWithMemoryIsSuspendedOnAPairOfItsOwn) {
  const std::string env = NewEnvironment();
  WriteFile(env, "a", "disk");
  const std::string file = HostFile("memory", "memory");
  const auto paused = snapshots_->Pause(
      kOrg, env, {.memory_path = file, .vmstate_path = "", .vmm = {}, .name = ""});
  ASSERT_TRUE(paused);
  const auto fork = snapshots_->Fork(kOrg, paused->id(), "twin", true);
  ASSERT_TRUE(fork) << fork.error().ToString();
  EXPECT_EQ(Env(fork->id()).state(), catalog::ENV_SUSPENDED);
  EXPECT_NE(Env(fork->id()).suspended_snapshot(), paused->id());
  const std::string out = dir_.path() + "/out";
  ASSERT_TRUE(snapshots_->Resume(kOrg, fork->id(),
                                 {.memory_path = out, .vmstate_path = "", .snapshot = ""}));
  EXPECT_EQ(HostRead(out), "memory");
  EXPECT_EQ(ReadNow(fork->id(), "/workspace/a"), "disk");
  EXPECT_EQ(Env(env).state(), catalog::ENV_SUSPENDED);
}

TEST_F(SnapshotServiceTest, ForeignAndMissingIdsAnswerTheSame) {
  const std::string env = NewEnvironment();
  ASSERT_TRUE(volumes_->EnsureInitialized(kOrg, env));
  const auto snapshot = snapshots_->Create(kOrg, env, "", {});
  ASSERT_TRUE(snapshot);
  const std::string other = "org_00000000000000000000000000000002";
  const auto foreign = snapshots_->Get(other, snapshot->id());
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code(), ErrorCode::kNotFound);
  const auto absent = snapshots_->Get(kOrg, Id128{}.ToHex());
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(snapshots_->Fork(other, snapshot->id(), "", false));
  EXPECT_FALSE(snapshots_->Fork(other, env, "", false));
}

}  // namespace
}  // namespace cairn
