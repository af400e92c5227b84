// The tree over real packs: merges read what the same session has put and not yet synced, and a
// synced root reads back after the store is opened again.
#include <gtest/gtest.h>

#include "store/base/random.h"
#include "store/node_cache.h"
#include "store/tree.h"
#include "tests/support/store_world.h"
#include "tests/support/tree_world.h"

namespace cairn {
namespace {

TreeCounters CountOne(std::string_view, const Entry& entry) { return {1, entry.payload.size()}; }

TEST(TreeOnPacks, RandomBatchesReadBackAfterReopening) {
  const uint64_t seed = 31337;
  SCOPED_TRACE(seed);
  SeededRandom random(seed);
  StoreWorld w;
  TreeModel model;
  TreeRoot root;
  for (int life = 0; life < 5; ++life) {
    NodeCache none(0);
    {
      auto session = *w.store->BeginWrite(w.realm_a);
      for (int batch = 0; batch < 20; ++batch) {
        std::map<std::string, std::optional<Entry>> changes;
        const uint64_t count = 1 + random.Below(batch % 5 == 0 ? 400 : 10);
        for (uint64_t i = 0; i < count; ++i) {
          const std::string key = "key" + std::to_string(random.Below(3000));
          if (random.OneIn(3)) {
            changes[key] = std::nullopt;
          } else {
            changes[key] = Entry{random.Bytes(random.Below(100)), {}};
          }
        }
        if (batch % 7 == 6) {  // down to a few: nodes join, the height shrinks
          for (const auto& [key, entry] : model) {
            if (!random.OneIn(50)) changes[key] = std::nullopt;
          }
        }
        std::vector<TreeUpdate> updates;
        for (const auto& [key, entry] : changes) {
          updates.push_back({key, entry});
          if (entry) {
            model[key] = *entry;
          } else {
            model.erase(key);
          }
        }
        const auto merged =
            MergeTree(TreeReader(*w.store, none, w.realm_a, root), *session, updates, CountOne,
                      static_cast<uint64_t>(life) + 1,
                      TreeOptions{.target_bytes = 400, .max_bytes = 600, .min_bytes = 150});
        ASSERT_TRUE(merged) << merged.error().ToString();
        root = *merged;
        ASSERT_EQ(root.counters.inodes, model.size());
      }
      ASSERT_TRUE(session->Sync());
    }
    w.Reopen();
    ASSERT_EQ(ReadAll(TreeReader(*w.store, none, w.realm_a, root)), model);
  }
}

}  // namespace
}  // namespace cairn
