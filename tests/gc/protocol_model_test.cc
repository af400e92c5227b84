// The collection protocol holds in every history within the bounds, and no guard of it is idle:
// each one taken out gives a history that loses a live block.
#include "tests/gc/protocol_model.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr uint64_t kMaxStates = 10'000'000;

// Sanitizers make a step ten times as dear.
#ifdef __SANITIZE_ADDRESS__
constexpr ProtocolBounds kBounds = {.sessions = 3, .cycles = 2, .deletions = 1, .misfortunes = 1};
#else
constexpr ProtocolBounds kBounds = {.sessions = 3, .cycles = 2, .deletions = 2, .misfortunes = 2};
#endif

TEST(ProtocolModel, NoHistoryLosesALiveBlockOrKeepsGarbage) {
  const auto result = ProtocolModel({}, kBounds).Explore(kMaxStates);
  EXPECT_TRUE(result.counterexample.empty())
      << fmt::format("{}", fmt::join(result.counterexample, "\n"));
  EXPECT_TRUE(result.complete) << "stopped after " << result.states << " states";
  EXPECT_GT(result.states, 500'000u) << "the world has become too small to show anything";
  RecordProperty("states", std::to_string(result.states));
  RecordProperty("steps", std::to_string(result.steps));
}

struct TakenOut {
  const char* name;
  ProtocolGuards guards;
};

class ProtocolGuard : public testing::TestWithParam<TakenOut> {};

TEST_P(ProtocolGuard, TakenOutLosesALiveBlock) {
  const auto result = ProtocolModel(GetParam().guards, kBounds).Explore(kMaxStates);
  ASSERT_FALSE(result.counterexample.empty()) << result.states << " states and no counterexample";
  EXPECT_THAT(result.counterexample.back(), testing::AnyOf(testing::HasSubstr("misses block"),
                                                           testing::HasSubstr("takes live block")));
}

INSTANTIATE_TEST_SUITE_P(Each, ProtocolGuard,
                         testing::Values(TakenOut{"WaitForWriters", {.wait_for_writers = false}},
                                         TakenOut{"CycleTag", {.cycle_tag = false}},
                                         TakenOut{"FreshCycle", {.fresh_cycle = false}},
                                         TakenOut{"Fence", {.fence = false}},
                                         TakenOut{"CacheEpoch", {.cache_epoch = false}},
                                         TakenOut{"AbortOnError", {.abort_on_error = false}},
                                         TakenOut{"Remark", {.remark = false}},
                                         TakenOut{"RemarkDeleted", {.remark_deleted = false}},
                                         TakenOut{"Resurrect", {.resurrect = false}},
                                         TakenOut{"TombstoneFirst", {.tombstone_first = false}}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace cairn
