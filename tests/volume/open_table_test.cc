// Counts, and what of them a kill at any moment leaves for the next process.
#include "volume/open_table.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "store/base/random.h"

namespace cairn {
namespace {

using Counts = std::map<InodeNumber, std::pair<uint32_t, uint32_t>>;

UniqueFd MemoryFile() { return UniqueFd(::memfd_create("opens", MFD_CLOEXEC)); }

std::shared_ptr<OpenTable> On(const UniqueFd& file) {
  auto table = OpenTable::OnFile(UniqueFd(::dup(file.get())));
  EXPECT_TRUE(table.has_value()) << table.error().ToString();
  return table ? *table : nullptr;
}

ReplyRecord RequestOf(uint64_t unique, uint16_t lane = 0) {
  ReplyRecord request;
  request.connection.bytes.fill(1);
  request.unique = unique;
  request.lane = lane;
  return request;
}

Counts CountsOf(OpenTable& table) {
  Counts counts;
  for (const auto& listed : table.List()) {
    counts[listed.ino] = {listed.opens.handles, listed.opens.writable};
  }
  return counts;
}

TEST(OpenTable, CountsHandlesAndWriters) {
  const auto table = OpenTable::Private();
  EXPECT_EQ(table->Add(5, true, {}).handles, 1u);
  EXPECT_EQ(table->Add(5, false, {}).handles, 2u);
  EXPECT_EQ(table->Get(5).writable, 1u);
  EXPECT_EQ(table->Add(6, false, {}).handles, 1u);
  EXPECT_EQ(table->total().handles, 3u);
  EXPECT_EQ(table->Drop(5, true, {}).handles, 1u);
  EXPECT_EQ(CountsOf(*table), (Counts{{5, {1, 0}}, {6, {1, 0}}}));
  EXPECT_EQ(table->Drop(5, false, {}).handles, 0u);
  EXPECT_EQ(table->Drop(5, false, {}).handles, 0u) << "nothing is open";
  EXPECT_EQ(table->total().handles, 1u);
}

TEST(OpenTable, GrowsAndIsFoundAgainWhole) {
  const UniqueFd file = MemoryFile();
  Counts expected;
  {
    const auto table = On(file);
    for (InodeNumber ino = 1; ino <= 20000; ++ino) {
      table->Add(ino, ino % 2 == 0, {});
      if (ino % 3 == 0) table->Add(ino, false, {});
    }
    for (InodeNumber ino = 5; ino <= 20000; ino += 5) table->Drop(ino, ino % 2 == 0, {});
    expected = CountsOf(*table);
    EXPECT_GT(expected.size(), 16000u);
  }
  const auto table = On(file);
  EXPECT_EQ(CountsOf(*table), expected);
  // Free entries are used again.
  for (InodeNumber ino = 30001; ino <= 32000; ++ino) table->Add(ino, false, {});
  EXPECT_EQ(table->Get(30001).handles, 1u);
  EXPECT_EQ(table->Get(1).handles, 1u);
}

TEST(OpenTable, WhatTheServerBeforeCountedIsNotCountedTwice) {
  const UniqueFd file = MemoryFile();
  {
    const auto table = On(file);
    table->Add(5, true, RequestOf(10, 0));
    table->Add(5, true, RequestOf(12, 1));
    table->Add(6, false, RequestOf(14, 2));
    table->Drop(5, true, RequestOf(16, 3));
    table->Add(7, false, RequestOf(18, 4));
    table->UndoAdd(7, false, RequestOf(18, 4));
  }
  for (int life = 0; life < 3; ++life) {  // none of them is answered by the servers between
    const auto table = On(file);
    EXPECT_EQ(table->Add(5, true, RequestOf(12, 3)).handles, 1u) << "counted by the one before";
    EXPECT_EQ(table->Drop(5, true, RequestOf(16, 2)).handles, 1u);
    EXPECT_EQ(table->Add(6, false, RequestOf(14, 1)).handles, 1u);
  }
  const auto table = On(file);
  EXPECT_EQ(table->Add(7, false, RequestOf(18)).handles, 1u) << "it was taken back";
  EXPECT_EQ(table->Add(8, false, RequestOf(12)).handles, 1u) << "made under another number";
  EXPECT_EQ(table->Add(5, true, RequestOf(20)).handles, 2u);
}

TEST(OpenTable, WhatWasCountedForAFileThatWasNeverMadeIsForgotten) {
  const UniqueFd file = MemoryFile();
  {
    const auto table = On(file);
    table->Add(5, true, RequestOf(10, 0));
    table->Add(6, false, RequestOf(12, 1));
  }
  for (int life = 0; life < 2; ++life) {  // the first is killed before it has served anything
    const auto table = On(file);
    table->Forget(5);
    table->Forget(9);  // not open
    EXPECT_EQ(CountsOf(*table), (Counts{{6, {1, 0}}}));
    EXPECT_EQ(table->total().handles, 1u);
    EXPECT_EQ(table->total().writable, 0u);
  }
  const auto table = On(file);
  EXPECT_EQ(table->Add(6, false, RequestOf(12, 1)).handles, 1u) << "it was made";
  EXPECT_EQ(table->Add(5, true, RequestOf(10, 2)).handles, 1u) << "made now, under that number";
}

struct Step {
  InodeNumber ino;
  bool add;
  bool writable;
};
// Never a drop of what is not open.
std::vector<Step> Steps(uint64_t seed, size_t count) {
  SeededRandom random(seed);
  std::vector<Step> steps;
  std::map<InodeNumber, std::vector<bool>> open;
  for (size_t i = 0; i < count; ++i) {
    Step step{.ino = 2 + random.Below(30), .add = true, .writable = random.Below(2) == 0};
    auto& handles = open[step.ino];
    if (!handles.empty() && random.Below(2) == 0) {
      step.add = false;
      step.writable = handles.back();
      handles.pop_back();
    } else {
      handles.push_back(step.writable);
    }
    steps.push_back(step);
  }
  return steps;
}
void Do(OpenTable& table, const Step& step, size_t number) {
  const ReplyRecord request = RequestOf(number + 1, number % 4);
  step.add ? table.Add(step.ino, step.writable, request)
           : table.Drop(step.ino, step.writable, request);
}

TEST(OpenTable, AKillAtAnyMomentLeavesEachRequestCountedOnceOrToBeCounted) {
  constexpr int kKills = 60;
  constexpr size_t kSteps = 200000;
  auto* const done = static_cast<std::atomic<size_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  size_t steps_done = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const UniqueFd file = MemoryFile();
    const auto steps = Steps(static_cast<uint64_t>(kill), kSteps);
    done->store(0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto table = OpenTable::OnFile(UniqueFd(::dup(file.get())));
      for (size_t i = 0; i < kSteps; ++i) {
        Do(**table, steps[i], i);
        done->store(i + 1);
      }
      ::_exit(0);
    }
    while (done->load() < 1000 + static_cast<size_t>(kill) * 7) {
    }
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const size_t before = done->load();
    steps_done += before;
    const auto table = On(file);
    ASSERT_NE(table, nullptr);
    // The one that was under way is sent again, as are the last of the other lanes, if they like.
    for (size_t i = before < 3 ? 0 : before - 3; i <= before && i < kSteps; ++i) {
      Do(*table, steps[i], i);
    }
    const auto model = OpenTable::Private();
    for (size_t i = 0; i <= before && i < kSteps; ++i) Do(*model, steps[i], i);
    ASSERT_EQ(CountsOf(*table), CountsOf(*model)) << "kill " << kill << " after step " << before;
  }
  ::munmap(done, 4096);
  std::printf("%d kills, %zu steps\n", kKills, steps_done);
}

TEST(OpenTable, WhatIsNoTableIsRefused) {
  const auto refused = [](uint64_t offset, uint64_t value) {
    const UniqueFd file = MemoryFile();
    On(file)->Add(5, true, {});
    EXPECT_EQ(::pwrite(file.get(), &value, sizeof value, static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof value));
    const auto table = OpenTable::OnFile(UniqueFd(::dup(file.get())));
    return !table && table.error().code() == ErrorCode::kDataLoss;
  };
  EXPECT_TRUE(refused(0, 7));                         // magic
  EXPECT_TRUE(refused(8, 2));                         // version
  EXPECT_TRUE(refused(16, 1 << 20));                  // more entries than fit
  EXPECT_TRUE(refused(4096, 0));                      // no inode
  EXPECT_TRUE(refused(4104, uint64_t{2} << 32 | 1));  // more writers than handles
  EXPECT_FALSE(refused(4104, uint64_t{1} << 32 | 2));
  const UniqueFd cut = MemoryFile();
  ASSERT_EQ(::ftruncate(cut.get(), 100), 0);
  EXPECT_FALSE(OpenTable::OnFile(UniqueFd(::dup(cut.get()))).has_value());
}

}  // namespace
}  // namespace cairn
