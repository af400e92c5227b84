// A head on a disk that fills up: what is refused before anything is written, what still finds
// room, what a seal is owed; and generations made ahead.
#include <gtest/gtest.h>

#include <cerrno>

#include "store/space_guard.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/volume/head_fixture.h"

namespace cairn {
namespace {

using Call = FaultyFileSystem::Call;
constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;

class HeadSpaceTest : public HeadTest {
 protected:
  HeadSpaceTest() : faulty_(temp_ / "scratch") {
    fs_ = &faulty_;
    faulty_.SetSpaceLeft(50 * kMiB);
    auto opened = SpaceGuard::Open(
        {.fs = faulty_,
         .dir = temp_.path(),
         .clock = clock_,
         .limits = {.reserve_bytes = 2 * kMiB, .floor_bytes = kMiB, .headroom_bytes = 4 * kMiB}});
    EXPECT_TRUE(opened);
    space_ = *std::move(opened);
    options_.space = space_.get();
    MustReopen();
  }
  ~HeadSpaceTest() override { head_.reset(); }

  void SetFree(int64_t bytes) {
    faulty_.SetSpaceLeft(bytes);
    clock_.Advance(1'000'000'000);
  }
  Status Write(InodeNumber ino, const std::string& data, SpaceUse use = SpaceUse::kWriting) {
    Transaction t;
    t.PutData(ino, 0, data);
    t.SetSpaceUse(use);
    return head_->Commit(std::move(t));
  }
  Status Put(InodeNumber ino, const std::string& value, SpaceUse use = SpaceUse::kWriting) {
    Transaction t;
    t.Put(AttributesKey(ino), Entry{value, {}});
    t.SetSpaceUse(use);
    return head_->Commit(std::move(t));
  }
  // What an unlink commits.
  Status Unlink(InodeNumber ino) {
    Transaction t;
    t.Delete(AttributesKey(ino));
    t.PutHole(ino, 0, UINT64_MAX);
    t.SetSpaceUse(SpaceUse::kFreeing);
    return head_->Commit(std::move(t));
  }
  uint64_t SetAside(SpaceUse use) {
    return space_->GetStatus().set_aside_bytes[static_cast<size_t>(use)];
  }
  std::string Attributes(InodeNumber ino) {
    return GetPayload(*head_->current(), AttributesKey(ino));
  }

  FakeClock clock_;
  FaultyFileSystem faulty_;
  std::unique_ptr<SpaceGuard> space_;
};

TEST_F(HeadSpaceTest, AWriteThatDoesNotFitIsRefusedBeforeAByteIsWritten) {
  ASSERT_TRUE(Put(2, "before"));
  SetFree(kMiB + 300 * kKiB);  // 300 KiB above the floor
  const uint64_t writes = faulty_.calls(Call::kWrite);
  const Status refused = Write(9, std::string(200 * kKiB, 'x'));  // and as much for its seal
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(refused.error().sys_errno(), ENOSPC);
  EXPECT_EQ(faulty_.calls(Call::kWrite), writes);
  EXPECT_FALSE(head_->failed());
  EXPECT_TRUE(Write(9, std::string(100 * kKiB, 'x')));
  EXPECT_TRUE(head_->Sync());
  EXPECT_EQ(SetAside(SpaceUse::kWriting), 0u);
}

TEST_F(HeadSpaceTest, WhatAGenerationHoldsIsOwedToItsSealAlsoAfterARestart) {
  EXPECT_EQ(SetAside(SpaceUse::kUnsealed), 0u);
  ASSERT_TRUE(Write(9, std::string(300 * kKiB, 'x')));
  ASSERT_TRUE(Write(10, "small"));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Write(11, std::string(100 * kKiB, 'y')));
  ASSERT_TRUE(head_->Sync());
  const uint64_t owed = SetAside(SpaceUse::kUnsealed);
  EXPECT_GE(owed, 400 * kKiB);
  EXPECT_LT(owed, 440 * kKiB);
  EXPECT_EQ(head_->unsealed_bytes(), owed);
  head_.reset();
  EXPECT_EQ(SetAside(SpaceUse::kUnsealed), 0u);
  MustReopen();
  EXPECT_EQ(SetAside(SpaceUse::kUnsealed), owed);
  ASSERT_TRUE(head_->FinishSeal(1, EmptyTree()));
  EXPECT_LT(SetAside(SpaceUse::kUnsealed), 120 * kKiB);
  ASSERT_TRUE(head_->FinishSeal(2, EmptyTree()));
  EXPECT_EQ(SetAside(SpaceUse::kUnsealed), 0u);
}

TEST_F(HeadSpaceTest, ASealGivesBackWhatItsGenerationAloneWasOwed) {
  ASSERT_TRUE(Write(9, std::string(300 * kKiB, 'x')));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Write(11, std::string(100 * kKiB, 'y')));
  ASSERT_TRUE(head_->FinishSeal(1, EmptyTree()));
  const uint64_t owed = SetAside(SpaceUse::kUnsealed);
  EXPECT_GE(owed, 100 * kKiB);
  EXPECT_LT(owed, 120 * kKiB);
}

TEST_F(HeadSpaceTest, NothingIsOwedForWhatWasRefused) {
  SetFree(kMiB);
  EXPECT_FALSE(Write(9, std::string(100 * kKiB, 'x')));
  EXPECT_FALSE(Put(9, "x", SpaceUse::kGrowing));
  EXPECT_FALSE(Put(9, "x", SpaceUse::kRetaining));
  EXPECT_EQ(SetAside(SpaceUse::kUnsealed), 0u);
}

TEST_F(HeadSpaceTest, UnlinksFindRoomInTheTailWhenNotAByteIsFreeNorInReserve) {
  SetFree(0);
  ASSERT_TRUE(space_->MakeRoom(2 * kMiB, "a test"));
  SetFree(0);  // others have taken it
  int kept = 0;
  for (InodeNumber ino = 2; Put(ino, "v"); ++ino) ++kept;
  EXPECT_EQ(kept, 0) << "the floor";
  for (InodeNumber ino = 2; ino < 102; ++ino) {
    const Status gone = Unlink(ino);
    ASSERT_TRUE(gone) << ino << ": " << gone.error().ToString();
  }
  EXPECT_TRUE(head_->Sync());
}

TEST_F(HeadSpaceTest, TheTailIsLeftToUnlinks) {
  // Room above the floor for all that fits into the journal and its seal, not for a longer journal.
  InodeNumber ino = 2;
  SetFree(kMiB + 450 * kKiB);
  while (Put(ino, std::string(1000, 'v'))) ++ino;
  EXPECT_GT(ino, 100u);
  EXPECT_LT(ino, 200u) << "64 KiB of 256 are left";
  SetFree(0);
  ASSERT_TRUE(space_->MakeRoom(2 * kMiB, "a test"));
  SetFree(0);
  for (InodeNumber gone = 2; gone < 102; ++gone) {
    ASSERT_TRUE(Unlink(gone)) << gone << " of " << ino;
    ASSERT_TRUE(head_->Sync());
  }
  SetFree(kMiB);  // the next life begins a journal
  MustReopen();
  EXPECT_EQ(Attributes(2), "(absent)");
}

TEST_F(HeadSpaceTest, UnlinksBeyondTheTailTakeTheReserveFile) {
  SetFree(0);
  for (InodeNumber ino = 2; ino < 3002; ++ino) ASSERT_TRUE(Unlink(ino)) << ino;
  EXPECT_LT(space_->GetStatus().reserve_file_bytes, 2 * kMiB);
}

TEST_F(HeadSpaceTest, AFreezeOfAPreparedGenerationTakesNoSpaceAndTwoSyncs) {
  ASSERT_TRUE(Put(2, "before"));
  ASSERT_TRUE(head_->PrepareNext());
  ASSERT_TRUE(head_->PrepareNext()) << "once is enough";
  SetFree(0);
  const uint64_t syncs = faulty_.calls(Call::kSync);
  const uint64_t dirs = faulty_.calls(Call::kSyncDir);
  const uint64_t opens = faulty_.calls(Call::kOpen);
  ASSERT_TRUE(head_->Freeze());
  EXPECT_EQ(faulty_.calls(Call::kSync) - syncs, 2u);
  EXPECT_EQ(faulty_.calls(Call::kSyncDir), dirs);
  EXPECT_EQ(faulty_.calls(Call::kOpen), opens);
  EXPECT_EQ(space_->GetStatus().reserve_file_bytes, 2 * kMiB);
  EXPECT_TRUE(Unlink(2));
  EXPECT_TRUE(head_->Sync());
  MustReopen();
  EXPECT_EQ(Attributes(2), "(absent)");
}

TEST_F(HeadSpaceTest, PreparingIsRefusedWhereNewWorkIsAndTheFreezeStillGoes) {
  ASSERT_TRUE(Put(2, "before"));
  SetFree(100 * kKiB);
  EXPECT_EQ(head_->PrepareNext().error().code(), ErrorCode::kExhausted);
  EXPECT_TRUE(head_->Freeze()) << "from the reserve file";
  EXPECT_LT(space_->GetStatus().reserve_file_bytes, 2 * kMiB);
}

TEST_F(HeadSpaceTest, WhatWasMadeAheadIsNothingToTheNextLife) {
  ASSERT_TRUE(Put(2, "one"));
  ASSERT_TRUE(head_->PrepareNext());
  ASSERT_TRUE(Put(3, "two"));
  ASSERT_TRUE(head_->Sync());
  const auto reports = CheckJournals(*fs_, keys_, realm_, volume_, options_.dir, 0);
  ASSERT_TRUE(reports);
  ASSERT_EQ(reports->size(), 1u);
  EXPECT_EQ((*reports)[0].damage, "");
  MustReopen();
  EXPECT_EQ(Attributes(2) + Attributes(3), "onetwo");
  ASSERT_TRUE(head_->PrepareNext());
  ASSERT_TRUE(Put(4, "three"));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Put(5, "four"));
  MustReopen();
  EXPECT_EQ(Attributes(4) + Attributes(5), "threefour");
}

