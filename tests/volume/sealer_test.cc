// Seals of real generations (journal, side log, encryption) into trees in memory: what is read
// after the seal is what was read before it, and the extents that the tree holds are the ones the
// contract asks for.
#include "volume/sealer.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "store/base/random.h"
#include "tests/volume/head_fixture.h"
#include "volume/extent_value.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

constexpr InodeNumber kIno = 5;
constexpr uint64_t kEndless = ~uint64_t{0};

class SealerTest : public HeadTest {
 protected:
  void SetUp() override { MustReopen(); }

  void Commit(const std::function<void(Transaction&)>& build) {
    Transaction t;
    build(t);
    const Status committed = head_->Commit(std::move(t));
    ASSERT_TRUE(committed) << committed.error().ToString();
  }
  void Write(InodeNumber ino, uint64_t offset, const std::string& bytes) {
    Commit([&](Transaction& t) { t.PutData(ino, offset, bytes); });
  }
  void PunchHole(InodeNumber ino, uint64_t offset, uint64_t length_bytes) {
    Commit([&](Transaction& t) { t.PutHole(ino, offset, length_bytes); });
  }

  Result<SealResult> TrySeal(const Layer& layer) {
    auto session = CAIRN_TRY(store_.BeginWrite(realm_));
    return SealLayer(store_, cache_, *session, layer,
                     {.volume = volume_,
                      .realm = realm_,
                      .hash_seed = 77,
                      .next_ino = 9,
                      .parent = parent_,
                      .epoch = 3,
                      .compression = Compression::kBackground,
                      .now = {.seconds = 1000, .nanoseconds = 5}});
  }

  // Seals `layer` (the oldest unsealed) and lets its generation go.
  void SealFrozen(const std::shared_ptr<const Layer>& layer) {
    auto sealed = TrySeal(*layer);
    ASSERT_TRUE(sealed) << sealed.error().ToString();
    result_ = std::move(*sealed);
    parent_ = result_.root;
    ASSERT_TRUE(head_->FinishSeal(layer->generation(), result_.tree));
    options_.sealed_through_generation = layer->generation();
    options_.base = TreeLayer(store_, result_.tree, layer->generation());
  }
  void Seal() {
    const auto frozen = head_->Freeze();
    ASSERT_TRUE(frozen) << frozen.error().ToString();
    SealFrozen(*frozen);
  }

  std::shared_ptr<const Layer> Sealed() { return TreeLayer(store_, result_.tree, 0); }

  // The extents of an inode as the tree holds them; their order and bounds are checked.
  std::vector<Segment> TreeExtents(InodeNumber ino) {
    std::vector<Segment> extents;
    const std::string prefix = KeyPrefix(ino, KeyKind::kExtent);
    auto cursor = *result_.tree->Seek(prefix);
    uint64_t end = 0;
    while (cursor->valid() && cursor->key().starts_with(prefix)) {
      const uint64_t offset = BigEndian64(ParseKey(cursor->key())->subkey);
      const auto extent = DecodeExtent(offset, cursor->entry());
      EXPECT_TRUE(extent.has_value());
      EXPECT_GE(offset, end) << "extents overlap";
      end = offset + extent->length_bytes;
      extents.push_back(*extent);
      EXPECT_TRUE(cursor->Next());
    }
    return extents;
  }

  size_t KeysOf(InodeNumber ino) {
    const std::string prefix = KeyPrefix(ino);
    size_t keys = 0;
    auto cursor = *result_.tree->Seek(prefix);
    while (cursor->valid() && cursor->key().starts_with(prefix)) {
      ++keys;
      EXPECT_TRUE(cursor->Next());
    }
    return keys;
  }

  std::optional<BlockRef> parent_;
  SealResult result_;
};

std::string Noise(uint64_t seed, size_t length_bytes) {
  SeededRandom random(seed);
  std::string bytes = random.Bytes(length_bytes);
  for (char& c : bytes) {
    if (c == 0) c = 1;  // no accidental zeros
  }
  return bytes;
}

