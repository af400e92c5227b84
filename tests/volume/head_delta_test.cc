// Ranges of a delta against an array of bytes.
#include <gtest/gtest.h>

#include <iostream>

#include "store/base/random.h"
#include "volume/delta.h"

namespace cairn {
namespace {

// Byte b of file offset o comes from payload p at source offset s: what the array records.
struct Origin {
  const UnsealedPayload* payload = nullptr;
  uint64_t source_offset = 0;
  bool covered = false;
  bool operator==(const Origin&) const = default;
};

TEST(Delta, PiecesNeverOverlapAndTheLastWriterOfAByteOwnsIt) {
  constexpr uint64_t kBytes = 200;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    SeededRandom random(seed);
    Delta delta;
    std::vector<Origin> model(kBytes);
    for (int step = 0; step < 40; step++) {
      const uint64_t begin = random.Below(kBytes);
      const uint64_t end = begin + 1 + random.Below(kBytes - begin);
      std::vector<DeltaChange> changes(1);
      changes[0].kind = random.OneIn(3) ? DeltaChange::Kind::kHole : DeltaChange::Kind::kData;
      changes[0].ino = 5;
      changes[0].range = {begin, end};
      const UnsealedPayload* raw = nullptr;
      if (changes[0].kind == DeltaChange::Kind::kData) {
        auto payload = std::make_shared<UnsealedPayload>();
        raw = payload.get();
        changes[0].payload = std::move(payload);
      }
      delta.Apply(changes);
      for (uint64_t at = begin; at < end; at++) {
        model[at] = {raw, raw != nullptr ? at - begin : 0, true};
      }
      // All of it, through a random set of gaps.
      std::vector<FileRange> gaps;
      for (uint64_t at = 0; at < kBytes;) {
        const uint64_t next = std::min(kBytes, at + 1 + random.Below(60));
        gaps.push_back({at, next});
        at = next;
      }
      std::vector<Segment> segments;
      delta.Resolve(5, gaps, segments);
      std::vector<Origin> found(kBytes);
      for (const Segment& s : segments) {
        for (uint64_t i = 0; i < s.length_bytes; i++) {
          ASSERT_FALSE(found[s.offset + i].covered) << "seed " << seed;
          found[s.offset + i] = {s.payload.get(), s.payload ? s.source_offset + i : 0, true};
        }
      }
      ASSERT_EQ(found, model) << "seed " << seed << " step " << step;
      std::vector<bool> left(kBytes);
      for (const FileRange& gap : gaps) {
        for (uint64_t at = gap.begin; at < gap.end; at++) left[at] = true;
      }
      for (uint64_t at = 0; at < kBytes; at++) ASSERT_EQ(left[at], !model[at].covered);
    }
  }
}

TEST(Delta, FilesDoNotTouchEachOther) {
  Delta delta;
  for (const InodeNumber ino : {4, 5, 6}) {
    std::vector<DeltaChange> changes(1);
    changes[0].kind = DeltaChange::Kind::kHole;
    changes[0].ino = ino;
    changes[0].range = {ino == 5 ? 10u : 0u, ~uint64_t{0}};
    delta.Apply(changes);
  }
  EXPECT_EQ(delta.count(), 3u);
  std::vector<FileRange> gaps = {{0, 20}};
  std::vector<Segment> segments;
  delta.Resolve(5, gaps, segments);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].offset, 10u);
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].end, 10u);
}

}  // namespace
}  // namespace cairn
