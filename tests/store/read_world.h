// ReadWorld: a LocalBlockStore for the tests of reading, on a file system of the test's choice.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/base/random.h"
#include "store/local_block_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/temp_dir.h"

namespace cairn {

// A store with room for all it holds in one pack, on a file system of the test's choice.
class ReadWorld {
 public:
  static constexpr uint64_t kSeed = 99;

  explicit ReadWorld(FileSystem& fs, uint64_t cache_bytes = 16 << 20)
      : fs_(fs), cache_bytes_(cache_bytes), dir_(temp_ / "data") {
    realm.bytes.fill(0xaa);
    keys.Add(realm, TestRealmKeys(1));
    keys.Add(BaseRealm(), TestRealmKeys(3));
    EXPECT_TRUE(HostFileSystem().MakeDir(dir_).has_value());
    Open();
  }
  ~ReadWorld() { IgnoreError(store->Close(), "the directory goes next"); }

  void Open() {
    auto opened = LocalBlockStore::Open({.fs = fs_,
                                         .dir = dir_,
                                         .keys = keys,
                                         .clock = clock,
                                         .store = BaseRealm(),
                                         .cache_bytes = cache_bytes_,
                                         .read_threads = 1});
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    store = *std::move(opened);
  }
  // Nothing is cached any more and the packs are sealed.
  void Reopen() {
    ASSERT_TRUE(store->Close().has_value());
    store.reset();
    Open();
  }
  BlockRef Put(std::string plain, const Id128* other = nullptr) {
    const Id128& into = other == nullptr ? realm : *other;
    auto session = *(into == BaseRealm() ? store->BeginBaseWrite() : store->BeginWrite(into));
    const auto ref = session->Put(BlockKind::kData, plain, Compression::kFast);
    EXPECT_TRUE(ref.has_value());
    plains[ref->address] = std::move(plain);
    return *ref;
  }
  // `count` incompressible blocks, which lie one after the other in a pack.
  std::vector<BlockRef> PutRow(size_t count, size_t bytes) {
    std::vector<BlockRef> refs;
    for (size_t i = 0; i < count; ++i) refs.push_back(Put(random.Bytes(bytes)));
    return refs;
  }
  std::vector<Result<Block>> GetMany(const std::vector<BlockRef>& refs, bool keep = true) {
    return store->GetMany(realm, refs, {.keep = keep});
  }
  void ExpectGood(const std::vector<BlockRef>& refs, const std::vector<Result<Block>>& got) {
    ASSERT_EQ(refs.size(), got.size());
    for (size_t i = 0; i < refs.size(); ++i) ExpectGood(refs[i], got[i]);
  }
  void ExpectGood(const BlockRef& ref, const Result<Block>& got) {
    ASSERT_TRUE(got.has_value()) << got.error().ToString();
    EXPECT_TRUE(**got == plains[ref.address]);
  }
  std::string PackPath() const {
    std::string path;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/packs")) {
      if (entry.is_regular_file()) path = entry.path();
    }
    return path;
  }

  Id128 realm;
  KeyRing keys;
  FakeClock clock;
  SeededRandom random{kSeed};
  std::map<Address, std::string> plains;
  std::unique_ptr<LocalBlockStore> store;

 private:
  FileSystem& fs_;
  const uint64_t cache_bytes_;
  TempDir temp_;
  const std::string dir_;
};

}  // namespace cairn
