// Pack files by themselves: layout, torn tails, and a flipped bit in each part of one.
#include <gtest/gtest.h>
#include <xxhash.h>
#include <zstd.h>

#include <map>
#include <optional>
#include <thread>

#include "store/base/hex.h"
#include "store/block_codec.h"
#include "store/pack_reader.h"
#include "store/pack_verifier.h"
#include "store/pack_writer.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/store_world.h"

namespace cairn {
namespace {

class PackTest : public testing::Test {
 protected:
  PackTest() {
    realm_.bytes.fill(0xaa);
    pack_.bytes.fill(0x11);
    keys_.Add(realm_, TestRealmKeys(1));
    path_ = temp_ / PackFileName(pack_);
  }

  std::unique_ptr<PackWriter> Create() {
    auto writer = PackWriter::Create(
        HostFileSystem(), keys_,
        {.dir = temp_.path(), .pack = pack_, .realm = realm_, .epoch = 3, .created_ms = 1234});
    EXPECT_TRUE(writer.has_value()) << writer.error().ToString();
    return *std::move(writer);
  }
  // The frame's bytes are in `room` or `plain`.
  PackWriter::Frame FrameOf(const std::string& plain, std::string& room) {
    room.resize(plain.size());
    const EncodedBlock encoded = EncodeBlock(plain, Compression::kFast, room);
    return {.address = *keys_.AddressOf(realm_, BlockKind::kData, plain),
            .kind = BlockKind::kData,
            .codec = encoded.codec,
            .raw_length = static_cast<uint32_t>(plain.size()),
            .bytes = encoded.bytes};
  }
  PackEntry Append(PackWriter& writer, const std::string& plain) {
    std::string encoded;
    const PackWriter::Frame frame = FrameOf(plain, encoded);
    auto places = writer.Reserve({&frame, 1}, kMaxPackBytes);
    EXPECT_TRUE(places.has_value());
    const PackEntry entry = places->entries().front();
    std::string room(frame.FrameBytes(), '\0');
    EXPECT_TRUE(writer.Write(*std::move(places), {&frame, 1}, room).has_value());
    return entry;
  }
  // A pack of `count` blocks; returns them by address.
  std::map<Address, std::pair<PackEntry, std::string>> Write(int count, bool seal) {
    auto writer = Create();
    SeededRandom random(42);
    std::map<Address, std::pair<PackEntry, std::string>> blocks;
    for (int i = 0; i < count; ++i) {
      const std::string plain =
          i % 2 == 0 ? random.Bytes(100 + 37 * i) : std::string(500, static_cast<char>('a' + i));
      const PackEntry entry = Append(*writer, plain);
      blocks[entry.address] = {entry, plain};
    }
    EXPECT_TRUE(writer->Sync(writer->WrittenEnd()).has_value());
    if (seal) {
      EXPECT_TRUE(writer->Finish().has_value());
    }
    return blocks;
  }
  std::unique_ptr<PackReader> OpenReader() {
    auto reader = PackReader::Open(HostFileSystem(), path_, pack_);
    if (!reader) return nullptr;
    EXPECT_TRUE((*reader)->Unlock(keys_).has_value());
    return *std::move(reader);
  }

  // What a verification of the pack, in steps of `budget_bytes`, says.
  std::vector<std::string> Faults(uint64_t budget_bytes = UINT64_MAX, uint64_t from_offset = 0) {
    std::vector<std::string> faults;
    auto verifier = PackVerifier::Open(
        {.fs = HostFileSystem(),
         .keys = keys_,
         .path = path_,
         .pack = pack_,
         .realm = realm_,
         .from_offset = from_offset,
         .good = [](const PackEntry&) {},
         .fault = [&](const PackVerifier::Fault& fault) { faults.push_back(fault.what); }});
    EXPECT_TRUE(verifier.has_value());
    while (true) {
      const auto step = (*verifier)->Next(budget_bytes);
      EXPECT_TRUE(step.has_value());
      if (!step || step->done) return faults;
    }
  }