TEST_F(HeadSpaceTest, AnUnbornJournalBelowALaterOneIsDamage) {
  ASSERT_TRUE(Put(2, "one"));
  ASSERT_TRUE(head_->PrepareNext());
  const std::string unborn = *ReadWholeFile(HostFileSystem(), PathOf(2, "journal"), 1 << 20);
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Put(3, "two"));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Put(4, "three"));
  head_.reset();
  auto file = *HostFileSystem().Open(PathOf(2, "journal"), {.truncate = true});
  ASSERT_TRUE(file->WriteAt(0, unborn));
  const auto reports = CheckJournals(*fs_, keys_, realm_, volume_, options_.dir, 0);
  ASSERT_TRUE(reports);
  ASSERT_EQ(reports->size(), 3u);
  EXPECT_NE((*reports)[1].damage, "");
  const Status opened = Reopen();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
}

TEST_F(HeadSpaceTest, AGenerationThatMayHaveBegunEndsTheOneBefore) {
  ASSERT_TRUE(Put(2, "before"));
  ASSERT_TRUE(head_->Sync());
  ASSERT_TRUE(head_->PrepareNext());
  faulty_.FailNth(Call::kSync, 2, EIO);  // of the new header; the first is the old journal's
  EXPECT_FALSE(head_->Freeze());
  EXPECT_TRUE(head_->failed()) << "records of the old generation would not count";
  EXPECT_FALSE(Put(3, "later"));
  MustReopen();
  EXPECT_EQ(Attributes(2), "before");
}

