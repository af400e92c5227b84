// What a collector does: rewriting and dropping packs, the trash, realms, condemning; with readers
// and crashes in between.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "store/local_block_store.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

using Call = FaultyFileSystem::Call;

struct Blocks {
  std::vector<std::pair<BlockRef, std::string>> all;
  LocalBlockStore::AddressSet even;  // addresses of every second one
};

Blocks PutSealed(StoreWorld& w, int count, uint64_t seed, size_t bytes = 3000) {
  SeededRandom random(seed);
  Blocks blocks;
  for (int i = 0; i < count; ++i) {
    const std::string plain = random.Bytes(bytes);
    blocks.all.emplace_back(w.Put(w.realm_a, plain), plain);
    if (i % 2 == 0) blocks.even.insert(blocks.all.back().first.address);
  }
  EXPECT_TRUE(w.store->SealOpenPacks().has_value());
  return blocks;
}

Id128 OnlyPack(StoreWorld& w) {
  const auto packs = w.store->ListPacks(w.realm_a);
  EXPECT_EQ(packs.size(), 1u);
  return packs.at(0).pack;
}

void ExpectEvenOnly(StoreWorld& w, const Blocks& blocks) {
  for (size_t i = 0; i < blocks.all.size(); ++i) {
    const auto& [ref, plain] = blocks.all[i];
    EXPECT_EQ(*w.store->Contains(w.realm_a, ref), i % 2 == 0) << i;
    if (i % 2 == 0) {
      EXPECT_EQ(w.Read(w.realm_a, ref), plain);
    }
  }
}

TEST(PackMaintenance, ListsPacksAndTheirBlocks) {
  StoreWorld w;
  EXPECT_TRUE(w.store->ListRealms().empty());
  const Blocks blocks = PutSealed(w, 4, 1);
  EXPECT_EQ(w.store->ListRealms(), std::vector<Id128>{w.realm_a});
  const auto packs = w.store->ListPacks(w.realm_a);
  ASSERT_EQ(packs.size(), 1u);
  EXPECT_TRUE(packs[0].sealed);
  EXPECT_EQ(packs[0].entry_count, 4u);
  EXPECT_EQ(packs[0].raw_bytes, 12000u);
  EXPECT_EQ(packs[0].file_bytes, std::filesystem::file_size(w.PackPaths().at(0)));
  const auto listed = w.store->ListBlocks(packs[0].pack);
  ASSERT_EQ(listed->size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*listed)[i].entry.address, blocks.all[i].first.address) << "in file order";
    EXPECT_TRUE((*listed)[i].indexed_here);
    EXPECT_EQ((*listed)[i].epoch, 1u);
  }
}

