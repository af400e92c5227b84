// DiffTrees against the difference of two maps, and in nodes read.
#include <gtest/gtest.h>

#include "store/base/random.h"
#include "store/tree.h"
#include "tests/support/tree_world.h"

namespace cairn {
namespace {

constexpr TreeOptions kTiny{.target_bytes = 400, .max_bytes = 600, .min_bytes = 150};

TreeCounters CountNothing(std::string_view, const Entry&) { return {}; }

using Difference = std::map<std::string, std::pair<std::optional<Entry>, std::optional<Entry>>>;

Difference DiffModels(const TreeModel& a, const TreeModel& b) {
  Difference difference;
  for (const auto& [key, entry] : a) {
    if (!b.contains(key)) {
      difference[key] = {entry, std::nullopt};
    } else if (b.at(key) != entry) {
      difference[key] = {entry, b.at(key)};
    }
  }
  for (const auto& [key, entry] : b) {
    if (!a.contains(key)) difference[key] = {std::nullopt, entry};
  }
  return difference;
}

class TreeDiff : public ::testing::Test {
 protected:
  TreeRoot Build(const TreeRoot& base, const std::vector<TreeUpdate>& updates) {
    return *MergeTree(world.Reader(base), *world.session, updates, CountNothing, 1, kTiny);
  }
  TreeRoot BuildAll(const TreeModel& model) {
    std::vector<TreeUpdate> updates;
    for (const auto& [key, entry] : model) updates.push_back({key, entry});
    return Build({}, updates);
  }
  Difference Diff(const TreeRoot& a, const TreeRoot& b) {
    Difference difference;
    std::string last;
    const Status status = DiffTrees(world.Reader(a), world.Reader(b),
                                    [&](std::string_view key, const Entry* ea, const Entry* eb) {
                                      EXPECT_LT(last, key);
                                      last = key;
                                      difference[last] = {ea ? std::optional(*ea) : std::nullopt,
                                                          eb ? std::optional(*eb) : std::nullopt};
                                      return true;
                                    });
    EXPECT_TRUE(status) << status.error().ToString();
    return difference;
  }

  TreeWorld world;
};

TEST_F(TreeDiff, AgreesWithTheDifferenceOfTwoMaps) {
  const uint64_t seed = 4711;
  SCOPED_TRACE(seed);
  SeededRandom random(seed);
  TreeModel model;
  TreeRoot root;
  std::vector<std::pair<TreeModel, TreeRoot>> history = {{model, root}};
  for (int round = 0; round < 60; ++round) {
    std::map<std::string, std::optional<Entry>> batch;
    const uint64_t count = 1 + random.Below(round % 7 == 0 ? 1500 : 20);
    for (uint64_t i = 0; i < count; ++i) {
      std::string key = "k" + std::to_string(random.Below(4000));
      if (random.OneIn(round % 10 == 9 ? 2 : 4)) {
        batch[key] = std::nullopt;
      } else {
        batch[key] = Entry{random.Bytes(random.Below(30)), {}};
      }
    }
    std::vector<TreeUpdate> updates;
    for (auto& [key, entry] : batch) {
      updates.push_back({key, entry});
      if (entry) {
        model[key] = *entry;
      } else {
        model.erase(key);
      }
    }
    root = Build(root, updates);
    history.push_back({model, root});
    for (int pair = 0; pair < 4; ++pair) {
      const auto& [model_a, root_a] = history[random.Below(history.size())];
      const auto& [model_b, root_b] = pair == 0 ? history[history.size() - 2] : history.back();
      ASSERT_EQ(Diff(root_a, root_b), DiffModels(model_a, model_b));
    }
  }
}

TEST_F(TreeDiff, TreesOfDifferentHeightsAndHistoriesCompareByContent) {
  TreeModel large;
  for (int i = 0; i < 3000; ++i) large["k" + std::to_string(10000 + i)] = Entry{"v", {}};
  TreeModel small = {{"k10005", Entry{"v", {}}}, {"k11111", Entry{"w", {}}}, {"z", Entry{}}};
  const TreeRoot a = BuildAll(large);
  const TreeRoot b = BuildAll(small);
  EXPECT_EQ(Diff(a, b), DiffModels(large, small));
  EXPECT_EQ(Diff(b, a), DiffModels(small, large));
  EXPECT_EQ(Diff(a, {}), DiffModels(large, {}));
  EXPECT_EQ(Diff({}, b), DiffModels({}, small));
  EXPECT_TRUE(Diff({}, {}).empty());
  // The same content, cut differently.
  TreeRoot c;
  for (const auto& [key, entry] : large) {
    if (key.back() % 2) c = Build(c, {{key, entry}});
  }
  std::vector<TreeUpdate> rest;
  for (const auto& [key, entry] : large) rest.push_back({key, entry});
  c = Build(c, rest);
  EXPECT_NE(c.node, a.node);
  EXPECT_TRUE(Diff(a, c).empty());
}

TEST_F(TreeDiff, EqualTreesReadNothing) {
  TreeModel model;
  for (int i = 0; i < 500; ++i) model["k" + std::to_string(10000 + i)] = Entry{"v", {}};
  const TreeRoot root = BuildAll(model);
  const uint64_t gets = world.store.get_count();
  EXPECT_TRUE(Diff(root, root).empty());
  EXPECT_EQ(world.store.get_count(), gets);
}

TEST_F(TreeDiff, SharedSubtreesAreNotRead) {
  TreeModel model;
  for (int i = 0; i < 30000; ++i) model["k" + std::to_string(100000 + i)] = Entry{"v", {}};
  const TreeRoot a = BuildAll(model);
  const TreeRoot b = Build(a, {{"k115000", Entry{"changed", {}}}});
  const uint64_t gets = world.store.get_count();
  EXPECT_EQ(Diff(a, b).size(), 1u);
  EXPECT_LE(world.store.get_count() - gets, 2 * 10u);  // two paths
}

TEST_F(TreeDiff, StopsWhenToldTo) {
  const TreeRoot a = BuildAll({{"a", Entry{}}, {"b", Entry{}}});
  int calls = 0;
  ASSERT_TRUE(DiffTrees(world.Reader(a), world.Reader({}),
                        [&](std::string_view, const Entry*, const Entry*) { return ++calls < 1; }));
  EXPECT_EQ(calls, 1);
}

TEST_F(TreeDiff, EqualAddressesInDifferentRealmsAreNotTrusted) {
  Id128 other_realm;
  other_realm.bytes[0] = 9;
  world.keys.Add(other_realm, TestRealmKeys(9));
  const TreeRoot a = BuildAll({{"a", Entry{}}});
  const TreeReader foreign(world.store, world.cache, other_realm, a);
  const Status status = DiffTrees(
      world.Reader(a), foreign, [](std::string_view, const Entry*, const Entry*) { return true; });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kDataLoss);
}

TEST_F(TreeDiff, DamagePassesThrough) {
  const TreeRoot a = BuildAll({{"a", Entry{}}});
  const TreeRoot b = BuildAll({{"b", Entry{}}});
  world.store.Damage(b.node->address);
  const Status status =
      DiffTrees(world.Reader(a), world.Reader(b),
                [](std::string_view, const Entry*, const Entry*) { return true; });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace cairn