TEST_F(HeadSpaceTest, AHeaderThatFindsNoSpaceLeavesTheGenerationAsItWas) {
  ASSERT_TRUE(Put(2, "before"));
  ASSERT_TRUE(head_->Sync());
  ASSERT_TRUE(head_->PrepareNext());
  faulty_.FailNth(Call::kWrite, 1, ENOSPC);  // as on a file system that copies on write
  EXPECT_EQ(head_->Freeze().error().code(), ErrorCode::kExhausted);
  EXPECT_FALSE(head_->failed());
  ASSERT_TRUE(Put(3, "later"));
  ASSERT_TRUE(head_->Sync());
  MustReopen();
  EXPECT_EQ(Attributes(2) + Attributes(3), "beforelater");
}

// The story of a volume with ENOSPC at the n-th call of one kind, for every n: the head never fails
// for that unless a record may be half written, and what was acknowledged is there afterwards.
TEST_F(HeadSpaceTest, NoSpaceAtAnyCallLosesNothingThatWasAcknowledged) {
  const std::string large(100'000, 'L');
  std::map<InodeNumber, std::string> acknowledged;
  const auto live = [&] {
    acknowledged.clear();
    InodeNumber ino = 2;
    const auto put = [&](const std::string& value) {
      if (Put(ino, value)) acknowledged[ino] = value;
      ++ino;
    };
    for (int round = 0; round < 3; ++round) {
      put("small");
      put(std::string(100'000, 'm'));
      IgnoreError(Write(100, large), "may be the one that fails");
      IgnoreError(head_->PrepareNext(), "may be the one that fails");
      put(std::string(120'000, 'n'));
      IgnoreError(head_->Freeze(), "may be the one that fails");
      put("after");
    }
    return head_->Sync().has_value();
  };
  const auto begin = [&] {
    head_.reset();
    ASSERT_TRUE(RemoveTree(faulty_, options_.dir));
    MustReopen();
  };
  for (const Call call : {Call::kOpen, Call::kAllocate, Call::kWrite, Call::kRename}) {
    begin();
    const uint64_t before = faulty_.calls(call);
    ASSERT_TRUE(live());
    const uint64_t calls = faulty_.calls(call) - before;
    ASSERT_GT(calls, 2u);
    for (uint64_t n = 1; n <= calls; ++n) {
      const std::string what =
          "call " + std::to_string(static_cast<int>(call)) + " number " + std::to_string(n);
      begin();
      faulty_.FailNth(call, n, ENOSPC);
      const bool synced = live();
      const bool failed = head_->failed();
      if (call != Call::kWrite) {
        EXPECT_FALSE(failed) << what;
      }
      EXPECT_TRUE(synced || failed) << what;
      MustReopen();
      for (const auto& [key, value] : acknowledged) EXPECT_EQ(Attributes(key), value) << what;
    }
  }
}

TEST_F(HeadSpaceTest, MergedLayersReadAsTheNewestOfThem) {
  ASSERT_TRUE(Put(2, "a1"));
  ASSERT_TRUE(Put(3, "b1"));
  ASSERT_TRUE(Write(9, std::string(150'000, 'x')));
  ASSERT_TRUE(Write(10, std::string(150'000, 'p')));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Put(3, "b2"));
  const std::string over(10'000, 'y');
  Transaction middle;
  middle.PutData(9, 70'000, over);
  ASSERT_TRUE(head_->Commit(std::move(middle)));
  ASSERT_TRUE(Unlink(10));
  ASSERT_TRUE(head_->Freeze());
  ASSERT_TRUE(Unlink(2));
  ASSERT_TRUE(head_->Freeze());
  const auto layers = head_->unsealed();
  ASSERT_EQ(layers.size(), 3u);
  const auto merged = MergeLayers(store_, layers);
  ASSERT_TRUE(merged) << merged.error().ToString();
  const Layer& layer = **merged;
  EXPECT_TRUE(layer.frozen());
  EXPECT_EQ(layer.generation(), 3u);
  EXPECT_EQ(layer.below(), nullptr);
  EXPECT_EQ(GetPayload(layer, AttributesKey(2)), "(absent)");
  EXPECT_EQ(GetPayload(layer, AttributesKey(3)), "b2");
  std::string expected(150'000, 'x');
  expected.replace(70'000, 10'000, 10'000, 'y');
  EXPECT_EQ(ReadFile(layer, 9, 0, expected.size()), expected);
  EXPECT_EQ(ReadFile(layer, 10, 0, 10), std::string(10, '\0'));
  uint64_t data_bytes = 0;
  ASSERT_TRUE(layer.ForEachDelta([&](std::string_view, const DeltaValue& value) -> Status {
    const bool data = value.kind == DeltaValue::Kind::kExtent &&
                      value.extent.source == Segment::Source::kUnsealed;
    if (data) data_bytes += value.extent.length_bytes;
    return {};
  }));
  EXPECT_EQ(data_bytes, 150'000u) << "what was deleted or overwritten is not there to be sealed";
  EXPECT_FALSE(MergeLayers(store_, {layers[1], layers[2]})) << "over an unsealed layer";
  EXPECT_FALSE(MergeLayers(store_, {layers[0], layers[2]})) << "not neighbours";
}

TEST_F(HeadSpaceTest, SealingSeveralAtOnceDropsTheFilesOfAll) {
  for (InodeNumber ino = 2; ino < 5; ++ino) {
    ASSERT_TRUE(Put(ino, "v"));
    ASSERT_TRUE(head_->Freeze());
  }
  ASSERT_TRUE(head_->FinishSeal(2, EmptyTree()));
  EXPECT_EQ(head_->unsealed().size(), 1u);
  for (const uint64_t generation : {1, 2}) {
    EXPECT_FALSE(*HostFileSystem().Exists(PathOf(generation, "journal"))) << generation;
    EXPECT_FALSE(*HostFileSystem().Exists(PathOf(generation, "side"))) << generation;
  }
  EXPECT_EQ(head_->FinishSeal(1, EmptyTree()).error().code(), ErrorCode::kFailedPrecondition);
  options_.sealed_through_generation = 2;
  MustReopen();
  EXPECT_EQ(Attributes(2), "(absent)");
  EXPECT_EQ(Attributes(4), "v");
}

}  // namespace
}  // namespace cairn