  TempDir temp_;
  KeyRing keys_;
  Id128 realm_, pack_;
  std::string path_;
};

TEST_F(PackTest, SealedPackListsAndReadsItsBlocks) {
  const auto blocks = Write(9, true);
  const auto reader = OpenReader();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->header().epoch, 3u);
  EXPECT_EQ(reader->header().created_ms, 1234);
  const auto footer = reader->ReadFooter();
  ASSERT_TRUE(footer.has_value() && footer->has_value());
  ASSERT_EQ((*footer)->entries.size(), blocks.size());
  EXPECT_EQ(Faults(), std::vector<std::string>());
  for (const PackEntry& entry : (*footer)->entries) {
    const auto& [expected, plain] = blocks.at(entry.address);
    EXPECT_EQ(entry, expected);
    EXPECT_EQ(*DecodeBlock(entry.codec, *reader->ReadFrame(entry), entry.raw_length), plain);
  }
  const auto scan = reader->Scan((*footer)->frames_end);
  ASSERT_TRUE(scan.has_value());
  EXPECT_EQ(scan->entries.size(), blocks.size());
  EXPECT_EQ(scan->torn_bytes, 0u);
}

TEST_F(PackTest, EqualPlaintextIsEncryptedDifferentlyInEachFrame) {
  auto writer = Create();
  const std::string plain = SeededRandom(1).Bytes(256);
  const PackEntry a = Append(*writer, plain);
  const PackEntry b = Append(*writer, plain);
  const std::string bytes = ReadHostFile(path_);
  EXPECT_NE(bytes.substr(a.offset + kFrameHeaderBytes, 256),
            bytes.substr(b.offset + kFrameHeaderBytes, 256));
}

// The walk of a footerless pack cut at every length finds exactly the frames that are whole.
TEST_F(PackTest, TornTailAtEveryLengthKeepsTheWholeFrames) {
  const auto blocks = Write(4, false);
  const std::string bytes = ReadHostFile(path_);
  for (size_t length = kPackHeaderBytes; length <= bytes.size(); length += 3) {
    WriteHostFile(path_, std::string_view(bytes).substr(0, length));
    size_t whole = 0;
    for (const auto& [address, block] : blocks) whole += block.first.EndOffset() <= length;
    const auto scan = OpenReader()->Scan(std::nullopt);
    ASSERT_TRUE(scan.has_value());
    EXPECT_EQ(scan->entries.size(), whole) << length;
    EXPECT_TRUE(scan->holes.empty());
    EXPECT_EQ(scan->frames_end + scan->torn_bytes, length);
  }
}

TEST_F(PackTest, TruncatedHeaderIsDataLoss) {
  Write(1, false);
  const std::string bytes = ReadHostFile(path_);
  for (size_t length = 0; length < kPackHeaderBytes; length += 7) {
    WriteHostFile(path_, std::string_view(bytes).substr(0, length));
    EXPECT_EQ(PackReader::Open(HostFileSystem(), path_, pack_).error().code(),
              ErrorCode::kDataLoss);
  }
}

// Every bit of a sealed pack is covered: some verification names a flip of it, no read gives wrong
// bytes, and at most one block is lost by it.
TEST_F(PackTest, EveryFlippedByteIsFoundAndHurtsAtMostOneBlock) {
  const auto blocks = Write(3, true);
  const std::string good = ReadHostFile(path_);
  SeededRandom random(7);
  for (size_t at = 0; at < good.size(); ++at) {
    const int bit = static_cast<int>(random.Below(8));
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
    WriteHostFile(path_, bad);
    const auto reader = OpenReader();
    ASSERT_NE(reader, nullptr) << "a copy of the header is in the footer; byte " << at;
    size_t lost = 0;
    bool found = reader->header_damaged();
    for (const auto& [address, block] : blocks) {
      const auto bytes = reader->ReadFrame(block.first);
      if (bytes) {
        ASSERT_EQ(*DecodeBlock(block.first.codec, *bytes, block.first.raw_length), block.second)
            << "wrong bytes, byte " << at;
      } else {
        ASSERT_EQ(bytes.error().code(), ErrorCode::kDataLoss);
        ++lost;
      }
      if (!reader->VerifyStored(block.first)) found = true;
    }
    const auto footer = reader->ReadFooter();
    if (!footer || !footer->has_value()) {
      found = true;
      EXPECT_EQ(lost, 0u);
      EXPECT_EQ(reader->Scan(std::nullopt)->entries.size(), blocks.size());
    }
    EXPECT_TRUE(found) << "byte " << at << " bit " << bit;
    EXPECT_LE(lost, 1u) << "byte " << at;
  }
}

// A pack of the same blocks in other bytes: each frame verifies, the footer does, and yet it is not
// the pack that the digest names.
TEST_F(PackTest, DigestNamesTheFramesOfThePack) {
  Write(5, true);
  EXPECT_EQ(Faults(), std::vector<std::string>());
  EXPECT_EQ(Faults(1), std::vector<std::string>()) << "in steps";
  const auto footer = **OpenReader()->ReadFooter();
  for (const PackEntry& entry : footer.entries) {
    EXPECT_EQ(Faults(1, entry.offset), std::vector<std::string>()) << "from the middle";
  }
  const std::string good = ReadHostFile(path_);
  for (const PackEntry& entry : footer.entries) {
    // The stored bytes changed, with checksums to match: only tag and digest can tell.
    std::string bad = good;
    bad[entry.offset + kFrameHeaderBytes + entry.stored_length - 1] ^= 1;
    const std::string_view stored =
        std::string_view(bad).substr(entry.offset + kFrameHeaderBytes, entry.stored_length);
    bad.replace(entry.offset, kFrameHeaderBytes,
                EncodeFrameHeader(pack_, entry, XXH3_64bits(stored.data(), stored.size())));
    WriteHostFile(path_, bad);
    keys_.Remove(realm_);
    EXPECT_EQ(Faults(), std::vector<std::string>({"pack digest: does not match"}));
    EXPECT_EQ(Faults(1, footer.frames_end),
              std::vector<std::string>({"pack digest: does not match"}));
    keys_.Add(realm_, TestRealmKeys(1));
    EXPECT_EQ(Faults().size(), 1u) << "the frame's tag";
  }
}

TEST_F(PackTest, DamagedFrameOfAFooterlessPackHidesOnlyItself) {
  const auto blocks = Write(6, false);
  const std::string good = ReadHostFile(path_);
  for (const auto& [address, block] : blocks) {
    for (const uint64_t in_frame : {0u, 20u, 50u, 70u}) {
      std::string bad = good;
      bad[block.first.offset + in_frame] ^= 1;
      WriteHostFile(path_, bad);
      const auto scan = OpenReader()->Scan(std::nullopt);
      ASSERT_TRUE(scan.has_value());
      EXPECT_EQ(scan->entries.size(), blocks.size() - 1);
      for (const PackEntry& entry : scan->entries) EXPECT_NE(entry.address, address);
      EXPECT_EQ(scan->holes.size() + (scan->torn_bytes > 0 ? 1 : 0), 1u);
    }
  }
}

TEST_F(PackTest, FrameMovedToAnotherOffsetIsNotAFrame) {
  const auto blocks = Write(2, false);
  std::string bytes = ReadHostFile(path_);
  const PackEntry& first =
      std::min(blocks.begin()->second.first, blocks.rbegin()->second.first,
               [](const auto& a, const auto& b) { return a.offset < b.offset; });
  const std::string frame = bytes.substr(first.offset, first.EndOffset() - first.offset);
  WriteHostFile(path_, bytes + frame);
  const auto scan = OpenReader()->Scan(std::nullopt);
  EXPECT_EQ(scan->entries.size(), 2u);
  EXPECT_EQ(scan->torn_bytes, frame.size());
}

TEST_F(PackTest, PackOfAnotherNameOrOtherKeysDoesNotOpen) {
  Write(1, true);
  Id128 other;
  other.bytes.fill(0x22);
  const auto opened = PackReader::Open(HostFileSystem(), path_, other);
  EXPECT_EQ(opened.error().code(), ErrorCode::kDataLoss);
  KeyRing wrong;
  wrong.Add(realm_, TestRealmKeys(9));
  auto reader = *PackReader::Open(HostFileSystem(), path_, pack_);
  EXPECT_EQ(reader->Unlock(wrong).error().code(), ErrorCode::kDataLoss);
  KeyRing none;
  EXPECT_EQ(reader->Unlock(none).error().code(), ErrorCode::kNotFound);
}

TEST_F(PackTest, NewerFormatIsRefusedAsNewerNotAsDamaged) {
  Write(1, false);
  std::string bytes = ReadHostFile(path_);
  bytes[10] = 2;
  const uint64_t sum = XXH3_64bits(bytes.data(), kPackHeaderBytes - 8);
  std::memcpy(bytes.data() + kPackHeaderBytes - 8, &sum, sizeof sum);
  WriteHostFile(path_, bytes);
  EXPECT_EQ(PackReader::Open(HostFileSystem(), path_, pack_).error().code(),
            ErrorCode::kFailedPrecondition);
}

TEST_F(PackTest, ClosedWriterTakesNoMoreBlocks) {
  auto writer = Create();
  Append(*writer, "one");
  ASSERT_TRUE(writer->Finish().has_value());
  const PackWriter::Frame frame{.address = {}, .raw_length = 1, .bytes = "x"};
  EXPECT_EQ(writer->Reserve({&frame, 1}, kMaxPackBytes).error().code(),
            ErrorCode::kFailedPrecondition);
}

TEST_F(PackTest, ConcurrentSyncsShareFdatasyncs) {
  FaultyFileSystem fs(temp_ / "scratch");
  auto writer = *PackWriter::Create(
      fs, keys_,
      {.dir = temp_.path(), .pack = pack_, .realm = realm_, .epoch = 1, .created_ms = 1});
  const uint64_t before = fs.calls(FaultyFileSystem::Call::kSync);
  Append(*writer, "one");
  const PackEntry two = Append(*writer, "two");
  ASSERT_TRUE(writer->Sync(two.EndOffset()).has_value());
  ASSERT_TRUE(writer->Sync(two.EndOffset()).has_value());
  ASSERT_TRUE(writer->Sync(two.offset).has_value());
  EXPECT_EQ(fs.calls(FaultyFileSystem::Call::kSync), before + 1);
}

// Reserves places for `plains` and writes those that `write` says, in its order.
class ParallelWritesTest : public PackTest {
 protected:
  ParallelWritesTest() : writer_(Create()) {
    for (int i = 0; i < 4; ++i) {
      plains_[i] = SeededRandom(i).Bytes(300 + 50 * i);
      frames_[i] = FrameOf(plains_[i], rooms_[i]);
      places_[i].emplace(*writer_->Reserve({&frames_[i], 1}, kMaxPackBytes));
      entries_[i] = places_[i]->entries().front();
    }
  }
  void WriteOne(int i) {
    std::string room(frames_[i].FrameBytes(), 'r');
    EXPECT_TRUE(writer_->Write(*std::move(places_[i]), {&frames_[i], 1}, room).has_value());
  }
  void Fail(int i) { places_[i].reset(); }

