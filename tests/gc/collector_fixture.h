// CollectorTest: a store, a catalog and trees in them, to collect and to check.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "catalog/ids.h"
#include "catalog/keys.h"
#include "catalog/records.h"
#include "gc/check.h"
#include "gc/collector.h"
#include "store/base/random.h"
#include "store/node_cache.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/mem_catalog.h"
#include "tests/support/store_world.h"
#include "volume/extent_value.h"
#include "volume/fs_root.h"
#include "volume/head.h"
#include "volume/layer.h"

namespace cairn {

inline const std::string kOrg = "org_00000000000000000000000000000001";

class CollectorTest : public testing::Test {
 protected:
  explicit CollectorTest(uint64_t pack_bytes = 256 << 10) : world_(pack_bytes) {
    catalog::Organization org;
    org.set_id(kOrg);
    org.set_realm(std::string(world_.realm_a.view()));
    Put(keys::Organization(kOrg), org);
  }
  template <typename Message>
  void Put(const std::string& key, const Message& message) {
    ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      PutRecord(txn, key, message);
      return {};
    }));
  }
  void Delete(const std::string& key) {
    ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      txn.Delete(key);
      return {};
    }));
  }

  struct Tree {
    BlockRef root;
    TreeRoot tree;
    std::vector<BlockRef> data;
    std::vector<std::string> bytes;
  };
  // A filesystem of `count` files of one 20 KB block each, under root "f0", "f1", ...
  Tree MakeTree(uint64_t seed, int count) { return MakeTree(seed, count, world_.realm_a); }
  Tree MakeTree(uint64_t seed, int count, const Id128& realm) {
    SeededRandom random(seed);
    Tree made;
    auto session =
        realm == BaseRealm() ? world_.store->BeginBaseWrite() : world_.store->BeginWrite(realm);
    EXPECT_TRUE(session);
    std::vector<TreeUpdate> updates;
    Inode root;
    root.mode = 040755;
    root.nlink = 2;
    updates.push_back({AttributesKey(kRootInode), Entry{root.Encode(), {}}});
    std::vector<TreeUpdate> dirents;
    for (int i = 0; i < count; ++i) {
      const InodeNumber ino = 2 + static_cast<InodeNumber>(i);
      const std::string name = "f" + std::to_string(i);
      dirents.push_back({DirentKey(kRootInode, NameHash(7, name) << 8),
                         Entry{Dirent{.child = ino, .type = 8, .name = name}.Encode(), {}}});
      made.bytes.push_back(random.Bytes(20000));
      const auto ref = (*session)->Put(BlockKind::kData, made.bytes.back(), Compression::kFast);
      EXPECT_TRUE(ref);
      made.data.push_back(*ref);
      Inode inode;
      inode.mode = 0100644;
      inode.nlink = 1;
      inode.size_bytes = 20000;
      updates.push_back({AttributesKey(ino), Entry{inode.Encode(), {}}});
      updates.push_back({ExtentKey(ino, 0), Extent(0, 20000, *ref)});
    }
    updates.insert(updates.end(), dirents.begin(), dirents.end());
    std::sort(updates.begin(), updates.end(),
              [](const TreeUpdate& a, const TreeUpdate& b) { return a.key < b.key; });
    const TreeReader empty(*world_.store, nodes_, realm, TreeRoot{});
    const auto tree = MergeTree(empty, **session, updates, CountEntry, 1);
    EXPECT_TRUE(tree) << tree.error().ToString();
    FsRoot fs;
    fs.hash_seed = 7;
    fs.tree = made.tree = *tree;
    const auto ref = (*session)->Put(BlockKind::kFsRoot, fs.Encode(), Compression::kFast);
    EXPECT_TRUE(ref);
    EXPECT_TRUE((*session)->Sync());
    made.root = *ref;
    return made;
  }
  static Entry Extent(uint64_t offset, uint64_t length_bytes, const BlockRef& block) {
    Segment piece;
    piece.offset = offset;
    piece.length_bytes = length_bytes;
    piece.source = Segment::Source::kBlock;
    piece.block = block;
    return EncodeExtent(piece);
  }

  std::string AddEnvironment(int n, const Tree& tree) {
    catalog::Volume volume;
    volume.set_id(std::string(15, '\0') + static_cast<char>(n));
    volume.set_org(kOrg);
    volume.set_env("env_" + std::to_string(n));
    volume.set_root(tree.root.Encode());
    Put(keys::Volume(volume.id()), volume);
    return keys::Volume(volume.id());
  }
  // A pack with a tree of 2.8 MB that stays and one that goes.
  Tree MakeMixedPack(int n) {
    Tree kept = MakeTree(100 + static_cast<uint64_t>(n), 140);
    AddEnvironment(n, kept);
    MakeTree(200 + static_cast<uint64_t>(n), 30);
    EXPECT_TRUE(world_.store->SealOpenPacks());
    return kept;
  }
  Result<CollectReport> Collect(const CollectOptions& options) {
    return Collector(catalog_, *world_.store).Collect(options);
  }
  void ExpectWhole(const Tree& tree) {
    for (size_t i = 0; i < tree.data.size(); ++i) {
      EXPECT_EQ(world_.Read(world_.realm_a, tree.data[i]), tree.bytes[i]);
    }
    EXPECT_TRUE(world_.store->Verify(world_.realm_a, tree.root));
  }
  // Flips a bit of that block's frame.
  void Damage(const BlockRef& ref) {
    const Id128 realm = ref.realm == RealmTag::kBase ? BaseRealm() : world_.realm_a;
    for (const PackSummary& pack : world_.store->ListPacks(realm)) {
      const auto blocks = world_.store->ListBlocks(pack.pack);
      ASSERT_TRUE(blocks);
      for (const auto& block : *blocks) {
        if (block.entry.address != ref.address) continue;
        for (const std::string& path : world_.PackPaths()) {
          if (path.find(pack.pack.ToHex()) == std::string::npos) continue;
          FlipBit(path, block.entry.offset + 200);
          return;
        }
      }
    }
    FAIL() << "no such block";
  }
  CheckReport Check() {
    CheckOptions options;
    options.volumes_dir = world_.dir + "/volumes";
    const auto report = CheckStore(catalog_, *world_.store, world_.keys, world_.fs, options);
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *report : CheckReport{};
  }
  static std::string Describe(const CheckReport& report) {
    std::string text;
    for (const auto& damage : report.damages) {
      text += damage.structure + " | " + damage.where + " | " + damage.what + " |";
      for (const std::string& owner : damage.owners) text += " " + owner;
      text += "\n";
    }
    return text;
  }

  StoreWorld world_;
  NodeCache nodes_{1 << 20};
  MemCatalog catalog_;
};

}  // namespace cairn
