// Which reads are in order, and that only those are read ahead: counted at the file system.
#include "volume/read_ahead.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "store/base/random.h"
#include "store/local_block_store.h"
#include "store/node_cache.h"
#include "store/tree.h"
#include "tests/support/fake_clock.h"
#include "tests/support/gated_file_system.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/temp_dir.h"
#include "volume/extent_value.h"
#include "volume/file_read.h"
#include "volume/fs_view.h"

namespace cairn {
namespace {

constexpr uint64_t kSeed = 31;
constexpr uint64_t kFile = uint64_t{1} << 30;
constexpr uint64_t kMiB = 1 << 20;

TEST(ReadAhead, AFileReadInOrderIsFetchedOnceAndNeverPastItsEnd) {
  for (const uint64_t length : {uint64_t{4096}, uint64_t{65536}, kMiB}) {
    ReadAhead ahead;
    const uint64_t size = 40 * kMiB + 123;
    uint64_t fetched = 0;
    for (uint64_t at = 0; at < size; at += length) {
      const uint64_t end = std::min(size, at + length);
      const auto range = ahead.Note(7, at, end - at, size);
      if (at == 0) {
        EXPECT_EQ(range.begin, range.end);
      }
      if (range.begin == range.end) continue;
      EXPECT_GE(range.begin, end);
      if (fetched != 0) {
        EXPECT_EQ(range.begin, fetched);
      }
      EXPECT_LE(range.end, size);
      EXPECT_LE(range.end, end + ReadAhead::kLastWindowBytes);
      fetched = range.end;
    }
    EXPECT_EQ(fetched, size) << length;
  }
}

TEST(ReadAhead, TheWindowGrowsToItsBound) {
  ReadAhead ahead;
  uint64_t largest = 0, first = 0, fetched = 0;
  for (uint64_t at = 0; at < kFile; at += 128 << 10) {
    const auto range = ahead.Note(7, at, 128 << 10, kFile);
    if (range.begin == range.end) continue;
    fetched = range.end;
    if (first == 0) first = range.end - at - (128 << 10);
    largest = std::max(largest, fetched - at - (128 << 10));
  }
  EXPECT_EQ(first, ReadAhead::kFirstWindowBytes);
  EXPECT_EQ(largest, ReadAhead::kLastWindowBytes);
}

TEST(ReadAhead, ReadsAtRandomFetchNothing) {
  SCOPED_TRACE(kSeed);
  SeededRandom random(kSeed);
  ReadAhead ahead;
  for (int i = 0; i < 20'000; ++i) {
    const auto range = ahead.Note(7, random.Below(kFile / 4096) * 4096, 4096, kFile);
    EXPECT_EQ(range.begin, range.end);
  }
}

TEST(ReadAhead, BackwardsIsNotInOrder) {
  ReadAhead ahead;
  for (uint64_t at = 200; at > 0; --at) {
    const auto range = ahead.Note(7, at * 65536, 65536, kFile);
    EXPECT_EQ(range.begin, range.end);
  }
}

TEST(ReadAhead, RequestsThatOvertakeEachOtherAreStillInOrder) {
  ReadAhead ahead;
  uint64_t fetched = 0;
  for (uint64_t pair = 0; pair < 100; ++pair) {
    for (const uint64_t at : {2 * pair + 1, 2 * pair}) {
      const auto range = ahead.Note(7, at * 131072, 131072, kFile);
      if (range.begin == range.end) continue;
      if (fetched != 0) {
        EXPECT_EQ(range.begin, fetched);
      }
      fetched = range.end;
    }
  }
  EXPECT_GT(fetched, 200 * uint64_t{131072});
}

TEST(ReadAhead, ASeekBeginsAnew) {
  ReadAhead ahead;
  for (uint64_t at = 0; at < 16; ++at) ahead.Note(7, at * kMiB, kMiB, kFile);
  auto range = ahead.Note(7, 500 * kMiB, 4096, kFile);
  EXPECT_EQ(range.begin, range.end);
  range = ahead.Note(7, 500 * kMiB + 4096, 4096, kFile);
  EXPECT_EQ(range.begin, range.end);
  range = ahead.Note(7, 500 * kMiB + 8192, 4096, kFile);
  EXPECT_EQ(range.begin, 500 * kMiB + 12288);
  EXPECT_EQ(range.end - range.begin, ReadAhead::kFirstWindowBytes);
}

TEST(ReadAhead, AFileThatWasCutOffMeanwhileIsNotFetchedPastItsEnd) {
  ReadAhead ahead;
  for (uint64_t at = 0; at < 4; ++at) ahead.Note(7, at * 65536, 65536, kFile);
  for (uint64_t at = 4; at < 8; ++at) {
    const auto range = ahead.Note(7, at * 65536, 65536, 8 * 65536);
    EXPECT_EQ(range.begin, range.end);
  }
}

TEST(ReadAhead, FilesAreSeparate) {
  ReadAhead ahead;
  std::map<InodeNumber, uint64_t> fetched;
  for (uint64_t at = 0; at < 64; ++at) {
    for (InodeNumber ino = 1; ino <= 4; ++ino) {
      const auto range = ahead.Note(ino, at * 65536, 65536, kFile);
      if (range.begin != range.end) fetched[ino] = range.end;
    }
  }
  EXPECT_EQ(fetched.size(), 4u);
}

// One file of 64 KiB blocks in a sealed tree of a store on disk.
class ReadAheadOfAView : public testing::Test {
 protected:
  static constexpr size_t kBlocks = 150;
  static constexpr uint64_t kBlock = 65536;
  static constexpr InodeNumber kIno = 9;

