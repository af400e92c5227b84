// Reading many blocks at once: the same answers as one after the other, fewer reads, and damage
// that hurts one block only.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "store/base/unique_fd.h"
#include "store/frame_batch.h"
#include "store/local_block_store.h"
#include "tests/store/read_world.h"
#include "tests/support/gated_file_system.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

using Call = FaultyFileSystem::Call;
constexpr uint64_t kSeed = ReadWorld::kSeed;

void DropFromPageCache(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
}

class GetMany : public testing::TestWithParam<IoBackend> {};
INSTANTIATE_TEST_SUITE_P(, GetMany, testing::Values(IoBackend::kPosix, IoBackend::kRing));

TEST_P(GetMany, AnswersAsGetOfEach) {
  SCOPED_TRACE(kSeed);
  const auto fs = NewHostFileSystem(GetParam());
  ReadWorld w(*fs);
  std::vector<BlockRef> refs;
  const Id128 base = BaseRealm();
  for (int i = 0; i < 150; ++i) {
    const size_t size = i % 20 == 0 ? kMaxBlockBytes - i : 1 + w.random.Below(90'000);
    std::string plain = i % 3 == 0 ? std::string(size, static_cast<char>(i)) : w.random.Bytes(size);
    refs.push_back(w.Put(std::move(plain), i % 7 == 0 ? &base : nullptr));
  }
  BlockRef missing = refs[0];
  missing.address.bytes[0] ^= 1;
  BlockRef wrong_kind = refs[1];
  wrong_kind.kind = BlockKind::kTreeNode;
  BlockRef wrong_length = refs[2];
  ++wrong_length.raw_length_bytes;
  for (int round = 0; round < 6; ++round) {
    // Rounds 0 and 1 in the open pack, then in sealed ones, cold every other time.
    if (round == 2) w.Reopen();
    if (round % 2 == 0) DropFromPageCache(w.PackPath());
    std::vector<BlockRef> asked;
    for (int i = 0; i < 60; ++i) asked.push_back(refs[w.random.Below(refs.size())]);
    asked.push_back(asked[0]);
    const size_t first_bad = asked.size();
    asked.insert(asked.end(), {missing, wrong_kind, wrong_length, missing});
    const auto got = w.GetMany(asked, w.random.OneIn(2));
    for (size_t i = 0; i < first_bad; ++i) w.ExpectGood(asked[i], got[i]);
    for (size_t i = first_bad; i < asked.size(); ++i) {
      EXPECT_EQ(got[i].error().code(), ErrorCode::kDataLoss);
    }
  }
  EXPECT_TRUE(w.GetMany({}).empty());
}

TEST_P(GetMany, AFlippedBitHurtsItsOwnBlockOnly) {
  const auto fs = NewHostFileSystem(GetParam());
  ReadWorld w(*fs, 0);
  const std::vector<BlockRef> refs = w.PutRow(12, 5000);
  w.Reopen();
  const std::string path = w.PackPath();
  const auto packs = w.store->ListPacks(w.realm);
  ASSERT_EQ(packs.size(), 1u);
  const auto blocks = *w.store->ListBlocks(packs[0].pack);
  ASSERT_EQ(blocks.size(), refs.size());
  for (size_t hurt = 0; hurt < blocks.size(); ++hurt) {
    const PackEntry& entry = blocks[hurt].entry;
    const uint64_t frame = kFrameHeaderBytes + entry.stored_length;
    for (const uint64_t at :
         {uint64_t{0}, uint64_t{20}, kFrameHeaderBytes + w.random.Below(5000), frame - 1}) {
      FlipBit(path, entry.offset + at);
      for (const bool cold : {false, true}) {
        if (cold) DropFromPageCache(path);
        const auto got = w.GetMany(refs);
        for (size_t i = 0; i < refs.size(); ++i) {
          if (refs[i].address == entry.address) {
            ASSERT_FALSE(got[i].has_value()) << "frame " << hurt << " byte " << at;
            EXPECT_EQ(got[i].error().code(), ErrorCode::kDataLoss);
          } else {
            w.ExpectGood(refs[i], got[i]);
          }
        }
      }
      FlipBit(path, entry.offset + at);
    }
  }
  w.ExpectGood(refs, w.GetMany(refs));
}

TEST_P(GetMany, APackThatWasCutShortLosesItsTailOnly) {
  const auto fs = NewHostFileSystem(GetParam());
  ReadWorld w(*fs, 0);
  const std::vector<BlockRef> refs = w.PutRow(12, 5000);
  w.Reopen();
  const auto blocks = *w.store->ListBlocks(w.store->ListPacks(w.realm)[0].pack);
  w.ExpectGood(refs, w.GetMany(refs));  // its reader is open now
  ASSERT_EQ(truncate(w.PackPath().c_str(), static_cast<off_t>(blocks[7].entry.offset + 100)), 0);
  const auto got = w.GetMany(refs);
  for (size_t i = 0; i < refs.size(); ++i) {
    if (i < 7) {
      w.ExpectGood(refs[i], got[i]);
    } else {
      EXPECT_EQ(got[i].error().code(), ErrorCode::kDataLoss);
    }
  }
}

TEST(GetManyReads, NeighboursTogetherAndWhatIsFarApartAlone) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  ReadWorld w(fs, 0);
  std::vector<BlockRef> refs = w.PutRow(200, 4000);
  w.Reopen();
  w.ExpectGood(refs[0], w.store->Get(w.realm, refs[0]));  // opens the reader
  const auto reads_for = [&](const std::vector<BlockRef>& asked) {
    const uint64_t before = fs.calls(Call::kRead);
    w.ExpectGood(asked, w.GetMany(asked));
    return fs.calls(Call::kRead) - before;
  };
  // 200 x 4 KiB are four reads of up to 256 KiB, in whatever order they are asked for.
  EXPECT_EQ(reads_for(refs), 4u);
  std::vector<BlockRef> shuffled = refs;
  for (size_t i = shuffled.size(); i > 1; --i)
    std::swap(shuffled[i - 1], shuffled[w.random.Below(i)]);
  EXPECT_EQ(reads_for(shuffled), 4u);
  // Every third: the gaps are read over. Every tenth (40 KiB): they are not.
  std::vector<BlockRef> third, tenth;
  for (size_t i = 0; i < refs.size(); i += 3) third.push_back(refs[i]);
  for (size_t i = 0; i < refs.size(); i += 10) tenth.push_back(refs[i]);
  EXPECT_EQ(reads_for(third), 4u);
  EXPECT_EQ(reads_for(tenth), tenth.size());
}

