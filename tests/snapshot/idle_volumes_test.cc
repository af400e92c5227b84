// Volumes that nobody uses are closed, the longest unused ones first, and open again at their next
// use.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <thread>
#include <vector>

#include "tests/support/service_world.h"

namespace cairn {
namespace {

class IdleVolumesTest : public ServiceWorld {
 protected:
  IdleVolumesTest() {
    EndLife(/*cleanly=*/true);
    volumes_ = std::make_unique<VolumeManager>(
        VolumeManagerOptions{
            .volumes_dir = dir_ / "volumes", .max_idle_volumes = 2, .epoch = epoch_},
        HostFileSystem(), keys_, blocks_, nodes_, catalog_, SystemClock(), mounts_);
    volumes_->Start();
    snapshots_ = std::make_unique<SnapshotService>(catalog_, blocks_, keys_, HostFileSystem(),
                                                   *volumes_, SystemClock(), epoch_);
  }
  std::string Used(const std::string& contents) {
    const std::string env = NewEnvironment();
    WriteFile(env, "file", contents);
    return env;
  }
  // Descriptors of journals and side logs, by the folder of their volume.
  std::map<std::string, int> Descriptors() {
    std::map<std::string, int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const auto path = std::filesystem::read_symlink(entry.path(), gone);
      if (!gone && path.string().starts_with(dir_ / "volumes/")) {
        ++found[path.parent_path().filename()];
      }
    }
    return found;
  }
  std::string FolderOf(const std::string& env) {
    return Id128::FromView(Env(env).volume()).ToHex();
  }
  bool Eventually(size_t open_volumes) {
    for (int i = 0; i < 600 && Descriptors().size() != open_volumes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return Descriptors().size() == open_volumes;
  }
};

TEST_F(IdleVolumesTest, TheLongestUnusedAreClosedAndOpenAgainAtTheirNextUse) {
  std::vector<std::string> envs;
  for (int i = 0; i < 6; ++i) envs.push_back(Used(std::to_string(i)));
  ASSERT_TRUE(volumes_->SealEverything());
  ASSERT_TRUE(Eventually(2));
  const auto open = Descriptors();
  EXPECT_TRUE(open.contains(FolderOf(envs[4])) && open.contains(FolderOf(envs[5])));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(ReadNow(envs[static_cast<size_t>(i)], "/workspace/file"), std::to_string(i));
  }
  WriteFile(envs[0], "file", "again");
  EXPECT_EQ(ReadNow(envs[0], "/workspace/file"), "again");
  ASSERT_TRUE(volumes_->SealEverything());
  EXPECT_TRUE(Eventually(2));
  EXPECT_EQ(ReadNow(envs[0], "/workspace/file"), "again");
}

TEST_F(IdleVolumesTest, WhatIsMountedHeldOrUnsealedStaysOpen) {
  const std::string mounted = Used("mounted");
  ASSERT_TRUE(volumes_->Mount(kOrg, mounted, "/somewhere", {}));
  const std::string held = Used("held");
  auto pointer = *volumes_->OpenForWrite(kOrg, held);
  std::vector<std::string> envs;
  for (int i = 0; i < 5; ++i) envs.push_back(Used("idle"));
  ASSERT_TRUE(volumes_->SealEverything());
  const std::string unsealed = Used("unsealed");
  ASSERT_TRUE(Eventually(5)) << Descriptors().size();
  const auto open = Descriptors();
  for (const std::string& env : {mounted, held, unsealed}) {
    EXPECT_TRUE(open.contains(FolderOf(env))) << ReadNow(env, "/workspace/file");
  }
  EXPECT_EQ(ReadNow(held, "/workspace/file"), "held");
  WriteInto(*pointer, "workspace", "file", "written late");
  EXPECT_EQ(ReadNow(held, "/workspace/file"), "written late") << "one volume, not two";
  pointer.reset();
  EXPECT_EQ(ReadNow(held, "/workspace/file"), "written late");
  EXPECT_EQ(ReadNow(unsealed, "/workspace/file"), "unsealed");
}

}  // namespace
}  // namespace cairn