  ReadAheadOfAView() {
    realm_.bytes.fill(1);
    keys_.Add(realm_, TestRealmKeys(1));
    Open();
    SeededRandom random(kSeed);
    contents_ = random.Bytes(kBlocks * kBlock);
    auto session = *store_->BeginWrite(realm_);
    std::vector<TreeUpdate> updates;
    Inode inode;
    inode.mode = S_IFREG | 0644;
    inode.size_bytes = contents_.size();
    updates.push_back({AttributesKey(kIno), Entry{inode.Encode(), {}}});
    for (size_t i = 0; i < kBlocks; ++i) {
      Segment extent;
      extent.offset = i * kBlock;
      extent.length_bytes = kBlock;
      extent.source = Segment::Source::kBlock;
      extent.block =
          *session->Put(BlockKind::kData, contents_.substr(i * kBlock, kBlock), Compression::kFast);
      updates.push_back({ExtentKey(kIno, extent.offset), EncodeExtent(extent)});
    }
    const TreeReader empty(*store_, nodes_, realm_, {});
    root_ = *MergeTree(
        empty, *session, updates, [](std::string_view, const Entry&) { return TreeCounters{}; }, 1);
    EXPECT_TRUE(session->Sync().has_value());
    session.reset();
    EXPECT_TRUE(store_->Close().has_value());
    store_.reset();
    Open();
    view_.emplace(
        TreeLayer(*store_, std::make_shared<TreeReader>(*store_, nodes_, realm_, root_), 1), 0);
    // The tree's nodes and the pack's reader are there from now on.
    Read(140 * kBlock, 4096);
    cached_before_ = store_->Stats().cache_bytes;
  }
  ~ReadAheadOfAView() override { IgnoreError(store_->Close(), "the directory goes next"); }

  void Open() {
    auto opened = LocalBlockStore::Open(
        {.fs = fs_, .dir = temp_.path(), .keys = keys_, .clock = clock_, .store = realm_});
    ASSERT_TRUE(opened.has_value());
    store_ = *std::move(opened);
  }
  void Read(uint64_t offset, size_t length) {
    std::string out(length, '\0');
    const auto got = view_->Read(kIno, offset, out);
    ASSERT_TRUE(got.has_value()) << got.error().ToString();
    EXPECT_TRUE(std::string_view(out).substr(0, *got) == contents_.substr(offset, length));
  }

