// VolumeManager::Import: what is there after it, after a failure and after a crash in the middle of
// it, and what others may do meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "store/tree_node.h"
#include "tests/support/service_world.h"
#include "volume/fs_root.h"

namespace cairn {
namespace {

class VolumeImportTest : public ServiceWorld {
 protected:
  // One file of `bytes` bytes each, by number; the first error ends it.
  Status Fill(Volume& volume, int from, int to, size_t bytes) {
    const InodeNumber dir = CAIRN_TRY(volume.View().Resolve("workspace"));
    for (int i = from; i < to; ++i) {
      const auto made =
          CAIRN_TRY(volume.MakeNode({}, dir, "i" + std::to_string(i), S_IFREG | 0644, 0));
      CAIRN_TRY(volume.Write({}, made.ino, 0, Bytes(i, bytes), false));
    }
    return {};
  }
  static std::string Bytes(int i, size_t bytes) {
    std::string out;
    while (out.size() < bytes)
      out += "file " + std::to_string(i) + " " + std::to_string(out.size());
    out.resize(bytes);
    return out;
  }
  void ExpectFiles(const std::string& env, int from, int to, size_t bytes) {
    for (int i = from; i < to; ++i) {
      ASSERT_EQ(ReadNow(env, "/workspace/i" + std::to_string(i)), Bytes(i, bytes)) << i;
    }
  }
  catalog::Volume Record(const std::string& env) {
    return Read<catalog::Volume>(keys::Volume(Env(env).volume()));
  }
};

TEST_F(VolumeImportTest, IsThereAtOnceAndAfterARestartAndIsAddedTo) {
  const std::string env = NewEnvironment();
  WriteFile(env, "old", "old");
  ASSERT_TRUE(volumes_->Import(kOrg, env, [&](Volume& v) { return Fill(v, 0, 50, 70000); }));
  EXPECT_EQ(ReadNow(env, "/workspace/old"), "old");
  ExpectFiles(env, 0, 50, 70000);
  EXPECT_FALSE(Record(env).root().empty());
  WriteFile(env, "new", "new");  // through the journal, on top
  ASSERT_TRUE(volumes_->Import(kOrg, env, [&](Volume& v) { return Fill(v, 50, 60, 100); }));
  EndLife(/*cleanly=*/false);
  StartLife();
  EXPECT_EQ(ReadNow(env, "/workspace/new"), "new");
  ExpectFiles(env, 0, 50, 70000);
  ExpectFiles(env, 50, 60, 100);
  EXPECT_EQ(blocks_.live_sessions(), 0u);
}

TEST_F(VolumeImportTest, AllItMakesWasMadeAtOneInstant) {
  const std::string env = NewEnvironment();
  ASSERT_TRUE(volumes_->Import(kOrg, env, [&](Volume& v) { return Fill(v, 0, 20, 5000); }));
  const auto view = volumes_->ViewNow(kOrg, env);
  ASSERT_TRUE(view);
  const auto inode = [&](int i) {
    return *view->GetInode(*view->Resolve("workspace/i" + std::to_string(i)));
  };
  const TimeSpec made = inode(0).ctime;
  EXPECT_GT(made.seconds, 1'000'000'000);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(inode(i).ctime, made);
    EXPECT_EQ(inode(i).btime, made);
  }
}

// A later seal splits the nodes that it changes and leaves the others.
TEST_F(VolumeImportTest, NodesAreLargerThanASealsUntilTheyAreChanged) {
  const std::string env = NewEnvironment();
  ASSERT_TRUE(volumes_->Import(kOrg, env, [&](Volume& v) { return Fill(v, 0, 1000, 1000); }));
  const auto leaf_bytes = [&] {
    const auto root = BlockRef::Decode(Record(env).root());
    const auto record = LoadFsRoot(blocks_, realm_, *root);
    const TreeReader tree(blocks_, nodes_, realm_, record->tree);
    const auto top = *tree.LoadNode(*record->tree.node);
    EXPECT_EQ(top->level(), 1u);
    std::vector<uint64_t> sizes;
    for (const NodeItem& child : top->items()) sizes.push_back(child.refs[0].raw_length_bytes);
    return sizes;
  };
  const std::vector<uint64_t> imported = leaf_bytes();
  EXPECT_THAT(imported,
              testing::Each(testing::AllOf(testing::Ge(32u << 10), testing::Le(96u << 10))));
  WriteFile(env, "i500", "changed");
  ASSERT_TRUE(volumes_->Import(kOrg, env, [](Volume&) -> Status { return {}; }));  // seals it
  std::vector<uint64_t> sealed = leaf_bytes();
  EXPECT_GE(sealed.size(), imported.size() + 2);
  EXPECT_GT(*std::ranges::min_element(imported), 32u << 10);
  EXPECT_LT(*std::ranges::min_element(sealed), 32u << 10);
  EXPECT_GT(*std::ranges::max_element(sealed), 32u << 10);
  EXPECT_EQ(ReadNow(env, "/workspace/i500"), "changed");
  ExpectFiles(env, 501, 1000, 1000);
}

TEST_F(VolumeImportTest, WhatAFailedFillWroteIsDropped) {
  const std::string env = NewEnvironment();
  WriteFile(env, "old", "old");
  const Status imported = volumes_->Import(kOrg, env, [&](Volume& v) -> Status {
    CAIRN_TRY(Fill(v, 0, 10, 1000));
    return Err(ErrorCode::kNotFound, "the source went away");
  });
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().message(), "the source went away");
  EXPECT_EQ(ReadNow(env, "/workspace/old"), "old");
  EXPECT_EQ(ReadNow(env, "/workspace/i0").substr(0, 10), "(not_found");
  WriteFile(env, "i0", "writable");
  EXPECT_EQ(ReadNow(env, "/workspace/i0"), "writable");
}

TEST_F(VolumeImportTest, SlicesBeforeAFailureStay) {
  import_slice_records_ = 20;
  EndLife(true);
  StartLife();
  const std::string env = NewEnvironment();
  const Status imported = volumes_->Import(kOrg, env, [&](Volume& v) -> Status {
    CAIRN_TRY(Fill(v, 0, 40, 5000));
    return Err(ErrorCode::kNotFound, "gone");
  });
  ASSERT_FALSE(imported);
  ExpectFiles(env, 0, 30, 5000);
  // The next import goes on where numbers and inodes are free.
  ASSERT_TRUE(volumes_->Import(kOrg, env, [&](Volume& v) { return Fill(v, 100, 140, 5000); }));
  ExpectFiles(env, 100, 140, 5000);
  EndLife(false);
  StartLife();
  ExpectFiles(env, 0, 30, 5000);
  ExpectFiles(env, 100, 140, 5000);
}

TEST_F(VolumeImportTest, AForkOfAnUnsealedStateKeepsItsFiles) {
  const std::string env = NewEnvironment();
  WriteFile(env, "source", "of the source");
  blocks_.FailPuts(true);  // nothing is sealed before the fork
  const auto fork = snapshots_->Fork(kOrg, env, "fork", false);
  ASSERT_TRUE(fork) << fork.error().ToString();
  blocks_.FailPuts(false);
  const std::string fork_env = fork->id();
  ASSERT_TRUE(volumes_->Import(kOrg, fork_env, [&](Volume& v) { return Fill(v, 0, 5, 5000); }));
  EXPECT_EQ(ReadNow(fork_env, "/workspace/source"), "of the source");
  ExpectFiles(fork_env, 0, 5, 5000);
  EndLife(false);
  StartLife();
  EXPECT_EQ(ReadNow(fork_env, "/workspace/source"), "of the source");
  ExpectFiles(fork_env, 0, 5, 5000);
  EXPECT_EQ(ReadNow(env, "/workspace/i0").substr(0, 10), "(not_found");
}

TEST_F(VolumeImportTest, OthersReadTheStateBeforeAndAreRefusedTheRest) {
  const std::string env = NewEnvironment();
  WriteFile(env, "old", "old");
  ASSERT_TRUE(volumes_->Import(kOrg, env, [&](Volume& v) -> Status {
    CAIRN_TRY(Fill(v, 0, 3, 1000));
    EXPECT_EQ(ReadNow(env, "/workspace/old"), "old");
    EXPECT_EQ(ReadNow(env, "/workspace/i0").substr(0, 10), "(not_found");
    const auto refused = [](const auto& result) {
      return !result && result.error().code() == ErrorCode::kFailedPrecondition;
    };
    EXPECT_TRUE(refused(volumes_->OpenForWrite(kOrg, env)));
    EXPECT_TRUE(refused(volumes_->Mount(kOrg, env, "/mnt", {})));
    EXPECT_TRUE(refused(volumes_->FreezeForPause(kOrg, env)));
    EXPECT_TRUE(refused(volumes_->Freeze(
        kOrg, env, [](CatalogTransaction&, const catalog::PointRecord&, const FsView&) -> Status {
          return {};
        })));
    EXPECT_TRUE(refused(volumes_->Import(kOrg, env, [](Volume&) -> Status { return {}; })));
    return {};
  }));
  EXPECT_TRUE(volumes_->OpenForWrite(kOrg, env));
}

TEST_F(VolumeImportTest, AMountedOrSuspendedEnvironmentIsRefused) {
  const std::string env = NewEnvironment();
  ASSERT_TRUE(volumes_->Mount(kOrg, env, "/somewhere", {}));
  const Status mounted = volumes_->Import(kOrg, env, [](Volume&) -> Status { return {}; });
  ASSERT_FALSE(mounted);
  EXPECT_EQ(mounted.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(mounted.error().message().find("/somewhere"), std::string::npos);
  ASSERT_TRUE(volumes_->Unmount(kOrg, env, false));
  catalog::Environment record = Env(env);
  record.set_state(catalog::ENV_SUSPENDED);
  Put(keys::Environment(kOrg, env), record);
  const Status suspended = volumes_->Import(kOrg, env, [](Volume&) -> Status { return {}; });
  ASSERT_FALSE(suspended);
  EXPECT_EQ(suspended.error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(VolumeImportTest, DeletionEndsItAtTheNextBatch) {
  const std::string env = NewEnvironment();
  std::thread deleter;
  const Status imported = volumes_->Import(kOrg, env, [&](Volume& v) -> Status {
    deleter = std::thread([&] { EXPECT_TRUE(volumes_->Revoke(kOrg, env)); });
    Status filled;
    for (int i = 0; i < 1000000 && filled; ++i) filled = Fill(v, i, i + 1, 1 << 20);
    return filled;
  });
  deleter.join();
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(imported.error().message().find("deleted"), std::string::npos);
}

TEST_F(VolumeImportTest, AStopEndsItAtTheNextBatch) {
  const std::string env = NewEnvironment();
  std::thread stopper;
  const Status imported = volumes_->Import(kOrg, env, [&](Volume& v) -> Status {
    stopper = std::thread([&] { volumes_->Stop(); });
    Status filled;
    for (int i = 0; i < 1000000 && filled; ++i) filled = Fill(v, i, i + 1, 1 << 20);
    return filled;
  });
  stopper.join();
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace cairn
