// What is found after a crash: torn tails, damage, lost side logs, replies.
#include <functional>

#include "tests/volume/head_fixture.h"
#include "tests/volume/sim_disk.h"
#include "volume/journal_format.h"

namespace cairn {
namespace {

struct RecordSpan {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;  // without the padding behind it
  uint64_t total_bytes = 0;
};

std::vector<RecordSpan> FindRecords(const std::string& journal) {
  std::vector<RecordSpan> found;
  uint64_t at = kLogContentOffset;
  RecordHeader header;
  while (DecodeRecordHeader(std::string_view(journal).substr(at, kRecordHeaderBytes), header)) {
    const uint64_t size =
        kRecordHeaderBytes + header.body_length_bytes + header.payload_length_bytes;
    found.push_back({at, size, header.total_bytes()});
    at += header.total_bytes();
  }
  return found;
}

class HeadRecoveryTest : public HeadTest {
 protected:
  static constexpr size_t kLargeBytes = 40000;  // goes to the side log

  HeadRecoveryTest() {
    options_.dir = "/v";
    options_.journal_chunk_bytes = 16 << 10;
    UseNewDisk();
  }
  void UseNewDisk() {
    head_.reset();
    disk_ = std::make_unique<SimDisk>();
    fs_ = disk_.get();
  }

  // Record n (from 1): attributes of inode n, a small payload in file 100, a large one in file 200.
  void CommitRecord(uint64_t n) {
    const std::string small(50, static_cast<char>('a' + n));
    const std::string large(kLargeBytes, static_cast<char>('A' + n));
    Transaction t;
    t.Put(AttributesKey(n), Entry{"record " + std::to_string(n), {}});
    t.PutData(100, n * 50, small);
    t.PutData(200, n * kLargeBytes, large);
    ASSERT_TRUE(head_->Commit(std::move(t)));
  }
  // How many records are there, with all that belongs to each.
  uint64_t CountRecords() {
    const auto layer = head_->current();
    uint64_t n = 0;
    while (GetPayload(*layer, AttributesKey(n + 1)) == "record " + std::to_string(n + 1)) {
      n++;
      EXPECT_EQ(ReadFile(*layer, 100, n * 50, 50), std::string(50, static_cast<char>('a' + n)));
      EXPECT_EQ(ReadFile(*layer, 200, n * kLargeBytes, kLargeBytes),
                std::string(kLargeBytes, static_cast<char>('A' + n)));
    }
    EXPECT_EQ(GetPayload(*layer, AttributesKey(n + 2)), "(absent)");
    return n;
  }
  // The directory as it is now, to try damages on.
  std::map<std::string, std::string> Image() {
    std::map<std::string, std::string> image;
    const auto names = *fs_->List("/v");
    for (const std::string& name : names) image["/v/" + name] = disk_->Bytes("/v/" + name);
    return image;
  }
  Status OpenImage(const std::map<std::string, std::string>& image) {
    UseNewDisk();
    for (const auto& [path, bytes] : image) disk_->Install(path, bytes);
    return Reopen();
  }
  void ExpectDamage(const std::map<std::string, std::string>& image, const std::string& file,
                    const std::string& what) {
    const Status opened = OpenImage(image);
    ASSERT_FALSE(opened) << what;
    EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss) << what;
    EXPECT_NE(opened.error().message().find(file), std::string::npos)
        << what << ": " << opened.error().ToString();
    const auto reports = CheckJournals(*fs_, keys_, realm_, volume_, "/v", 0);
    ASSERT_TRUE(reports);
    int damaged = 0;
    for (const JournalReport& report : *reports) damaged += report.damage.empty() ? 0 : 1;
    EXPECT_EQ(damaged, 1) << what;
  }

