// The tree against std::map: random batches on trees with tiny nodes (so that they get deep) and
// with real ones, read back through a fresh reader after each; exact counters; node shape; cost in
// nodes; errors.
#include <gtest/gtest.h>

#include <algorithm>

#include "store/base/random.h"
#include "store/tree.h"
#include "store/tree_node.h"
#include "tests/support/tree_world.h"

namespace cairn {
namespace {

constexpr TreeOptions kTiny{.target_bytes = 400, .max_bytes = 600, .min_bytes = 150};

// Entries whose key ends in 'i' count one inode and their payload's length.
TreeCounters Count(std::string_view key, const Entry& entry) {
  if (!key.ends_with('i')) return {};
  return {1, entry.payload.size()};
}

TreeCounters CountModel(const TreeModel& model) {
  TreeCounters sum;
  for (const auto& [key, entry] : model) {
    const TreeCounters add = Count(key, entry);
    sum.inodes += add.inodes;
    sum.logical_bytes += add.logical_bytes;
  }
  return sum;
}

void Apply(TreeModel& model, const std::vector<TreeUpdate>& updates) {
  for (const TreeUpdate& u : updates) {
    if (u.entry) {
      model[u.key] = *u.entry;
    } else {
      model.erase(u.key);
    }
  }
}

struct Shape {
  size_t nodes = 0;
  uint32_t height = 0;  // levels
  uint64_t newest_epoch = 0;
  TreeCounters counters;
};

// Checks every node below `ref` against what its parent says; returns what the parent should say.
Shape CheckShape(const TreeReader& reader, const BlockRef& ref, bool top) {
  const auto node = reader.LoadNode(ref);
  EXPECT_TRUE(node.has_value());
  if (!node) return {};
  Shape shape{
      .nodes = 1, .height = (*node)->level() + 1, .newest_epoch = (*node)->epoch(), .counters = {}};
  if ((*node)->level() > 0 && top) {
    EXPECT_GT((*node)->items().size(), 1u) << "a top node with one child";
  }
  for (const NodeItem& item : (*node)->items()) {
    if ((*node)->level() == 0) {
      const TreeCounters add = Count(item.key, item.ToEntry());
      shape.counters.inodes += add.inodes;
      shape.counters.logical_bytes += add.logical_bytes;
      continue;
    }
    EXPECT_TRUE(reader.LoadChild(item.refs[0], (*node)->level() - 1, item.key).has_value());
    const Shape child = CheckShape(reader, item.refs[0], false);
    EXPECT_EQ(child.counters, item.counters);
    EXPECT_EQ(child.newest_epoch, item.newest_epoch);
    shape.counters.inodes += item.counters.inodes;
    shape.counters.logical_bytes += item.counters.logical_bytes;
    shape.newest_epoch = std::max(shape.newest_epoch, item.newest_epoch);
    shape.nodes += child.nodes;
  }
  return shape;
}

class TreeMerge : public ::testing::Test {
 protected:
  TreeRoot Merge(const TreeRoot& base, const std::vector<TreeUpdate>& updates, uint64_t epoch = 1,
                 const TreeOptions& options = kTiny) {
    auto root = MergeTree(world.Reader(base), *world.session, updates, Count, epoch, options);
    EXPECT_TRUE(root.has_value()) << (root ? "" : root.error().ToString());
    return root ? *root : TreeRoot{};
  }

  std::vector<TreeUpdate> Sequence(int count, const std::string& payload = "value") {
    std::vector<TreeUpdate> updates;
    for (int i = 0; i < count; ++i) {
      updates.push_back({"key" + std::to_string(100000 + i) + "i", Entry{payload, {}}});
    }
    return updates;
  }

