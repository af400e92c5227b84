// Keys: addresses depend on realm and kind, wrapped keys are bound to their place, removal makes
// them unusable.
#include "store/key_ring.h"

#include <gtest/gtest.h>

#include "tests/support/mem_block_store.h"

namespace cairn {
namespace {

Id128 Realm(uint8_t n) {
  Id128 id;
  id.bytes[0] = n;
  return id;
}

TEST(KeyRing, AddressIsHmacSha256OfKindAndPlain) {
  KeyRing keys;
  RealmKeys realm = TestRealmKeys(1);
  realm.address_key.fill(0);
  keys.Add(Realm(1), realm);
  // Python: hmac.new(bytes(32), b"\\x01Hi There", "sha256").hexdigest()
  EXPECT_EQ(keys.AddressOf(Realm(1), BlockKind::kData, "Hi There")->ToHex(),
            "bb77b1bb2f4896323f5a71e540f4eff27a37422ce3f5030225f6c9287778d267");
}

TEST(KeyRing, AddressDependsOnRealmAndKind) {
  KeyRing keys;
  keys.Add(Realm(1), TestRealmKeys(1));
  keys.Add(Realm(2), TestRealmKeys(2));
  const auto a = keys.AddressOf(Realm(1), BlockKind::kData, "same bytes");
  EXPECT_EQ(*a, *keys.AddressOf(Realm(1), BlockKind::kData, "same bytes"));
  EXPECT_NE(*a, *keys.AddressOf(Realm(2), BlockKind::kData, "same bytes"));
  EXPECT_NE(*a, *keys.AddressOf(Realm(1), BlockKind::kTreeNode, "same bytes"));
  EXPECT_EQ(keys.AddressOf(Realm(3), BlockKind::kData, "x").error().code(), ErrorCode::kNotFound);
}

TEST(KeyRing, WrappedKeyOpensOnlyInItsPlaceAndRealm) {
  KeyRing keys;
  keys.Add(Realm(1), TestRealmKeys(1));
  keys.Add(Realm(2), TestRealmKeys(2));
  Key256 data_key;
  data_key.fill(7);
  const auto wrapped = keys.Wrap(Realm(1), data_key, "file a");
  ASSERT_TRUE(wrapped.has_value());
  EXPECT_EQ(wrapped->bytes.size(), 60u);
  EXPECT_EQ(*keys.Unwrap(Realm(1), *wrapped, "file a"), data_key);
  EXPECT_EQ(keys.Unwrap(Realm(1), *wrapped, "file b").error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(keys.Unwrap(Realm(2), *wrapped, "file a").error().code(), ErrorCode::kDataLoss);
}

TEST(KeyRing, OldWrappingKeyStillOpensAfterRotation) {
  KeyRing keys;
  RealmKeys realm = TestRealmKeys(1);
  keys.Add(Realm(1), realm);
  const std::string sealed = *keys.Seal(Realm(1), "secret", "place");
  realm.current_key_id = 2;
  realm.wrapping_keys[2].fill(9);
  keys.Add(Realm(1), realm);
  EXPECT_EQ(*keys.Open(Realm(1), sealed, "place"), "secret");
  const std::string again = *keys.Seal(Realm(1), "secret", "place");
  EXPECT_EQ(again[0], 2);
  realm.wrapping_keys.erase(1);
  keys.Add(Realm(1), realm);
  EXPECT_EQ(keys.Open(Realm(1), sealed, "place").error().code(), ErrorCode::kNotFound);
}

TEST(KeyRing, RemovedRealmHasNoKeys) {
  KeyRing keys;
  keys.Add(Realm(1), TestRealmKeys(1));
  const std::string sealed = *keys.Seal(Realm(1), "secret", "place");
  keys.Remove(Realm(1));
  EXPECT_FALSE(keys.Has(Realm(1)));
  EXPECT_EQ(keys.Open(Realm(1), sealed, "place").error().code(), ErrorCode::kNotFound);
}

TEST(OpenWithKey, EveryFlippedBitAndEveryTruncationIsDataLoss) {
  Key256 key;
  key.fill(3);
  const std::string sealed = SealWithKey(key, "plain", "aad");
  EXPECT_EQ(*OpenWithKey(key, sealed, "aad"), "plain");
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string bad = sealed;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(OpenWithKey(key, bad, "aad").error().code(), ErrorCode::kDataLoss) << bit;
  }
  for (size_t n = 0; n < sealed.size(); ++n) {
    EXPECT_FALSE(OpenWithKey(key, sealed.substr(0, n), "aad").has_value());
  }
}

TEST(MemBlockStore, StoresDeduplicatesAndDamages) {
  KeyRing keys;
  keys.Add(Realm(1), TestRealmKeys(1));
  MemBlockStore store(keys);
  auto session = *store.BeginWrite(Realm(1));
  const BlockRef ref = *session->Put(BlockKind::kData, "bytes", Compression::kFast);
  EXPECT_EQ(*session->Put(BlockKind::kData, "bytes", Compression::kFast), ref);
  EXPECT_EQ(store.put_count(), 1u);
  EXPECT_EQ(store.dedup_count(), 1u);
  EXPECT_EQ(**store.Get(Realm(1), ref), "bytes");
  EXPECT_TRUE(store.Verify(Realm(1), ref).has_value());
  EXPECT_EQ(store.Get(Realm(2), ref).error().code(), ErrorCode::kDataLoss);
  store.Damage(ref.address);
  EXPECT_EQ(store.Get(Realm(1), ref).error().code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace cairn
