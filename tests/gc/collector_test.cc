// The collector over a real local store: what a root reaches stays, the rest goes, and anything
// unreadable stops it from deleting.
#include "tests/gc/collector_fixture.h"

namespace cairn {
namespace {

TEST_F(CollectorTest, AnOrganizationWithoutItsKeysIsReportedAndStopsEveryCollection) {
  const Tree tree = MakeTree(4, 5);
  AddEnvironment(1, tree);
  world_.keys.Remove(world_.realm_a);
  world_.store->ForgetRealm(world_.realm_a);
  const CheckReport report = Check();
  ASSERT_FALSE(report.damages.empty());
  EXPECT_EQ(report.damages[0].structure, "keys");
  EXPECT_EQ(report.damages[0].owners.at(0), "organization " + kOrg);
  EXPECT_FALSE(Collect({.now = true}));
  world_.keys.Add(world_.realm_a, TestRealmKeys(1));
  ExpectWhole(tree);
}

TEST_F(CollectorTest, FreesWhatNoRootReachesAndNothingElse) {
  const Tree kept = MakeTree(1, 40);
  const Tree dropped = MakeTree(2, 40);
  AddEnvironment(1, kept);
  const std::string gone = AddEnvironment(2, dropped);
  auto report = Collect({.now = true});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->garbage_bytes, 0u);
  ExpectWhole(kept);
  ExpectWhole(dropped);
  Delete(gone);
  const uint64_t before = world_.store->Stats().pack_bytes;
  report = Collect({.now = true});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_GT(report->freed_bytes, 700000u);
  EXPECT_LT(world_.store->Stats().pack_bytes, before - 700000);
  ExpectWhole(kept);
  for (const BlockRef& ref : dropped.data)
    EXPECT_FALSE(*world_.store->Contains(world_.realm_a, ref));
  EXPECT_EQ(Describe(Check()), "");
  EXPECT_EQ(Check().garbage_bytes, 0u);
  // Everything goes when the last root goes.
  Delete(keys::Volume(std::string(15, '\0') + '\1'));
  ASSERT_TRUE(Collect({.now = true}));
  EXPECT_EQ(world_.store->Stats().block_count, 0u);
  EXPECT_EQ(world_.store->Stats().pack_bytes, 0u);
}

TEST_F(CollectorTest, SharedBlocksStayUntilTheLastRootGoes) {
  const Tree tree = MakeTree(3, 10);
  const std::string first = AddEnvironment(1, tree);
  const std::string second = AddEnvironment(2, tree);
  Delete(first);
  ASSERT_TRUE(Collect({.now = true}));
  ExpectWhole(tree);
  Delete(second);
  ASSERT_TRUE(Collect({.now = true}));
  EXPECT_EQ(world_.store->Stats().block_count, 0u);
}

TEST_F(CollectorTest, DryRunChangesNothing) {
  const Tree tree = MakeTree(4, 10);
  const auto before = world_.PackPaths();
  const auto report = Collect({.now = true, .dry_run = true});
  ASSERT_TRUE(report);
  EXPECT_GT(report->garbage_bytes, 200000u);
  EXPECT_EQ(report->freed_bytes, 0u);
  ExpectWhole(tree);
  EXPECT_GE(world_.PackPaths().size(), before.size());
}

TEST_F(CollectorTest, WithoutNowPacksPassThroughTheTrash) {
  MakeTree(5, 30);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  const auto report = Collect({});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_GT(report->trash_bytes, 500000u);
  world_.clock.Advance(25ll * 3600 * 1000000000);
  const auto later = Collect({});
  ASSERT_TRUE(later);
  EXPECT_EQ(later->trash_bytes, 0u);
}

// Packs of 4 MiB on a disk with a reserve of half of that.
class FullDiskCollectorTest : public CollectorTest {
 protected:
  FullDiskCollectorTest() : CollectorTest(4 << 20) {
    world_.Kill();
    world_.fs.SetSpaceLeft(100 << 20);
    world_.space = *SpaceGuard::Open({.fs = world_.fs,
                                      .dir = world_.dir,
                                      .clock = world_.clock,
                                      .limits = {.reserve_bytes = 2 << 20, .floor_bytes = 4096}});
    world_.Open();
  }
  void SetFree(int64_t bytes) {
    world_.fs.SetSpaceLeft(bytes);
    world_.clock.Advance(1'000'000'000);
  }
};

TEST_F(FullDiskCollectorTest, FreesFirstAndThenCopiesIntoWhatIsFree) {
  std::vector<Tree> kept;
  for (int n = 1; n <= 5; ++n) kept.push_back(MakeMixedPack(n));
  MakeTree(300, 180);  // a pack of its own, all of it dead
  ASSERT_TRUE(world_.store->SealOpenPacks());
  ASSERT_EQ(world_.store->ListPacks(world_.realm_a).size(), 6u);
  // Without one free byte the reserve file is enough for the index, not for a copy of 2.8 MB: that
  // takes what the dead pack leaves.
  SetFree(0);
  const auto report = Collect({.now = true});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->packs_removed, 1u);
  EXPECT_EQ(report->packs_rewritten, 5u);
  EXPECT_EQ(report->packs_without_room, 0u);
  for (const Tree& tree : kept) ExpectWhole(tree);
  EXPECT_TRUE(world_.Check().empty());
}

TEST_F(FullDiskCollectorTest, APackWithoutRoomForItsCopyStaysForTheNextRun) {
  const Tree kept = MakeMixedPack(1);
  SetFree(0);
  const auto report = Collect({.now = true});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->packs_without_room, 1u);
  EXPECT_EQ(report->packs_rewritten, 0u);
  ExpectWhole(kept);
  SetFree(6 << 20);
  const auto again = Collect({.now = true});
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->packs_rewritten, 1u);
  EXPECT_EQ(again->packs_without_room, 0u);
  ExpectWhole(kept);
}

