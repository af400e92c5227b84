// One flipped bit in each structure of the store: the check names the structure and the blocks, and
// only those are lost.
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <cerrno>
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

// ---- in steps ----

struct Steps {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  std::vector<StoreDamage> damage;
  bool gone = false;
};
Steps VerifyFrom(StoreWorld& w, const Id128& pack, uint64_t from, uint64_t budget) {
  Steps all;
  const auto verification = w.store->BeginVerify(pack, from);
  EXPECT_TRUE(verification.has_value());
  for (bool done = false; verification && !done;) {
    const auto step = (*verification)->Next(budget);
    EXPECT_TRUE(step.has_value()) << step.error().ToString();
    if (!step) break;
    all.bytes += step->bytes;
    all.blocks += step->blocks;
    all.damage.insert(all.damage.end(), step->damage.begin(), step->damage.end());
    all.gone = step->gone;
    done = step->done;
    EXPECT_LE(step->blocks, budget / 1000 + 1) << "frames have 1088 bytes";
  }
  return all;
}

TEST(StoreVerification, StepsReadEveryByteOnce) {
  Sealed s;
  const uint64_t file_bytes = std::filesystem::file_size(s.path);
  for (const uint64_t budget : {1u, 1000u, 1u << 20}) {
    const Steps all = VerifyFrom(s.w, s.pack, 0, budget);
    EXPECT_EQ(all.blocks, 4u);
    EXPECT_EQ(all.bytes, file_bytes - kPackHeaderBytes - 32 - 32) << "but digest and trailer";
    EXPECT_TRUE(all.damage.empty());
  }
}

TEST(StoreVerification, GoesOnWhereItStopped) {
  Sealed s;
  const auto first = *s.w.store->BeginVerify(s.pack, 0);
  ASSERT_FALSE(first->Next(1000)->done);
  const uint64_t at = first->offset();
  EXPECT_EQ(at, s.entries[1].offset);
  FlipBit(s.path, s.entries[3].offset + 300);
  const Steps rest = VerifyFrom(s.w, s.pack, at, 1);
  EXPECT_EQ(rest.blocks, 3u);
  ASSERT_EQ(rest.damage.size(), 1u) << "and the digest is not blamed as well";
  EXPECT_EQ(rest.damage[0].addresses, std::vector<Address>{s.entries[3].address});
  // The digest takes the heads of what was verified before the stop too.
  FlipBit(s.path, s.entries[3].offset + 300);
  FlipBit(s.path, s.entries[0].offset + 50);
  const Steps digest = VerifyFrom(s.w, s.pack, at, 1000);
  ASSERT_EQ(digest.damage.size(), 1u);
  EXPECT_TRUE(digest.damage[0].what.starts_with("pack digest:")) << digest.damage[0].what;
}

TEST(StoreVerification, OffsetBehindTheEndIsTheEnd) {
  Sealed s;
  EXPECT_TRUE(VerifyFrom(s.w, s.pack, UINT64_MAX, 1000).damage.empty());
  EXPECT_EQ(VerifyFrom(s.w, s.pack, UINT64_MAX, 1000).blocks, 0u);
}

TEST(StoreVerification, SectorThatDoesNotReadIsDamageOfItsBlockAlone) {
  Sealed s;
  // Header and footer take three reads, then one for each frame and one for what is hashed alone.
  s.w.fs.FailNth(FaultyFileSystem::Call::kRead, 6, EIO);
  const Steps all = VerifyFrom(s.w, s.pack, 0, 1 << 20);
  ASSERT_EQ(all.damage.size(), 1u);
  EXPECT_TRUE(all.damage[0].what.starts_with("frame at")) << all.damage[0].what;
  ASSERT_EQ(all.damage[0].addresses.size(), 1u);
  EXPECT_EQ(s.w.store->CountQuarantine()->blocks, 1u);
  // It was the disk's hiccup: the next verification lets it out again.
  EXPECT_TRUE(VerifyFrom(s.w, s.pack, 0, 1 << 20).damage.empty());
  EXPECT_EQ(s.w.store->CountQuarantine()->places, 0u);
}

TEST(StoreVerification, BadCopyOfAHealedBlockIsNoDamage) {
  Sealed s;
  FlipBit(s.path, s.entries[2].offset + 100);
  EXPECT_EQ(s.w.Check().size(), 1u);
  EXPECT_EQ(s.w.store->CountQuarantine()->blocks, 1u);
  s.w.Put(s.w.realm_a, s.blocks[2].second);
  for (const bool reopen : {false, true}) {
    if (reopen) s.w.Reopen();
    EXPECT_TRUE(s.w.Check().empty());
    EXPECT_EQ(s.w.store->CountQuarantine()->blocks, 0u);
    EXPECT_EQ(s.w.store->CountQuarantine()->places, 1u) << "the bad copy is still there";
    EXPECT_EQ(s.Readable(), 4);
  }
}

TEST(StoreVerification, PackThatLeavesMeanwhileIsNoDamage) {
  Sealed s;
  FlipBit(s.path, s.entries[3].offset + 100);
  const auto verification = *s.w.store->BeginVerify(s.pack, 0);
  ASSERT_FALSE(verification->Next(1)->done);
  ASSERT_TRUE(s.w.store->DropPack(s.pack, {.now = true}).has_value());
  const auto step = verification->Next(1 << 20);
  EXPECT_TRUE(step->done);
  EXPECT_TRUE(step->gone);
  EXPECT_TRUE(step->damage.empty());
  EXPECT_EQ(s.w.store->CountQuarantine()->places, 0u);
  EXPECT_EQ(s.w.store->BeginVerify(s.pack, 0).error().code(), ErrorCode::kNotFound);
}

TEST(StoreVerification, PackThatCanBeOpenedAgainIsTrustedAgain) {
  Sealed s;
  const std::string hidden = s.path + ".hidden";
  std::filesystem::rename(s.path, hidden);
  EXPECT_EQ(VerifyFrom(s.w, s.pack, 0, 1000).damage.at(0).what, "pack file is missing");
  EXPECT_EQ(s.w.store->CountQuarantine()->packs, 1u);
  std::filesystem::rename(hidden, s.path);
  EXPECT_TRUE(VerifyFrom(s.w, s.pack, 0, 1000).damage.empty());
  EXPECT_EQ(s.w.store->CountQuarantine()->places, 0u);
  EXPECT_EQ(s.Readable(), 4);
}

TEST(StoreVerification, OpenPackIsSealedWhenAskedFor) {
  StoreWorld w;
  w.Put(w.realm_a, "x");
  const Id128 pack = w.store->ListAllPacks().at(0);
  ASSERT_TRUE(w.store->SealPack(pack).has_value());
  EXPECT_EQ(w.store->ListPacks(w.realm_a).size(), 1u);
  EXPECT_EQ(VerifyFrom(w, pack, 0, 1 << 20).blocks, 1u);
}

}  // namespace
}  // namespace cairn
