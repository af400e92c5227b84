// The quarantine: its file, and what a store does with a bad place: never served, stored again,
// remembered across restarts, forgotten with its pack.
#include "store/quarantine.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "store/local_block_store.h"
#include "store/pack_writer.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

using Call = FaultyFileSystem::Call;
namespace stdfs = std::filesystem;

QuarantinedFrame Frame(uint8_t pack, uint64_t offset) {
  QuarantinedFrame frame{.realm = BaseRealm(), .pack = {}, .offset = offset, .found_ms = 7};
  frame.pack.bytes.fill(pack);
  frame.address.bytes.fill(static_cast<uint8_t>(offset));
  return frame;
}

class QuarantineFile : public testing::Test {
 protected:
  std::unique_ptr<Quarantine> Open() { return Quarantine::Open(fs_, path_); }
  TempDir temp_;
  FaultyFileSystem fs_{temp_ / "scratch"};
  const std::string path_ = temp_ / "quarantine";
};

TEST_F(QuarantineFile, SurvivesARestart) {
  {
    const auto q = Open();
    EXPECT_FALSE(q->Holds(Frame(1, 160).pack, 160));
    EXPECT_TRUE(q->Add(Frame(1, 160)));
    EXPECT_FALSE(q->Add(Frame(1, 160))) << "once";
    EXPECT_TRUE(q->Add(Frame(1, 800)));
    EXPECT_TRUE(q->Add(Frame(2, 160)));
    EXPECT_TRUE(q->Add(Frame(3, 160)));
    EXPECT_TRUE(q->ReleaseFrame(Frame(1, 160).pack, 160));
    EXPECT_FALSE(q->ReleaseFrame(Frame(1, 160).pack, 160));
    q->ReleasePack(Frame(3, 0).pack);
  }
  const auto q = Open();
  EXPECT_EQ(q->List(), (std::vector<QuarantinedFrame>{Frame(1, 800), Frame(2, 160)}));
  EXPECT_FALSE(q->Holds(Frame(1, 0).pack, 160));
  EXPECT_TRUE(q->Holds(Frame(1, 0).pack, 800));
  EXPECT_FALSE(q->HoldsPack(Frame(1, 0).pack));
}

TEST_F(QuarantineFile, WholePackHoldsEachOfItsFrames) {
  const auto q = Open();
  EXPECT_TRUE(q->Add(Frame(1, QuarantinedFrame::kWholePack)));
  EXPECT_TRUE(q->HoldsPack(Frame(1, 0).pack));
  EXPECT_TRUE(q->Holds(Frame(1, 0).pack, 4096));
  EXPECT_FALSE(q->Add(Frame(1, 4096)));
  q->ReleasePack(Frame(1, 0).pack);
  EXPECT_FALSE(q->Holds(Frame(1, 0).pack, 4096));
}

TEST_F(QuarantineFile, AddedIsDurable) {
  SeededRandom random(1);
  for (int round = 0; round < 20; ++round) {
    Open()->Add(Frame(1, 8 * round));
    fs_.PowerCut(random);
    EXPECT_EQ(Open()->size(), static_cast<size_t>(round) + 1);
  }
}

TEST_F(QuarantineFile, DamagedRecordHidesOnlyItself) {
  {
    const auto q = Open();
    for (int i = 0; i < 4; ++i) q->Add(Frame(1, 8 * i));
  }
  FlipBit(path_, 96 + 50);
  WriteHostFile(path_ + "2", ReadHostFile(path_) + "torn");
  stdfs::rename(path_ + "2", path_);
  const auto q = Open();
  EXPECT_EQ(q->size(), 3u);
  EXPECT_FALSE(q->Holds(Frame(1, 0).pack, 8));
  q->Add(Frame(1, 64));
  EXPECT_EQ(stdfs::file_size(path_), 4u * 96) << "replaced";
  EXPECT_EQ(Open()->size(), 4u);
}

TEST_F(QuarantineFile, GarbageIsBegunAnew) {
  WriteHostFile(path_, std::string(8 << 20, 'x'));
  const auto q = Open();
  EXPECT_EQ(q->size(), 0u);
  q->Add(Frame(1, 8));
  EXPECT_EQ(Open()->size(), 1u);
}

TEST_F(QuarantineFile, FullDiskKeepsItInMemoryUntilThereIsRoom) {
  const auto q = Open();
  fs_.FailNth(Call::kWrite, 1, ENOSPC);
  EXPECT_TRUE(q->Add(Frame(1, 8)));
  EXPECT_TRUE(q->Holds(Frame(1, 0).pack, 8));
  EXPECT_EQ(Open()->size(), 0u);
  q->Add(Frame(1, 16));
  EXPECT_EQ(Open()->size(), 2u);
}

TEST_F(QuarantineFile, FileStaysShort) {
  const auto q = Open();
  for (int i = 0; i < 3000; ++i) {
    q->Add(Frame(1, 8));
    q->ReleaseFrame(Frame(1, 0).pack, 8);
  }
  EXPECT_LT(stdfs::file_size(path_), 1100u * 96);
}

TEST_F(QuarantineFile, HoldsNoMoreThanItsBound) {
  // Filled through the file: adding one by one would fdatasync each.
  {
    const auto q = Open();
    q->Add(Frame(1, 0));
    q->Add(Frame(1, 8));
  }
  const std::string two = ReadHostFile(path_);
  ASSERT_EQ(two.size(), 192u);
  const auto q = Open();
  EXPECT_EQ(Quarantine::kMaxEntries, 16384u);
  fs_.FailNth(Call::kOpen, 1, ENOSPC, 1 << 20);  // no disk: the table alone
  for (size_t i = 2; i < Quarantine::kMaxEntries; ++i) ASSERT_TRUE(q->Add(Frame(1, 8 * i)));
  EXPECT_FALSE(q->Add(Frame(2, 8)));
  EXPECT_EQ(q->size(), Quarantine::kMaxEntries);
}

// ---- in a store ----

struct Damaged {
  StoreWorld w;
  std::vector<std::pair<BlockRef, std::string>> blocks;
  explicit Damaged(int count = 4) {
    for (int i = 0; i < count; ++i) {
      const std::string plain = SeededRandom(i).Bytes(2000 + i);
      blocks.emplace_back(w.Put(w.realm_a, plain), plain);
    }
  }
  // Flips a bit of the ciphertext of block `i` wherever it lies now.
  void Flip(int i) {
    for (const std::string& path : w.PackPaths()) {
      const std::string bytes = ReadHostFile(path);
      const size_t at = bytes.find(blocks[i].first.address.view());
      if (at == std::string::npos) continue;
      FlipBit(path, at - 16 + kFrameHeaderBytes + 100);
      return;
    }
    FAIL() << "no frame of block " << i;
  }
  ErrorCode Error(int i) {
    const auto block = w.store->Get(w.realm_a, blocks[i].first);
    EXPECT_FALSE(block.has_value());
    return block ? ErrorCode::kInternal : block.error().code();
  }
  void ExpectWhole() {
    for (const auto& [ref, plain] : blocks) EXPECT_EQ(w.Read(w.realm_a, ref), plain);
  }
};

TEST(StoreQuarantine, WriteAfterARestartStoresADamagedBlockAgain) {
  Damaged d;
  d.w.Reopen();
  d.Flip(1);
  EXPECT_EQ(d.Error(1), ErrorCode::kDataLoss);
  d.w.Kill();
  d.w.Open();
  const uint64_t blocks = d.w.store->Stats().block_count;
  EXPECT_EQ(d.w.Put(d.w.realm_a, d.blocks[1].second), d.blocks[1].first);
  EXPECT_EQ(d.w.store->Stats().block_count, blocks + 1) << "trusted the bad copy";
  d.ExpectWhole();
  EXPECT_EQ(d.w.Put(d.w.realm_a, d.blocks[1].second), d.blocks[1].first);
  EXPECT_EQ(d.w.store->Stats().block_count, blocks + 1) << "stored again although healed";
}

TEST(StoreQuarantine, HealedBlockSurvivesRestartAndRebuild) {
  for (int round = 0; round < 8; ++round) {  // pack ids are random, and order the rebuild here
    Damaged d;
    d.w.Reopen();
    d.Flip(1);
    EXPECT_EQ(d.Error(1), ErrorCode::kDataLoss);
    d.w.Put(d.w.realm_a, d.blocks[1].second);
    d.w.Close();
    stdfs::remove_all(d.w.dir + "/index");
    d.w.Open();
    d.ExpectWhole();
  }
}

TEST(StoreQuarantine, DamageInTheOpenPackHealsIntoAnotherPack) {
  Damaged d;
  d.Flip(2);
  EXPECT_EQ(d.Error(2), ErrorCode::kDataLoss);
  EXPECT_EQ(d.w.PackPaths().size(), 1u);
  EXPECT_EQ(d.w.Put(d.w.realm_a, d.blocks[2].second), d.blocks[2].first);
  EXPECT_EQ(d.w.PackPaths().size(), 2u);
  d.ExpectWhole();
  d.w.Reopen();  // both get a footer, in which an address stands once
  d.ExpectWhole();
}