TEST(GetManyReads, AReadErrorIsNoDamageAndHurtsWhatItMust) {
  TempDir temp;
  FaultyFileSystem fs(temp / "scratch");
  ReadWorld w(fs, 0);
  const std::vector<BlockRef> refs = w.PutRow(10, 4000);
  w.Reopen();
  w.ExpectGood(refs, w.GetMany(refs));
  // The common read fails: each block is read alone.
  fs.FailNth(Call::kRead, 1, EIO);
  w.ExpectGood(refs, w.GetMany(refs));
  // So does the fourth block's own read.
  fs.FailNth(Call::kRead, 1, EIO);
  fs.FailNth(Call::kRead, 5, EIO);
  const auto got = w.GetMany(refs);
  for (size_t i = 0; i < refs.size(); ++i) {
    if (i == 3) {
      ASSERT_FALSE(got[i].has_value());
      EXPECT_EQ(got[i].error().code(), ErrorCode::kInternal);
      EXPECT_EQ(got[i].error().sys_errno(), EIO);
    } else {
      w.ExpectGood(refs[i], got[i]);
    }
  }
  w.ExpectGood(refs, w.GetMany(refs));
}

TEST(GetManyReads, WhatIsNotKeptIsNotInTheCache) {
  ReadWorld w(HostFileSystem());
  const std::vector<BlockRef> refs = w.PutRow(10, 4000);
  w.ExpectGood(refs, w.GetMany(refs, false));
  EXPECT_EQ(w.store->Stats().cache_bytes, 0u);
  w.ExpectGood(refs, w.GetMany(refs, true));
  EXPECT_GT(w.store->Stats().cache_bytes, 10 * 4000u);
}

