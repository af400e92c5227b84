// Commits, reads of the merged view, freezing and sealing.
#include <limits>

#include "tests/volume/head_fixture.h"

namespace cairn {
namespace {

Transaction PutOne(const std::string& key, const std::string& value) {
  Transaction t;
  t.Put(key, Entry{value, {}});
  return t;
}

Transaction DataOne(InodeNumber ino, uint64_t offset, std::string_view data) {
  Transaction t;
  t.PutData(ino, offset, data);
  return t;
}

std::vector<std::string> ScanAll(const Layer& layer, const std::string& begin = {},
                                 const std::string& end = {}) {
  std::vector<std::string> found;
  const Status status = layer.Scan(begin, end, [&](std::string_view key, const Entry& entry) {
    const auto parsed = ParseKey(key);
    found.push_back(std::to_string(parsed->ino) + "=" + entry.payload);
    return true;
  });
  EXPECT_TRUE(status);
  return found;
}

TEST_F(HeadTest, CommittedStateIsReadAtOnceAndAfterReopening) {
  MustReopen();
  const std::string big(300000, 'b');
  Transaction t;
  t.Put(AttributesKey(5), Entry{"attributes", {}});
  t.PutData(5, 100, "small");
  t.PutData(5, 70000, big);
  t.SetNextInode(6);
  t.AddTotals(1, 370000);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  for (int life = 0; life < 3; life++) {
    const auto layer = head_->current();
    EXPECT_EQ(GetPayload(*layer, AttributesKey(5)), "attributes");
    EXPECT_EQ(ReadFile(*layer, 5, 98, 9), std::string("\0\0small\0\0", 9));
    EXPECT_EQ(ReadFile(*layer, 5, 70000, big.size()), big);
    EXPECT_EQ(ReadFile(*layer, 5, 70000 + 4095, 5000), big.substr(0, 5000));
    EXPECT_EQ(head_->state().next_ino, 6u);
    EXPECT_EQ(head_->state().total_inodes, 1u);
    EXPECT_EQ(head_->state().total_bytes, 370000u);
    MustReopen();
  }
}

TEST_F(HeadTest, NextInodeNeverFallsBelowOptionsOrRecords) {
  options_.next_ino = 100;
  MustReopen();
  Transaction t = PutOne(AttributesKey(5), "a");
  t.SetNextInode(50);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  EXPECT_EQ(head_->state().next_ino, 100u);
  t = PutOne(AttributesKey(5), "a");
  t.SetNextInode(150);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  MustReopen();
  EXPECT_EQ(head_->state().next_ino, 150u);
}

TEST_F(HeadTest, LaterOperationsOfOneTransactionWin) {
  MustReopen();
  Transaction t;
  t.PutData(5, 0, "aaaaaaaa");
  t.PutHole(5, 2, 2);
  t.PutData(5, 3, "b");
  t.Put(AttributesKey(5), Entry{"first", {}});
  t.Delete(AttributesKey(5));
  t.Put(AttributesKey(6), Entry{"six", {}});
  ASSERT_TRUE(head_->Commit(std::move(t)));
  for (int life = 0; life < 2; life++) {
    EXPECT_EQ(ReadFile(*head_->current(), 5, 0, 9), std::string("aa\0baaaa\0", 9));
    EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(5)), "(absent)");
    EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(6)), "six");
    MustReopen();
  }
}

TEST_F(HeadTest, DataIsCutAtTheGrid) {
  MustReopen();
  const std::string data(kGridBytes + 20, 'x');
  ASSERT_TRUE(head_->Commit(DataOne(5, kGridBytes - 10, data)));
  const auto segments = head_->current()->Extents(5, 0, 4 * kGridBytes);
  ASSERT_TRUE(segments);
  std::vector<std::pair<uint64_t, uint64_t>> unsealed;
  for (const Segment& s : *segments) {
    if (s.source == Segment::Source::kUnsealed) unsealed.emplace_back(s.offset, s.length_bytes);
  }
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {
      {kGridBytes - 10, 10}, {kGridBytes, kGridBytes}, {2 * kGridBytes, 10}};
  EXPECT_EQ(unsealed, expected);
}