  const std::unique_ptr<PackWriter> writer_;
  std::string plains_[4], rooms_[4];
  PackWriter::Frame frames_[4];
  std::optional<PackWriter::Reservation> places_[4];
  PackEntry entries_[4];
};

TEST_F(ParallelWritesTest, WhatIsAboveAHoleIsNotWrittenYet) {
  WriteOne(1);
  WriteOne(3);
  EXPECT_EQ(writer_->WrittenEnd(), kPackHeaderBytes);
  EXPECT_TRUE(writer_->Entries().empty());
  WriteOne(0);
  EXPECT_EQ(writer_->WrittenEnd(), entries_[1].EndOffset());
  EXPECT_TRUE(writer_->WaitWritten(entries_[1].EndOffset()));
  EXPECT_EQ(writer_->Entries().size(), 2u);
  std::thread waiter([&] { EXPECT_TRUE(writer_->WaitWritten(entries_[3].EndOffset())); });
  WriteOne(2);
  waiter.join();
  EXPECT_TRUE(writer_->Finish().has_value());
  const auto footer = OpenReader()->ReadFooter();
  EXPECT_EQ((*footer)->entries.size(), 4u);
}

TEST_F(ParallelWritesTest, FailedWriteTakesAlongWhatIsAboveAndNothingBelow) {
  WriteOne(0);
  WriteOne(3);
  Fail(2);
  EXPECT_TRUE(writer_->IsLost(entries_[2].EndOffset()));
  EXPECT_FALSE(writer_->WaitWritten(entries_[3].EndOffset())) << "although it was written";
  EXPECT_EQ(writer_->Reserve({&frames_[0], 1}, kMaxPackBytes).error().code(),
            ErrorCode::kFailedPrecondition);
  std::thread finisher([&] { EXPECT_TRUE(writer_->Finish().has_value()); });
  WriteOne(1);  // Finish waits for it
  finisher.join();
  EXPECT_TRUE(writer_->WaitWritten(entries_[1].EndOffset()));
  const auto reader = OpenReader();
  const auto footer = reader->ReadFooter();
  ASSERT_TRUE(footer.has_value() && footer->has_value());
  ASSERT_EQ((*footer)->entries.size(), 2u);
  EXPECT_EQ((*footer)->frames_end, entries_[1].EndOffset());
  EXPECT_EQ(Faults(), std::vector<std::string>());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(*reader->ReadFrame(entries_[i]), plains_[i]);
}

TEST_F(ParallelWritesTest, AbandonWaitsForWritesAndCutsToWhatIsDurable) {
  WriteOne(0);
  ASSERT_TRUE(writer_->Sync(entries_[0].EndOffset()).has_value());
  WriteOne(2);
  std::vector<PackEntry> kept;
  std::thread abandoner([&] { kept = writer_->Abandon(); });
  while (!writer_->IsLost(entries_[1].EndOffset())) std::this_thread::yield();
  WriteOne(1);
  WriteOne(3);
  abandoner.join();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0], entries_[0]);
  EXPECT_EQ(ReadHostFile(path_).size(), entries_[0].EndOffset()) << "no late write made it longer";
  EXPECT_FALSE(writer_->WaitWritten(entries_[1].EndOffset()));
  EXPECT_EQ(writer_->Sync(entries_[1].EndOffset()).error().code(), ErrorCode::kUnavailable);
}