Inode FileInode(uint64_t size_bytes) {
  Inode inode;
  inode.mode = 0100644;
  inode.size_bytes = size_bytes;
  return inode;
}

TEST_F(SealerTest, EntriesAndRootRecordComeBack) {
  Commit([](Transaction& t) {
    t.Put(AttributesKey(1), Entry{FileInode(0).Encode(), {}});
    t.Put(AttributesKey(kIno), Entry{FileInode(1234).Encode(), {}});
    t.Put(InlineKey(kIno), Entry{"contents", {}});
  });
  Seal();
  EXPECT_EQ(GetPayload(*Sealed(), InlineKey(kIno)), "contents");
  const FsRoot root = *LoadFsRoot(store_, realm_, result_.root);
  EXPECT_EQ(root.volume, volume_);
  EXPECT_EQ(root.generation, options_.sealed_through_generation);
  EXPECT_EQ(root.hash_seed, 77u);
  EXPECT_EQ(root.next_ino, 9u);
  EXPECT_EQ(root.tree.counters, (TreeCounters{2, 1234}));
  EXPECT_EQ(root.sealed_at, (TimeSpec{1000, 5}));
  EXPECT_FALSE(root.has_orphans);
  EXPECT_FALSE(root.parent.has_value());
  const BlockRef first = result_.root;
  EXPECT_GE(store_.sync_count(), 1u);

  Commit([](Transaction& t) {
    t.Put(OrphanKey(kIno), Entry{std::string(4, '\0'), {}});
    t.Delete(InlineKey(kIno));
    t.Delete(XattrKey(99, "user.absent"));  // was never there
  });
  Seal();
  EXPECT_TRUE(result_.record.has_orphans);
  EXPECT_EQ(result_.record.parent, first);
  EXPECT_EQ(GetPayload(*Sealed(), InlineKey(kIno)), "(absent)");
}

TEST_F(SealerTest, SealOfNothingGivesARoot) {
  Seal();
  EXPECT_FALSE(result_.record.tree.node.has_value());
  EXPECT_TRUE(LoadFsRoot(store_, realm_, result_.root).has_value());
}

TEST_F(SealerTest, NewWindowIsOneBlock) {
  const std::string bytes = Noise(1, 2 * kGridBytes + 5000);
  Write(kIno, 0, bytes);
  Seal();
  const auto extents = TreeExtents(kIno);
  ASSERT_EQ(extents.size(), 3u);
  EXPECT_EQ(extents[0].length_bytes, kGridBytes);
  EXPECT_EQ(extents[0].block.raw_length_bytes, kGridBytes);
  EXPECT_EQ(extents[2].length_bytes, 5000u);
  EXPECT_EQ(extents[2].block.raw_length_bytes, 5000u);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, bytes.size()), bytes);
  EXPECT_EQ(result_.data_bytes, bytes.size());
}

TEST_F(SealerTest, EqualWindowsAreStoredOnce) {
  const std::string bytes = Noise(1, kGridBytes);
  Write(kIno, 0, bytes + bytes);
  Write(6, 5 * kGridBytes, bytes);
  Seal();
  EXPECT_EQ(TreeExtents(kIno)[0].block, TreeExtents(6)[0].block);
  EXPECT_EQ(TreeExtents(kIno)[1].block, TreeExtents(6)[0].block);
}

TEST_F(SealerTest, OverwrittenPageBecomesABlockAndTheRestStaysInTheOldOne) {
  std::string bytes = Noise(1, kGridBytes);
  Write(kIno, 0, bytes);
  Seal();
  const BlockRef old = TreeExtents(kIno)[0].block;
  const std::string page = Noise(2, kPageBytes);
  Write(kIno, 3 * kPageBytes, page);
  bytes.replace(3 * kPageBytes, kPageBytes, page);
  Seal();
  const auto extents = TreeExtents(kIno);
  ASSERT_EQ(extents.size(), 3u);
  EXPECT_EQ(extents[0].block, old);
  EXPECT_EQ(extents[0].length_bytes, 3 * kPageBytes);
  EXPECT_EQ(extents[1].block.raw_length_bytes, kPageBytes);
  EXPECT_EQ(extents[2].block, old);
  EXPECT_EQ(extents[2].source_offset, 4 * kPageBytes);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), bytes);
  EXPECT_EQ(result_.data_bytes, kPageBytes);
}

TEST_F(SealerTest, WindowOfTooManyPiecesIsRewritten) {
  std::string bytes = Noise(1, kGridBytes);
  Write(kIno, 0, bytes);
  Seal();
  std::vector<size_t> pieces;
  for (uint32_t page = 1; page < 16; page += 2) {
    const std::string fresh = Noise(100 + page, kPageBytes);
    Write(kIno, page * kPageBytes, fresh);
    bytes.replace(page * kPageBytes, kPageBytes, fresh);
    Seal();
    pieces.push_back(TreeExtents(kIno).size());
    ASSERT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), bytes);
  }
  EXPECT_THAT(pieces, testing::ElementsAre(3, 5, 7, 1, 3, 5, 7, 8));  // the ninth piece is too many
}

TEST_F(SealerTest, WindowThatPinsTooManyDeadBytesIsRewritten) {
  std::string bytes = Noise(1, kGridBytes);
  Write(kIno, 0, bytes);
  Seal();
  for (uint32_t round = 1; round <= 6;
       ++round) {  // all but the first `round` pages, again and again
    const std::string fresh = Noise(round + 1, kGridBytes - round * kPageBytes);
    Write(kIno, round * kPageBytes, fresh);
    bytes.replace(round * kPageBytes, fresh.size(), fresh);
    Seal();
    uint64_t pinned = 0;
    std::set<Address> blocks;
    for (const Segment& extent : TreeExtents(kIno)) {
      if (blocks.insert(extent.block.address).second) pinned += extent.block.raw_length_bytes;
    }
    EXPECT_LE(pinned, kMaxWindowPinnedBytes);
    ASSERT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), bytes);
  }
}

// A block of several windows, as an import puts them: the others' part does not count.
TEST_F(SealerTest, OverwrittenPageInASharedBlockLeavesTheRestThere) {
  constexpr uint64_t kWindows = 4;
  std::string bytes = Noise(1, kWindows * kGridBytes);
  auto session = *store_.BeginWrite(realm_);
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.length_bytes = kGridBytes;
  piece.block = *session->Put(BlockKind::kData, bytes, Compression::kFast);
  std::vector<TreeUpdate> updates;
  for (uint64_t window = 0; window < kWindows; ++window) {
    piece.offset = piece.source_offset = window * kGridBytes;
    updates.push_back({ExtentKey(kIno, piece.offset), EncodeExtent(piece)});
  }
  const TreeRoot root = *MergeTree(*EmptyTree(), *session, updates, CountEntry, 1);
  options_.base = TreeLayer(store_, Tree(root), 0);
  options_.dir += "2";
  MustReopen();
  const std::string page = Noise(2, kPageBytes);
  Write(kIno, kGridBytes + 3 * kPageBytes, page);
  bytes.replace(kGridBytes + 3 * kPageBytes, kPageBytes, page);
  Seal();
  const auto extents = TreeExtents(kIno);
  ASSERT_EQ(extents.size(), kWindows + 2);
  for (size_t i = 0; i < extents.size(); ++i) {
    EXPECT_EQ(extents[i].block == piece.block, i != 2) << i;
  }
  EXPECT_EQ(extents[2].block.raw_length_bytes, kPageBytes);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, bytes.size()), bytes);
}

TEST_F(SealerTest, ScatteredSmallWritesInANewWindowAreBounded) {
  std::string bytes(kGridBytes, '\0');
  for (uint32_t at = 0; at < kGridBytes; at += 100) {
    Write(kIno, at, "ten bytes!");
    bytes.replace(at, 10, "ten bytes!");
  }
  bytes.resize(kGridBytes);
  Seal();
  EXPECT_LE(TreeExtents(kIno).size(), kMaxWindowSegments);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), bytes);
}

