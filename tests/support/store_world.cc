// The set-up that the tests of the block store share.
#include "tests/support/store_world.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/mem_block_store.h"

namespace cairn {

StoreWorld::StoreWorld(uint64_t pack_bytes, size_t put_threads, std::optional<SpaceLimits> limits)
    : dir(temp / "data"), fs(temp / "scratch"), pack_bytes_(pack_bytes), put_threads_(put_threads) {
  realm_a.bytes.fill(0xaa);
  realm_b.bytes.fill(0xbb);
  keys.Add(realm_a, TestRealmKeys(1));
  keys.Add(realm_b, TestRealmKeys(2));
  keys.Add(BaseRealm(), TestRealmKeys(3));
  EXPECT_TRUE(HostFileSystem().MakeDir(dir).has_value());
  if (limits) {
    auto opened = SpaceGuard::Open({.fs = fs, .dir = dir, .clock = clock, .limits = *limits});
    EXPECT_TRUE(opened.has_value());
    space = *std::move(opened);
  }
  Open();
}

void StoreWorld::Open() {
  auto opened = LocalBlockStore::Open({.fs = fs,
                                       .dir = dir,
                                       .keys = keys,
                                       .clock = clock,
                                       .store = BaseRealm(),
                                       .epoch = ++epoch_,
                                       .pack_bytes = pack_bytes_,
                                       .cache_bytes = 1 << 20,
                                       .put_threads = put_threads_,
                                       .space = space.get()});
  ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
  store = *std::move(opened);
}

void StoreWorld::Close() {
  const Status closed = store->Close();
  EXPECT_TRUE(closed.has_value()) << closed.error().ToString();
  store.reset();
}

BlockRef StoreWorld::Put(const Id128& realm, std::string_view plain, BlockKind kind) {
  auto session = realm == BaseRealm() ? store->BeginBaseWrite() : store->BeginWrite(realm);
  EXPECT_TRUE(session.has_value());
  const auto ref = (*session)->Put(kind, plain, Compression::kFast);
  EXPECT_TRUE(ref.has_value()) << ref.error().ToString();
  const Status synced = (*session)->Sync();
  EXPECT_TRUE(synced.has_value()) << synced.error().ToString();
  return *ref;
}

std::string StoreWorld::Read(const Id128& realm, const BlockRef& ref) {
  const auto block = store->Get(realm, ref);
  if (!block) {
    ADD_FAILURE() << block.error().ToString();
    return {};
  }
  return **block;
}

std::vector<std::string> StoreWorld::PackPaths() const {
  std::vector<std::string> paths;
  const auto realms = HostFileSystem().List(dir + "/packs");
  for (const std::string& realm : *realms) {
    const std::string folder = dir + "/packs/" + realm;
    const auto names = HostFileSystem().List(folder);
    for (const std::string& name : *names) paths.push_back(folder + "/" + name);
  }
  return paths;
}

std::vector<StoreDamage> StoreWorld::Check() {
  std::vector<StoreDamage> all;
  for (const Id128& pack : store->ListAllPacks()) {
    const auto damage = store->VerifyPack(pack);
    EXPECT_TRUE(damage.has_value()) << damage.error().ToString();
    all.insert(all.end(), damage->begin(), damage->end());
  }
  const auto damage = store->VerifyIndex();
  EXPECT_TRUE(damage.has_value()) << damage.error().ToString();
  all.insert(all.end(), damage->begin(), damage->end());
  return all;
}

std::string ReadHostFile(const std::string& path) {
  const auto contents = ReadWholeFile(HostFileSystem(), path, 1ull << 32);
  EXPECT_TRUE(contents.has_value()) << path;
  return contents.value_or("");
}

void WriteHostFile(const std::string& path, std::string_view contents) {
  const auto file = HostFileSystem().Open(path, {.create = true, .truncate = true});
  ASSERT_TRUE(file.has_value()) << path;
  ASSERT_TRUE((*file)->WriteAt(0, contents).has_value());
}

void FlipBit(const std::string& path, uint64_t offset, int bit) {
  const auto file = HostFileSystem().Open(path, {});
  ASSERT_TRUE(file.has_value()) << path;
  char byte = 0;
  ASSERT_EQ((*file)->ReadAt(offset, {&byte, 1}).value_or(0), 1u) << path << " at " << offset;
  byte = static_cast<char>(byte ^ (1 << bit));
  ASSERT_TRUE((*file)->WriteAt(offset, {&byte, 1}).has_value());
}

}  // namespace cairn
