// Read-ahead of the store: what was announced is there when it is asked for, within a bound, and
// stops with the store.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "store/prefetcher.h"
#include "tests/store/read_world.h"
#include "tests/support/gated_file_system.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

constexpr size_t kBlock = 50'000;

// Waits for threads that do not say when they are done.
void WaitUntil(const std::function<bool()>& done) {
  for (int i = 0; i < 60'000 && !done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(done());
}

TEST(Prefetch, WhatWasAnnouncedIsThere) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const std::vector<BlockRef> refs = w.PutRow(10, kBlock);
  w.Reopen();
  w.store->Prefetch(w.realm, refs);
  WaitUntil([&] { return w.store->Stats().cache_bytes >= refs.size() * kBlock; });
  const uint64_t before = fs.reads();
  for (const BlockRef& ref : refs) w.ExpectGood(ref, w.store->Get(w.realm, ref));
  EXPECT_EQ(fs.reads(), before);
  // Announcing what is there reads nothing either.
  w.store->Prefetch(w.realm, refs);
  ASSERT_TRUE(w.store->Close().has_value());
  EXPECT_EQ(fs.reads(), before);
}

TEST(Prefetch, AReaderWaitsForTheReadThatIsUnderWay) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const std::vector<BlockRef> refs = w.PutRow(4, kBlock);
  w.Reopen();
  w.ExpectGood(refs, w.GetMany(refs, false));  // opens the pack's reader
  const uint64_t before = fs.reads();
  fs.CloseGate();
  w.store->Prefetch(w.realm, refs);
  fs.WaitForReader();
  std::thread reader([&] { w.ExpectGood(refs[2], w.store->Get(w.realm, refs[2])); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  fs.OpenGate();
  reader.join();
  EXPECT_EQ(fs.reads() - before, 1u);  // of all four together
}

TEST(Prefetch, TakesNoMoreThanItsShareOfTheCache) {
  GatedFileSystem fs;
  ReadWorld w(fs, 16 << 20);  // a sixteenth: 20 blocks
  const std::vector<BlockRef> refs = w.PutRow(200, kBlock);
  w.Reopen();
  w.ExpectGood({refs[0]}, w.GetMany({refs[0]}, false));
  fs.CloseGate();
  for (int i = 0; i < 3; ++i) w.store->Prefetch(w.realm, refs);
  fs.WaitForReader();
  fs.OpenGate();
  WaitUntil([&] { return w.store->Stats().cache_bytes >= 20 * kBlock; });
  ASSERT_TRUE(w.store->Close().has_value());
  EXPECT_LE(w.store->Stats().cache_bytes, 21 * kBlock);
}

TEST(Prefetch, CloseWaitsForTheReadUnderWayAndDropsTheRest) {
  GatedFileSystem fs;
  ReadWorld w(fs, 128 << 20);
  const std::vector<BlockRef> refs = w.PutRow(150, kBlock);
  w.Reopen();
  w.ExpectGood({refs[0]}, w.GetMany({refs[0]}, false));
  fs.CloseGate();
  w.store->Prefetch(w.realm, refs);
  fs.WaitForReader();
  std::atomic<bool> closed = false;
  std::thread closer([&] {
    EXPECT_TRUE(w.store->Close().has_value());
    closed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(closed);
  fs.OpenGate();
  closer.join();
  // Two threads had a batch each at most.
  EXPECT_LE(w.store->Stats().cache_bytes, 2 * Prefetcher::kBatchBlocks * (kBlock + 1000));
  const uint64_t after = fs.reads();
  w.store->Prefetch(w.realm, refs);
  EXPECT_EQ(w.store->Get(w.realm, refs[149]).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(fs.reads(), after);
}

TEST(Prefetch, AStoreThatIsDroppedWithoutCloseEndsItsThreads) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const std::vector<BlockRef> refs = w.PutRow(20, kBlock);
  w.Reopen();
  for (int i = 0; i < 5; ++i) {
    w.store->Prefetch(w.realm, refs);
    w.store.reset();
    w.Open();
  }
  w.ExpectGood(refs, w.GetMany(refs));
}

TEST(Prefetch, ADamagedBlockIsTheReadersToFind) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const std::vector<BlockRef> refs = w.PutRow(5, kBlock);
  w.Reopen();
  const auto blocks = *w.store->ListBlocks(w.store->ListPacks(w.realm)[0].pack);
  FlipBit(w.PackPath(), blocks[2].entry.offset + 1000);
  w.store->Prefetch(w.realm, refs);
  WaitUntil([&] { return w.store->Stats().cache_bytes >= 4 * kBlock; });
  for (const BlockRef& ref : refs) {
    const auto got = w.store->Get(w.realm, ref);
    if (ref.address == blocks[2].entry.address) {
      EXPECT_EQ(got.error().code(), ErrorCode::kDataLoss);
    } else {
      w.ExpectGood(ref, got);
    }
  }
}

TEST(Prefetch, UnknownRealmsAndMissingBlocksAreIgnored) {
  ReadWorld w(HostFileSystem());
  BlockRef missing = w.PutRow(1, kBlock)[0];
  missing.address.bytes[0] ^= 1;
  w.store->Prefetch(Id128::Random(), {&missing, 1});
  w.store->Prefetch(w.realm, {&missing, 1});
  w.store->Prefetch(w.realm, {});
  EXPECT_TRUE(w.store->Close().has_value());
}

TEST(Prefetcher, StopBeforeTheFirstAddAndTwiceIsFine) {
  Prefetcher prefetcher(1000, [](const Id128&, std::span<const BlockRef>) { FAIL(); });
  prefetcher.Stop();
  prefetcher.Stop();
  const BlockRef ref{.raw_length_bytes = 10, .address = {}};
  EXPECT_EQ(prefetcher.Add(Id128::Random(), {&ref, 1}), 0u);
}

TEST(Prefetcher, QueuesWhatThereIsRoomFor) {
  Prefetcher prefetcher(25, [](const Id128&, std::span<const BlockRef>) {});
  const std::vector<BlockRef> refs(4, BlockRef{.raw_length_bytes = 10, .address = {}});
  EXPECT_EQ(prefetcher.Add(Id128::Random(), refs), 2u);
}

// A place in the quarantine is read alone, where its address is computed, not with its neighbours.
TEST(Prefetch, APlaceInTheQuarantineIsNotReadWithTheOthers) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const std::vector<BlockRef> refs = w.PutRow(3, kBlock);
  w.Reopen();
  const auto blocks = *w.store->ListBlocks(w.store->ListPacks(w.realm)[0].pack);
  w.ExpectGood(refs, w.GetMany(refs, false));  // opens the pack's reader
  uint64_t before = fs.reads();
  w.ExpectGood(refs, w.GetMany(refs, false));
  EXPECT_EQ(fs.reads() - before, 1u);
  const auto first = std::ranges::find_if(
      blocks, [&](const auto& block) { return block.entry.address == refs[0].address; });
  FlipBit(w.PackPath(), first->entry.offset + 1000);
  EXPECT_EQ(w.store->Get(w.realm, refs[0]).error().code(), ErrorCode::kDataLoss);
  FlipBit(w.PackPath(), first->entry.offset + 1000);
  before = fs.reads();
  w.ExpectGood(refs, w.GetMany(refs, false));
  EXPECT_EQ(fs.reads() - before, 2u);
}

}  // namespace
}  // namespace cairn
