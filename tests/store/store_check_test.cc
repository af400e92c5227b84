// One flipped bit in each structure of the store: the check names the structure and the blocks, and
// only those are lost.
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <filesystem>

#include "store/local_block_store.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

struct Sealed {
  StoreWorld w;
  std::vector<std::pair<BlockRef, std::string>> blocks;
  std::vector<PackEntry> entries;  // in file order
  std::string path;
  Id128 pack;

  Sealed() {
    SeededRandom random(5);
    for (int i = 0; i < 4; ++i) {
      const std::string plain = random.Bytes(1000 + i);
      blocks.emplace_back(w.Put(w.realm_a, plain), plain);
    }
    w.Reopen();
    pack = w.store->ListPacks(w.realm_a).at(0).pack;
    path = w.PackPaths().at(0);
    const auto listed = *w.store->ListBlocks(pack);
    for (const auto& block : listed) entries.push_back(block.entry);
  }
  // How many blocks can be read; none is ever wrong.
  int Readable() {
    int readable = 0;
    for (const auto& [ref, plain] : blocks) {
      const auto block = w.store->Get(w.realm_a, ref);
      if (block) {
        EXPECT_EQ(**block, plain);
        ++readable;
      } else {
        EXPECT_EQ(block.error().code(), ErrorCode::kDataLoss);
        EXPECT_NE(block.error().message().find(ref.address.ToHex()), std::string::npos);
      }
    }
    return readable;
  }
};

TEST(StoreCheck, CleanStoreHasNoDamage) {
  Sealed s;
  EXPECT_TRUE(s.w.Check().empty());
  EXPECT_EQ(s.Readable(), 4);
}

TEST(StoreCheck, FlippedBitIsNamedWithItsStructureAndBlocks) {
  struct Case {
    const char* what;  // prefix of the report
    bool from_end;
    uint64_t offset;  // in the file; or in frame 2 when `frame`
    bool frame;
    int lost;
  };
  const Case cases[] = {
      {"pack header:", false, 40, false, 0},     {"pack header:", false, 150, false, 0},
      {"frame at", false, 4, true, 1},           {"frame at", false, 30, true, 1},
      {"frame at", false, 50, true, 1},          {"frame at", false, 60, true, 1},
      {"frame at", false, 64 + 500, true, 1},    {"frame at", false, 64 + 1002 + 3, true, 1},
      {"pack footer:", true, 32 + 10, false, 0}, {"pack footer:", true, 32 + 60, false, 0},
      {"pack footer:", true, 5, false, 0},       {"pack footer:", true, 20, false, 0}};
  for (const Case& c : cases) {
    for (const bool reopen : {false, true}) {
      Sealed s;
      const uint64_t size = std::filesystem::file_size(s.path);
      const uint64_t at = c.from_end ? size - c.offset
                          : c.frame  ? s.entries.at(2).offset + c.offset
                                     : c.offset;
      FlipBit(s.path, at, 3);
      if (reopen) s.w.Reopen();
      const std::vector<StoreDamage> damage = s.w.Check();
      ASSERT_EQ(damage.size(), 1u) << c.what << c.offset << " reopen " << reopen;
      EXPECT_TRUE(damage[0].what.starts_with(c.what)) << damage[0].what;
      EXPECT_EQ(damage[0].where, s.path);
      EXPECT_EQ(s.Readable(), 4 - c.lost);
      ASSERT_EQ(damage[0].addresses.size(), static_cast<size_t>(c.lost));
      if (c.lost == 1) {
        EXPECT_EQ(damage[0].addresses[0], s.entries[2].address);
      }
    }
  }
}

TEST(StoreCheck, HeaderAndFooterDamagedTogetherLoseThePackAndSayWhich) {
  Sealed s;
  FlipBit(s.path, 40);
  FlipBit(s.path, std::filesystem::file_size(s.path) - 5);
  s.w.Reopen();
  const auto damage = s.w.Check();
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_TRUE(damage[0].what.starts_with("pack header:"));
  EXPECT_EQ(damage[0].addresses.size(), 4u);
  EXPECT_EQ(s.Readable(), 0);
  EXPECT_TRUE(std::filesystem::exists(s.path)) << "evidence is never deleted";
}