TEST_F(HeadTest, SplitExtentsShareTheirPayload) {
  MustReopen();
  std::string data;
  for (int i = 0; i < 20000; i++) data.push_back(static_cast<char>('a' + i % 23));
  ASSERT_TRUE(head_->Commit(DataOne(5, 0, data)));
  Transaction t;
  t.PutHole(5, 5000, 3000);
  t.PutData(5, 12000, "NEW");
  ASSERT_TRUE(head_->Commit(std::move(t)));
  data.replace(5000, 3000, 3000, '\0');
  data.replace(12000, 3, "NEW");
  for (int life = 0; life < 2; life++) {
    EXPECT_EQ(ReadFile(*head_->current(), 5, 0, 20000), data);
    const auto segments = *head_->current()->Extents(5, 0, 20000);
    ASSERT_EQ(segments.size(), 5u);
    EXPECT_EQ(segments[0].payload, segments[2].payload);
    EXPECT_EQ(segments[2].payload, segments[4].payload);
    EXPECT_EQ(segments[4].source_offset, 12003u);
    MustReopen();
  }
}

TEST_F(HeadTest, HoleToTheEndOfAllOffsetsHidesEverythingBehindIt) {
  MustReopen();
  ASSERT_TRUE(head_->Commit(DataOne(5, 0, "0123456789")));
  ASSERT_TRUE(head_->Commit(DataOne(5, 1 << 30, "far")));
  ASSERT_TRUE(head_->Commit(DataOne(6, 0, "other")));
  ASSERT_TRUE(head_->Freeze());
  Transaction t;
  t.PutHole(5, 4, std::numeric_limits<uint64_t>::max());
  ASSERT_TRUE(head_->Commit(std::move(t)));
  for (int life = 0; life < 2; life++) {
    const auto segments = *head_->current()->Extents(5, 0, std::numeric_limits<uint64_t>::max());
    ASSERT_EQ(segments.size(), 2u);
    EXPECT_EQ(segments[1].source, Segment::Source::kHole);
    EXPECT_EQ(segments[1].offset + segments[1].length_bytes, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(ReadFile(*head_->current(), 5, 0, 6), std::string("0123\0\0", 6));
    EXPECT_EQ(ReadFile(*head_->current(), 6, 0, 5), "other");
    MustReopen();
  }
}

TEST_F(HeadTest, NeighbouringHolesAreOneSegment) {
  MustReopen();
  ASSERT_TRUE(head_->Commit(DataOne(5, 8192, "x")));
  ASSERT_TRUE(head_->Freeze());
  Transaction t;
  t.PutHole(5, 4096, 2048);
  t.PutHole(5, 0, 100);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  const auto segments = *head_->current()->Extents(5, 0, 8193);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].length_bytes, 8192u);
}

TEST_F(HeadTest, ScanMergesAllLayersAndTombstonesHide) {
  MustReopen();
  for (InodeNumber ino = 2; ino < 300; ino++) {
    ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(ino), "old")));
  }
  ASSERT_TRUE(head_->Freeze());
  std::vector<std::string> expected;
  for (InodeNumber ino = 2; ino < 300; ino++) {
    Transaction t;
    t.PutData(ino, 0, "extents are not visited");
    if (ino % 3 == 0) t.Delete(AttributesKey(ino));
    if (ino % 3 == 1) t.Put(AttributesKey(ino), Entry{"new", {}});
    ASSERT_TRUE(head_->Commit(std::move(t)));
    if (ino % 3 != 0) expected.push_back(std::to_string(ino) + (ino % 3 == 1 ? "=new" : "=old"));
  }
  EXPECT_EQ(ScanAll(*head_->current()), expected);
  const auto part = ScanAll(*head_->current(), AttributesKey(100), AttributesKey(104));
  EXPECT_EQ(part, (std::vector<std::string>{"100=new", "101=old", "103=new"}));
  int visited = 0;
  ASSERT_TRUE(head_->current()->Scan(
      {}, {}, [&](std::string_view, const Entry&) { return ++visited < 7; }));
  EXPECT_EQ(visited, 7);
  EXPECT_TRUE(ScanAll(*head_->current(), AttributesKey(5), AttributesKey(5)).empty());
}

TEST_F(HeadTest, VisitorOfAScanMayCommit) {
  MustReopen();
  for (InodeNumber ino = 2; ino < 100; ino++) {
    ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(ino), "v")));
  }
  int visited = 0;
  ASSERT_TRUE(head_->current()->Scan({}, {}, [&](std::string_view key, const Entry&) {
    Transaction t;
    t.Delete(std::string(key));
    EXPECT_TRUE(head_->Commit(std::move(t)));
    visited++;
    return true;
  }));
  EXPECT_EQ(visited, 98);
  EXPECT_TRUE(ScanAll(*head_->current()).empty());
}