TEST_F(SealerTest, PagesOfZerosBecomeHoles) {
  std::string bytes(kGridBytes, '\0');
  bytes.replace(kPageBytes, kPageBytes, Noise(1, kPageBytes));
  Write(kIno, 0, bytes);
  Write(6, 0, std::string(3 * kGridBytes, '\0'));
  Seal();
  const auto extents = TreeExtents(kIno);
  ASSERT_EQ(extents.size(), 1u);
  EXPECT_EQ(extents[0].offset, kPageBytes);
  EXPECT_EQ(extents[0].length_bytes, kPageBytes);
  EXPECT_EQ(KeysOf(6), 0u);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), bytes);
}

TEST_F(SealerTest, ZerosOverDataBecomeAHole) {
  std::string bytes = Noise(1, kGridBytes);
  Write(kIno, 0, bytes);
  Seal();
  Write(kIno, 2 * kPageBytes, std::string(kPageBytes, '\0'));
  bytes.replace(2 * kPageBytes, kPageBytes, std::string(kPageBytes, '\0'));
  Seal();
  const auto extents = TreeExtents(kIno);
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_EQ(extents[0].length_bytes, 2 * kPageBytes);
  EXPECT_EQ(extents[1].offset, 3 * kPageBytes);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), bytes);
  Write(kIno, 0, std::string(kGridBytes, '\0'));
  Seal();
  EXPECT_EQ(KeysOf(kIno), 0u);
}

TEST_F(SealerTest, HoleCutsExtentsWithoutRewritingTheirBlocks) {
  std::string bytes = Noise(1, 4 * kGridBytes);
  Write(kIno, 0, bytes);
  Seal();
  const auto before = TreeExtents(kIno);
  PunchHole(kIno, 1000,
            3 * kGridBytes);  // the head of window 0 stays, 1 and 2 go, window 3 loses its head
  bytes.replace(1000, 3 * kGridBytes, std::string(3 * kGridBytes, '\0'));
  const auto frozen = *head_->Freeze();
  const uint64_t puts = store_.put_count();
  SealFrozen(frozen);
  EXPECT_EQ(store_.put_count() - puts, 2u);  // a leaf and the root record
  const auto extents = TreeExtents(kIno);
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_EQ(extents[0].length_bytes, 1000u);
  EXPECT_EQ(extents[0].block, before[0].block);
  EXPECT_EQ(extents[1].offset, 3 * kGridBytes + 1000);
  EXPECT_EQ(extents[1].source_offset, 1000u);
  EXPECT_EQ(extents[1].block, before[3].block);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, bytes.size()), bytes);
}

TEST_F(SealerTest, EndlessHoleLeavesNothingBehindIt) {
  const std::string bytes = Noise(1, 3 * kGridBytes);
  Write(kIno, 0, bytes);
  Write(kIno, 700 * kGridBytes, "far away");
  Write(6, 0, bytes);
  Seal();
  for (const uint64_t from : {uint64_t{kGridBytes + 10}, uint64_t{10}, uint64_t{0}}) {
    PunchHole(kIno, from, kEndless - from);
    Seal();
    const auto extents = TreeExtents(kIno);
    ASSERT_EQ(extents.size(), from / kGridBytes + (from > 0 ? 1 : 0));
    if (from > 0) {
      EXPECT_EQ(extents.back().offset + extents.back().length_bytes, from);
    }
  }
  EXPECT_EQ(ReadFile(*Sealed(), 6, 0, bytes.size()), bytes);
}