TEST(StoreQuarantine, HealIsNotBelievedBeforeItIsDurable) {
  Damaged d;
  d.w.Reopen();
  d.Flip(1);
  EXPECT_EQ(d.Error(1), ErrorCode::kDataLoss);
  {
    auto session = *d.w.store->BeginWrite(d.w.realm_a);
    ASSERT_TRUE(session->Put(BlockKind::kData, d.blocks[1].second, Compression::kFast));
  }
  d.w.Kill();
  // The new pack never reached the disk.
  for (const std::string& path : d.w.PackPaths()) {
    const std::string bytes = ReadHostFile(path);
    if (bytes.find(d.blocks[0].first.address.view()) == std::string::npos) stdfs::remove(path);
  }
  d.w.Open();
  EXPECT_EQ(d.Error(1), ErrorCode::kDataLoss);
  EXPECT_EQ(d.w.Put(d.w.realm_a, d.blocks[1].second), d.blocks[1].first);
  d.ExpectWhole();
}

TEST(StoreQuarantine, UnreadablePackIsDistrustedWhole) {
  for (const bool gone : {false, true}) {
    Damaged d;
    d.w.Reopen();
    const std::string path = d.w.PackPaths().at(0);
    if (gone) {
      stdfs::remove(path);
    } else {
      FlipBit(path, 40);
      FlipBit(path, stdfs::file_size(path) - 5);
    }
    EXPECT_EQ(d.Error(0), ErrorCode::kDataLoss);
    if (!gone) {
      d.w.Kill();
      d.w.Open();
    }
    // The others were not read: the pack is known to be bad all the same.
    for (const auto& [ref, plain] : d.blocks) EXPECT_EQ(d.w.Put(d.w.realm_a, plain), ref);
    d.ExpectWhole();
    d.w.Reopen();
    d.ExpectWhole();
  }
}

// A pack whose frame of `address` holds other bytes, correctly encrypted.
void WriteLyingPack(StoreWorld& w, const Address& address, std::string_view bytes) {
  const std::string dir = w.dir + "/packs/" + w.realm_a.ToHex();
  ASSERT_TRUE(HostFileSystem().MakeDir(dir));
  auto writer =
      PackWriter::Create(HostFileSystem(), w.keys,
                         {.dir = dir, .pack = Id128::Random(), .realm = w.realm_a, .epoch = 1});
  ASSERT_TRUE(writer);
  const PackWriter::Frame frame{.address = address,
                                .kind = BlockKind::kData,
                                .codec = Codec::kRaw,
                                .raw_length = static_cast<uint32_t>(bytes.size()),
                                .bytes = bytes};
  auto place = (*writer)->Reserve({&frame, 1}, kMaxPackBytes);
  ASSERT_TRUE(place);
  std::string room(frame.FrameBytes(), '\0');
  ASSERT_TRUE((*writer)->Write(*std::move(place), {&frame, 1}, room));
  ASSERT_TRUE((*writer)->Finish());
}

TEST(StoreQuarantine, RightTagOverWrongBytesIsNotServedOnceFound) {
  StoreWorld w;
  const std::string right = SeededRandom(1).Bytes(500), wrong = SeededRandom(2).Bytes(500);
  const BlockRef ref{.kind = BlockKind::kData,
                     .raw_length_bytes = 500,
                     .address = *w.keys.AddressOf(w.realm_a, BlockKind::kData, right)};
  w.Close();
  WriteLyingPack(w, ref.address, wrong);
  w.Open();
  ASSERT_EQ(w.Read(w.realm_a, ref), wrong) << "a read does not recompute the address";
  const auto found = w.store->VerifyPack(w.store->ListAllPacks().at(0));
  ASSERT_EQ(found->size(), 1u);
  EXPECT_TRUE(found->at(0).what.ends_with("plaintext has another address")) << found->at(0).what;
  EXPECT_EQ(w.store->Get(w.realm_a, ref).error().code(), ErrorCode::kDataLoss) << "from the cache";
  w.Reopen();
  EXPECT_EQ(w.store->Get(w.realm_a, ref).error().code(), ErrorCode::kDataLoss);
  // A rewrite does not carry it into a fresh, trusted pack.
  const Id128 pack = w.store->ListPacks(w.realm_a).at(0).pack;
  EXPECT_EQ(w.store->RewritePack(pack, {ref.address}, {.now = true}).error().code(),
            ErrorCode::kDataLoss);
  EXPECT_EQ(w.Put(w.realm_a, right), ref);
  EXPECT_EQ(w.Read(w.realm_a, ref), right);
  w.Reopen();
  EXPECT_EQ(w.Read(w.realm_a, ref), right);
}

TEST(StoreQuarantine, PackThatLeavesTakesItsEntriesAlong) {
  Damaged d;
  d.w.Reopen();
  d.Flip(1);
  EXPECT_EQ(d.Error(1), ErrorCode::kDataLoss);
  ASSERT_TRUE(d.w.store->DropPack(d.w.store->ListPacks(d.w.realm_a).at(0).pack, {.now = true}));
  d.w.Close();
  EXPECT_EQ(Quarantine::Open(d.w.fs, d.w.dir + "/quarantine")->size(), 0u);
}

}  // namespace
}  // namespace cairn
