// The cache keeps its budget, keeps what is asked for again through a scan, and a hit allocates
// nothing.
#include "store/block_cache.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <thread>
#include <vector>

#include "store/base/random.h"
#include "tests/support/allocations.h"

namespace cairn {
namespace {

constexpr uint64_t kSeed = 77;

class BlockCacheTest : public testing::Test {
 protected:
  static Address AddressOf(uint64_t number) {
    SeededRandom random(kSeed + number);
    Address address;
    const std::string bytes = random.Bytes(address.bytes.size());
    std::copy(bytes.begin(), bytes.end(), address.bytes.begin());
    return address;
  }
  static BlockCache::Item ItemOf(uint64_t number, size_t bytes) {
    return {.realm = number % 2 == 0 ? realm_a : realm_b,
            .kind = BlockKind::kData,
            .plain = std::make_shared<const std::string>(bytes, static_cast<char>(number))};
  }
  // As a reader does: looks, and puts what is not there. True: it was there.
  static bool Read(BlockCache& cache, uint64_t number, size_t bytes) {
    const Address address = AddressOf(number);
    if (const BlockCache::Item item = cache.Get(address); item.plain != nullptr) {
      EXPECT_EQ(item.plain->size(), bytes);
      EXPECT_EQ((*item.plain)[0], static_cast<char>(number));
      return true;
    }
    cache.Put(address, ItemOf(number, bytes));
    return false;
  }
  static const Id128 realm_a, realm_b;
};
const Id128 BlockCacheTest::realm_a = Id128::Random();
const Id128 BlockCacheTest::realm_b = Id128::Random();

constexpr size_t kBlock = 64 << 10;

TEST_F(BlockCacheTest, AScanOfTenTimesTheCacheLeavesTheHotSet) {
  for (const uint64_t budget : {uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{64} << 20}) {
    BlockCache cache(budget);
    const uint64_t hot = budget / 2 / kBlock;
    for (int round = 0; round < 3; ++round) {
      for (uint64_t i = 0; i < hot; ++i) Read(cache, i, kBlock);
    }
    const uint64_t scan = 10 * budget / kBlock;
    for (uint64_t i = 0; i < scan; ++i) EXPECT_FALSE(Read(cache, 1'000'000 + i, kBlock));
    uint64_t kept = 0;
    for (uint64_t i = 0; i < hot; ++i) kept += Read(cache, i, kBlock) ? 1 : 0;
    EXPECT_GE(kept, hot * 95 / 100) << "of " << hot << " in " << budget;
  }
}

TEST_F(BlockCacheTest, WhatASmallQueueLostIsKeptTheSecondTime) {
  BlockCache cache(16 << 20);
  for (uint64_t i = 0; i < 1000; ++i) Read(cache, 1'000'000 + i, kBlock);  // full
  Read(cache, 1, kBlock);
  for (uint64_t i = 0; i < 350; ++i) Read(cache, 2'000'000 + i, kBlock);
  EXPECT_FALSE(cache.Contains(AddressOf(1)));
  Read(cache, 1, kBlock);
  for (uint64_t i = 0; i < 1000; ++i) Read(cache, 3'000'000 + i, kBlock);
  EXPECT_TRUE(cache.Contains(AddressOf(1)));
}

TEST_F(BlockCacheTest, AHotSetThatIsNoLongerAskedForGivesWay) {
  BlockCache cache(4 << 20);
  for (int round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < 50; ++i) Read(cache, i, kBlock);
  }
  // Another set, which fits beside nothing.
  for (int round = 0; round < 40; ++round) {
    for (uint64_t i = 0; i < 50; ++i) Read(cache, 1000 + i, kBlock);
  }
  uint64_t hits = 0;
  for (uint64_t i = 0; i < 50; ++i) hits += Read(cache, 1000 + i, kBlock) ? 1 : 0;
  EXPECT_GE(hits, 45u);
}

TEST_F(BlockCacheTest, KeepsItsBudgetWhateverTheSizes) {
  SeededRandom random(kSeed);
  for (const uint64_t budget : {uint64_t{0}, uint64_t{100'000}, uint64_t{8} << 20}) {
    BlockCache cache(budget);
    for (int i = 0; i < 5000; ++i) {
      const uint64_t number = random.Below(3000);
      const size_t size = number % 5 == 0 ? 1 + number * 300 : 1 + number;
      Read(cache, number, size);
      if (random.OneIn(50)) cache.Erase(AddressOf(random.Below(3000)));
      EXPECT_LE(cache.bytes(), budget);
    }
  }
}

TEST_F(BlockCacheTest, CountsWhatItTakes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another allocator";
#endif
  for (const size_t size : {size_t{100}, size_t{4000}, size_t{64} << 10}) {
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    BlockCache cache(8 << 20);
    for (uint64_t i = 0; i < 40'000'000 / size && i < 60'000; ++i) {
      cache.Put(AddressOf(i), ItemOf(i, size));
    }
    const size_t taken = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    EXPECT_LE(taken, cache.bytes()) << size;
    EXPECT_GE(taken, cache.bytes() * 7 / 10) << size;
  }
}

TEST_F(BlockCacheTest, AHitAllocatesNothing) {
  BlockCache cache(16 << 20);
  for (uint64_t i = 0; i < 100; ++i) Read(cache, i, kBlock);
  const Address address = AddressOf(50);
  const uint64_t before = AllocationsOfThisThread();
  for (int i = 0; i < 10; ++i) EXPECT_NE(cache.Get(address).plain, nullptr);
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

TEST_F(BlockCacheTest, EraseRealmForgetsItsBlocksOnly) {
  BlockCache cache(16 << 20);
  for (uint64_t i = 0; i < 100; ++i) Read(cache, i, kBlock);
  cache.EraseRealm(realm_a);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(cache.Contains(AddressOf(i)), i % 2 != 0);
}

TEST_F(BlockCacheTest, ThreadsShareIt) {
  BlockCache cache(4 << 20);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      SeededRandom random(kSeed + t);
      for (int i = 0; i < 3000; ++i) {
        const uint64_t number = random.Below(200);
        if (random.OneIn(20)) {
          cache.Erase(AddressOf(number));
        } else if (random.OneIn(500)) {
          cache.EraseRealm(realm_a);
        } else {
          Read(cache, number, 1000 + number * 300);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(cache.bytes(), 4u << 20);
}

}  // namespace
}  // namespace cairn
