// Who gets what of a disk that fills up, by the numbers; the reserve file's life; every call that
// can fail.
#include "store/space_guard.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/forwarding_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;
constexpr SpaceLimits kLimits = {.reserve_bytes = 8 * kMiB,
                                 .floor_bytes = 4 * kMiB,
                                 .headroom_bytes = 16 * kMiB,
                                 .dirty_bytes_per_mount = 2 * kMiB};

// Others take all that is free, `takes` times, each time before the guard can look.
class SharedDisk final : public ForwardingFileSystem {
 public:
  explicit SharedDisk(FaultyFileSystem& disk) : ForwardingFileSystem(disk), disk_(disk) {}
  int takes = 0;

  Result<DiskSpace> Space(const std::string& dir) override {
    if (takes > 0 && disk_.space_left() > 0) {
      --takes;
      disk_.SetSpaceLeft(0);
    }
    return disk_.Space(dir);
  }

 private:
  FaultyFileSystem& disk_;
};

class SpaceGuardTest : public testing::Test {
 protected:
  SpaceGuardTest() : dir_(temp_ / "data"), fs_(temp_ / "scratch") {
    EXPECT_TRUE(HostFileSystem().MakeDir(dir_));
  }
  // The reserve file comes out of `space_left`.
  void Open(int64_t space_left) {
    fs_.SetSpaceLeft(space_left);
    auto opened =
        SpaceGuard::Open({.fs = shared_, .dir = dir_, .clock = clock_, .limits = kLimits});
    ASSERT_TRUE(opened) << opened.error().ToString();
    guard_ = *std::move(opened);
  }
  // So many bytes are free from now on, whoever did it.
  void SetFree(int64_t bytes) {
    fs_.SetSpaceLeft(bytes);
    Later();
  }
  void Later() { clock_.Advance(1'000'000'000); }
  ErrorCode Refusal(SpaceUse use, uint64_t bytes) {
    const auto got = guard_->Reserve(use, bytes, "a test");
    EXPECT_FALSE(got);
    return got ? ErrorCode::kInternal : got.error().code();
  }
  bool Granted(SpaceUse use, uint64_t bytes) {
    return guard_->Reserve(use, bytes, "a test").has_value();
  }
  uint64_t ReserveFile() {
    const auto file = HostFileSystem().Open(dir_ + "/reserve", {.read_only = true});
    return file ? (*file)->SizeBytes().value_or(0) : 0;
  }

  TempDir temp_;
  const std::string dir_;
  FaultyFileSystem fs_;
  SharedDisk shared_{fs_};
  FakeClock clock_;
  std::unique_ptr<SpaceGuard> guard_;
};

TEST_F(SpaceGuardTest, DefaultsFollowTheDisk) {
  for (const uint64_t total :
       {64 * kMiB, 96 * kMiB, 1024 * kMiB, 100 * 1024 * kMiB, 4 * 1024 * 1024 * kMiB}) {
    const SpaceLimits limits = DefaultSpaceLimits(total);
    EXPECT_GT(limits.reserve_bytes, 0u);
    EXPECT_GT(limits.floor_bytes, 0u);
    EXPECT_GT(limits.headroom_bytes, limits.floor_bytes);
    EXPECT_LE(limits.reserve_bytes + limits.floor_bytes + limits.headroom_bytes, total / 3);
  }
  EXPECT_EQ(DefaultSpaceLimits(100 * 1024 * kMiB).reserve_bytes, 1024 * kMiB);
  EXPECT_EQ(DefaultSpaceLimits(96 * kMiB).reserve_bytes, 12 * kMiB);
}

TEST_F(SpaceGuardTest, EachUseStopsEarlierThanTheOneBefore) {
  Open(68 * kMiB);  // 60 MiB free, 8 MiB in the reserve file
  EXPECT_EQ(ReserveFile(), 8 * kMiB);
  const SpaceReservation dirty = *guard_->Reserve(SpaceUse::kDirty, 2 * kMiB, "a mount");
  const SpaceReservation unsealed = *guard_->Reserve(SpaceUse::kUnsealed, 5 * kMiB, "a journal");
  const struct {
    SpaceUse use;
    uint64_t mib;
  } most[] = {
      {SpaceUse::kRetaining, 33},  // 60 - 5 - 2 - 4 - 16
      {SpaceUse::kGrowing, 49},    // 60 - 5 - 2 - 4
      {SpaceUse::kWriting, 51},    // 60 - 5 - 4
      {SpaceUse::kDraining, 64},   // 60 and half of the reserve file
      {SpaceUse::kFreeing, 68},
  };
  for (const auto& [use, mib] : most) {
    EXPECT_EQ(guard_->GetStatus().available_bytes[static_cast<size_t>(use)], mib * kMiB);
    EXPECT_FALSE(guard_->HasRoom(use, mib * kMiB + 1)) << SpaceUseName(use);
    EXPECT_TRUE(guard_->HasRoom(use, mib * kMiB)) << SpaceUseName(use);
    EXPECT_EQ(Refusal(use, mib * kMiB + 1), ErrorCode::kExhausted) << SpaceUseName(use);
    EXPECT_TRUE(Granted(use, mib * kMiB)) << SpaceUseName(use);
  }
}

TEST_F(SpaceGuardTest, RefusalSaysHowMuchAndWhatToDo) {
  Open(32 * kMiB);
  const auto refused = guard_->Reserve(SpaceUse::kRetaining, 5 * kMiB, "a snapshot");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(refused.error().sys_errno(), ENOSPC);
  EXPECT_EQ(refused.error().message(),
            "no space for a snapshot: it needs 5.0 MiB and its budget has 4.0 MiB; 24.0 MiB are "
            "free, of which 4.0 MiB are kept for deletions, 16.0 MiB for running volumes: delete "
            "snapshots, Artifacts or Environments, then `cairn reap` and `cairn gc --now`, or make "
            "the file system larger");
}

TEST_F(SpaceGuardTest, WhatIsSetAsideIsNobodyElsesUntilItIsGivenBack) {
  Open(32 * kMiB);  // 24 free, 20 for writers
  {
    SpaceReservation first = *guard_->Reserve(SpaceUse::kWriting, 15 * kMiB, "a test");
    EXPECT_EQ(Refusal(SpaceUse::kWriting, 6 * kMiB), ErrorCode::kExhausted);
    SpaceReservation second = std::move(first);
    first = SpaceReservation();
    EXPECT_EQ(second.bytes(), 15 * kMiB);
    EXPECT_EQ(Refusal(SpaceUse::kWriting, 6 * kMiB), ErrorCode::kExhausted);
  }
  EXPECT_TRUE(Granted(SpaceUse::kWriting, 20 * kMiB));
  EXPECT_EQ(guard_->GetStatus().set_aside_bytes[2], 0u);
  EXPECT_EQ(guard_->GetStatus().refusals[2], 2u);
}

TEST_F(SpaceGuardTest, WhatWasWrittenCountsOnceWhetherTheDiskSaysSoYetOrNot) {
  Open(32 * kMiB);
  SpaceReservation mine = *guard_->Reserve(SpaceUse::kWriting, 15 * kMiB, "a test");
  fs_.SetSpaceLeft(9 * kMiB);  // it is written; the guard's number is from before
  mine.Use(15 * kMiB);
  EXPECT_EQ(mine.bytes(), 0u);
  EXPECT_EQ(guard_->ForWriters().available_bytes, 5 * kMiB);
  Later();
  EXPECT_EQ(guard_->ForWriters().available_bytes, 5 * kMiB);
  EXPECT_EQ(guard_->GetStatus().written_bytes[2], 15 * kMiB);
}

TEST_F(SpaceGuardTest, ARefusalIsNeverBasedOnAnOldNumber) {
  Open(32 * kMiB);
  EXPECT_EQ(Refusal(SpaceUse::kWriting, 25 * kMiB), ErrorCode::kExhausted);
  fs_.SetSpaceLeft(60 * kMiB);  // the clock stands still
  EXPECT_TRUE(Granted(SpaceUse::kWriting, 25 * kMiB));
}

TEST_F(SpaceGuardTest, CoverGrowsByStepsWhereThereIsRoomAndByWhatIsNeededWhereThereIsNot) {
  Open(32 * kMiB);
  SpaceReservation mine = *guard_->Reserve(SpaceUse::kWriting, 0, "a test");
  ASSERT_TRUE(mine.Cover(100, "a test"));
  EXPECT_EQ(mine.bytes(), SpaceReservation::kStepBytes);
  ASSERT_TRUE(mine.Cover(20 * kMiB - 4096, "a test"));
  ASSERT_TRUE(mine.Cover(20 * kMiB - 100, "a test"));
  EXPECT_EQ(mine.bytes(), 20 * kMiB - 100);
  EXPECT_FALSE(mine.Cover(20 * kMiB + 1, "a test"));
  EXPECT_EQ(mine.bytes(), 20 * kMiB - 100);
}

TEST_F(SpaceGuardTest, AReservationChangesItsUse) {
  Open(32 * kMiB);
  SpaceReservation debt = *guard_->Reserve(SpaceUse::kUnsealed, 0, "a journal");
  {
    SpaceReservation mine = *guard_->Reserve(SpaceUse::kWriting, 10 * kMiB, "a test");
    mine.Use(4 * kMiB);
    debt.TakeFrom(mine, 5 * kMiB);
    EXPECT_EQ(mine.bytes(), 1 * kMiB);
  }
  const SpaceStatus status = guard_->GetStatus();
  EXPECT_EQ(status.set_aside_bytes[static_cast<size_t>(SpaceUse::kUnsealed)], 5 * kMiB);
  EXPECT_EQ(status.set_aside_bytes[static_cast<size_t>(SpaceUse::kWriting)], 0u);
}

TEST_F(SpaceGuardTest, UnsealedAndDirtyBytesAreNeverRefused) {
  Open(10 * kMiB);
  EXPECT_TRUE(Granted(SpaceUse::kUnsealed, 1 << 30));
  EXPECT_TRUE(Granted(SpaceUse::kDirty, 1 << 30));
}

TEST_F(SpaceGuardTest, DeletionsGetTheReserveFileWhenOthersFilledTheDisk) {
  Open(32 * kMiB);
  SetFree(0);
  EXPECT_EQ(Refusal(SpaceUse::kWriting, 1), ErrorCode::kExhausted);
  ASSERT_TRUE(guard_->MakeRoom(100 * kKiB, "a record"));
  EXPECT_EQ(ReserveFile(), 7 * kMiB);
  EXPECT_EQ(fs_.space_left(), static_cast<int64_t>(kMiB)) << "an eighth of it at a time";
  ASSERT_TRUE(guard_->MakeRoom(800 * kKiB, "a record"));
  EXPECT_EQ(ReserveFile(), 7 * kMiB) << "there was room";
  ASSERT_TRUE(guard_->MakeRoom(7 * kMiB, "a record"));
  EXPECT_EQ(ReserveFile(), 1 * kMiB);
  const Status refused = guard_->MakeRoom(9 * kMiB, "a record");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
}

TEST_F(SpaceGuardTest, SealsLeaveHalfOfTheReserveFile) {
  Open(32 * kMiB);
  SetFree(0);
  EXPECT_EQ(Refusal(SpaceUse::kDraining, 5 * kMiB), ErrorCode::kExhausted);
  EXPECT_EQ(ReserveFile(), 8 * kMiB);
  SpaceReservation seal = *guard_->Reserve(SpaceUse::kDraining, 4 * kMiB, "a seal");
  EXPECT_EQ(ReserveFile(), 4 * kMiB);
  EXPECT_TRUE(guard_->MakeRoom(4 * kMiB, "a record"));
  EXPECT_EQ(ReserveFile(), 0u);
  EXPECT_EQ(fs_.space_left(), static_cast<int64_t>(8 * kMiB)) << "beside what the seal has";
}

// A refusal is true: its budget is less than what was asked for when it is said.
TEST_F(SpaceGuardTest, WhatOthersTakeOfTheReserveFileIsTakenFromItAgain) {
  Open(32 * kMiB);
  SetFree(0);
  shared_.takes = 3;
  const Status made = guard_->MakeRoom(100 * kKiB, "a record");
  EXPECT_TRUE(made) << made.error().ToString();
  EXPECT_EQ(ReserveFile(), 4 * kMiB);
  EXPECT_EQ(fs_.space_left(), static_cast<int64_t>(kMiB));
  SetFree(0);
  shared_.takes = 100;
  const Status refused = guard_->MakeRoom(100 * kKiB, "a record");
  ASSERT_FALSE(refused);
  EXPECT_EQ(ReserveFile(), 0u);
  EXPECT_NE(refused.error().message().find("needs 100.0 KiB and its budget has 0.0 KiB; 0.0 KiB"),
            std::string::npos)
      << refused.error().message();
}

TEST_F(SpaceGuardTest, AllThatFitIntoTheReserveFileTogetherGetItWhoeverComesFirst) {
  for (int round = 0; round < 30; ++round) {
    Open(32 * kMiB);
    ASSERT_EQ(ReserveFile(), 8 * kMiB);
    SetFree(0);
    std::vector<Result<SpaceReservation>> got;
    for (int i = 0; i < 8; ++i) got.emplace_back(Err(ErrorCode::kInternal));
    std::vector<std::thread> takers;
    for (size_t i = 0; i < got.size(); ++i) {
      takers.emplace_back([&, i] {
        const SpaceUse use = i < 4 ? SpaceUse::kDraining : SpaceUse::kFreeing;
        // The first of the seals comes before deletions: these may take all of the file.
        while (i >= 4 && guard_->GetStatus().set_aside_bytes[1] < 4 * kMiB) {
          std::this_thread::yield();
        }
        got[i] = guard_->Reserve(use, kMiB, "a test");
      });
    }
    for (std::thread& taker : takers) taker.join();
    for (const auto& one : got) EXPECT_TRUE(one) << one.error().ToString();
    EXPECT_EQ(ReserveFile(), 0u);
    got.clear();
    guard_.reset();
    fs_.SetSpaceLeft(-1);
  }
}

TEST_F(SpaceGuardTest, TheReserveFileGrowsAgainBeforeNewWorkDoes) {
  Open(32 * kMiB);
  SetFree(0);
  ASSERT_TRUE(guard_->MakeRoom(8 * kMiB, "a record"));
  EXPECT_EQ(ReserveFile(), 0u);
  SetFree(4 * kMiB + 100 * kKiB);
  guard_->Maintain();
  EXPECT_EQ(ReserveFile(), 0u) << "the floor comes first";
  SetFree(10 * kMiB);
  EXPECT_EQ(Refusal(SpaceUse::kWriting, 1), ErrorCode::kExhausted) << "it is the reserve's";
  guard_->Maintain();
  EXPECT_EQ(ReserveFile(), 6 * kMiB);
  SetFree(20 * kMiB);
  guard_->Maintain();
  EXPECT_EQ(ReserveFile(), 8 * kMiB);
  EXPECT_EQ(guard_->ForWriters().available_bytes, 14 * kMiB);
}

TEST_F(SpaceGuardTest, ADiskThatIsFullFromTheStartHasAReserveLater) {
  Open(1 * kMiB);
  EXPECT_EQ(ReserveFile(), 0u);
  EXPECT_EQ(Refusal(SpaceUse::kWriting, 1), ErrorCode::kExhausted);
  SetFree(100 * kMiB);
  guard_->Maintain();
  EXPECT_EQ(ReserveFile(), 8 * kMiB);
}

TEST_F(SpaceGuardTest, AReserveFileOfAnotherLifeIsTakenOverAndCutToItsLength) {
  Open(32 * kMiB);
  guard_.reset();
  auto smaller = SpaceGuard::Open(
      {.fs = fs_, .dir = dir_, .clock = clock_, .limits = {.reserve_bytes = 3 * kMiB}});
  ASSERT_TRUE(smaller);
  EXPECT_EQ(ReserveFile(), 3 * kMiB);
}

TEST_F(SpaceGuardTest, AReserveFileThatCannotBeChangedIsNoReasonToStop) {
  for (const auto call : {FaultyFileSystem::Call::kOpen, FaultyFileSystem::Call::kAllocate}) {
    fs_.FailNth(call, 1, EIO);
    Open(32 * kMiB);
    EXPECT_EQ(ReserveFile(), 0u);
    EXPECT_TRUE(Granted(SpaceUse::kWriting, 1 * kMiB));
    EXPECT_TRUE(Granted(SpaceUse::kFreeing, 30 * kMiB)) << "it is free instead";
  }
  guard_->Maintain();
  EXPECT_EQ(ReserveFile(), 8 * kMiB);
  SetFree(0);
  fs_.FailNth(FaultyFileSystem::Call::kTruncate, 1, EIO);
  const Status refused = guard_->MakeRoom(kMiB, "a record");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message().find("the reserve file cannot be shortened"),
            std::string::npos)
      << refused.error().message();
  EXPECT_TRUE(Granted(SpaceUse::kFreeing, kMiB));
}

TEST_F(SpaceGuardTest, TightMeansThatASealWouldHelp) {
  Open(32 * kMiB);  // 20 for writers
  EXPECT_FALSE(guard_->Tight());
  {
    const SpaceReservation debt = *guard_->Reserve(SpaceUse::kUnsealed, 9 * kMiB, "a journal");
    EXPECT_TRUE(guard_->Tight());  // 11 left, less than 9 and the floor
  }
  EXPECT_FALSE(guard_->Tight());
  EXPECT_EQ(Refusal(SpaceUse::kRetaining, 30 * kMiB), ErrorCode::kExhausted);
  EXPECT_FALSE(guard_->Tight()) << "no seal makes room for a snapshot";
  EXPECT_EQ(Refusal(SpaceUse::kWriting, 30 * kMiB), ErrorCode::kExhausted);
  EXPECT_TRUE(guard_->Tight());
  clock_.Advance(SpaceGuard::kTightMs * 1'000'000);
  EXPECT_FALSE(guard_->Tight());
}

TEST_F(SpaceGuardTest, AReserveCanBeHadBeforeTheGuardIsOpen) {
  Open(32 * kMiB);
  guard_.reset();
  fs_.SetSpaceLeft(100);
  FreeFromReserve(fs_, dir_, 100);
  EXPECT_EQ(ReserveFile(), 8 * kMiB);
  FreeFromReserve(fs_, dir_, kMiB);
  EXPECT_EQ(fs_.space_left(), static_cast<int64_t>(kMiB));
  FreeFromReserve(fs_, dir_, 100 * kMiB);
  EXPECT_EQ(ReserveFile(), 0u);
  FreeFromReserve(fs_, temp_ / "nothing", kMiB);
}

TEST(SpaceReservation, OneOfNoGuardGrantsEverything) {
  SpaceReservation none;
  EXPECT_TRUE(none.Cover(1ull << 40, "a test"));
  none.Use(1ull << 40);
  SpaceReservation other;
  other.TakeFrom(none, 5);
  EXPECT_EQ(other.bytes(), 0u);
}

TEST(HostFileSystem, SpaceIsWhatStatvfsSays) {
  TempDir temp;
  const auto space = HostFileSystem().Space(temp.path());
  ASSERT_TRUE(space);
  EXPECT_GT(space->total_bytes, 0u);
  EXPECT_LE(space->free_bytes, space->total_bytes);
  EXPECT_EQ(HostFileSystem().Space(temp / "nothing").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn
