// The block store on a disk that fills up: sessions and their budgets, the collector's copies.
#include <gtest/gtest.h>

#include <filesystem>

#include "store/local_block_store.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr SpaceLimits kLimits = {.reserve_bytes = 4 * kMiB,
                                 .floor_bytes = 2 * kMiB,
                                 .headroom_bytes = 8 * kMiB,
                                 .dirty_bytes_per_mount = kMiB};

// A world on a disk with `free_bytes` beside the reserve file.
struct SmallDisk : StoreWorld {
  explicit SmallDisk(int64_t free_bytes) : StoreWorld(kMiB, 0, kLimits) { SetFree(free_bytes); }
  void SetFree(int64_t bytes) {
    fs.SetSpaceLeft(bytes);
    clock.Advance(1'000'000'000);
  }
  uint64_t ReserveFile() { return std::filesystem::file_size(dir + "/reserve"); }
};

WriteBudget Snapshot(uint64_t expected_bytes = 0) {
  return {.use = SpaceUse::kRetaining, .expected_bytes = expected_bytes, .what = "a snapshot"};
}

TEST(StoreSpace, WhatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  SmallDisk w(15 * kMiB);
  const auto refused = w.store->BeginWrite(w.realm_a, Snapshot(6 * kMiB));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message().find("a snapshot: it needs 6.0 MiB and its budget has 5.0"),
            std::string::npos)
      << refused.error().message();
  EXPECT_TRUE(w.PackPaths().empty());
  EXPECT_TRUE(w.store->BeginWrite(w.realm_a, Snapshot(5 * kMiB)));
  EXPECT_TRUE(w.store->HoldWriters(0)) << "neither of them holds the gate";
}

TEST(StoreSpace, ASessionBeyondItsBudgetIsRefusedAndGoesOnWhenThereIsRoom) {
  SeededRandom random(1);
  SmallDisk w(11 * kMiB);  // 1 for snapshots
  auto session = *w.store->BeginWrite(w.realm_a, Snapshot());
  const std::string first = random.Bytes(600'000), second = random.Bytes(600'000);
  const auto put = session->Put(BlockKind::kData, first, Compression::kFast);
  ASSERT_TRUE(put) << put.error().ToString();
  const auto refused = session->Put(BlockKind::kData, second, Compression::kFast);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  w.SetFree(12 * kMiB);
  const auto again = session->Put(BlockKind::kData, second, Compression::kFast);
  ASSERT_TRUE(again) << again.error().ToString();
  ASSERT_TRUE(session->Sync());
  EXPECT_EQ(w.Read(w.realm_a, *put), first);
  EXPECT_EQ(w.Read(w.realm_a, *again), second);
}

TEST(StoreSpace, ASealGoesOnWhereASnapshotIsRefused) {
  SeededRandom random(1);
  SmallDisk w(5 * kMiB);
  EXPECT_FALSE(w.store->BeginWrite(w.realm_a, Snapshot(1)));
  auto session = *w.store->BeginWrite(w.realm_a);
  for (int i = 0; i < 10; ++i) {
    const auto put = session->Put(BlockKind::kData, random.Bytes(600'000), Compression::kFast);
    ASSERT_TRUE(put) << i << ": " << put.error().ToString();
  }
  EXPECT_LT(w.ReserveFile(), 4 * kMiB);
  ASSERT_TRUE(session->Sync());
}

TEST(StoreSpace, WhatASessionSetAsideAndDidNotWriteIsGivenBack) {
  SmallDisk w(15 * kMiB);
  {
    auto session = *w.store->BeginWrite(w.realm_a, Snapshot(5 * kMiB));
    EXPECT_FALSE(w.store->BeginWrite(w.realm_a, Snapshot(1)));
    ASSERT_TRUE(session->Put(BlockKind::kData, "small", Compression::kFast));
  }
  EXPECT_TRUE(w.store->BeginWrite(w.realm_a, Snapshot(4 * kMiB)));
}

struct TwoPacks {
  Id128 pack;
  std::vector<BlockRef> refs;
  LocalBlockStore::AddressSet half;
};
TwoPacks PutPack(StoreWorld& w, SeededRandom& random) {
  TwoPacks made;
  for (int i = 0; i < 10; ++i) {
    made.refs.push_back(w.Put(w.realm_a, random.Bytes(60'000)));
    if (i % 2 == 0) made.half.insert(made.refs.back().address);
  }
  EXPECT_TRUE(w.store->SealOpenPacks());
  made.pack = w.store->ListPacks(w.realm_a).at(0).pack;
  return made;
}

TEST(StoreSpace, ADeadPackGoesOnADiskWithoutOneFreeByte) {
  SeededRandom random(2);
  SmallDisk w(50 * kMiB);
  const TwoPacks made = PutPack(w, random);
  w.SetFree(0);
  const auto dropped = w.store->DropPack(made.pack, {.now = true});
  ASSERT_TRUE(dropped) << dropped.error().ToString();
  EXPECT_TRUE(w.PackPaths().empty());
  EXPECT_GT(w.fs.space_left(), 600'000);
}

TEST(StoreSpace, ACopyTakesItsRoomFromTheReserveFileOrIsNotBegun) {
  SeededRandom random(2);
  SmallDisk w(50 * kMiB);
  const TwoPacks made = PutPack(w, random);
  w.SetFree(0);
  ASSERT_TRUE(w.space->MakeRoom(4 * kMiB, "a test"));
  w.SetFree(200'000);  // the reserve file is gone, and others have taken what it left
  const auto refused = w.store->RewritePack(made.pack, made.half, {.now = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(w.PackPaths().size(), 1u);
  EXPECT_TRUE(w.Check().empty());
  w.SetFree(20 * kMiB);
  w.space->Maintain();
  w.SetFree(0);
  const auto rewritten = w.store->RewritePack(made.pack, made.half, {.now = true});
  ASSERT_TRUE(rewritten) << rewritten.error().ToString();
  EXPECT_EQ(rewritten->kept_blocks, 5u);
  EXPECT_LT(w.ReserveFile(), 4 * kMiB);
  EXPECT_TRUE(w.Check().empty());
}

}  // namespace
}  // namespace cairn
