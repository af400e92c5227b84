// Nothing is left over: after a kill, and after a power cut, at each changing call of a script that
// creates, fills, syncs, seals, rewrites, trashes, purges and drops packs, every file and byte in
// the directory is one that the store knows, and all of them can be freed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "store/local_block_store.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

struct Disk {
  std::map<std::string, uint64_t> packs;  // path -> bytes
  std::map<std::string, uint64_t> trash;
  std::vector<std::string> unknown;
};

// Names that RocksDB gives to files that a live database may have.
bool IsIndexFile(const std::string& name) {
  for (const char* exact : {"CURRENT", "IDENTITY", "LOCK"}) {
    if (name == exact) return true;
  }
  return name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-") || name.ends_with(".sst") ||
         name.ends_with(".log");
}

Disk Look(const std::string& dir) {
  Disk disk;
  for (const auto& item : stdfs::recursive_directory_iterator(dir)) {
    if (!item.is_regular_file()) continue;
    const std::string path = item.path();
    const std::string inside = path.substr(dir.size() + 1);
    const std::string name = item.path().filename();
    if (inside.starts_with("packs/") && name.ends_with(".pack")) {
      disk.packs[path] = item.file_size();
    } else if (inside.starts_with("trash/") && name.ends_with(".pack")) {
      disk.trash[path] = item.file_size();
    } else if (!(inside == "index/" + name && IsIndexFile(name)) && inside != "quarantine") {
      disk.unknown.push_back(inside);
    }
  }
  return disk;
}

uint64_t Sum(const std::map<std::string, uint64_t>& files) {
  uint64_t sum = 0;
  for (const auto& [path, bytes] : files) sum += bytes;
  return sum;
}

class Leaks {
 public:
  // The script; stops where the power goes.
  static void Run(StoreWorld& w) {
    const auto put = [&](const Id128& realm, int from, int count) {
      auto session = w.store->BeginWrite(realm);
      if (!session) return;
      for (int i = from; i < from + count; ++i) {
        const std::string plain = SeededRandom(i).Bytes(1500);
        IgnoreError((*session)->Put(BlockKind::kData, plain, Compression::kFast), "power");
        if (i % 3 == 0) IgnoreError((*session)->Sync(), "power");
      }
      IgnoreError((*session)->Sync(), "power");
    };
    put(w.realm_a, 0, 8);
    put(w.realm_b, 0, 4);
    IgnoreError(w.store->SealOpenPacks(), "power");
    bool now = false;
    for (const PackSummary& pack : w.store->ListPacks(w.realm_a)) {
      LocalBlockStore::AddressSet keep;
      const auto blocks = w.store->ListBlocks(pack.pack);
      if (!blocks) return;
      for (size_t i = 0; i < blocks->size(); i += 2) keep.insert((*blocks)[i].entry.address);
      IgnoreError(w.store->RewritePack(pack.pack, keep, {.now = now}), "power");
      now = !now;
    }
    put(w.realm_a, 100, 3);
    IgnoreError(w.store->SealOpenPacks(), "power");
    const auto packs = w.store->ListPacks(w.realm_a);
    if (!packs.empty()) IgnoreError(w.store->DropPack(packs[0].pack, {}), "power");
    IgnoreError(w.store->PurgeTrash(0), "power");
    IgnoreError(w.store->DropRealm(w.realm_b), "power");
    put(w.realm_a, 200, 2);
    if (!w.fs.off()) IgnoreError(w.store->Close(), "power");
  }

  // `store` is freshly opened on what was left.
  static void ExpectAllKnown(const std::string& dir, LocalBlockStore& store) {
    const Disk disk = Look(dir);
    EXPECT_EQ(disk.unknown, std::vector<std::string>());
    std::set<std::string> known;
    for (const Id128& pack : store.ListAllPacks()) known.insert(pack.ToHex());
    EXPECT_EQ(disk.packs.size(), known.size());
    for (const auto& [path, bytes] : disk.packs) {
      EXPECT_TRUE(known.contains(stdfs::path(path).stem())) << path;
    }
    uint64_t listed_bytes = 0;
    for (const Id128& realm : store.ListRealms()) {
      for (const PackSummary& pack : store.ListPacks(realm)) listed_bytes += pack.file_bytes;
    }
    EXPECT_EQ(listed_bytes, Sum(disk.packs));
    const BlockStoreStats stats = store.Stats();
    EXPECT_EQ(stats.trash_bytes, Sum(disk.trash));
    EXPECT_EQ(stats.pack_bytes, Sum(disk.packs) + Sum(disk.trash));
  }

