// Realms: equal bytes of two organizations are two blocks; everybody reads the base realm and
// nobody who acts for an organization writes it; versions of a realm's key.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/local_block_store.h"
#include "store/node_cache.h"
#include "store/tree.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

uint64_t Frames(StoreWorld& w, const Id128& realm) {
  EXPECT_TRUE(w.store->SealOpenPacks());
  uint64_t frames = 0;
  for (const PackSummary& pack : w.store->ListPacks(realm)) frames += pack.entry_count;
  return frames;
}

TEST(Realm, EqualBytesOfTwoOrganizationsAreTwoFramesWithDifferentAddresses) {
  StoreWorld w;
  const std::string bytes = SeededRandom(1).Bytes(50000);
  const BlockRef a = w.Put(w.realm_a, bytes);
  const BlockRef b = w.Put(w.realm_b, bytes);
  const BlockRef base = w.Put(BaseRealm(), bytes);
  EXPECT_NE(a.address, b.address);
  EXPECT_NE(a.address, base.address);
  EXPECT_NE(b.address, base.address);
  for (const Id128& realm : {w.realm_a, w.realm_b, BaseRealm()}) EXPECT_EQ(Frames(w, realm), 1u);
  EXPECT_GE(w.store->Stats().pack_bytes, 3 * bytes.size()) << "stored three times";
  w.Put(w.realm_a, bytes);
  EXPECT_EQ(Frames(w, w.realm_a), 1u) << "within one organization it is stored once";
  EXPECT_EQ(w.Read(w.realm_a, a), bytes);
  EXPECT_EQ(w.Read(w.realm_b, b), bytes);
}

TEST(Realm, AnotherOrganizationsReferenceReadsNothing) {
  StoreWorld w;
  const BlockRef a = w.Put(w.realm_a, "of organization a");
  EXPECT_EQ(w.Read(w.realm_a, a), "of organization a");  // it is in the cache now
  EXPECT_FALSE(w.store->Get(w.realm_b, a));
  EXPECT_FALSE(*w.store->Contains(w.realm_b, a));
  w.Reopen();
  EXPECT_FALSE(w.store->Get(w.realm_b, a));
  BlockRef as_base = a;
  as_base.realm = RealmTag::kBase;
  EXPECT_FALSE(w.store->Get(w.realm_a, as_base));
}

TEST(Realm, EverybodyReadsTheBaseRealmAndNoSessionOfAnOrganizationWritesIt) {
  StoreWorld w;
  BlockStore& as_seen_above = *w.store;
  EXPECT_EQ(as_seen_above.BeginWrite(BaseRealm()).error().code(), ErrorCode::kPermissionDenied);
  const BlockRef base = w.Put(BaseRealm(), "a template");
  EXPECT_EQ(base.realm, RealmTag::kBase);
  EXPECT_EQ(w.Read(w.realm_a, base), "a template");
  EXPECT_EQ(w.Read(w.realm_b, base), "a template");
  // What an organization writes lands in its own realm, be it the base realm's very bytes.
  const BlockRef own = w.Put(w.realm_a, "a template");
  EXPECT_EQ(own.realm, RealmTag::kOwn);
  EXPECT_EQ(Frames(w, BaseRealm()), 1u);
  w.Reopen();
  EXPECT_EQ(w.Read(w.realm_b, base), "a template");
  EXPECT_TRUE(w.Check().empty());
  EXPECT_EQ(w.store->DropRealm(BaseRealm()).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Realm, ATreeOverABaseTreeSharesItsBlocksAndAddsItsOwnInItsOwnRealm) {
  StoreWorld w;
  NodeCache nodes(1 << 20);
  const auto no_count = [](std::string_view, const Entry&) { return TreeCounters(); };
  std::vector<TreeUpdate> updates;
  for (int i = 0; i < 5000; ++i) {
    updates.push_back({fmt::format("key {:06}", i), Entry{std::string(40, 'v'), {}}});
  }
  TreeRoot base;
  {
    const auto session = *w.store->BeginBaseWrite();
    const TreeReader empty(*w.store, nodes, BaseRealm(), TreeRoot{});
    base = *MergeTree(empty, *session, updates, no_count, 1);
    ASSERT_TRUE(session->Sync());
  }
  ASSERT_EQ(base.node->realm, RealmTag::kBase);
  const uint64_t base_frames = Frames(w, BaseRealm());
  const std::vector<TreeUpdate> change = {{"key 002500", Entry{"changed", {}}}};
  TreeRoot own;
  {
    const auto session = *w.store->BeginWrite(w.realm_a);
    const TreeReader from_base(*w.store, nodes, w.realm_a, base);
    own = *MergeTree(from_base, *session, change, no_count, 2);
    ASSERT_TRUE(session->Sync());
  }
  EXPECT_EQ(own.node->realm, RealmTag::kOwn);
  EXPECT_EQ(Frames(w, BaseRealm()), base_frames);
  EXPECT_LT(Frames(w, w.realm_a), base_frames / 4) << "only the path to the change is new";
  const TreeReader tree(*w.store, nodes, w.realm_a, own);
  EXPECT_EQ((*tree.Get("key 002500"))->payload, "changed");
  EXPECT_EQ((*tree.Get("key 004999"))->payload, std::string(40, 'v'));
  const TreeReader template_of_b(*w.store, nodes, w.realm_b, base);
  EXPECT_EQ((*template_of_b.Get("key 002500"))->payload, std::string(40, 'v'));
}

TEST(Realm, PacksOfAllVersionsOfAKeyReadAndNewOnesAreWrappedByTheNewest) {
  StoreWorld w;
  RealmKeys keys = TestRealmKeys(1);
  w.keys.Add(w.realm_a, keys);
  const BlockRef first = w.Put(w.realm_a, "under version 1");
  ASSERT_TRUE(w.store->SealOpenPacks());
  keys.current_key_id = 2;
  keys.wrapping_keys[2] = RandomKey();
  w.keys.Add(w.realm_a, keys);
  const BlockRef second = w.Put(w.realm_a, "under version 2");
  EXPECT_EQ(w.Put(w.realm_a, "under version 1").address, first.address)
      << "a rotation does not end deduplication";
  EXPECT_EQ(Frames(w, w.realm_a), 2u);
  w.Reopen();
  EXPECT_EQ(w.Read(w.realm_a, first), "under version 1");
  EXPECT_EQ(w.Read(w.realm_a, second), "under version 2");
  // Who holds the old version alone reads what was written under it, and nothing newer.
  RealmKeys old_one = keys;
  old_one.wrapping_keys.erase(2);
  old_one.current_key_id = 1;
  w.Close();
  w.keys.Add(w.realm_a, old_one);
  w.Open();
  EXPECT_EQ(w.Read(w.realm_a, first), "under version 1");
  EXPECT_FALSE(w.store->Get(w.realm_a, second));
}

}  // namespace
}  // namespace cairn
