// A volume over a staged head: what is written reads back before, while and after it is put, and
// what is published is what a journaled volume with the same writes would have sealed.
#include "volume/staged_head.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "store/base/random.h"
#include "tests/volume/volume_world.h"
#include "volume/sealer.h"

namespace cairn {
namespace {

class StagedHeadTest : public testing::Test {
 protected:
  // Small batches and slices: every edge is met often.
  void Stage(uint64_t batch_bytes = 64 << 10, uint64_t slice_records = 50) {
    StagedHeadOptions options;
    options.realm = world_.options.head.realm;
    options.generation = 1;
    options.base = TreeLayer(
        world_.store,
        std::make_shared<TreeReader>(world_.store, world_.cache, options.realm, TreeRoot{}), 0);
    options.batch_bytes = batch_bytes;
    options.slice_records = slice_records;
    auto head = StagedHead::Create(
        world_.store, options,
        [this](const Layer& slice, WriteSession& session,
               const HeadState& state) -> Result<std::shared_ptr<const TreeReader>> {
          ++slices_;
          if (fail_publish_) return Err(ErrorCode::kInternal, "publish refused");
          SealOptions seal;
          seal.volume = world_.options.head.volume;
          seal.realm = world_.options.head.realm;
          seal.hash_seed = world_.options.hash_seed;
          seal.next_ino = state.next_ino;
          seal.epoch = slice.generation();
          seal.compression = Compression::kFast;
          auto sealed = CAIRN_TRY(SealLayer(world_.store, world_.cache, session, slice, seal));
          published_ = sealed.tree;
          data_bytes_ += sealed.data_bytes;
          return sealed.tree;
        },
        [this]() -> Status {
          if (stopped_) return Err(ErrorCode::kUnavailable, "stopped");
          return {};
        });
    head_ = head.get();
    auto volume = Volume::OpenOn(std::move(head), world_.clock, world_.options);
    ASSERT_TRUE(volume) << volume.error().ToString();
    world_.volume = *std::move(volume);
  }
  FsView Published() {
    return FsView(TreeLayer(world_.store, published_, slices_), world_.options.hash_seed);
  }
  std::string InPublished(InodeNumber ino) {
    const FsView view = Published();
    const auto inode = view.GetInode(ino);
    if (!inode) return "(" + inode.error().ToString() + ")";
    std::string data(inode->size_bytes, '?');
    const auto got = view.Read(ino, 0, data);
    return got && *got == data.size() ? data : "(not read)";
  }