TEST(PackMaintenance, OpenPackIsNotListedAndNotRewritten) {
  StoreWorld w;
  w.Put(w.realm_a, "x");
  EXPECT_TRUE(w.store->ListPacks(w.realm_a).empty());
  const Id128 open = w.store->ListAllPacks().at(0);
  EXPECT_EQ(w.store->DropPack(open, {}).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(w.store->ListBlocks(open).error().code(), ErrorCode::kFailedPrecondition);
}

TEST(PackMaintenance, RewriteKeepsWhatItIsTold) {
  StoreWorld w;
  const Blocks blocks = PutSealed(w, 10, 1);
  const std::string old_path = w.PackPaths().at(0);
  const auto result = w.store->RewritePack(OnlyPack(w), blocks.even, {.now = true});
  ASSERT_TRUE(result.has_value()) << result.error().ToString();
  EXPECT_EQ(result->kept_blocks, 5u);
  EXPECT_EQ(result->dropped_blocks, 5u);
  EXPECT_LT(result->bytes_after, result->bytes_before * 6 / 10);
  EXPECT_FALSE(std::filesystem::exists(old_path));
  ExpectEvenOnly(w, blocks);
  EXPECT_EQ(w.store->Get(w.realm_a, blocks.all[1].first).error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(w.store->trash_reads(), 0u);
  EXPECT_TRUE(w.Check().empty());
  w.Reopen();
  ExpectEvenOnly(w, blocks);
  EXPECT_TRUE(w.Check().empty());
  // A collected block can be stored again.
  EXPECT_EQ(w.Put(w.realm_a, blocks.all[1].second), blocks.all[1].first);
  EXPECT_EQ(w.Read(w.realm_a, blocks.all[1].first), blocks.all[1].second);
}

TEST(PackMaintenance, DropFreesThePack) {
  StoreWorld w;
  PutSealed(w, 3, 1);
  ASSERT_TRUE(w.store->DropPack(OnlyPack(w), {.now = true}).has_value());
  EXPECT_TRUE(w.PackPaths().empty());
  EXPECT_EQ(w.store->Stats().block_count, 0u);
  EXPECT_EQ(w.store->Stats().pack_bytes, 0u);
  w.Reopen();
  EXPECT_EQ(w.store->Stats().block_count, 0u);
}

TEST(PackMaintenance, TrashServesALateReadLoudlyUntilItIsPurged) {
  StoreWorld w;
  const Blocks blocks = PutSealed(w, 3, 1);
  const auto& [ref, plain] = blocks.all[1];
  ASSERT_TRUE(w.store->DropPack(OnlyPack(w), {}).has_value());
  EXPECT_TRUE(w.PackPaths().empty());
  EXPECT_GT(w.store->Stats().trash_bytes, 0u);
  EXPECT_FALSE(*w.store->Contains(w.realm_a, ref)) << "a write must not rely on trash";
  EXPECT_EQ(w.store->trash_reads(), 0u);
  EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  EXPECT_EQ(w.store->trash_reads(), 1u);
  w.clock.Advance(3'599'000'000'000);
  EXPECT_EQ(*w.store->PurgeTrash(3'600'000), 0u);
  w.clock.Advance(1'000'000'000);
  EXPECT_GT(*w.store->PurgeTrash(3'600'000), 9000u);
  EXPECT_EQ(w.store->Stats().trash_bytes, 0u);
  w.Reopen();  // an empty cache
  EXPECT_EQ(w.store->Get(w.realm_a, ref).error().code(), ErrorCode::kDataLoss);
}

TEST(PackMaintenance, RewriteOfADamagedBlockChangesNothing) {
  StoreWorld w;
  const Blocks blocks = PutSealed(w, 4, 1);
  const auto listed = *w.store->ListBlocks(OnlyPack(w));
  const std::string path = w.PackPaths().at(0);
  FlipBit(path, listed[2].entry.offset + 100);
  const auto result = w.store->RewritePack(OnlyPack(w), blocks.even, {.now = true});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kDataLoss);
  EXPECT_NE(result.error().message().find(listed[2].entry.address.ToHex()), std::string::npos);
  EXPECT_EQ(w.PackPaths(), std::vector<std::string>{path});
  EXPECT_EQ(w.Read(w.realm_a, blocks.all[1].first), blocks.all[1].second);
}

TEST(PackMaintenance, RewriteWithoutRoomChangesNothing) {
  StoreWorld w;
  const Blocks blocks = PutSealed(w, 6, 1);
  const std::string path = w.PackPaths().at(0);
  w.fs.SetSpaceLeft(5000);
  EXPECT_EQ(w.store->RewritePack(OnlyPack(w), blocks.even, {}).error().code(),
            ErrorCode::kExhausted);
  w.fs.SetSpaceLeft(-1);
  EXPECT_EQ(w.PackPaths(), std::vector<std::string>{path});
  for (const auto& [ref, plain] : blocks.all) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
}

TEST(PackMaintenance, RewriteCutOffAtAnyStepLosesNothingKept) {
  for (uint64_t step = 1;; ++step) {
    StoreWorld w;
    SeededRandom random(step);
    const Blocks blocks = PutSealed(w, 6, 1, 900);
    w.fs.PowerOffAfter(step);
    IgnoreError(w.store->RewritePack(OnlyPack(w), blocks.even, {}), "it may be cut off");
    const bool off = w.fs.off();
    w.Kill();
    w.fs.PowerCut(random);
    w.Open();
    for (size_t i = 0; i < blocks.all.size(); i += 2) {
      ASSERT_EQ(w.Read(w.realm_a, blocks.all[i].first), blocks.all[i].second) << "step " << step;
    }
    EXPECT_EQ(w.store->trash_reads(), 0u) << "step " << step;
    for (const StoreDamage& damage : w.Check()) ADD_FAILURE() << "step " << step << damage.what;
    if (!off) break;
  }
}

TEST(PackMaintenance, ReadersRaceWithRewritesAndSucceed) {
  StoreWorld w(24 << 10);
  const Blocks blocks = PutSealed(w, 40, 1, 2000);
  LocalBlockStore::AddressSet keep;
  for (const auto& [ref, plain] : blocks.all) keep.insert(ref.address);
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> reads = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      SeededRandom random(t);
      while (!stop) {
        const auto& [ref, plain] = blocks.all[random.Below(blocks.all.size())];
        const Status verified = w.store->Verify(w.realm_a, ref);  // past the cache
        ASSERT_TRUE(verified.has_value()) << verified.error().ToString();
        ++reads;
      }
    });
  }
  for (int round = 0; round < 15; ++round) {
    for (const PackSummary& pack : w.store->ListPacks(w.realm_a)) {
      const auto result = w.store->RewritePack(pack.pack, keep, {.now = true});
      ASSERT_TRUE(result.has_value()) << result.error().ToString();
      ASSERT_EQ(result->dropped_blocks, 0u);
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(reads.load(), 50u);
  EXPECT_EQ(w.store->trash_reads(), 0u);
  EXPECT_TRUE(w.Check().empty());
}

TEST(PackMaintenance, CondemnIsCompareAndSwapAndAWriteResurrects) {
  StoreWorld w;
  const Blocks blocks = PutSealed(w, 4, 1);
  const Id128 pack = OnlyPack(w);
  const Address a = blocks.all[0].first.address;
  EXPECT_TRUE(*w.store->Condemn(a, 0, 7));
  EXPECT_FALSE(*w.store->Condemn(a, 0, 8)) << "another cycle has it";
  EXPECT_TRUE(*w.store->Condemn(blocks.all[1].first.address, 0, 7));
  EXPECT_EQ(w.Put(w.realm_a, blocks.all[0].second), blocks.all[0].first);
  EXPECT_EQ(w.store->ListBlocks(pack)->at(0).condemn_cycle, 0u) << "resurrected";
  EXPECT_FALSE(*w.store->Condemn(a, 7, 0));
  // Only what still carries the tag of the cycle goes.
  const auto result = w.store->DropPack(pack, {.now = true, .condemn_cycle = 7});
  ASSERT_TRUE(result.has_value()) << result.error().ToString();
  EXPECT_EQ(result->dropped_blocks, 1u);
  EXPECT_EQ(result->kept_blocks, 3u);
  EXPECT_TRUE(*w.store->Contains(w.realm_a, blocks.all[0].first));
  EXPECT_FALSE(*w.store->Contains(w.realm_a, blocks.all[1].first));
  Address absent = a;
  absent.bytes[0] ^= 1;
  EXPECT_FALSE(*w.store->Condemn(absent, 0, 1));
}

TEST(PackMaintenance, HoldWaitsForSessionsAndKeepsNewOnesOut) {
  StoreWorld w;
  auto session = *w.store->BeginWrite(w.realm_a);
  const auto refused = w.store->HoldWriters(20);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(w.store->BeginWrite(w.realm_a).has_value()) << "the attempt leaves the gate open";
  session.reset();
  std::atomic<bool> began = false;
  std::thread writer;
  {
    const auto held = w.store->HoldWriters(1000);
    ASSERT_TRUE(held.has_value());
    EXPECT_EQ(w.store->HoldWriters(0).error().code(), ErrorCode::kFailedPrecondition);
    writer = std::thread([&] {
      const auto late = w.store->BeginWrite(w.realm_a);
      EXPECT_TRUE(late.has_value());
      began = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_FALSE(began.load());
  }
  writer.join();
  EXPECT_TRUE(began.load());
}

TEST(PackMaintenance, DroppedRealmLeavesNothing) {
  StoreWorld w;
  const Blocks blocks = PutSealed(w, 3, 1);
  ASSERT_TRUE(w.store->DropPack(OnlyPack(w), {}).has_value());  // into the trash
  PutSealed(w, 3, 2);
  w.Put(w.realm_a, "in the open pack");
  const BlockRef other = w.Put(w.realm_b, "other realm");
  {
    auto session = *w.store->BeginWrite(w.realm_a);
    EXPECT_EQ(w.store->DropRealm(w.realm_a).error().code(), ErrorCode::kFailedPrecondition);
  }
  w.keys.Remove(w.realm_a);
  const auto freed = w.store->DropRealm(w.realm_a);
  ASSERT_TRUE(freed.has_value()) << freed.error().ToString();
  EXPECT_GT(*freed, 18000u);
  EXPECT_EQ(w.store->ListRealms(), std::vector<Id128>{w.realm_b});
  EXPECT_EQ(w.PackPaths().size(), 1u);
  EXPECT_EQ(w.store->Stats().trash_bytes, 0u);
  EXPECT_EQ(w.Read(w.realm_b, other), "other realm");
  EXPECT_TRUE(w.Check().empty());
  w.Reopen();
  EXPECT_EQ(w.store->ListRealms(), std::vector<Id128>{w.realm_b});
  EXPECT_EQ(w.Read(w.realm_b, other), "other realm");
  EXPECT_TRUE(w.Check().empty());
}

TEST(PackMaintenance, DropRealmWithADamagedPackStillForgetsItsBlocks) {
  StoreWorld w;
  PutSealed(w, 3, 1);
  w.Put(w.realm_b, "other realm");
  const std::string path = w.PackPaths().at(0);
  const uint64_t size = std::filesystem::file_size(path);
  FlipBit(path, 20);
  FlipBit(path, size - 20);
  ASSERT_TRUE(w.store->DropRealm(w.realm_a).has_value());
  EXPECT_EQ(w.store->ListRealms(), std::vector<Id128>{w.realm_b});
  EXPECT_TRUE(w.Check().empty());
}

}  // namespace
}  // namespace cairn