TEST_F(SealerTest, TruncateAndWriteAgainInOneGeneration) {
  Write(kIno, 0, Noise(1, 3 * kGridBytes));
  Seal();
  PunchHole(kIno, 5000, kEndless - 5000);
  const std::string tail = Noise(2, 3000);
  Write(kIno, 2 * kGridBytes, tail);
  Seal();
  std::string expected = Noise(1, 5000);
  expected.resize(2 * kGridBytes, '\0');
  expected += tail;
  expected.resize(4 * kGridBytes, '\0');
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, expected.size()), expected);
}

TEST_F(SealerTest, DeletedInodeLeavesNoKey) {
  Commit([&](Transaction& t) {
    t.Put(AttributesKey(kIno), Entry{FileInode(3 * kGridBytes).Encode(), {}});
    t.Put(XattrKey(kIno, "user.a"), EncodeXattrInline("value"));
  });
  Write(kIno, 0, Noise(1, 3 * kGridBytes));
  Seal();
  EXPECT_EQ(KeysOf(kIno), 5u);
  Commit([&](Transaction& t) {
    t.Delete(AttributesKey(kIno));
    t.Delete(XattrKey(kIno, "user.a"));
    t.Delete(InlineKey(kIno));
    t.PutHole(kIno, 0, kEndless);
  });
  Seal();
  EXPECT_EQ(KeysOf(kIno), 0u);
  EXPECT_FALSE(result_.record.tree.node.has_value());
  EXPECT_EQ(result_.record.tree.counters, TreeCounters{});
}

TEST_F(SealerTest, LongXattrsMoveToBlocks) {
  const std::map<std::string, std::string> values = {{"user.empty", ""},
                                                     {"user.short", "v"},
                                                     {"user.limit", Noise(1, kInlineLimitBytes)},
                                                     {"user.over", Noise(2, kInlineLimitBytes + 1)},
                                                     {"user.longest", Noise(3, kMaxXattrBytes)}};
  Commit([&](Transaction& t) {
    for (const auto& [name, value] : values) t.Put(XattrKey(kIno, name), EncodeXattrInline(value));
  });
  Seal();
  const auto layer = Sealed();
  for (const auto& [name, value] : values) {
    const auto entry = *layer->Get(XattrKey(kIno, name));
    ASSERT_TRUE(entry) << name;
    EXPECT_EQ(entry->refs.size(), value.size() > kInlineLimitBytes ? 1u : 0u) << name;
    EXPECT_EQ(*ReadXattrValue(*layer, *entry), value) << name;
  }
}

// A file with more extents than one merge takes: built as a tree, deleted through a hole.
TEST_F(SealerTest, HugeFileIsDeletedInParts) {
  auto session = *store_.BeginWrite(realm_);
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.length_bytes = 4;
  piece.block = *session->Put(BlockKind::kData, "data", Compression::kFast);
  std::vector<TreeUpdate> updates;
  for (uint64_t window = 0; window < 300'000; ++window) {
    piece.offset = window * kGridBytes;
    updates.push_back({ExtentKey(kIno, piece.offset), EncodeExtent(piece)});
  }
  updates.push_back({InlineKey(7), Entry{"stays", {}}});
  const TreeRoot root = *MergeTree(*EmptyTree(), *session, updates, CountEntry, 1);
  options_.base = TreeLayer(store_, Tree(root), 0);
  options_.dir += "2";
  MustReopen();
  PunchHole(kIno, 2 * kGridBytes + 2, kEndless / 2);
  Seal();
  EXPECT_EQ(TreeExtents(kIno).size(), 3u);
  EXPECT_EQ(TreeExtents(kIno).back().length_bytes, 2u);
  EXPECT_EQ(GetPayload(*Sealed(), InlineKey(7)), "stays");
}

// More windows than one batch of puts takes.
TEST_F(SealerTest, EachWindowOfManyGetsItsOwnBlock) {
  constexpr size_t kWindows = 150;
  for (size_t i = 0; i < kWindows; ++i) Write(kIno, i * kGridBytes, Noise(i + 1, kGridBytes));
  Seal();
  EXPECT_EQ(TreeExtents(kIno).size(), kWindows);
  for (size_t i = 0; i < kWindows; ++i) {
    EXPECT_TRUE(ReadFile(*Sealed(), kIno, i * kGridBytes, kGridBytes) == Noise(i + 1, kGridBytes));
  }
}