TEST_F(HeadTest, FrozenChainOfThreeIsReadThroughAll) {
  MustReopen();
  for (int g = 0; g < 4; g++) {
    const std::string mark(1, static_cast<char>('A' + g));
    Transaction t;
    t.Put(AttributesKey(10 + static_cast<InodeNumber>(g)), Entry{mark, {}});
    t.Put(AttributesKey(99), Entry{"top " + mark, {}});
    t.PutData(5, static_cast<uint64_t>(g) * 3, mark + mark + mark + mark + mark);
    ASSERT_TRUE(head_->Commit(std::move(t)));
    if (g < 3) {
      ASSERT_TRUE(head_->Freeze());
    }
  }
  for (int life = 0; life < 2; life++) {
    const auto layer = head_->current();
    EXPECT_EQ(ReadFile(*layer, 5, 0, 14), "AAABBBCCCDDDDD");
    EXPECT_EQ(GetPayload(*layer, AttributesKey(99)), "top D");
    for (int g = 0; g < 4; g++) {
      EXPECT_EQ(GetPayload(*layer, AttributesKey(10 + static_cast<InodeNumber>(g))),
                std::string(1, static_cast<char>('A' + g)));
    }
    const auto unsealed = head_->unsealed();
    ASSERT_EQ(unsealed.size(), life == 0 ? 3u : 4u);
    EXPECT_EQ(unsealed[0]->generation(), 1u);
    EXPECT_EQ(unsealed[0]->below(), nullptr);
    EXPECT_EQ(unsealed[1]->below(), unsealed[0]);
    EXPECT_EQ(ReadFile(*unsealed[1], 5, 0, 9), std::string("AAABBBBB\0", 9));
    EXPECT_TRUE(unsealed[0]->frozen());
    EXPECT_EQ(unsealed[0]->delta_count(), 3u);
    EXPECT_FALSE(head_->current()->frozen());
    MustReopen();
  }
}

TEST_F(HeadTest, FrozenLayersListTheirDeltaInKeyOrderAndActiveOnesDoNot) {
  MustReopen();
  Transaction t;
  t.Put(AttributesKey(5), Entry{"a", {}});
  t.PutData(5, 0, "xyz");
  t.PutHole(5, 100, 50);
  t.Put(InlineKey(5), Entry{"i", {}});
  t.Delete(AttributesKey(4));
  ASSERT_TRUE(head_->Commit(std::move(t)));
  const auto list = [](const Layer& layer, std::vector<std::string>& out) {
    return layer.ForEachDelta([&](std::string_view key, const DeltaValue& value) -> Status {
      const auto parsed = ParseKey(key);
      std::string line =
          std::to_string(parsed->ino) + "/" + std::to_string(static_cast<int>(parsed->kind)) + " ";
      if (value.kind == DeltaValue::Kind::kDelete) line += "deleted";
      if (value.kind == DeltaValue::Kind::kEntry) line += value.entry.payload;
      if (value.kind == DeltaValue::Kind::kExtent) {
        line +=
            std::to_string(value.extent.offset) + "+" + std::to_string(value.extent.length_bytes);
      }
      out.push_back(line);
      return {};
    });
  };
  std::vector<std::string> lines;
  const Status active = list(*head_->current(), lines);
  ASSERT_FALSE(active);
  EXPECT_EQ(active.error().code(), ErrorCode::kFailedPrecondition);
  const auto frozen = head_->Freeze();
  ASSERT_TRUE(frozen);
  ASSERT_TRUE(list(**frozen, lines));
  EXPECT_EQ(lines,
            (std::vector<std::string>{"4/1 deleted", "5/1 a", "5/4 0+3", "5/4 100+50", "5/5 i"}));
}

TEST_F(HeadTest, EmptyGenerationIsFrozenAllTheSame) {
  MustReopen();
  const auto first = head_->Freeze();
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)->generation(), 1u);
  EXPECT_EQ((*first)->delta_count(), 0u);
  MustReopen();
  EXPECT_EQ(head_->unsealed().size(), 1u);        // generation 1: frozen, though empty
  EXPECT_EQ(head_->current()->generation(), 2u);  // generation 2 was never frozen and empty
}

TEST_F(HeadTest, RecoveredGenerationsAreFrozenAndNeverAppendedTo) {
  MustReopen();
  ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(5), "one")));
  for (uint64_t life = 2; life < 5; life++) {
    const std::string before = *ReadWholeFile(*fs_, PathOf(life - 1, "journal"), 1 << 30);
    MustReopen();
    EXPECT_EQ(head_->current()->generation(), life);
    EXPECT_EQ(head_->unsealed().size(), life - 1);
    ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(5 + life), "x")));
    EXPECT_EQ(*ReadWholeFile(*fs_, PathOf(life - 1, "journal"), 1 << 30), before);
  }
  EXPECT_EQ(ScanAll(*head_->current()), (std::vector<std::string>{"5=one", "7=x", "8=x", "9=x"}));
}

