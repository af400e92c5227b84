// The block store on one directory: what is put is read back, once, encrypted, from any later
// opening, and never by another realm.
#include "store/local_block_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include "tests/support/store_world.h"

namespace cairn {
namespace {

using Call = FaultyFileSystem::Call;

TEST(LocalBlockStore, ReadsBackWhatWasPut) {
  StoreWorld w;
  SeededRandom random(1);
  std::vector<std::pair<BlockRef, std::string>> blocks;
  for (const size_t size :
       {size_t{1}, size_t{100}, size_t{4096}, size_t{65536}, size_t{kMaxBlockBytes}}) {
    blocks.emplace_back(BlockRef{}, random.Bytes(size));
    blocks.emplace_back(BlockRef{}, std::string(size, 'z'));
  }
  for (auto& [ref, plain] : blocks) ref = w.Put(w.realm_a, plain);
  for (const auto& [ref, plain] : blocks) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  w.Reopen();
  for (const auto& [ref, plain] : blocks) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  for (const auto& [ref, plain] : blocks) EXPECT_TRUE(w.store->Verify(w.realm_a, ref).has_value());
  EXPECT_TRUE(w.Check().empty());
  EXPECT_EQ(w.store->Stats().block_count, blocks.size());
}

TEST(LocalBlockStore, EmptyAndOversizeBlocksAreInvalid) {
  StoreWorld w;
  auto session = *w.store->BeginWrite(w.realm_a);
  EXPECT_EQ(session->Put(BlockKind::kData, "", Compression::kFast).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(session->Put(BlockKind::kData, std::string(kMaxBlockBytes + 1, 'x'), Compression::kFast)
                .error()
                .code(),
            ErrorCode::kInvalidArgument);
}

TEST(LocalBlockStore, UnknownRealmIsNotFound) {
  StoreWorld w;
  Id128 other;
  other.bytes.fill(1);
  EXPECT_EQ(w.store->BeginWrite(other).error().code(), ErrorCode::kNotFound);
}

TEST(LocalBlockStore, EqualBlocksAreStoredOnceAcrossSessionsAndOpenings) {
  StoreWorld w;
  const std::string plain = SeededRandom(2).Bytes(5000);
  const BlockRef first = w.Put(w.realm_a, plain);
  EXPECT_EQ(w.Put(w.realm_a, plain), first);
  EXPECT_EQ(w.store->Stats().block_count, 1u);
  w.Reopen();
  EXPECT_EQ(w.Put(w.realm_a, plain), first);
  EXPECT_EQ(w.store->Stats().block_count, 1u);
  w.Put(w.realm_a, plain, BlockKind::kMemory);  // another kind is another block
  EXPECT_EQ(w.store->Stats().block_count, 2u);
}

TEST(LocalBlockStore, RealmsShareNothing) {
  StoreWorld w;
  const std::string plain = SeededRandom(3).Bytes(5000);
  const BlockRef a = w.Put(w.realm_a, plain);
  EXPECT_EQ(w.store->Get(w.realm_b, a).error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(*w.store->Contains(w.realm_b, a));
  EXPECT_EQ(w.Read(w.realm_a, a), plain);  // now cached
  EXPECT_EQ(w.store->Get(w.realm_b, a).error().code(), ErrorCode::kDataLoss);
  const BlockRef b = w.Put(w.realm_b, plain);
  EXPECT_NE(a.address, b.address);
  EXPECT_EQ(w.store->Stats().block_count, 2u);
}

TEST(LocalBlockStore, BaseRealmIsReadByAll) {
  StoreWorld w;
  const BlockRef base = w.Put(BaseRealm(), "template");
  EXPECT_EQ(base.realm, RealmTag::kBase);
  EXPECT_EQ(w.Read(w.realm_a, base), "template");
  EXPECT_EQ(w.Read(w.realm_b, base), "template");
}

TEST(LocalBlockStore, WrongKindOrLengthInAReferenceIsDataLoss) {
  StoreWorld w;
  const BlockRef ref = w.Put(w.realm_a, "some bytes");
  BlockRef wrong = ref;
  wrong.kind = BlockKind::kTreeNode;
  EXPECT_EQ(w.store->Get(w.realm_a, wrong).error().code(), ErrorCode::kDataLoss);
  wrong = ref;
  wrong.raw_length_bytes = 9;
  EXPECT_EQ(w.store->Get(w.realm_a, wrong).error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(w.Read(w.realm_a, ref), "some bytes");
  EXPECT_EQ(w.store->Get(w.realm_a, wrong).error().code(), ErrorCode::kDataLoss);
}

TEST(LocalBlockStore, PlaintextIsInNoFile) {
  StoreWorld w;
  const std::string canary = "canary-0123456789-abcdefghijklmn";
  w.Put(w.realm_a, canary);
  w.Put(w.realm_a, canary + SeededRandom(4).Bytes(70000));  // not compressible: stored raw
  const auto search = [&] {
    size_t files = 0;
    for (const auto& item : std::filesystem::recursive_directory_iterator(w.dir)) {
      if (!item.is_regular_file()) continue;
      ++files;
      EXPECT_EQ(ReadHostFile(item.path()).find(canary), std::string::npos) << item.path();
    }
    EXPECT_GT(files, 1u);
  };
  search();
  w.Close();
  search();
}

TEST(LocalBlockStore, PacksAreSealedWhenFullAndOnClose) {
  StoreWorld w(64 << 10);
  SeededRandom random(5);
  std::vector<std::pair<BlockRef, std::string>> blocks;
  for (int i = 0; i < 40; ++i) {
    const std::string plain = random.Bytes(10000);
    blocks.emplace_back(w.Put(w.realm_a, plain), plain);
  }
  EXPECT_GE(w.PackPaths().size(), 5u);
  w.Close();
  for (const std::string& path : w.PackPaths()) {
    const std::string bytes = ReadHostFile(path);
    EXPECT_TRUE(DecodeTrailer(std::string_view(bytes).substr(bytes.size() - kPackTrailerBytes)));
  }
  w.Open();
  for (const auto& [ref, plain] : blocks) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  EXPECT_TRUE(w.Check().empty());
}

TEST(LocalBlockStore, CompressibleBlocksTakeLessRoom) {
  StoreWorld w;
  w.Put(w.realm_a, std::string(65536, 'a'));
  const BlockStoreStats stats = w.store->Stats();
  EXPECT_EQ(stats.raw_bytes, 65536u);
  EXPECT_LT(stats.stored_bytes, 1000u);
}

TEST(LocalBlockStore, SyncedBlocksSurviveAKill) {
  StoreWorld w;
  const std::string plain = SeededRandom(6).Bytes(30000);
  const BlockRef ref = w.Put(w.realm_a, plain);
  w.Kill();
  w.Open();
  EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  EXPECT_TRUE(w.Check().empty());
  const BlockRef second = w.Put(w.realm_a, "another");
  EXPECT_EQ(w.PackPaths().size(), 2u) << "a recovered pack is never appended to";
  EXPECT_EQ(w.Read(w.realm_a, second), "another");
}

TEST(LocalBlockStore, FullDiskIsExhaustedAndHealsWithoutReopening) {
  StoreWorld w(64 << 10);
  SeededRandom random(7);
  const std::string before = random.Bytes(5000);
  const BlockRef kept = w.Put(w.realm_a, before);
  w.fs.SetSpaceLeft(20000);
  std::vector<std::pair<BlockRef, std::string>> stored;
  auto session = *w.store->BeginWrite(w.realm_a);
  ErrorCode refused = ErrorCode::kInternal;
  for (int i = 0; i < 100; ++i) {
    const std::string plain = random.Bytes(3000);
    const auto ref = session->Put(BlockKind::kData, plain, Compression::kFast);
    if (!ref) {
      refused = ref.error().code();
      break;
    }
    stored.emplace_back(*ref, plain);
  }
  EXPECT_EQ(refused, ErrorCode::kExhausted);
  EXPECT_GE(stored.size(), 4u);
  EXPECT_TRUE(session->Sync().has_value()) << "what was stored before is not lost";
  EXPECT_EQ(w.Read(w.realm_a, kept), before);
  for (const auto& [ref, plain] : stored) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  w.fs.SetSpaceLeft(-1);
  const auto after = session->Put(BlockKind::kData, "room again", Compression::kFast);
  ASSERT_TRUE(after.has_value()) << after.error().ToString();
  EXPECT_TRUE(session->Sync().has_value());
  session.reset();
  w.Reopen();
  EXPECT_EQ(w.Read(w.realm_a, *after), "room again");
  for (const auto& [ref, plain] : stored) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  EXPECT_TRUE(w.Check().empty());
}

TEST(LocalBlockStore, FailedFdatasyncFailsTheSessionAndIsNotRetried) {
  StoreWorld w;
  const BlockRef durable = w.Put(w.realm_a, "synced before");
  auto session = *w.store->BeginWrite(w.realm_a);
  const BlockRef lost = *session->Put(BlockKind::kData, "not synced", Compression::kFast);
  auto other = *w.store->BeginWrite(w.realm_a);
  ASSERT_EQ(*other->Put(BlockKind::kData, "not synced", Compression::kFast), lost);
  w.fs.FailNth(Call::kSync, 1, EIO);
  EXPECT_FALSE(session->Sync().has_value());
  const uint64_t syncs = w.fs.calls(Call::kSync);
  EXPECT_EQ(session->Sync().error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(session->Put(BlockKind::kData, "x", Compression::kFast).error().code(),
            ErrorCode::kUnavailable);
  EXPECT_FALSE(other->Sync().has_value()) << "it was told that the block exists";
  EXPECT_EQ(w.fs.calls(Call::kSync), syncs);
  EXPECT_FALSE(*w.store->Contains(w.realm_a, lost));
  EXPECT_EQ(w.Read(w.realm_a, durable), "synced before");
  session.reset();
  other.reset();
  // The store goes on with a new pack, and the same bytes are stored anew.
  EXPECT_EQ(w.Put(w.realm_a, "not synced"), lost);
  EXPECT_EQ(w.Read(w.realm_a, lost), "not synced");
  w.Reopen();
  EXPECT_EQ(w.Read(w.realm_a, durable), "synced before");
  EXPECT_EQ(w.Read(w.realm_a, lost), "not synced");
  EXPECT_TRUE(w.Check().empty());
}

TEST(LocalBlockStore, FailedWriteFailsTheSessionButNotTheStore) {
  StoreWorld w;
  w.Put(w.realm_a, "first");
  auto session = *w.store->BeginWrite(w.realm_a);
  w.fs.FailNth(Call::kWrite, 1, EIO);
  EXPECT_EQ(session->Put(BlockKind::kData, "second", Compression::kFast).error().code(),
            ErrorCode::kInternal);
  EXPECT_EQ(session->Sync().error().code(), ErrorCode::kUnavailable);
  session.reset();
  const BlockRef ref = w.Put(w.realm_a, "second");
  EXPECT_EQ(w.Read(w.realm_a, ref), "second");
  EXPECT_TRUE(w.Check().empty());
}

TEST(LocalBlockStore, FailedPackCreationLeavesNoFile) {
  StoreWorld w;
  for (const Call call : {Call::kWrite, Call::kSync, Call::kSyncDir}) {
    auto session = *w.store->BeginWrite(w.realm_a);
    // The first SyncDir is of the realm's folder; once that is made, only packs are.
    w.fs.FailNth(call, 1, EIO);
    EXPECT_FALSE(session->Put(BlockKind::kData, "x", Compression::kFast).has_value());
    EXPECT_TRUE(w.PackPaths().empty());
  }
  w.Put(w.realm_a, "x");
  EXPECT_EQ(w.PackPaths().size(), 1u);
}

TEST(LocalBlockStore, FailedSealKeepsWhatWasSynced) {
  StoreWorld w;
  const std::string plain = SeededRandom(8).Bytes(9000);
  const BlockRef ref = w.Put(w.realm_a, plain);
  w.fs.FailNth(Call::kWrite, 1, EIO);
  EXPECT_FALSE(w.store->SealOpenPacks().has_value());
  EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  w.Reopen();
  EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  EXPECT_TRUE(w.Check().empty());
}

TEST(LocalBlockStore, CloseRefusesLaterCalls) {
  StoreWorld w;
  const BlockRef ref = w.Put(w.realm_a, "x");
  auto session = *w.store->BeginWrite(w.realm_a);
  EXPECT_TRUE(w.store->Close().has_value());
  EXPECT_EQ(session->Put(BlockKind::kData, "y", Compression::kFast).error().code(),
            ErrorCode::kUnavailable);
  EXPECT_EQ(w.store->BeginWrite(w.realm_a).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(w.store->Get(w.realm_a, ref).error().code(), ErrorCode::kUnavailable);
  session.reset();
}

TEST(LocalBlockStore, RemovedKeysMakeBlocksUnreadable) {
  StoreWorld w;
  const BlockRef ref = w.Put(w.realm_a, "secret");
  EXPECT_EQ(w.Read(w.realm_a, ref), "secret");
  w.keys.Remove(w.realm_a);
  w.store->ForgetRealm(w.realm_a);
  EXPECT_EQ(w.store->Get(w.realm_a, ref).error().code(), ErrorCode::kNotFound);
}

TEST(LocalBlockStore, ParallelSessionsPutAndReadTheSameBlocks) {
  StoreWorld w(128 << 10);
  constexpr int kThreads = 4;
  constexpr int kBlocks = 150;
  const auto plain = [](int i) { return SeededRandom(1000 + i % 100).Bytes(2000 + i % 7); };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      auto session = *w.store->BeginWrite(w.realm_a);
      for (int n = 0; n < kBlocks; ++n) {
        const int i = (n * 7 + t * 13) % 300;
        const auto ref = session->Put(BlockKind::kData, plain(i), Compression::kFast);
        ASSERT_TRUE(ref.has_value()) << ref.error().ToString();
        const auto block = w.store->Get(w.realm_a, *ref);
        ASSERT_TRUE(block.has_value()) << block.error().ToString();
        ASSERT_EQ(**block, plain(i));
        if (n % 10 == 0) {
          ASSERT_TRUE(session->Sync().has_value());
        }
      }
      ASSERT_TRUE(session->Sync().has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<Address> distinct;
  for (int t = 0; t < kThreads; ++t) {
    for (int n = 0; n < kBlocks; ++n) {
      distinct.insert(
          *w.keys.AddressOf(w.realm_a, BlockKind::kData, plain((n * 7 + t * 13) % 300)));
    }
  }
  EXPECT_EQ(w.store->Stats().block_count, distinct.size());
  EXPECT_TRUE(w.Check().empty());
}

}  // namespace
}  // namespace cairn