// A kill between parallel writes: the hole hides only what was to be in it.
TEST_F(ParallelWritesTest, HoleOfARunningWriteIsSkippedByAScan) {
  WriteOne(0);
  WriteOne(2);
  const auto scan = OpenReader()->Scan(std::nullopt);
  ASSERT_TRUE(scan.has_value());
  ASSERT_EQ(scan->entries.size(), 2u);
  EXPECT_EQ(scan->entries[0], entries_[0]);
  EXPECT_EQ(scan->entries[1], entries_[2]);
  EXPECT_EQ(scan->torn_bytes, 0u);
}

TEST(BlockCodec, StoresRawWhenLittleIsGained) {
  const std::string noise = SeededRandom(3).Bytes(65536);
  std::string room(65536, '\0');
  const EncodedBlock raw = EncodeBlock(noise, Compression::kFast, room);
  EXPECT_EQ(raw.codec, Codec::kRaw);
  EXPECT_EQ(raw.bytes.data(), noise.data()) << "not copied";
  // 4 % compressible: not worth it. 30 %: worth it.
  const std::string little = noise.substr(0, 62900) + std::string(2636, 'a');
  EXPECT_EQ(EncodeBlock(little, Compression::kBackground, room).codec, Codec::kRaw);
  const std::string worth = noise.substr(0, 45000) + std::string(20536, 'a');
  const EncodedBlock encoded = EncodeBlock(worth, Compression::kFast, room);
  EXPECT_EQ(encoded.codec, Codec::kZstd);
  EXPECT_EQ(*DecodeBlock(Codec::kZstd, std::string(encoded.bytes), 65536), worth);
}