TEST_F(HeadTest, ForkReadsThroughTheFrozenLayerItStartsFrom) {
  MustReopen();
  ASSERT_TRUE(head_->Commit(DataOne(5, 0, "parent")));
  ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(5), "a")));
  const auto frozen = *head_->Freeze();
  HeadOptions fork = options_;
  fork.volume = TestId(3);
  fork.dir = temp_.path() + "/fork";
  fork.base = frozen;
  auto forked = Head::Open(*fs_, keys_, store_, fork);
  ASSERT_TRUE(forked) << forked.error().ToString();
  ASSERT_TRUE((*forked)->Commit(DataOne(5, 0, "FORK")));
  ASSERT_TRUE(head_->Commit(DataOne(5, 0, "again!")));
  EXPECT_EQ(ReadFile(*(*forked)->current(), 5, 0, 6), "FORKnt");
  EXPECT_EQ(ReadFile(*head_->current(), 5, 0, 6), "again!");
  EXPECT_EQ((*forked)->current()->below(), frozen);

  // Sealed by its owner: the fork sees the tree.
  auto session = *store_.BeginWrite(realm_);
  const auto counter = [](std::string_view, const Entry&) { return TreeCounters{}; };
  const BlockRef block = *session->Put(BlockKind::kData, "parent", Compression::kFast);
  std::string payload;
  ByteWriter(payload).U32(6);
  ByteWriter(payload).U32(0);
  const auto root = MergeTree(
      *EmptyTree(), *session,
      {{AttributesKey(5), Entry{"a", {}}}, {ExtentKey(5, 0), Entry{payload, {block}}}}, counter, 1);
  ASSERT_TRUE(root);
  ASSERT_TRUE(head_->FinishSeal(1, Tree(*root)));
  EXPECT_EQ(ReadFile(*(*forked)->current(), 5, 0, 6), "FORKnt");
  EXPECT_EQ(GetPayload(*(*forked)->current(), AttributesKey(5)), "a");
  EXPECT_EQ((*forked)->current()->below(), nullptr);
  EXPECT_EQ(*(*forked)->current()->base_tree()->root().node, *root->node);
}

TEST_F(HeadTest, FinishSealSwapsTheOldestLayerAndUnlinksItsFiles) {
  MustReopen();
  ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(5), "five")));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(6), "six")));
  ASSERT_TRUE(head_->Freeze());
  auto session = *store_.BeginWrite(realm_);
  const auto root = MergeTree(
      *EmptyTree(), *session, {{AttributesKey(5), Entry{"five", {}}}},
      [](std::string_view, const Entry&) { return TreeCounters{}; }, 1);
  ASSERT_TRUE(root);
  const auto wrong = head_->FinishSeal(3, Tree(*root));
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::kFailedPrecondition);

  const auto reader = head_->unsealed()[0];
  ASSERT_TRUE(head_->FinishSeal(1, Tree(*root)));
  EXPECT_EQ(head_->unsealed().size(), 1u);
  EXPECT_EQ(reader->delta_count(), 0u);
  EXPECT_FALSE(*fs_->Exists(PathOf(1, "journal")));
  EXPECT_FALSE(*fs_->Exists(PathOf(1, "side")));
  EXPECT_TRUE(*fs_->Exists(PathOf(2, "journal")));
  EXPECT_EQ(ScanAll(*head_->current()), (std::vector<std::string>{"5=five", "6=six"}));

  options_.sealed_through_generation = 1;
  options_.base = TreeLayer(store_, Tree(*root), 1);
  MustReopen();
  EXPECT_EQ(ScanAll(*head_->current()), (std::vector<std::string>{"5=five", "6=six"}));
}

TEST_F(HeadTest, StaleAndUnfinishedFilesAreRemovedOnOpen) {
  MustReopen();
  ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(5), "five")));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(6), "six")));
  ASSERT_TRUE(WriteFileAtomically(*fs_, PathOf(7, "journal.tmp"), "half"));
  ASSERT_TRUE(WriteFileAtomically(*fs_, PathOf(7, "side"), "half"));
  ASSERT_TRUE(WriteFileAtomically(*fs_, options_.dir + "/README", "not ours"));
  options_.sealed_through_generation = 1;
  MustReopen();
  EXPECT_EQ(*fs_->List(options_.dir),
            (std::vector<std::string>{"0000000000000002.journal", "0000000000000002.side",
                                      "0000000000000003.journal", "0000000000000003.side", "README",
                                      "synced"}));
  EXPECT_EQ(ScanAll(*head_->current()), (std::vector<std::string>{"6=six"}));
}

