// Full disks, failing writes and failing syncs.
#include "tests/volume/head_fixture.h"
#include "tests/volume/sim_disk.h"

namespace cairn {
namespace {

class HeadFaultTest : public HeadTest {
 protected:
  HeadFaultTest() {
    options_.dir = "/v";
    options_.journal_chunk_bytes = 16 << 10;
    fs_ = &disk_;
  }
  Status Put(InodeNumber ino, const std::string& value) {
    Transaction t;
    t.Put(AttributesKey(ino), Entry{value, {}});
    return head_->Commit(std::move(t));
  }
  Status Write(InodeNumber ino, uint64_t offset, const std::string& data) {
    Transaction t;
    t.PutData(ino, offset, data);
    return head_->Commit(std::move(t));
  }
  void FailOps(SimDisk::Op op, const std::string& ending, int error_number) {
    disk_.hook = [=](SimDisk::Op asked, const std::string& path) -> Status {
      if (asked == op && path.ends_with(ending)) return ErrErrno(error_number, "injected");
      return {};
    };
  }
  void ExpectFailedForGood() {
    EXPECT_TRUE(head_->failed());
    disk_.hook = nullptr;
    const Status commit = Put(50, "later");
    ASSERT_FALSE(commit);
    EXPECT_EQ(commit.error().code(), ErrorCode::kPermissionDenied);
    EXPECT_EQ(commit.error().sys_errno(), EROFS);
    const Status sync = head_->Sync();
    ASSERT_FALSE(sync);
    EXPECT_EQ(sync.error().sys_errno(), EIO);
    EXPECT_FALSE(head_->Freeze());
    EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(2)), "before");
    EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(50)), "(absent)");
  }

  SimDisk disk_;
};

TEST_F(HeadFaultTest, FullDiskRefusesTheCommitAndNothingElse) {
  MustReopen();
  ASSERT_TRUE(Put(2, "before"));
  disk_.space_bytes = 200 << 10;
  const std::string value(5000, 'v');
  InodeNumber ino = 3;
  Status status;
  while ((status = Put(ino, value))) ino++;
  EXPECT_EQ(status.error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(status.error().sys_errno(), ENOSPC);
  EXPECT_FALSE(head_->failed());
  EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(ino)), "(absent)");
  const std::string large(100000, 'L');
  const Status side = Write(9, 0, large);
  ASSERT_FALSE(side);
  EXPECT_EQ(side.error().sys_errno(), ENOSPC);
  EXPECT_TRUE(head_->current()->Extents(9, 0, 100)->front().source == Segment::Source::kHole);
  EXPECT_TRUE(head_->Sync());
  const auto full = head_->Freeze();
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), ErrorCode::kExhausted);
  EXPECT_FALSE(head_->failed());

  disk_.space_bytes = ~uint64_t{0};
  ASSERT_TRUE(Put(ino, "after"));
  ASSERT_TRUE(Write(9, 0, large));
  ASSERT_TRUE(head_->Freeze());
  for (int life = 0; life < 2; life++) {
    EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(2)), "before");
    EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(ino)), "after");
    EXPECT_EQ(ReadFile(*head_->current(), 9, 0, large.size()), large);
    MustReopen();
  }
}

TEST_F(HeadFaultTest, NoOffsetIsEncryptedTwiceAfterAFullDisk) {
  MustReopen();
  const std::string first(50000, 'x');
  FailOps(SimDisk::Op::kWrite, ".side", ENOSPC);
  ASSERT_FALSE(Write(9, 0, first));
  disk_.hook = nullptr;
  ASSERT_TRUE(Write(9, 0, std::string(50000, 'y')));
  const auto segments = *head_->current()->Extents(9, 0, 50000);
  EXPECT_GE(segments[0].payload->log_offset, 4096u + 50000u);
}

TEST_F(HeadFaultTest, FailedSyncOfTheJournalFailsTheHead) {
  MustReopen();
  ASSERT_TRUE(Put(2, "before"));
  FailOps(SimDisk::Op::kSync, ".tmp", EIO);  // the name the journal was created under
  const Status sync = head_->Sync();
  ASSERT_FALSE(sync);
  EXPECT_EQ(sync.error().sys_errno(), EIO);
  ExpectFailedForGood();
}