  std::unique_ptr<SimDisk> disk_;
  const std::string journal_ = "/v/0000000000000001.journal";
  const std::string mark_ = "/v/synced";
  const std::string side_ = "/v/0000000000000001.side";
};

TEST_F(HeadRecoveryTest, TornTailAtEveryByteOfTheLastRecordIsIgnored) {
  MustReopen();
  for (uint64_t n = 1; n <= 3; n++) CommitRecord(n);
  ASSERT_TRUE(head_->Sync());
  CommitRecord(4);
  auto image = Image();
  const std::string whole = image[journal_];
  const auto records = FindRecords(whole);
  ASSERT_EQ(records.size(), 4u);
  const RecordSpan last = records[3];
  for (uint64_t cut = 0; cut <= last.size_bytes; cut++) {
    image[journal_] = whole.substr(0, last.offset + cut);
    image[journal_].resize(whole.size(), '\0');
    const Status opened = OpenImage(image);
    ASSERT_TRUE(opened) << "cut at byte " << cut << ": " << opened.error().ToString();
    // A cut inside the last bytes that are zeros anyway leaves the record whole.
    const bool is_whole = image[journal_] == whole;
    ASSERT_EQ(CountRecords(), is_whole ? 4u : 3u) << "cut at byte " << cut;
    ASSERT_EQ(head_->current()->generation(), 2u);
    // The file may also end there.
    image[journal_].resize(last.offset + cut);
    ASSERT_TRUE(OpenImage(image));
    ASSERT_EQ(CountRecords(), is_whole ? 4u : 3u) << "file ends at byte " << cut;
  }
}

TEST_F(HeadRecoveryTest, FlippedByteInASyncedRecordIsDamageThatNamesTheFile) {
  MustReopen();
  for (uint64_t n = 1; n <= 3; n++) CommitRecord(n);
  ASSERT_TRUE(head_->Sync());
  CommitRecord(4);  // says that 1 to 3 were durable
  const auto image = Image();
  const auto records = FindRecords(image.at(journal_));
  for (size_t r = 0; r < 3; r++) {
    for (uint64_t at = 0; at < records[r].size_bytes; at++) {
      auto damaged = image;
      damaged[journal_][records[r].offset + at] ^= 0x10;
      ASSERT_NO_FATAL_FAILURE(ExpectDamage(
          damaged, journal_, "record " + std::to_string(r + 1) + " byte " + std::to_string(at)));
    }
  }
  // In the record that nothing vouches for it is a torn tail.
  for (uint64_t at = 0; at < records.back().size_bytes; at++) {
    auto damaged = image;
    damaged[journal_][records.back().offset + at] ^= 0x10;
    ASSERT_TRUE(OpenImage(damaged)) << at;
    ASSERT_EQ(CountRecords(), 3u) << at;
  }
}

TEST_F(HeadRecoveryTest, ZeroedSyncedRecordIsDamage) {
  MustReopen();
  for (uint64_t n = 1; n <= 3; n++) CommitRecord(n);
  ASSERT_TRUE(head_->Sync());
  CommitRecord(4);
  auto image = Image();
  const auto records = FindRecords(image[journal_]);
  image[journal_].replace(records[2].offset, records[2].total_bytes, records[2].total_bytes, '\0');
  ExpectDamage(image, journal_, "zeroed record");
}

TEST_F(HeadRecoveryTest, HoleInAnUnsyncedTailEndsTheReplayWithoutDamage) {
  MustReopen();
  CommitRecord(1);
  ASSERT_TRUE(head_->Sync());
  for (uint64_t n = 2; n <= 4; n++) CommitRecord(n);
  auto image = Image();
  const auto records = FindRecords(image[journal_]);
  ASSERT_EQ(records.size(), 4u);
  image[journal_].replace(records[2].offset, records[2].total_bytes, records[2].total_bytes, '\0');
  ASSERT_TRUE(OpenImage(image));
  EXPECT_EQ(CountRecords(), 2u);
  // And what was dropped stays dropped, though the bytes of record 4 are still there.
  MustReopen();
  EXPECT_EQ(CountRecords(), 2u);
  CommitRecord(3);
  MustReopen();
  EXPECT_EQ(CountRecords(), 3u);
}

TEST_F(HeadRecoveryTest, DamageInTheLastRecordOfAFrozenGenerationIsFound) {
  MustReopen();
  CommitRecord(1);
  CommitRecord(2);
  ASSERT_TRUE(head_->Freeze());
  auto image = Image();
  const auto records = FindRecords(image[journal_]);
  image[journal_][records[1].offset + 70] ^= 1;
  ExpectDamage(image, journal_, "last record of a frozen generation");
  image = Image();
  image[journal_].resize(records[1].offset);
  ExpectDamage(image, journal_, "frozen generation cut short");
}

TEST_F(HeadRecoveryTest, UnsyncedSidePayloadThatIsLostMakesItsRecordNotCount) {
  MustReopen();
  CommitRecord(1);
  ASSERT_TRUE(head_->Sync());
  const size_t synced_bytes = disk_->Bytes(side_).size();
  CommitRecord(2);
  const auto image = Image();
  auto lost = image;
  lost[side_].resize(synced_bytes);
  ASSERT_TRUE(OpenImage(lost));
  EXPECT_EQ(CountRecords(), 1u);
  lost = image;
  lost[side_].back() ^= 1;
  ASSERT_TRUE(OpenImage(lost));
  EXPECT_EQ(CountRecords(), 1u);
  lost = image;
  lost.erase(side_);
  const Status opened = OpenImage(lost);  // record 1 was durable: no record vouches but 2
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
}

TEST_F(HeadRecoveryTest, DamageInTheLastSyncedRecordIsFoundThoughNothingWasCommittedAfterIt) {
  MustReopen();
  CommitRecord(1);
  CommitRecord(2);
  ASSERT_TRUE(head_->Sync());
  ASSERT_TRUE(head_->Sync());  // needs nothing, writes nothing
  auto image = Image();
  const auto records = FindRecords(image[journal_]);
  ASSERT_EQ(records.size(), 2u);
  const auto whole = image;
  image[journal_][records[1].offset + 70] ^= 1;
  ExpectDamage(image, journal_, "last synced record");
  image = whole;
  image[journal_].resize(records[1].offset);
  ExpectDamage(image, journal_, "journal cut short");
  // Without the mark it is a torn tail: a mark that a power cut took, or that is damaged itself.
  image.erase(mark_);
  ASSERT_TRUE(OpenImage(image));
  EXPECT_EQ(CountRecords(), 1u);
  for (size_t at = 0; at < whole.at(mark_).size(); at++) {
    image[mark_] = whole.at(mark_);
    image[mark_][at] ^= 0x20;
    ASSERT_TRUE(OpenImage(image)) << "mark's byte " << at;
    ASSERT_EQ(CountRecords(), 1u) << "mark's byte " << at;
  }
  // And a new one is begun.
  CommitRecord(2);
  ASSERT_TRUE(head_->Sync());
  image = Image();
  image.erase(PathOf(2, "journal"));
  const Status opened = OpenImage(image);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
}

TEST_F(HeadRecoveryTest, ANewestJournalThatIsMissingIsDamageAndChangesNothing) {
  MustReopen();
  CommitRecord(1);
  ASSERT_TRUE(head_->Freeze());
  CommitRecord(2);
  ASSERT_TRUE(head_->Sync());
  const auto whole = Image();
  // The newest alone, and all of them.
  auto image = whole;
  image.erase(PathOf(2, "journal"));
  ExpectDamage(image, PathOf(2, "journal"), "newest missing");
  EXPECT_EQ(Image(), image);
  image.erase(PathOf(1, "journal"));
  ExpectDamage(image, PathOf(2, "journal"), "all missing");
  EXPECT_EQ(Image(), image);
  // Put back, nothing is lost.
  ASSERT_TRUE(OpenImage(whole));
  EXPECT_EQ(CountRecords(), 2u);
}

TEST_F(HeadRecoveryTest, WhatWasNeverSyncedOrIsSealedMayBeMissing) {
  MustReopen();
  CommitRecord(1);
  auto image = Image();
  image.erase(journal_);
  ASSERT_TRUE(OpenImage(image));  // one that nobody synced
  EXPECT_EQ(CountRecords(), 0u);
  CommitRecord(1);
  ASSERT_TRUE(head_->Sync());
  ASSERT_TRUE(head_->Freeze());
  image = Image();
  image.erase(journal_);
  options_.sealed_through_generation = 1;
  EXPECT_TRUE(OpenImage(image));
  // A generation without records is begun again, however often its making is cut off.
  ASSERT_TRUE(head_->Freeze());
  image = Image();
  image.erase(PathOf(3, "journal"));
  image.erase(PathOf(2, "journal"));
  EXPECT_TRUE(OpenImage(image));
}

TEST_F(HeadRecoveryTest, AMarkThatCannotBeWrittenFailsNoSync) {
  MustReopen();
  CommitRecord(1);
  disk_->hook = [&](SimDisk::Op, const std::string& path) -> Status {
    if (path == mark_) return ErrErrno(EIO, "injected");
    return {};
  };
  EXPECT_TRUE(head_->Sync());
  CommitRecord(2);
  EXPECT_TRUE(head_->Sync());
  EXPECT_TRUE(head_->Freeze());
  disk_->hook = nullptr;
  MustReopen();
  EXPECT_EQ(CountRecords(), 2u);
}

TEST_F(HeadRecoveryTest, DamagedSyncedSidePayloadNamesTheSideLog) {
  MustReopen();
  CommitRecord(1);
  ASSERT_TRUE(head_->Sync());
  CommitRecord(2);
  auto image = Image();
  image[side_][kLogContentOffset + 12345] ^= 4;
  ExpectDamage(image, side_, "side payload of record 1");
}

TEST_F(HeadRecoveryTest, DamagedHeaderIsDataLossAtEveryByte) {
  MustReopen();
  CommitRecord(1);
  ASSERT_TRUE(head_->Sync());
  const auto image = Image();
  int tried = 0;
  for (const std::string& file : {journal_, side_}) {
    for (size_t at = 0; at < kLogHeaderBytes; at++) {
      auto damaged = image;
      damaged[file][at] ^= 2;
      tried++;
      ASSERT_NO_FATAL_FAILURE(ExpectDamage(damaged, file, "header byte " + std::to_string(at)));
    }
    auto damaged = image;
    damaged[file].resize(100);
    ASSERT_NO_FATAL_FAILURE(ExpectDamage(damaged, file, "header cut short"));
  }
  EXPECT_EQ(tried, 2 * 256);
}

TEST_F(HeadRecoveryTest, JournalOfAnotherVolumeOrGenerationIsRefused) {
  MustReopen();
  CommitRecord(1);
  const auto image = Image();
  UseNewDisk();
  disk_->Install(PathOf(1, "journal"), image.at(journal_));
  options_.volume = TestId(9);
  Status opened = Reopen();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
  options_.volume = volume_;
  UseNewDisk();
  disk_->Install(PathOf(2, "journal"), image.at(journal_));
  options_.sealed_through_generation = 1;
  opened = Reopen();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
}

TEST_F(HeadRecoveryTest, MissingGenerationIsDataLoss) {
  MustReopen();
  CommitRecord(1);
  ASSERT_TRUE(head_->Freeze());
  CommitRecord(2);
  ASSERT_TRUE(head_->Freeze());
  auto image = Image();
  image.erase(PathOf(2, "journal"));
  const Status opened = OpenImage(image);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
  EXPECT_NE(opened.error().message().find(PathOf(2, "journal")), std::string::npos);
}

TEST_F(HeadRecoveryTest, UnknownRealmIsAnErrorAndChangesNothing) {
  MustReopen();
  CommitRecord(1);
  const auto before = Image();
  keys_.Remove(realm_);
  const Status opened = Reopen();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(Image(), before);
  keys_.Add(realm_, TestRealmKeys(7));
}

TEST_F(HeadRecoveryTest, EmptyNewestGenerationIsBegunAgain) {
  MustReopen();
  const std::string first = disk_->Bytes(journal_);
  MustReopen();
  EXPECT_EQ(head_->current()->generation(), 1u);
  EXPECT_NE(disk_->Bytes(journal_), first);  // with a new key
  EXPECT_EQ(head_->unsealed().size(), 0u);
}

class HeadReplyTest : public HeadRecoveryTest {
 protected:
  HeadReplyTest() { options_.live_connection = connection_; }