  TreeWorld world;
};

std::string RandomKey(SeededRandom& random, uint64_t universe) {
  const uint64_t n = random.Below(universe);
  std::string key = "k" + std::to_string(n * 7919 % universe);
  if (n % 11 == 0) key += std::string(n % 300, 'x');  // long keys
  key += n % 2 == 0 ? "i" : "d";
  return key;
}

Entry RandomEntry(SeededRandom& random, const std::vector<BlockRef>& blocks) {
  Entry entry;
  entry.payload = random.Bytes(random.OneIn(20) ? random.Below(500) : random.Below(30));
  const uint64_t refs = random.OneIn(5) ? random.Below(kMaxTreeEntryRefs + 1) : random.Below(2);
  for (uint64_t i = 0; i < refs; ++i) entry.refs.push_back(blocks[random.Below(blocks.size())]);
  return entry;
}

std::vector<TreeUpdate> RandomBatch(SeededRandom& random, uint64_t universe, const TreeModel& model,
                                    const std::vector<BlockRef>& blocks) {
  std::map<std::string, std::optional<Entry>> batch;
  const uint64_t style = random.Below(10);
  if (style == 0) {  // delete a range, often most of the tree
    if (!model.empty()) {
      auto from = std::next(model.begin(), static_cast<ptrdiff_t>(random.Below(model.size())));
      uint64_t left = 1 + random.Below(model.size());
      for (; from != model.end() && left > 0; ++from, --left) batch[from->first] = std::nullopt;
    }
  } else if (style == 1 && random.OneIn(4)) {  // delete everything
    for (const auto& [key, entry] : model) batch[key] = std::nullopt;
  } else {
    const uint64_t count = 1 + random.Below(style < 5 ? 5 : 60);
    for (uint64_t i = 0; i < count; ++i) {
      std::string key = RandomKey(random, universe);
      if (random.OneIn(3)) {
        batch[key] = std::nullopt;
      } else if (const auto it = model.find(key); it != model.end() && random.OneIn(4)) {
        batch[key] = it->second;  // changes nothing
      } else {
        batch[key] = RandomEntry(random, blocks);
      }
    }
  }
  std::vector<TreeUpdate> updates;
  for (auto& [key, entry] : batch) updates.push_back({key, entry});
  return updates;
}

void RunModel(uint64_t seed, int batches, const TreeOptions& options, uint64_t universe) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  SeededRandom random(seed);
  TreeWorld world;
  std::vector<BlockRef> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(world.PutData("block" + std::to_string(i)));
  TreeRoot root;
  TreeModel model;
  uint32_t highest = 0;
  for (int b = 0; b < batches; ++b) {
    SCOPED_TRACE("batch " + std::to_string(b));
    const std::vector<TreeUpdate> updates = RandomBatch(random, universe, model, blocks);
    auto merged = MergeTree(world.Reader(root), *world.session, updates, Count,
                            static_cast<uint64_t>(b) + 1, options);
    ASSERT_TRUE(merged) << merged.error().ToString();
    Apply(model, updates);
    root = *merged;
    const TreeReader reader = world.Reader(root);
    ASSERT_EQ(root.node.has_value(), !model.empty());
    ASSERT_EQ(root.counters, CountModel(model));
    for (int probe = 0; probe < 5; ++probe) {
      const std::string key = RandomKey(random, universe);
      const auto it = model.find(key);
      const auto got = reader.Get(key);
      ASSERT_TRUE(got);
      ASSERT_EQ(*got, it == model.end() ? std::nullopt : std::optional(it->second));
      const auto back = reader.SeekBackward(key);
      ASSERT_TRUE(back);
      const auto above = model.upper_bound(key);
      if (above == model.begin()) {
        ASSERT_FALSE(back->has_value());
      } else {
        ASSERT_EQ((*back)->first, std::prev(above)->first);
        ASSERT_EQ((*back)->second, std::prev(above)->second);
      }
      const auto cursor = reader.Seek(key);
      ASSERT_TRUE(cursor);
      const auto at = model.lower_bound(key);
      ASSERT_EQ((*cursor)->valid(), at != model.end());
      if (at != model.end()) {
        ASSERT_EQ((*cursor)->key(), at->first);
        ASSERT_EQ((*cursor)->entry(), at->second);
      }
    }
    if (b % 10 == 0 || b + 1 == batches) {
      ASSERT_EQ(ReadAll(reader), model);
      if (root.node) {
        const Shape shape = CheckShape(reader, *root.node, true);
        ASSERT_EQ(shape.counters, root.counters);
        highest = std::max(highest, shape.height);
      }
    }
  }
  std::printf("seed %lu: %d batches, highest tree %u levels\n", seed, batches, highest);
}

TEST(TreeModel, TinyNodesAgreeWithMap) {
  for (uint64_t seed = 1; seed <= 8; ++seed) RunModel(seed, 400, kTiny, 2000);
}

TEST(TreeModel, RealNodesAgreeWithMap) { RunModel(99, 300, TreeOptions{}, 20000); }

TEST(TreeModel, NodesSmallerThanAnEntryAgreeWithMap) {
  RunModel(7, 300, TreeOptions{.target_bytes = 60, .max_bytes = 90, .min_bytes = 40}, 600);
}

TEST_F(TreeMerge, EmptyTreeHasNoNode) {
  EXPECT_FALSE(Merge({}, {}).node.has_value());
  EXPECT_FALSE(Merge({}, {{"absent", std::nullopt}}).node.has_value());
  EXPECT_EQ(world.store.put_count(), 0u);
  const TreeReader reader = world.Reader({});
  EXPECT_FALSE(reader.Get("a")->has_value());
  EXPECT_FALSE((*reader.Seek(""))->valid());
  EXPECT_FALSE(reader.SeekBackward("z")->has_value());
}

TEST_F(TreeMerge, DeletingEverythingGivesTheEmptyTree) {
  const std::vector<TreeUpdate> puts = Sequence(3000);
  TreeRoot root = Merge({}, puts);
  EXPECT_EQ(root.counters, (TreeCounters{3000, 15000}));
  std::vector<TreeUpdate> deletes;
  for (const TreeUpdate& u : puts) deletes.push_back({u.key, std::nullopt});
  root = Merge(root, deletes);
  EXPECT_FALSE(root.node.has_value());
  EXPECT_EQ(root.counters, TreeCounters{});
}

TEST_F(TreeMerge, DeletingDownToOneEntryCollapsesTheHeight) {
  const std::vector<TreeUpdate> puts = Sequence(3000);
  TreeRoot root = Merge({}, puts);
  ASSERT_GT(CheckShape(world.Reader(root), *root.node, true).height, 3u);
  std::vector<TreeUpdate> deletes;
  for (size_t i = 0; i < puts.size(); ++i) {
    if (i != 1234) deletes.push_back({puts[i].key, std::nullopt});
  }
  root = Merge(root, deletes);
  EXPECT_EQ(CheckShape(world.Reader(root), *root.node, true).height, 1u);
  EXPECT_EQ(ReadAll(world.Reader(root)).begin()->first, puts[1234].key);
}

TEST_F(TreeMerge, ScatteredDeletesOneAtATimeLeaveNoTrailOfTinyNodes) {
  const std::vector<TreeUpdate> puts = Sequence(2000);
  TreeRoot root = Merge({}, puts);
  const size_t before = CheckShape(world.Reader(root), *root.node, true).nodes;
  for (size_t i = 0; i < puts.size(); ++i) {
    if (i % 20 != 0) root = Merge(root, {{puts[i].key, std::nullopt}});
  }
  const size_t after = CheckShape(world.Reader(root), *root.node, true).nodes;
  EXPECT_EQ(ReadAll(world.Reader(root)).size(), 100u);
  EXPECT_LT(after * 6, before);
}

TEST_F(TreeMerge, SameInputGivesTheSameRoot) {
  TreeWorld other;
  const std::vector<TreeUpdate> first = Sequence(500);
  const std::vector<TreeUpdate> second = {{"key100007i", Entry{"changed", {}}},
                                          {"key100300i", std::nullopt}};
  const TreeRoot mine = Merge(Merge({}, first), second);
  const TreeRoot base = *MergeTree(other.Reader({}), *other.session, first, Count, 1, kTiny);
  const TreeRoot theirs = *MergeTree(other.Reader(base), *other.session, second, Count, 1, kTiny);
  EXPECT_EQ(mine.node, theirs.node);
}

TEST_F(TreeMerge, ChangesThatChangeNothingWriteNothingAndKeepTheRoot) {
  const TreeRoot root = Merge({}, Sequence(500), 1);
  const uint64_t puts = world.store.put_count() + world.store.dedup_count();
  const TreeRoot same = Merge(root,
                              {{"key0", std::nullopt},
                               {"key100007i", Entry{"value", {}}},
                               {"key100007j", std::nullopt},
                               {"zzz", std::nullopt}},
                              2);
  EXPECT_EQ(same.node, root.node);
  EXPECT_EQ(same.counters, root.counters);
  EXPECT_EQ(world.store.put_count() + world.store.dedup_count(), puts);
}

TEST_F(TreeMerge, UntouchedSubtreesKeepTheirEpoch) {
  const TreeRoot root = Merge({}, Sequence(2000), 5);
  const TreeRoot next = Merge(root, {{"key100000i", Entry{"new", {}}}}, 9);
  const auto top = *world.Reader(next).LoadNode(*next.node);
  ASSERT_GT(top->items().size(), 1u);
  EXPECT_EQ(top->epoch(), 9u);
  EXPECT_EQ(top->items().front().newest_epoch, 9u);
  EXPECT_EQ(top->items().back().newest_epoch, 5u);
}

// No cache: each node read is one Get. k changed keys cost at most k paths, and per path one
// neighbour per level.
TEST_F(TreeMerge, CostFollowsTheChangesNotTheTree) {
  const TreeRoot root = Merge({}, Sequence(50000));
  const Shape shape = CheckShape(world.Reader(root), *root.node, true);
  ASSERT_GT(shape.nodes, 2000u);
  for (const size_t k : {1u, 4u, 16u, 64u}) {
    std::vector<TreeUpdate> updates;
    for (size_t i = 0; i < k; ++i) {
      updates.push_back(
          {"key" + std::to_string(100000 + i * (50000 / k)) + "i", Entry{"new value", {}}});
    }
    const uint64_t gets = world.store.get_count();
    const uint64_t puts = world.store.put_count();
    Merge(root, updates, 2);
    EXPECT_LE(world.store.get_count() - gets, k * shape.height * 2) << k;
    EXPECT_LE(world.store.put_count() - puts, k * shape.height * 2) << k;
  }
}

TEST_F(TreeMerge, ALookupReadsOneNodePerLevel) {
  const TreeRoot root = Merge({}, Sequence(50000));
  const uint32_t height = CheckShape(world.Reader(root), *root.node, true).height;
  const uint64_t gets = world.store.get_count();
  ASSERT_TRUE(world.Reader(root).Get("key123456i")->has_value());
  EXPECT_EQ(world.store.get_count() - gets, height);
}

TEST_F(TreeMerge, TheCacheSavesTheSecondRead) {
  TreeWorld cached(64 << 20);
  const TreeRoot root = *MergeTree(cached.Reader({}), *cached.session, Sequence(5000), Count, 1);
  ReadAll(cached.Reader(root));
  const uint64_t gets = cached.store.get_count();
  ReadAll(cached.Reader(root));
  EXPECT_EQ(cached.store.get_count(), gets);
}

TEST_F(TreeMerge, LargestEntriesFitTheirNodes) {
  std::vector<TreeUpdate> updates;
  const std::vector<BlockRef> refs(kMaxTreeEntryRefs, world.PutData("x"));
  for (int i = 0; i < 40; ++i) {
    updates.push_back({std::string(kMaxTreeKeyBytes - 2, 'k') + std::to_string(10 + i),
                       Entry{std::string(kMaxTreePayloadBytes, 'p'), refs}});
  }
  const TreeRoot root = Merge({}, updates, 1, TreeOptions{});
  TreeModel model;
  Apply(model, updates);
  EXPECT_EQ(ReadAll(world.Reader(root)), model);
}

TEST_F(TreeMerge, RefusesBadUpdates) {
  const auto code = [&](const std::vector<TreeUpdate>& updates) {
    const auto root = MergeTree(world.Reader({}), *world.session, updates, Count, 1);
    return root ? ErrorCode::kInternal : root.error().code();
  };
  const std::vector<BlockRef> many(kMaxTreeEntryRefs + 1, world.PutData("x"));
  EXPECT_EQ(code({{"b", Entry{}}, {"a", Entry{}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", Entry{}}, {"a", std::nullopt}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"", Entry{}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{std::string(kMaxTreeKeyBytes + 1, 'k'), Entry{}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", Entry{std::string(kMaxTreePayloadBytes + 1, 'p'), {}}}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", Entry{"", many}}}), ErrorCode::kInvalidArgument);
}

TEST_F(TreeMerge, StoreErrorsPassThrough) {
  const TreeRoot root = Merge({}, Sequence(500));
  world.store.FailPuts(true);
  const std::vector<TreeUpdate> one = {{"key100007i", Entry{"new", {}}}};
  EXPECT_EQ(MergeTree(world.Reader(root), *world.session, one, Count, 1, kTiny).error().code(),
            ErrorCode::kExhausted);
  world.store.FailPuts(false);
  world.store.Damage(root.node->address);
  const TreeReader reader = world.Reader(root);
  EXPECT_EQ(MergeTree(reader, *world.session, one, Count, 1, kTiny).error().code(),
            ErrorCode::kDataLoss);
  EXPECT_EQ(reader.Get("key100007i").error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(reader.Seek("").error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(reader.SeekBackward("z").error().code(), ErrorCode::kDataLoss);
}

// ---- nodes that are valid alone but wrong in their place: a reader must not follow them ----

class TreeForged : public TreeMerge {
 protected:
  BlockRef PutNode(uint32_t level, const std::vector<std::pair<std::string, BlockRef>>& children) {
    std::vector<NodeItem> items;
    for (const auto& [key, ref] : children) {
      NodeItem item;
      item.key = key;
      if (level > 0) item.refs = std::span<const BlockRef>(&ref, 1);
      items.push_back(item);
    }
    return *world.session->Put(BlockKind::kTreeNode, EncodeTreeNode(level, 1, items),
                               Compression::kFast);
  }
  ErrorCode GetError(const BlockRef& top, const std::string& key) {
    const auto got = world.Reader(TreeRoot{top, {}}).Get(key);
    return got ? ErrorCode::kInternal : got.error().code();
  }
};

TEST_F(TreeForged, ChildOfTheWrongLevelIsDataLoss) {
  const BlockRef leaf = PutNode(0, {{"a", {}}});
  EXPECT_EQ(GetError(PutNode(2, {{"a", leaf}}), "a"), ErrorCode::kDataLoss);
  const BlockRef one = PutNode(1, {{"a", leaf}});
  EXPECT_EQ(GetError(PutNode(1, {{"a", one}}), "a"), ErrorCode::kDataLoss);
  EXPECT_TRUE(world.Reader(TreeRoot{PutNode(2, {{"a", one}}), {}}).Get("a")->has_value());
}

TEST_F(TreeForged, ChildThatBeginsWithAnotherKeyIsDataLoss) {
  const BlockRef leaf = PutNode(0, {{"b", {}}});
  EXPECT_EQ(GetError(PutNode(1, {{"a", leaf}}), "b"), ErrorCode::kDataLoss);
  const auto cursor = world.Reader(TreeRoot{PutNode(1, {{"a", leaf}}), {}}).Seek("");
  EXPECT_EQ(cursor.error().code(), ErrorCode::kDataLoss);
}

TEST_F(TreeForged, DataBlockAsRootIsDataLoss) {
  EXPECT_EQ(GetError(world.PutData("not a node"), "a"), ErrorCode::kDataLoss);
}

TEST_F(TreeForged, CursorThatMeetsDamageEndsInvalid) {
  const TreeRoot root = Merge({}, Sequence(500));
  const TreeReader reader = world.Reader(root);
  const auto top = *reader.LoadNode(*root.node);
  world.store.Damage(top->items()[1].refs[0].address);
  auto cursor = *reader.Seek("");
  Status status;
  size_t seen = 0;
  while (cursor->valid() && status) {
    ++seen;
    status = cursor->Next();
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(cursor->valid());
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace cairn
