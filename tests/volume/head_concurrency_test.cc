// Threads that commit, sync, read, freeze and seal at the same time.
#include <atomic>
#include <thread>

#include "store/base/mutex.h"
#include "tests/volume/head_fixture.h"
#include "tests/volume/sim_disk.h"
#include "volume/journal_format.h"

namespace cairn {
namespace {

TEST_F(HeadTest, ThreadsThatCommitAndSyncLoseNothing) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kCommits = 60;
  SimDisk disk;
  fs_ = &disk;
  options_.dir = "/v";
  std::atomic<int> syncs{0};
  disk.hook = [&](SimDisk::Op op, const std::string&) -> Status {
    syncs += op == SimDisk::Op::kSync ? 1 : 0;
    return {};
  };
  MustReopen();
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (uint64_t thread = 0; thread < kThreads; thread++) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < kCommits; i++) {
        const InodeNumber ino = 2 + thread * kCommits + i;
        const std::string data(i % 5 == 0 ? 50000 : 500, static_cast<char>('a' + thread));
        Transaction t;
        t.Put(AttributesKey(ino), Entry{"v", {}});
        t.PutData(ino, 0, data);
        if (!head_->Commit(std::move(t)) || !head_->Sync()) failures++;
        if (ReadFile(*head_->current(), ino, 0, data.size()) != data) failures++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  // Every commit was synced when its thread went on: nothing may depend on unsynced bytes.
  head_.reset();
  SeededRandom random(1);
  disk.hook = nullptr;
  disk.LosePower(random);
  MustReopen();
  for (uint64_t n = 0; n < kThreads * kCommits; n++) {
    ASSERT_EQ(GetPayload(*head_->current(), AttributesKey(2 + n)), "v") << n;
    const char fill = static_cast<char>('a' + n / kCommits);
    ASSERT_EQ(ReadFile(*head_->current(), 2 + n, 0, 500), std::string(500, fill)) << n;
  }
}

TEST_F(HeadTest, CallersThatWaitShareOneSync) {
  SimDisk disk;
  fs_ = &disk;
  options_.dir = "/v";
  MustReopen();
  std::atomic<int> syncs{0};
  std::atomic<bool> hold{true};
  std::atomic<int> arrived{0};
  disk.hook = [&](SimDisk::Op op, const std::string&) -> Status {
    if (op != SimDisk::Op::kSync) return {};
    syncs++;
    while (hold) std::this_thread::yield();
    return {};
  };
  constexpr int kCallers = 8;
  std::vector<std::thread> threads;
  const auto call = [&](int n) {
    Transaction t;
    t.Put(AttributesKey(static_cast<InodeNumber>(2 + n)), Entry{"v", {}});
    EXPECT_TRUE(head_->Commit(std::move(t)));
    arrived++;
    EXPECT_TRUE(head_->Sync());
  };
  threads.emplace_back(call, 0);
  while (syncs == 0)
    std::this_thread::yield();  // the first one syncs; the others come too late for it
  for (int n = 1; n < kCallers; n++) threads.emplace_back(call, n);
  while (arrived < kCallers) std::this_thread::yield();
  hold = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(syncs, 2);  // all others had committed when the second one began
}

TEST_F(HeadTest, ReadersSeeTheSameContentWhileLayersAreSealedUnderThem) {
  SimDisk disk;
  fs_ = &disk;
  options_.dir = "/v";
  MustReopen();
  const std::string content(100000, 'c');
  const std::string block(kGridBytes, 'c');
  auto session = *store_.BeginWrite(realm_);
  const BlockRef ref = *session->Put(BlockKind::kData, block, Compression::kFast);
  // Every generation writes the same file and key again, so the content never changes.
  std::vector<TreeUpdate> updates;
  updates.push_back({AttributesKey(5), Entry{"five", {}}});
  for (uint64_t at = 0; at < content.size(); at += kGridBytes) {
    std::string payload;
    ByteWriter(payload).U32(
        static_cast<uint32_t>(std::min<uint64_t>(kGridBytes, content.size() - at)));
    ByteWriter(payload).U32(0);
    updates.push_back({ExtentKey(5, at), Entry{payload, {ref}}});
  }
  const auto root = MergeTree(
      *EmptyTree(), *session, updates,
      [](std::string_view, const Entry&) { return TreeCounters{}; }, 1);
  ASSERT_TRUE(root);
  const auto write = [&] {
    Transaction t;
    t.Put(AttributesKey(5), Entry{"five", {}});
    t.PutData(5, 0, content);
    ASSERT_TRUE(head_->Commit(std::move(t)));
  };
  write();
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> reads{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; r++) {
    readers.emplace_back([&] {
      while (!stop) {
        const auto layer = head_->current();
        if (GetPayload(*layer, AttributesKey(5)) != "five") wrong++;
        if (ReadFile(*layer, 5, 0, content.size()) != content) wrong++;
        int seen = 0;
        const Status scanned = layer->Scan({}, {}, [&](std::string_view, const Entry& entry) {
          seen += entry.payload == "five" ? 1 : 0;
          return true;
        });
        if (!scanned || seen != 1) wrong++;
        reads++;
      }
    });
  }
  for (uint64_t generation = 1; generation <= 40; generation++) {
    ASSERT_TRUE(head_->Freeze());
    write();
    ASSERT_TRUE(head_->FinishSeal(generation, Tree(*root)));
  }
  while (reads < 20) std::this_thread::yield();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(disk.List("/v")->size(), 3u) << "journal, side log and mark";
}

TEST_F(HeadTest, SealedDeltaIsLetGoWithItsLastReader) {
  MustReopen();
  Transaction t;
  const std::string data(1000, 'd');
  t.PutData(5, 0, data);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  const auto frozen = *head_->Freeze();
  auto segments = *frozen->Extents(5, 0, 1000);
  std::weak_ptr<const UnsealedPayload> payload = segments[0].payload;
  ASSERT_TRUE(head_->FinishSeal(1, EmptyTree()));
  std::string out(1000, '\0');
  ASSERT_TRUE(frozen->Read(segments[0], 0, out));  // its file is unlinked, the reader still has it
  EXPECT_EQ(out, data);
  EXPECT_FALSE(payload.expired());
  segments.clear();
  EXPECT_TRUE(payload.expired());
}

}  // namespace
}  // namespace cairn