TEST(BlockCodec, OnlyLargeBlocksOfASealTakeALowerLevel) {
  SeededRandom random(4);
  std::string text;
  while (text.size() < 256 << 10) text += "word" + std::to_string(random.Below(3000)) + " ";
  text.resize(256 << 10);
  const auto at_level = [](std::string_view plain, int level) {
    std::string out(plain.size(), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), level));
    return out;
  };
  std::string room(text.size(), '\0');
  for (const size_t bytes : {size_t{64} << 10, size_t{128} << 10, size_t{256} << 10}) {
    const std::string_view plain = std::string_view(text).substr(0, bytes);
    ASSERT_NE(at_level(plain, 2), at_level(plain, 3));
    const int level = bytes > 128 << 10 ? 2 : 3;
    EXPECT_EQ(EncodeBlock(plain, Compression::kBackground, room).bytes, at_level(plain, level));
    EXPECT_EQ(EncodeBlock(plain, Compression::kFast, room).bytes, at_level(plain, 1));
  }
}

TEST(BlockCodec, WrongLengthOrGarbageIsDataLoss) {
  std::string room(1000, '\0');
  const EncodedBlock encoded = EncodeBlock(std::string(1000, 'a'), Compression::kFast, room);
  ASSERT_EQ(encoded.codec, Codec::kZstd);
  const std::string bytes(encoded.bytes);
  EXPECT_FALSE(DecodeBlock(Codec::kZstd, bytes, 999).has_value());
  EXPECT_FALSE(DecodeBlock(Codec::kZstd, bytes, 1001).has_value());
  EXPECT_FALSE(DecodeBlock(Codec::kZstd, "garbage", 1000).has_value());
  EXPECT_FALSE(DecodeBlock(Codec::kRaw, "abc", 4).has_value());
}

