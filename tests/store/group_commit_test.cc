// One sync serves all who wait; nobody waits for company that there is no sign of; a failure is
// final.
#include "store/group_commit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <latch>
#include <thread>
#include <vector>

namespace cairn {
namespace {

TEST(GroupCommit, OneWriterSyncsEachTimeAndNeverWaits) {
  int syncs = 0;
  uint64_t written = 0;
  GroupCommit commit([&] { return written; },
                     [&]() -> Status {
                       ++syncs;
                       return {};
                     },
                     0);
  for (int i = 1; i <= 20; ++i) {
    written += 10;
    ASSERT_TRUE(commit.Through(written).has_value());
    ASSERT_TRUE(commit.Through(written - 5).has_value()) << "durable already";
    EXPECT_EQ(syncs, i);
  }
  EXPECT_EQ(commit.windows(), 0u);
}

// A holds the first sync while B comes with bytes that it does not cover. That is company, so the
// next leader, B, waits for as many once; by the end of its sync it was alone or not, and when it
// was, nobody is waited for any more.
TEST(GroupCommit, WindowOpensWithCompanyAndClosesWithoutIt) {
  std::atomic<uint64_t> written = 10;
  std::atomic<int> syncs = 0;
  std::latch in_first(1);
  GroupCommit* commit_in_sync = nullptr;
  GroupCommit commit([&] { return written.load(); },
                     [&]() -> Status {
                       if (syncs.fetch_add(1) > 0) return {};
                       in_first.count_down();
                       while (commit_in_sync->waiting() < 2) std::this_thread::yield();
                       return {};
                     },
                     0);
  commit_in_sync = &commit;
  std::thread a([&] { EXPECT_TRUE(commit.Through(10).has_value()); });
  in_first.wait();
  written = 20;
  std::thread b([&] { EXPECT_TRUE(commit.Through(20).has_value()); });
  a.join();
  b.join();
  EXPECT_EQ(syncs.load(), 2);
  EXPECT_EQ(commit.windows(), 1u);
  for (uint64_t end : {30, 40, 50}) {
    written = end;
    EXPECT_TRUE(commit.Through(end).has_value());
  }
  EXPECT_EQ(syncs.load(), 5);
  EXPECT_EQ(commit.windows(), 1u);
}

TEST(GroupCommit, ManyWritersShareSyncs) {
  constexpr int kWriters = 16;
  constexpr int kRounds = 20;
  std::atomic<uint64_t> written = 0;
  std::atomic<int> syncs = 0;
  GroupCommit commit([&] { return written.load(); },
                     [&]() -> Status {
                       syncs.fetch_add(1);
                       std::this_thread::sleep_for(std::chrono::milliseconds(2));
                       return {};
                     },
                     0);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t end = written.fetch_add(1) + 1;
        ASSERT_TRUE(commit.Through(end).has_value());
        ASSERT_GE(commit.synced_end(), end);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  std::printf("%d puts, %d syncs\n", kWriters * kRounds, syncs.load());
  EXPECT_LT(syncs.load(), kWriters * kRounds / 2);
}

TEST(GroupCommit, FailedSyncIsFinalAndNotRetried) {
  int syncs = 0;
  uint64_t written = 10;
  GroupCommit commit([&] { return written; },
                     [&]() -> Status {
                       if (++syncs == 2) return Err(ErrorCode::kInternal, "fdatasync", EIO);
                       return {};
                     },
                     0);
  ASSERT_TRUE(commit.Through(10).has_value());
  written = 20;
  EXPECT_EQ(commit.Through(20).error().code(), ErrorCode::kInternal);
  EXPECT_EQ(commit.Through(20).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(syncs, 2);
  EXPECT_TRUE(commit.Through(10).has_value()) << "durable before";
  EXPECT_EQ(commit.synced_end(), 10u);
}

TEST(GroupCommit, FailDuringASyncTakesItsSuccessAway) {
  std::latch in_sync(1), go(1);
  GroupCommit commit([] { return uint64_t{10}; },
                     [&]() -> Status {
                       in_sync.count_down();
                       go.wait();
                       return {};
                     },
                     5);
  Status leader, follower;
  std::thread a([&] { leader = commit.Through(10); });
  in_sync.wait();
  std::thread b([&] { follower = commit.Through(8); });
  while (commit.waiting() < 2) std::this_thread::yield();
  EXPECT_EQ(commit.Fail(), 5u);
  go.count_down();
  a.join();
  b.join();
  EXPECT_EQ(leader.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(follower.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(commit.synced_end(), 5u);
}

}  // namespace
}  // namespace cairn