  TempDir temp_;
  GatedFileSystem fs_;
  Id128 realm_;
  KeyRing keys_;
  FakeClock clock_;
  NodeCache nodes_;
  std::unique_ptr<LocalBlockStore> store_;
  std::string contents_;
  TreeRoot root_;
  std::optional<FsView> view_;
  uint64_t cached_before_ = 0;
};

TEST_F(ReadAheadOfAView, InOrderIsFetchedBeforeItIsAskedFor) {
  Read(0, kBlock);
  Read(kBlock, kBlock);
  // The first window is four blocks.
  for (int i = 0; i < 60'000 && store_->Stats().cache_bytes < cached_before_ + 6 * kBlock; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_GE(store_->Stats().cache_bytes, cached_before_ + 6 * kBlock);
  fs_.FailReads(EIO);  // whatever is read from now on is not there
  for (uint64_t i = 2; i < 6; ++i) Read(i * kBlock, kBlock);
  fs_.FailReads(0);
  for (uint64_t i = 6; i < kBlocks; ++i) Read(i * kBlock, kBlock);
}

TEST_F(ReadAheadOfAView, ReadsAtRandomReadWhatTheyAskForOnly) {
  SCOPED_TRACE(kSeed);
  SeededRandom random(kSeed);
  std::set<uint64_t> touched;
  const uint64_t before = fs_.reads();
  for (int i = 0; i < 60; ++i) {
    const uint64_t offset = random.Below(kBlocks * kBlock / 4096) * 4096;
    if (offset / kBlock != 140) touched.insert(offset / kBlock);
    Read(offset, 4096);
  }
  ASSERT_TRUE(store_->Close().has_value());  // nothing is on its way any more
  EXPECT_EQ(fs_.reads() - before, touched.size());
  EXPECT_LE(store_->Stats().cache_bytes, cached_before_ + touched.size() * (kBlock + 1000));
}

TEST_F(ReadAheadOfAView, ALargeReadIsFewReads) {
  const uint64_t before = fs_.reads();
  Read(100, 40 * kBlock);
  EXPECT_LE(fs_.reads() - before, 15u);  // 41 blocks, 256 KiB a read
}

TEST_F(ReadAheadOfAView, PartsReadTogetherAreFewReadsAndLeaveNothingInTheCache) {
  std::vector<FileRead> parts;
  for (uint64_t i = 0; i < 40; ++i) {
    parts.push_back({.ino = kIno,
                     .file_bytes = contents_.size(),
                     .offset = i * kBlock + 100,
                     .length_bytes = 1000 + i,
                     .data = {}});
  }
  std::string out(40 * 1000 + 39 * 40 / 2, '\0');
  const uint64_t before = fs_.reads();
  ASSERT_TRUE(ReadTogether(*view_, parts, out).has_value());
  EXPECT_LE(fs_.reads() - before, 15u);
  EXPECT_EQ(store_->Stats().cache_bytes, cached_before_);
  size_t at = 0;
  for (const FileRead& part : parts) {
    EXPECT_TRUE(std::string_view(out).substr(at, part.length_bytes) ==
                std::string_view(contents_).substr(part.offset, part.length_bytes));
    ASSERT_EQ(part.data.size(), 1u);
    EXPECT_EQ(part.data[0].begin, part.offset);
    EXPECT_EQ(part.data[0].end, part.offset + part.length_bytes);
    at += part.length_bytes;
  }
}

TEST_F(ReadAheadOfAView, AFailedBlockFailsTheReadsThatNeedIt) {
  fs_.FailReads(EIO);
  std::string out(4 * kBlock, '\0');
  EXPECT_EQ(view_->Read(kIno, 0, out).error().sys_errno(), EIO);
  fs_.FailReads(0);
  Read(0, 4 * kBlock);
}

}  // namespace
}  // namespace cairn