TEST(PackFormat, HeaderHasTheDocumentedBytes) {
  PackHeader header{.pack = {},
                    .realm = {},
                    .key_id = 7,
                    .epoch = 9,
                    .created_ms = -1,
                    .wrapped_key = std::string(60, 'w')};
  header.pack.bytes.fill(0x11);
  header.realm.bytes.fill(0x22);
  const std::string bytes = EncodePackHeader(header);
  EXPECT_EQ(HexEncode(bytes.substr(0, 72)),
            "8943504b0d0a1a0a01000100a0000000"
            "11111111111111111111111111111111"
            "22222222222222222222222222222222"
            "07000000000000000900000000000000"
            "ffffffffffffffff");
  EXPECT_EQ(*DecodePackHeader(bytes), header);
}

TEST(PackFormat, FooterWithImpossibleCountAllocatesNothing) {
  PackHeader header{.pack = {}, .realm = {}, .wrapped_key = std::string(60, 'w')};
  std::string footer = EncodeFooterBeforeDigest(header, {}) + std::string(32, 'd');
  for (int i = 8; i < 16; ++i) footer[i] = static_cast<char>(0xff);
  const auto trailer = DecodeTrailer(EncodeTrailer(160, footer));
  ASSERT_TRUE(trailer.has_value());
  EXPECT_EQ(DecodeFooter(*trailer, footer).error().code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace cairn
