// The power goes at a moment of a recorded history of the whole store, the disk keeps some of what
// was not synced, and a new life begins on it. Then: every promise made before that moment holds,
// check finds nothing wrong, and after a reap and a collection nothing is left that nothing needs.
//
// CAIRN_POWER_CUTS is how many moments are tried in each history (0: all), CAIRN_SEED its seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/power_loss/life.h"
#include "tests/power_loss/script.h"
#include "tests/support/recorded_disk.h"
#include "tests/support/seam_env.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

class PowerLoss : public testing::TestWithParam<DiskReplay::Unsynced> {
 protected:
  void Record(uint64_t seed, int steps) {
    disk_ = std::make_unique<RecordedDisk>(data_);
    env_ = NewSeamEnv(*disk_);
    auto life = Life::Begin(*disk_, data_, env_.get());
    ASSERT_TRUE(life) << life.error().ToString();
    script_ = std::make_unique<Script>(**life, *disk_, dir_.path(), seed);
    const Status ran = script_->Run(steps);
    ASSERT_TRUE(ran) << ran.error().ToString();
    const Status stopped = (*life)->Stop();
    ASSERT_TRUE(stopped) << stopped.error().ToString();
  }

  void CheckPromises(Life& life, uint64_t position, bool again) {
    for (const Promise& promise : script_->promises()) {
      if (promise.made > position || position >= promise.ends || (again && promise.once)) continue;
      const std::string broken = promise.broken(life);
      EXPECT_TRUE(broken.empty()) << (again ? "after a collection: " : "") << promise.what << ": "
                                  << broken;
    }
  }

  // `disk` holds what was left at `position`. The first life looks, and takes up what was begun;
  // the second, in which nothing is at work in the background, cleans up.
  void LiveOn(const std::string& disk, uint64_t position) {
    {
      auto begun = Life::Begin(HostFileSystem(), disk, nullptr);
      ASSERT_TRUE(begun) << begun.error().ToString();
      Life& life = **begun;
      const auto checked = life.Check();
      ASSERT_TRUE(checked) << checked.error().ToString();
      for (const Damage& damage : checked->damages) {
        ADD_FAILURE() << damage.structure << " " << damage.where << ": " << damage.what;
      }
      CheckPromises(life, position, /*again=*/false);
      const Status settled = life.Settle();
      ASSERT_TRUE(settled) << settled.error().ToString();
      const Status stopped = life.Stop();
      ASSERT_TRUE(stopped) << stopped.error().ToString();
    }
    auto begun = Life::Begin(HostFileSystem(), disk, nullptr);
    ASSERT_TRUE(begun) << begun.error().ToString();
    Life& life = **begun;
    const auto reaped = life.Reap();
    ASSERT_TRUE(reaped) << reaped.error().ToString();
    for (const std::string& failure : reaped->failures) ADD_FAILURE() << "reap: " << failure;
    const auto collected = life.collector->Collect({.now = true});
    ASSERT_TRUE(collected) << collected.error().ToString();
    const auto leaks = life.Leaks();
    ASSERT_TRUE(leaks) << leaks.error().ToString();
    for (const std::string& leak : *leaks) ADD_FAILURE() << "leaked: " << leak;
    CheckPromises(life, position, /*again=*/true);
    EXPECT_EQ(life.store->trash_reads(), 0u);
    const Status stopped = life.Stop();
    EXPECT_TRUE(stopped) << stopped.error().ToString();
  }

  TempDir dir_;
  const std::string data_ = dir_.path() + "/data";
  std::unique_ptr<RecordedDisk> disk_;
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<Script> script_;
};

TEST_P(PowerLoss, PromisesHoldAndNothingLeaks) {
  const uint64_t seed = FromEnvironment("CAIRN_SEED", 1 + static_cast<uint64_t>(GetParam()));
  const uint64_t cuts = FromEnvironment("CAIRN_POWER_CUTS", 20);
  ASSERT_NO_FATAL_FAILURE(Record(seed, 60));
  const auto& history = disk_->history();
  const uint64_t stride = cuts == 0 ? 1 : std::max<uint64_t>(1, history.size() / cuts);
  DiskReplay replay(history);
  SeededRandom random(seed);
  uint64_t tried = 0;
  for (uint64_t at = stride == 1 ? 0 : random.Below(stride); at <= history.size();
       at += stride == 1 ? 1 : 1 + random.Below(2 * stride)) {
    SCOPED_TRACE(fmt::format("seed {}, power cut at {} of {}", seed, at, history.size()));
    replay.PlayTo(at);
    const std::string disk = dir_.path() + "/cut";
    const Status made = replay.Materialize(disk, GetParam(), random);
    ASSERT_TRUE(made) << made.error().ToString();
    ASSERT_NO_FATAL_FAILURE(LiveOn(disk, at));
    ++tried;
    ASSERT_TRUE(RemoveTree(HostFileSystem(), disk));
    if (HasFailure()) break;  // one history is enough to look at
  }
  fmt::print("{} power cuts in a history of {} changes, {} promises\n", tried, history.size(),
             script_->promises().size());
  EXPECT_GT(script_->promises().size(), 20u);
}

INSTANTIATE_TEST_SUITE_P(Unsynced, PowerLoss,
                         testing::Values(DiskReplay::Unsynced::kLost, DiskReplay::Unsynced::kKept,
                                         DiskReplay::Unsynced::kTorn),
                         [](const auto& each) -> std::string {
                           switch (each.param) {
                             case DiskReplay::Unsynced::kLost:
                               return "Lost";
                             case DiskReplay::Unsynced::kKept:
                               return "Kept";
                             default:
                               return "Torn";
                           }
                         });

}  // namespace
}  // namespace cairn