TEST_F(HeadTest, MalformedTransactionsAreRefusedAndChangeNothing) {
  MustReopen();
  const auto refused = [&](Transaction t) {
    const Status status = head_->Commit(std::move(t));
    return !status && status.error().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(PutOne("short", "x")));
  EXPECT_TRUE(refused(PutOne(ExtentKey(5, 0), "x")));
  EXPECT_TRUE(refused(PutOne(AttributesKey(5), std::string(200000, 'x'))));
  EXPECT_TRUE(refused(DataOne(kNoInode, 0, "x")));
  EXPECT_TRUE(refused(DataOne(5, uint64_t{1} << 63, "x")));
  Transaction t;
  t.Delete(ExtentKey(5, 0));
  EXPECT_TRUE(refused(std::move(t)));
  Transaction huge;
  for (InodeNumber ino = 1; ino < 100; ino++) {
    huge.Put(AttributesKey(ino), Entry{std::string(100000, 'x'), {}});
  }
  EXPECT_TRUE(refused(std::move(huge)));
  EXPECT_EQ(head_->active_records(), 0u);
  EXPECT_FALSE(head_->failed());
  EXPECT_TRUE(ScanAll(*head_->current()).empty());
  const auto extents = head_->current()->Get(ExtentKey(5, 0));
  ASSERT_FALSE(extents);
  EXPECT_EQ(extents.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(HeadTest, LargeXattrsAndManySmallPayloadsFitOneRecord) {
  MustReopen();
  std::vector<std::string> data;
  Transaction t;
  t.Put(XattrKey(5, "user.big"), Entry{std::string(65537, 'v'), {}});
  for (int i = 0; i < 40; i++) data.push_back(std::string(20000, static_cast<char>('a' + i % 26)));
  for (int i = 0; i < 40; i++)
    t.PutData(5, static_cast<uint64_t>(i) * 20000, data[static_cast<size_t>(i)]);
  ASSERT_TRUE(head_->Commit(std::move(t)));
  EXPECT_EQ(head_->active_records(), 1u);
  EXPECT_EQ(head_->active_payload_bytes(), 800000u);
  for (int life = 0; life < 2; life++) {
    EXPECT_EQ(GetPayload(*head_->current(), XattrKey(5, "user.big")).size(), 65537u);
    for (size_t i = 0; i < 40; i++) {
      EXPECT_EQ(ReadFile(*head_->current(), 5, i * 20000, 20000), data[i]);
    }
    MustReopen();
  }
}

TEST_F(HeadTest, JournalGrowsPastItsChunks) {
  options_.journal_chunk_bytes = 64 << 10;
  MustReopen();
  const std::string value(3000, 'v');
  for (InodeNumber ino = 2; ino < 400; ino++) {
    ASSERT_TRUE(head_->Commit(PutOne(AttributesKey(ino), value)));
    if (ino % 50 == 0) {
      ASSERT_TRUE(head_->Sync());
    }
  }
  MustReopen();
  EXPECT_EQ(ScanAll(*head_->current()).size(), 398u);
}

TEST_F(HeadTest, GuestBytesAreInNoFile) {
  MustReopen();
  const std::string canary = "CANARY-3f1b7a90c2d84e55-CANARY!!";
  std::string big;
  while (big.size() < 200000) big += canary;
  Transaction t;
  t.Put(XattrKey(5, canary), Entry{canary, {}});
  t.Put(DirentKey(1, 1000), Entry{canary, {}});
  t.PutData(5, 0, canary);
  t.PutData(5, 100000, big);
  t.Delete(XattrKey(6, canary));
  ASSERT_TRUE(head_->Commit(std::move(t)));
  ASSERT_TRUE(head_->Sync());
  ASSERT_TRUE(head_->Freeze());
  const auto names = *fs_->List(options_.dir);
  EXPECT_EQ(names.size(), 5u);
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    const std::string content = *ReadWholeFile(*fs_, options_.dir + "/" + name, 1 << 30);
    bytes += content.size();
    EXPECT_EQ(content.find(canary), std::string::npos) << name;
    EXPECT_EQ(content.find(canary.substr(0, 12)), std::string::npos) << name;
  }
  EXPECT_GT(bytes, 200000u);
}

}  // namespace
}  // namespace cairn