TEST_P(GetMany, ALargeBatchIsAnsweredByTwoThreads) {
  const auto fs = NewHostFileSystem(GetParam());
  ReadWorld w(*fs, 0);
  const std::vector<BlockRef> refs = w.PutRow(10 * kPartBytes / 65536, 65536);
  w.Reopen();
  for (int round = 0; round < 5; ++round) {
    DropFromPageCache(w.PackPath());
    w.ExpectGood(refs, w.GetMany(refs, false));
  }
}

TEST(GetManyReads, AnIdleThreadTakesPartInALargeBatch) {
  GatedFileSystem fs;
  ReadWorld w(fs, 0);
  const std::vector<BlockRef> refs = w.PutRow(2 * kPartBytes / 65536 + 10, 65536);
  w.Reopen();
  const auto blocks = *w.store->ListBlocks(w.store->ListPacks(w.realm)[0].pack);
  std::set<Address> hurt;
  for (const size_t block : {size_t{3}, blocks.size() - 3}) {
    FlipBit(w.PackPath(), blocks[block].entry.offset + 200);
    hurt.insert(blocks[block].entry.address);
  }
  w.ExpectGood(refs[0], w.GetMany({refs[0]}, false)[0]);  // its pack is open now
  fs.CloseGate();
  std::vector<Result<Block>> got;
  std::thread caller([&] { got = w.GetMany(refs, false); });
  EXPECT_TRUE(fs.WaitForReaders(2));
  fs.OpenGate();
  caller.join();
  ASSERT_EQ(got.size(), refs.size());
  for (size_t i = 0; i < refs.size(); ++i) {
    if (hurt.contains(refs[i].address)) {
      ASSERT_FALSE(got[i].has_value());
      EXPECT_EQ(got[i].error().code(), ErrorCode::kDataLoss);
    } else {
      w.ExpectGood(refs[i], got[i]);
    }
  }
}

TEST(Flights, ManyReadersOfOneMissingBlockReadItOnce) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const BlockRef ref = w.PutRow(1, 50'000)[0];
  w.Reopen();
  // The reader of the pack is open, the block is not cached.
  w.ExpectGood({ref}, w.GetMany({ref}, false));
  uint64_t before = fs.reads();
  w.ExpectGood({ref, ref, ref}, w.GetMany({ref, ref, ref}, false));
  EXPECT_EQ(fs.reads() - before, 1u);

  before = fs.reads();
  fs.CloseGate();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { w.ExpectGood(ref, w.store->Get(w.realm, ref)); });
  }
  fs.WaitForReader();
  // Time for the others to come: whoever does not join the flight would be one more read.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  fs.OpenGate();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fs.reads() - before, 1u);
}

TEST(Flights, TwoBatchesThatWantEachOthersBlocksEnd) {
  ReadWorld w(HostFileSystem(), 0);
  const std::vector<BlockRef> refs = w.PutRow(40, 3000);
  std::vector<BlockRef> reversed(refs.rbegin(), refs.rend());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto& asked = t % 2 == 0 ? refs : reversed;
        w.ExpectGood(asked, w.GetMany(asked));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Flights, AnErrorReachesWhoWaitedAndIsNotRemembered) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const BlockRef ref = w.PutRow(1, 50'000)[0];
  w.Reopen();
  w.ExpectGood({ref}, w.GetMany({ref}, false));
  fs.CloseGate();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto got = w.store->Get(w.realm, ref);
      if (!got) {
        EXPECT_EQ(got.error().sys_errno(), EIO);
      }
    });
  }
  fs.WaitForReader();
  fs.FailReads(EIO);
  fs.OpenGate();
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(w.store->Get(w.realm, ref).has_value());
  fs.FailReads(0);
  w.ExpectGood(ref, w.store->Get(w.realm, ref));
}

TEST(Flights, AReadUnderWayDoesNotBringAForgottenRealmBack) {
  GatedFileSystem fs;
  ReadWorld w(fs);
  const std::vector<BlockRef> refs = w.PutRow(4, 50'000);
  w.Reopen();
  w.ExpectGood(refs, w.GetMany(refs, false));
  fs.CloseGate();
  std::thread reader([&] { w.ExpectGood(refs, w.GetMany(refs)); });
  fs.WaitForReader();
  w.keys.Remove(w.realm);
  w.store->ForgetRealm(w.realm);
  fs.OpenGate();
  reader.join();
  EXPECT_EQ(w.store->Stats().cache_bytes, 0u);
}

}  // namespace
}  // namespace cairn