  void CommitReply(uint64_t unique, uint16_t lane, uint64_t floor) {
    Transaction t;
    t.Put(AttributesKey(unique), Entry{"x", {}});
    t.SetReply({.connection = connection_,
                .unique = unique,
                .opcode = 16,
                .lane = lane,
                .status = -static_cast<int32_t>(unique),
                .ino = 77,
                .value = 4096 + unique,
                .reply_floor = floor});
    ASSERT_TRUE(head_->Commit(std::move(t)));
  }
  std::vector<uint64_t> Recovered() {
    std::vector<uint64_t> uniques;
    for (const ReplyRecord& reply : head_->recovered_replies()) {
      EXPECT_EQ(reply.connection, connection_);
      EXPECT_EQ(reply.opcode, 16u);
      EXPECT_EQ(reply.status, -static_cast<int32_t>(reply.unique));
      EXPECT_EQ(reply.ino, 77u);
      EXPECT_EQ(reply.value, 4096 + reply.unique);
      uniques.push_back(reply.unique);
    }
    return uniques;
  }
  const Id128 connection_ = TestId(5);
};

TEST_F(HeadReplyTest, TheLastOfEachLaneComesBackDownToTheFloor) {
  MustReopen();
  EXPECT_TRUE(Recovered().empty());
  CommitReply(2, 0, 1);
  CommitReply(4, 1, 2);
  CommitReply(6, 2, 2);
  CommitReply(8, 1, 2);  // so 4 was answered
  CommitReply(10, 3, 4);
  EXPECT_TRUE(Recovered().empty()) << "what Open found";
  MustReopen();
  EXPECT_EQ(Recovered(), (std::vector<uint64_t>{6, 8, 10})) << "2 is below the floor";
}

TEST_F(HeadReplyTest, RepliesOfADeadConnectionAreIgnored) {
  MustReopen();
  CommitReply(2, 0, 0);
  options_.live_connection = TestId(6);
  MustReopen();
  EXPECT_TRUE(head_->recovered_replies().empty());
  options_.live_connection = {};
  MustReopen();
  EXPECT_TRUE(head_->recovered_replies().empty());
}

TEST_F(HeadReplyTest, EachGenerationRepeatsWhatMayBeUnanswered) {
  MustReopen();
  CommitReply(2, 0, 0);
  CommitReply(4, 1, 0);
  EXPECT_EQ(head_->active_records(), 2u);
  ASSERT_TRUE(head_->Freeze());
  EXPECT_EQ(head_->active_records(), 0u) << "nothing that wants a seal";
  CommitReply(6, 0, 3);
  ASSERT_TRUE(head_->Freeze());
  EXPECT_EQ(head_->active_records(), 0u);
  // As after a seal of both generations and a kill.
  head_.reset();
  options_.sealed_through_generation = 2;
  MustReopen();
  EXPECT_EQ(Recovered(), (std::vector<uint64_t>{4, 6}));
}

TEST_F(HeadReplyTest, ASecondTakeoverStillKnowsWhatTheFirstDidNotAnswer) {
  MustReopen();
  CommitReply(2, 0, 0);
  CommitReply(4, 1, 0);
  MustReopen();  // killed; 2 and 4 are sent again, but not read before the next kill
  EXPECT_EQ(Recovered(), (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(head_->active_records(), 0u);
  CommitReply(6, 0, 0);  // the new server's lane 0 is not the old one's
  head_.reset();
  options_.sealed_through_generation = 1;
  MustReopen();
  EXPECT_EQ(Recovered(), (std::vector<uint64_t>{2, 4, 6}));
  CommitReply(8, 0, 5);
  MustReopen();
  EXPECT_EQ(Recovered(), (std::vector<uint64_t>{6, 8})) << "the floor has passed the others";
}

TEST_F(HeadReplyTest, AConnectionThatEndedLeavesNothing) {
  MustReopen();
  CommitReply(2, 0, 0);
  head_->SetLiveConnection({});
  ASSERT_TRUE(head_->Freeze());
  head_.reset();
  options_.sealed_through_generation = 1;
  MustReopen();
  EXPECT_TRUE(Recovered().empty());
  head_->SetLiveConnection(connection_);
  CommitReply(4, 0, 0);
  MustReopen();
  EXPECT_EQ(Recovered(), std::vector<uint64_t>{4});
}

TEST_F(HeadRecoveryTest, CheckReportsEveryJournalAndChangesNothing) {
  MustReopen();
  CommitRecord(1);
  CommitRecord(2);
  ASSERT_TRUE(head_->Freeze());
  CommitRecord(3);
  const auto before = Image();
  const auto reports = CheckJournals(*fs_, keys_, realm_, volume_, "/v", 0);
  ASSERT_TRUE(reports);
  ASSERT_EQ(reports->size(), 2u);
  EXPECT_EQ((*reports)[0].file, PathOf(1, "journal"));
  EXPECT_EQ((*reports)[0].records, 2u);
  EXPECT_EQ((*reports)[0].damage, "");
  EXPECT_EQ((*reports)[1].records, 1u);
  EXPECT_EQ((*reports)[1].damage, "");
  EXPECT_EQ(Image(), before);
  EXPECT_EQ(CheckJournals(*fs_, keys_, realm_, volume_, "/v", 1)->size(), 1u);
  EXPECT_EQ(CheckJournals(*fs_, keys_, realm_, volume_, "/absent", 1)->size(), 0u);
  auto image = before;
  image.erase(PathOf(1, "journal"));
  UseNewDisk();
  for (const auto& [path, bytes] : image) disk_->Install(path, bytes);
  const auto missing = CheckJournals(*fs_, keys_, realm_, volume_, "/v", 0);
  ASSERT_EQ(missing->size(), 2u);
  EXPECT_NE((*missing)[0].damage, "");
}

TEST_F(HeadRecoveryTest, CrashWhileAGenerationBeginsLeavesTheOldOnesWhole) {
  // Every step of a rotation fails once; then the machine dies.
  for (int step = 0;; step++) {
    UseNewDisk();
    MustReopen();
    CommitRecord(1);
    int calls = 0;
    disk_->hook = [&](SimDisk::Op, const std::string& path) -> Status {
      if (path != mark_ && calls++ == step) return ErrErrno(EIO, "injected");
      return {};
    };
    const auto frozen = head_->Freeze();
    disk_->hook = nullptr;
    if (calls <= step) {
      EXPECT_TRUE(frozen);
      EXPECT_GT(step, 6);
      break;
    }
    EXPECT_FALSE(frozen) << step;
    MustReopen();
    EXPECT_EQ(CountRecords(), 1u) << step;
    EXPECT_EQ(head_->current()->generation(), 2u) << step;
  }
}

}  // namespace
}  // namespace cairn