TEST_F(CollectorTest, UnreadableNodeStopsItWithNothingDeleted) {
  const Tree kept = MakeTree(6, 200);
  MakeTree(7, 20);  // garbage
  AddEnvironment(1, kept);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  // Damages the frame of the tree's top node.
  bool flipped = false;
  for (const PackSummary& pack : world_.store->ListPacks(world_.realm_a)) {
    const auto blocks = world_.store->ListBlocks(pack.pack);
    ASSERT_TRUE(blocks);
    for (const auto& block : *blocks) {
      if (block.entry.address != kept.tree.node->address) continue;
      for (const std::string& path : world_.PackPaths()) {
        if (path.find(pack.pack.ToHex()) == std::string::npos) continue;
        FlipBit(path, block.entry.offset + 100);
        flipped = true;
      }
    }
  }
  ASSERT_TRUE(flipped);
  world_.Reopen();  // nothing is served from a cache
  const auto before = world_.PackPaths();
  const auto report = Collect({.now = true});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(world_.PackPaths(), before);
  const std::string found = Describe(Check());
  EXPECT_NE(found.find("environment env_1"), std::string::npos) << found;
}

TEST_F(CollectorTest, MissingLeafStopsItWithNothingDeleted) {
  Tree kept = MakeTree(8, 5);
  const BlockRef absent = world_.Put(world_.realm_b, "only in another realm");
  auto session = world_.store->BeginWrite(world_.realm_a);
  const TreeReader base(*world_.store, nodes_, world_.realm_a, kept.tree);
  const auto tree =
      MergeTree(base, **session, {{ExtentKey(3, 65536), Extent(65536, 10, absent)}}, CountEntry, 1);
  ASSERT_TRUE(tree);
  FsRoot fs;
  fs.tree = *tree;
  kept.root = *(*session)->Put(BlockKind::kFsRoot, fs.Encode(), Compression::kFast);
  ASSERT_TRUE((*session)->Sync());
  session->reset();
  AddEnvironment(1, kept);
  const auto report = Collect({.now = true});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kDataLoss);
  ExpectWhole(kept);
}

TEST_F(CollectorTest, UnreadableCatalogCollectsNothing) {
  const Tree tree = MakeTree(9, 5);
  ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    txn.Put(keys::Volume(std::string(16, 'v')), "\xff\xff");
    return {};
  }));
  EXPECT_FALSE(Collect({.now = true}));
  ExpectWhole(tree);
}

TEST_F(CollectorTest, WaitsForWritersSoThatAnUnpublishedTreeIsSafe) {
  auto session = world_.store->BeginWrite(world_.realm_a);
  ASSERT_TRUE(session);
  const auto ref = (*session)->Put(BlockKind::kData, "not yet named by a root", Compression::kFast);
  ASSERT_TRUE(ref);
  std::thread collector([&] { EXPECT_TRUE(Collect({.now = true})); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(*world_.store->Contains(world_.realm_a, *ref))
      << "a live session's block was collected";
  session->reset();
  collector.join();
  EXPECT_FALSE(*world_.store->Contains(world_.realm_a, *ref));
}

TEST_F(CollectorTest, DeletedOrganizationIsDroppedWithoutItsKeys) {
  MakeTree(10, 10);
  auto org = *GetRecord<catalog::Organization>(catalog_, keys::Organization(kOrg));
  org->set_deleted_ms(5);
  Put(keys::Organization(kOrg), *org);
  world_.keys.Remove(world_.realm_a);
  const auto report = Collect({.now = true});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(world_.store->Stats().pack_bytes, 0u);
}

TEST_F(CollectorTest, TornTailOfAnInterruptedWriteIsFreed) {
  const Tree tree = MakeTree(31, 3);
  AddEnvironment(1, tree);
  world_.Kill();
  const std::string path = world_.PackPaths().at(0);
  WriteHostFile(path, ReadHostFile(path) + SeededRandom(1).Bytes(500000));
  world_.Open();
  const uint64_t before = world_.store->Stats().pack_bytes;
  const auto report = Collect({});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->packs_rewritten, 1u) << "most of it is no frame";
  ASSERT_TRUE(Collect({.now = true}));
  EXPECT_LT(world_.store->Stats().pack_bytes, before - 490000);
  ExpectWhole(tree);
  EXPECT_EQ(Describe(Check()), "");
}

}  // namespace
}  // namespace cairn