// The last update that a merge has room for is the first of a window's two.
TEST_F(SealerTest, WindowAtTheEndOfAMergeKeepsItsBlock) {
  constexpr uint64_t kHoles = 256 * 1024 - 1;
  auto session = *store_.BeginWrite(realm_);
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.length_bytes = 4;
  piece.block = *session->Put(BlockKind::kData, "data", Compression::kFast);
  std::vector<TreeUpdate> updates;
  for (uint64_t window = 0; window < kHoles; ++window) {
    piece.offset = window * kGridBytes;
    updates.push_back({ExtentKey(kIno, piece.offset), EncodeExtent(piece)});
  }
  const TreeRoot root = *MergeTree(*EmptyTree(), *session, updates, CountEntry, 1);
  options_.base = TreeLayer(store_, Tree(root), 0);
  options_.dir += "2";
  MustReopen();
  PunchHole(kIno, 0, kHoles * kGridBytes);
  Write(kIno, kHoles * kGridBytes, Noise(1, 4096));
  Write(kIno, kHoles * kGridBytes + 8192, Noise(2, 4096));
  Seal();
  ASSERT_EQ(TreeExtents(kIno).size(), 2u);
  EXPECT_TRUE(ReadFile(*Sealed(), kIno, kHoles * kGridBytes, 4096) == Noise(1, 4096));
  EXPECT_TRUE(ReadFile(*Sealed(), kIno, kHoles * kGridBytes + 8192, 4096) == Noise(2, 4096));
}

// ---- model ----

TEST_F(SealerTest, RandomGenerationsReadTheSameBeforeAndAfterTheirSeal) {
  const uint64_t seed = 20250101;
  SCOPED_TRACE(seed);
  SeededRandom random(seed);
  constexpr uint64_t kFileBytes = 5 * kGridBytes;
  std::map<InodeNumber, std::string> files;
  std::map<InodeNumber, std::string> xattrs;
  for (InodeNumber ino = 2; ino < 6; ++ino) files[ino] = std::string(kFileBytes, '\0');
  std::vector<std::map<InodeNumber, std::string>> frozen_files;
  for (int generation = 0; generation < 60; ++generation) {
    SCOPED_TRACE("generation " + std::to_string(generation));
    const uint64_t operations = 1 + random.Below(12);
    for (uint64_t i = 0; i < operations; ++i) {
      const InodeNumber ino = 2 + random.Below(4);
      std::string& file = files[ino];
      const uint64_t unit = random.OneIn(3) ? 1 : kPageBytes;
      const uint64_t offset = random.Below(kFileBytes / unit) * unit;
      uint64_t length = (1 + random.Below(random.OneIn(4) ? 2 * kGridBytes / unit : 5)) * unit;
      length = std::min(length, kFileBytes - offset);
      switch (random.Below(8)) {
        case 0: {
          PunchHole(ino, offset, length);
          file.replace(offset, length, std::string(length, '\0'));
          break;
        }
        case 1: {
          PunchHole(ino, offset, kEndless - offset);
          file.replace(offset, std::string::npos, std::string(kFileBytes - offset, '\0'));
          break;
        }
        case 2: {
          Write(ino, offset, std::string(length, '\0'));
          file.replace(offset, length, std::string(length, '\0'));
          break;
        }
        case 3: {
          xattrs[ino] = Noise(random.Next(), random.Below(4000));
          Commit([&](Transaction& t) {
            t.Put(XattrKey(ino, "user.x"), EncodeXattrInline(xattrs[ino]));
          });
          break;
        }
        default: {
          const std::string bytes = Noise(random.Next(), length);
          Write(ino, offset, bytes);
          file.replace(offset, length, bytes);
        }
      }
    }
    ASSERT_TRUE(head_->Freeze());
    frozen_files.push_back(files);
    if (random.OneIn(3)) MustReopen();  // what is unsealed is replayed
    while (!head_->unsealed().empty() && (head_->unsealed().size() > 3 || random.OneIn(2))) {
      SealFrozen(head_->unsealed().front());
      const auto sealed = Sealed();
      // A life that begins anew freezes an empty generation; it has the contents of the one before.
      const auto& expected = frozen_files[frozen_files.size() - 1];
      if (head_->unsealed().empty()) {
        for (const auto& [ino, bytes] : expected) {
          ASSERT_EQ(ReadFile(*sealed, ino, 0, kFileBytes), bytes) << ino;
          std::map<uint64_t, size_t> per_window;
          for (const Segment& extent : TreeExtents(ino)) {
            EXPECT_LE(++per_window[extent.offset / kGridBytes], kMaxWindowSegments);
          }
        }
        for (const auto& [ino, value] : xattrs) {
          ASSERT_EQ(*ReadXattrValue(*sealed, **sealed->Get(XattrKey(ino, "user.x"))), value);
        }
      }
    }
    for (const auto& [ino, bytes] : files) {
      ASSERT_EQ(ReadFile(*head_->current(), ino, 0, kFileBytes), bytes) << ino;
    }
  }
}

// ---- errors ----

TEST_F(SealerTest, RefusesWhatIsNotTheOldestFrozenLayer) {
  Write(kIno, 0, "x");
  EXPECT_EQ(TrySeal(*head_->current()).error().code(), ErrorCode::kFailedPrecondition);
  const auto first = *head_->Freeze();
  Write(kIno, 0, "y");
  const auto second = *head_->Freeze();
  EXPECT_EQ(TrySeal(*second).error().code(), ErrorCode::kFailedPrecondition);
  SealFrozen(first);
  EXPECT_TRUE(TrySeal(*second).has_value());
}

TEST_F(SealerTest, RefusesAnotherRealm) {
  const Id128 other = TestId(9);
  keys_.Add(other, TestRealmKeys(9));
  const auto layer = *head_->Freeze();
  auto session = *store_.BeginWrite(other);
  SealOptions options;
  options.realm = other;
  EXPECT_EQ(SealLayer(store_, cache_, *session, *layer, options).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(SealerTest, StoreErrorsPassThroughAndTheSealCanBeRepeated) {
  Write(kIno, 0, Noise(1, kGridBytes));
  const auto layer = *head_->Freeze();
  store_.FailPuts(true);
  EXPECT_EQ(TrySeal(*layer).error().code(), ErrorCode::kExhausted);
  store_.FailPuts(false);
  store_.FailSyncs(true);
  EXPECT_EQ(TrySeal(*layer).error().code(), ErrorCode::kInternal);
  store_.FailSyncs(false);
  SealFrozen(layer);
  EXPECT_EQ(ReadFile(*Sealed(), kIno, 0, kGridBytes), Noise(1, kGridBytes));
}

TEST_F(SealerTest, DamagedBlockThatARewriteNeedsIsDataLoss) {
  Write(kIno, 0, Noise(1, kGridBytes));
  Seal();
  store_.Damage(TreeExtents(kIno)[0].block.address);
  Write(kIno, 0, "new head");  // cuts the old block, reads nothing of it
  Seal();
  for (uint32_t page = 1; page < 16; page += 2)
    Write(kIno, page * kPageBytes, "in every other page");
  EXPECT_EQ(TrySeal(**head_->Freeze()).error().code(), ErrorCode::kDataLoss);
}

TEST_F(SealerTest, DamagedTreeIsDataLoss) {
  Write(kIno, 0, Noise(1, kGridBytes));
  Seal();
  store_.Damage(result_.record.tree.node->address);
  cache_.EraseRealm(realm_);
  Write(kIno, 0, "x");
  EXPECT_EQ(TrySeal(**head_->Freeze()).error().code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace cairn