  VolumeWorld world_;
  StagedHead* head_ = nullptr;
  int slices_ = 0;
  uint64_t data_bytes_ = 0;
  std::shared_ptr<const TreeReader> published_;
  bool fail_publish_ = false;
  bool stopped_ = false;
};

std::string Noise(uint64_t seed, size_t bytes) {
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>((seed = seed * 6364136223846793005u + 1) >> 56);
  return out;
}

class StagedHeadSeeds : public StagedHeadTest, public testing::WithParamInterface<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Random, StagedHeadSeeds, testing::Values(1, 2, 3));

TEST_P(StagedHeadSeeds, WritesReadBackBeforeAndAfterTheirSlice) {
  SeededRandom random(GetParam());
  const auto next = [&](uint64_t below) { return random.Below(below); };
  Stage();
  std::map<InodeNumber, std::string> model;
  std::vector<InodeNumber> files;
  for (int step = 0; step < 2000; ++step) {
    if (files.size() < 20 && next(10) == 0) {
      files.push_back(world_.File(kRootInode, "f" + std::to_string(files.size())));
      model[files.back()];
    }
    if (files.empty()) continue;
    const InodeNumber ino = files[next(files.size())];
    std::string& expected = model[ino];
    switch (next(5)) {
      case 0: {  // a cut, or growth by a hole
        SetAttributes size;
        size.size_bytes = next(300000);
        ASSERT_TRUE(world_.volume->SetAttr(world_.ctx, ino, size));
        expected.resize(*size.size_bytes, '\0');
        break;
      }
      case 1:
        ASSERT_EQ(world_.Contents(ino), expected) << "step " << step;
        break;
      default: {
        const uint64_t offset = next(2) == 0 ? next(200000) : next(40) * 4096;
        std::string data = random.Bytes(1 + next(next(2) == 0 ? 3000 : 150000));
        if (next(3) == 0) std::fill(data.begin(), data.begin() + data.size() / 2, '\0');
        ASSERT_TRUE(world_.volume->Write(world_.ctx, ino, offset, data, false));
        if (expected.size() < offset + data.size()) expected.resize(offset + data.size(), '\0');
        expected.replace(offset, data.size(), data);
      }
    }
  }
  for (const auto& [ino, expected] : model) EXPECT_EQ(world_.Contents(ino), expected);
  ASSERT_TRUE(head_->Finish());
  EXPECT_GT(slices_, 10);
  for (const auto& [ino, expected] : model) {
    EXPECT_EQ(InPublished(ino), expected) << ino;
    EXPECT_EQ(world_.Contents(ino), expected) << ino;
  }
  EXPECT_EQ(world_.store.live_sessions(), 0u);
}

TEST_F(StagedHeadTest, DataIsPutOnceAndNeverReadAgain) {
  Stage(/*batch_bytes=*/1 << 20, /*slice_records=*/1'000'000);
  const std::string data = Noise(5, 3 << 20);
  const InodeNumber file = world_.File(kRootInode, "f", data);
  ASSERT_TRUE(head_->Finish());
  EXPECT_EQ(data_bytes_, 0u);                 // the sealer read nothing
  EXPECT_EQ(world_.store.dedup_count(), 0u);  // and put no data again
  EXPECT_GE(world_.store.put_count(), (3u << 20) / kStagedBlockBytes);
  EXPECT_LE(world_.store.put_count(), (3u << 20) / kStagedBlockBytes + 4);  // nodes and the root
  EXPECT_EQ(InPublished(file), data);
}

TEST_F(StagedHeadTest, WindowsThatShareABlockHaveExtentsOfTheirOwn) {
  Stage();
  std::string data = Noise(7, kStagedBlockBytes + kGridBytes + 1000);
  // From the middle of the second window to that of the third.
  std::fill(data.begin() + 3 * kGridBytes / 2, data.begin() + 5 * kGridBytes / 2, '\0');
  const InodeNumber file = world_.File(kRootInode, "f", data);
  ASSERT_TRUE(head_->Finish());
  EXPECT_EQ(InPublished(file), data);
  const auto extents = *TreeLayer(world_.store, published_, slices_)->Extents(file, 0, data.size());
  struct Piece {
    uint64_t offset, length_bytes, source_offset;
    bool operator==(const Piece&) const = default;
  };
  std::vector<Piece> pieces;
  for (const Segment& extent : extents) {
    if (extent.source == Segment::Source::kHole) continue;
    const bool first = extent.offset < kStagedBlockBytes;
    EXPECT_EQ(extent.block == extents[0].block, first);
    EXPECT_EQ(extent.block.raw_length_bytes, first ? 3 * kGridBytes : kGridBytes + 1000);
    pieces.push_back({extent.offset, extent.length_bytes, extent.source_offset});
  }
  const uint64_t grid = kGridBytes;
  EXPECT_EQ(pieces, (std::vector<Piece>{{0, grid, 0},
                                        {grid, grid / 2, grid},
                                        {5 * grid / 2, grid / 2, 3 * grid / 2},
                                        {3 * grid, grid, 2 * grid},
                                        {4 * grid, grid, 0},
                                        {5 * grid, 1000, grid}}));
}

TEST_F(StagedHeadTest, TheBlockOfASmallFileIsThatOfAJournaledVolume) {
  std::string data = Noise(6, 60000);
  std::fill(data.begin() + 8192, data.begin() + 20000, '\0');  // pages of zeros inside
  ASSERT_TRUE(world_.Open());
  const InodeNumber journaled = world_.File(kRootInode, "f", data);
  ASSERT_TRUE(world_.volume->Freeze());
  ASSERT_TRUE(world_.SealOldest());
  const BlockRef block =
      world_.volume->View().layer()->Extents(journaled, 0, data.size())->front().block;
  world_.Close();
  Stage();
  const InodeNumber file = world_.File(kRootInode, "f", data);
  ASSERT_TRUE(head_->Finish());
  EXPECT_EQ(InPublished(file), data);
  EXPECT_EQ(block.raw_length_bytes, data.size() - 8192);  // two whole pages of zeros
  EXPECT_EQ(
      TreeLayer(world_.store, published_, slices_)->Extents(file, 0, data.size())->front().block,
      block);
}

TEST_F(StagedHeadTest, ARefusedPutFailsTheHeadForGoodAndPublishesNothing) {
  Stage(/*batch_bytes=*/64 << 10, /*slice_records=*/1'000'000);
  const InodeNumber file = world_.File(kRootInode, "f");
  world_.store.FailPuts(true);
  Status written;
  for (int i = 0; i < 10 && written; ++i) {
    const auto done = world_.volume->Write(world_.ctx, file, i << 17, Noise(i, 1 << 17), false);
    if (!done) written = std::unexpected(done.error());
  }
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kExhausted);
  world_.store.FailPuts(false);
  EXPECT_TRUE(head_->failed());
  const Status finished = head_->Finish();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().code(), ErrorCode::kExhausted);
  EXPECT_EQ(slices_, 0);
}

TEST_F(StagedHeadTest, AFailedPublicationEndsIt) {
  Stage(64 << 10, /*slice_records=*/5);
  fail_publish_ = true;
  bool refused = false;
  for (int i = 0; i < 10 && !refused; ++i) {
    const auto made =
        world_.volume->MakeNode(world_.ctx, kRootInode, "n" + std::to_string(i), S_IFREG | 0644, 0);
    if (!made) {
      EXPECT_EQ(made.error().code(), ErrorCode::kInternal);
      refused = true;
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_EQ(slices_, 1);
  fail_publish_ = false;
  EXPECT_FALSE(head_->Finish());
  EXPECT_EQ(slices_, 1);
}

TEST_F(StagedHeadTest, WhoStopsItIsAskedBeforeEachBatch) {
  Stage(64 << 10, 1'000'000);
  const InodeNumber file = world_.File(kRootInode, "f");
  stopped_ = true;
  const auto written = world_.volume->Write(world_.ctx, file, 0, Noise(1, 1 << 18), false);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable);
}

TEST_F(StagedHeadTest, FreezesOnlyBySlices) {
  Stage();
  EXPECT_EQ(world_.volume->Freeze().error().code(), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cairn