TEST_F(HeadFaultTest, FailedSyncOfTheSideLogFailsTheHeadAndOnlyIfItWasNeeded) {
  MustReopen();
  ASSERT_TRUE(Put(2, "before"));
  FailOps(SimDisk::Op::kSync, ".side", ENOSPC);
  ASSERT_TRUE(head_->Sync());
  ASSERT_TRUE(Write(9, 0, std::string(100000, 'L')));
  const Status sync = head_->Sync();
  ASSERT_FALSE(sync);
  EXPECT_EQ(sync.error().sys_errno(), EIO);
  ExpectFailedForGood();
  EXPECT_EQ(ReadFile(*head_->current(), 9, 0, 5), "LLLLL");
}

TEST_F(HeadFaultTest, FailedWriteOfARecordFailsTheHead) {
  MustReopen();
  ASSERT_TRUE(Put(2, "before"));
  FailOps(SimDisk::Op::kWrite, ".tmp", ENOSPC);  // the name the journal was created under
  const Status status = Put(3, "lost");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().sys_errno(), EIO);  // not ENOSPC: this cannot be tried again
  EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(3)), "(absent)");
  ExpectFailedForGood();
}

TEST_F(HeadFaultTest, FailedWriteOfTheSideLogFailsTheHead) {
  MustReopen();
  ASSERT_TRUE(Put(2, "before"));
  FailOps(SimDisk::Op::kWrite, ".side", EIO);
  ASSERT_FALSE(Write(9, 0, std::string(100000, 'L')));
  ExpectFailedForGood();
}

TEST_F(HeadFaultTest, SideLogIsSyncedOnlyWhenItHasUnsyncedBytes) {
  MustReopen();
  int side_syncs = 0;
  int journal_syncs = 0;
  disk_.hook = [&](SimDisk::Op op, const std::string& path) -> Status {
    if (op == SimDisk::Op::kSync) (path.ends_with(".side") ? side_syncs : journal_syncs)++;
    return {};
  };
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(Put(2, "x"));
    ASSERT_TRUE(head_->Sync());
  }
  EXPECT_EQ(side_syncs, 0);
  EXPECT_EQ(journal_syncs, 3);
  ASSERT_TRUE(Write(9, 0, std::string(100000, 'L')));
  ASSERT_TRUE(head_->Sync());
  EXPECT_EQ(side_syncs, 1);
  ASSERT_TRUE(Put(2, "x"));
  ASSERT_TRUE(head_->Sync());
  EXPECT_EQ(side_syncs, 1);
  ASSERT_TRUE(head_->Sync());  // nothing new: no system call
  EXPECT_EQ(journal_syncs, 5);
}

TEST_F(HeadFaultTest, SmallRecordIsOneWrite) {
  MustReopen();
  ASSERT_TRUE(Put(2, "x"));
  int writes = 0;
  disk_.hook = [&](SimDisk::Op op, const std::string&) -> Status {
    writes += op == SimDisk::Op::kWrite ? 1 : 0;
    return {};
  };
  Transaction t;
  t.Put(AttributesKey(2), Entry{"y", {}});
  t.PutData(9, 0, "small data");
  ASSERT_TRUE(head_->Commit(std::move(t)));
  EXPECT_EQ(writes, 1);
}

TEST_F(HeadFaultTest, ErrorWhileUnlinkingASealedGenerationIsReportedAfterTheSwap) {
  MustReopen();
  ASSERT_TRUE(Put(2, "before"));
  ASSERT_TRUE(head_->Freeze());
  FailOps(SimDisk::Op::kUnlink, ".journal", EIO);
  const Status sealed = head_->FinishSeal(1, EmptyTree());
  EXPECT_FALSE(sealed);
  EXPECT_TRUE(head_->unsealed().empty());
}

}  // namespace
}  // namespace cairn