  static void ExpectAllFreed(const std::string& dir, LocalBlockStore& store) {
    for (const Id128& realm : store.ListRealms()) {
      for (const PackSummary& pack : store.ListPacks(realm)) {
        const auto dropped = store.DropPack(pack.pack, {.now = pack.pack.bytes[0] % 2 == 0});
        EXPECT_TRUE(dropped.has_value()) << dropped.error().ToString();
      }
    }
    EXPECT_TRUE(store.PurgeTrash(0).has_value());
    const Disk disk = Look(dir);
    EXPECT_TRUE(disk.packs.empty());
    EXPECT_TRUE(disk.trash.empty());
    EXPECT_EQ(disk.unknown, std::vector<std::string>());
    const BlockStoreStats stats = store.Stats();
    EXPECT_EQ(stats.pack_bytes, 0u);
    EXPECT_EQ(stats.block_count, 0u);
    EXPECT_TRUE(store.VerifyIndex()->empty()) << "entries of packs that are gone";
  }
};

uint64_t Seed() {
  const char* env = std::getenv("CAIRN_SEED");
  const uint64_t seed = env != nullptr ? std::strtoull(env, nullptr, 10) : 20241130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(Leak, PowerCutAtEveryStepLeavesNothingUnknown) {
  const uint64_t seed = Seed();
  uint64_t cuts = 0;
  for (uint64_t step = 1;; ++step) {
    StoreWorld w(6 << 10);
    SeededRandom random(seed + step);
    w.fs.PowerOffAfter(step);
    Leaks::Run(w);
    const bool off = w.fs.off();
    w.Kill();
    w.fs.PowerCut(random);
    if (step % 4 == 0) stdfs::remove_all(w.dir + "/index");
    w.Open();
    Leaks::ExpectAllKnown(w.dir, *w.store);
    Leaks::ExpectAllFreed(w.dir, *w.store);
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
    ++cuts;
    if (!off) break;
  }
  std::printf("%llu cuts\n", static_cast<unsigned long long>(cuts));
  EXPECT_GT(cuts, 60u);
}

// As above, but everything that was written stays: the process dies, not the machine.
TEST(Leak, KillAtEveryStepLeavesNothingUnknown) {
  uint64_t kills = 0;
  for (uint64_t step = 1;; ++step) {
    StoreWorld w(6 << 10);
    w.fs.PowerOffAfter(step);
    Leaks::Run(w);
    const bool off = w.fs.off();
    w.Kill();
    // The host's files hold every write; the faulty file system is left behind with its power off.
    auto store = LocalBlockStore::Open({.fs = HostFileSystem(),
                                        .dir = w.dir,
                                        .keys = w.keys,
                                        .clock = w.clock,
                                        .store = BaseRealm(),
                                        .epoch = 99,
                                        .pack_bytes = 6 << 10,
                                        .cache_bytes = 1 << 20});
    ASSERT_TRUE(store.has_value()) << "step " << step << ": " << store.error().ToString();
    Leaks::ExpectAllKnown(w.dir, **store);
    Leaks::ExpectAllFreed(w.dir, **store);
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
    ++kills;
    if (!off) break;
  }
  std::printf("%llu kills\n", static_cast<unsigned long long>(kills));
  EXPECT_GT(kills, 60u);
}

// RocksDB's own leftovers: an index that was replaced leaves no files of the old one.
TEST(Leak, ReplacedIndexLeavesNoOldFiles) {
  StoreWorld w(6 << 10);
  for (int i = 0; i < 20; ++i) w.Put(w.realm_a, SeededRandom(i).Bytes(1500));
  w.Reopen();
  uint64_t first = 0;
  for (int round = 0; round < 6; ++round) {
    ASSERT_TRUE(w.store->RebuildIndex().has_value());
    w.Reopen();
    uint64_t files = 0;
    for (const auto& item : stdfs::directory_iterator(w.dir + "/index")) {
      EXPECT_TRUE(IsIndexFile(item.path().filename())) << item.path();
      ++files;
    }
    if (round == 0) first = files;
    EXPECT_LE(files, first + 2) << "round " << round;
  }
}

TEST(Leak, InterruptedReplacementOfTheQuarantineIsTidied) {
  StoreWorld w;
  w.Close();
  WriteHostFile(w.dir + "/quarantine.tmp", "half a file");
  w.Open();
  EXPECT_EQ(Look(w.dir).unknown, std::vector<std::string>());
}

}  // namespace
}  // namespace cairn