TEST(StoreCheck, FlippedBitInAFooterlessPackIsNamedToo) {
  StoreWorld w;
  std::vector<BlockRef> refs;
  for (int i = 0; i < 4; ++i) refs.push_back(w.Put(w.realm_a, SeededRandom(i).Bytes(1000)));
  w.Kill();
  w.Open();
  EXPECT_TRUE(w.Check().empty());
  const auto listed = *w.store->ListBlocks(w.store->ListPacks(w.realm_a).at(0).pack);
  for (const uint64_t in_frame : {20u, 50u, 300u}) {
    FlipBit(w.PackPaths().at(0), listed[1].entry.offset + in_frame);
    const auto damage = w.Check();
    ASSERT_GE(damage.size(), 1u);
    EXPECT_TRUE(damage[0].what.starts_with("frame at")) << damage[0].what;
    EXPECT_EQ(damage[0].addresses, std::vector<Address>{listed[1].entry.address});
    FlipBit(w.PackPaths().at(0), listed[1].entry.offset + in_frame);
  }
}

TEST(StoreCheck, MissingPackFileIsNamedWithItsBlocks) {
  Sealed s;
  std::filesystem::remove(s.path);
  const auto damage = *s.w.store->VerifyPack(s.pack);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].what, "pack file is missing");
  EXPECT_EQ(damage[0].addresses.size(), 4u);
}

TEST(StoreCheck, WrittenAgainAfterDamageABlockIsWhole) {
  Sealed s;
  FlipBit(s.path, s.entries[2].offset + 100);
  EXPECT_EQ(s.Readable(), 3);
  EXPECT_EQ(s.w.Put(s.w.realm_a, s.blocks[2].second), s.blocks[2].first);
  EXPECT_EQ(s.Readable(), 4);
  s.w.Reopen();
  EXPECT_EQ(s.Readable(), 4);
}

TEST(StoreCheck, FlippedBitInTheIndexIsNamedAndHealedByARebuild) {
  Sealed s;
  s.w.Close();
  for (const auto& item : std::filesystem::directory_iterator(s.w.dir + "/index")) {
    if (item.path().extension() == ".sst") FlipBit(item.path(), 150);
  }
  // The damaged table holds the markers as well, so that opening finds it; what is in the cache of
  // an open store is found by the check.
  s.w.Open();
  EXPECT_EQ(s.Readable(), 4);
  EXPECT_TRUE(s.w.Check().empty());
}

TEST(StoreCheck, IndexThatDisagreesWithThePacksIsNamed) {
  Sealed s;
  s.w.Close();
  {
    // An entry goes missing, and another points into a pack that does not exist.
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), s.w.dir + "/index", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    const std::string key = "B" + std::string(s.entries[0].address.view());
    ASSERT_TRUE(db->Delete(rocksdb::WriteOptions(), key).ok());
  }
  s.w.Open();
  const auto damage = s.w.Check();
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_TRUE(damage[0].what.starts_with("index: a block of pack")) << damage[0].what;
  EXPECT_EQ(damage[0].addresses, std::vector<Address>{s.entries[0].address});
  EXPECT_EQ(s.Readable(), 3);
  ASSERT_TRUE(s.w.store->RebuildIndex().has_value());
  EXPECT_TRUE(s.w.Check().empty());
  EXPECT_EQ(s.Readable(), 4);
}

TEST(StoreCheck, IndexValueThatDoesNotVerifyIsNamed) {
  Sealed s;
  s.w.Close();
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), s.w.dir + "/index", &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    const std::string key = "B" + std::string(s.entries[0].address.view());
    std::string value;
    ASSERT_TRUE(db->Get(rocksdb::ReadOptions(), key, &value).ok());
    value[40] ^= 1;  // offset
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), key, value).ok());
  }
  s.w.Open();
  const auto damage = s.w.Check();
  ASSERT_GE(damage.size(), 1u);
  EXPECT_TRUE(damage[0].what.starts_with("index: ")) << damage[0].what;
  EXPECT_EQ(s.Readable(), 4) << "the read rebuilds the index";
  EXPECT_TRUE(s.w.Check().empty());
}

}  // namespace
}  // namespace cairn
