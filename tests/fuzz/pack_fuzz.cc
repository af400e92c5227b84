// Fuzz target: one pack file, as recovery, reads and scrub meet it. Input: repairs (pack_repair.h),
// options, then the file with plaintext in place of ciphertext.
//
// Asserted besides the absence of crashes: refusals are of the contract's codes; header and footer
// encode to what they were decoded from; what a scan calls frames lies in the file, apart, in order
// and verifies; holes and torn bytes account for the rest; the verifier ends, finds every frame
// that the scan finds, and a sealed pack that it calls good reads whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "store/base/log.h"
#include "store/block_codec.h"
#include "store/pack_reader.h"
#include "store/pack_set.h"
#include "store/pack_verifier.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/pack_repair.h"
#include "tests/volume/sim_disk.h"

namespace cairn {
namespace {

constexpr char kPath[] = "packs/pack";
enum Option : uint8_t { kNotSealed = 1, kNoKeys = 2, kOtherPack = 4, kBoundedScan = 8 };

// True when frame, codec and length are right.
bool ReadsWhole(const PackReader& reader, const PackEntry& entry) {
  auto coded = reader.ReadFrame(entry);
  if (!coded) {
    ExpectRefusal(coded.error());
    return false;
  }
  CAIRN_CHECK(coded->size() + kAeadTagBytes == entry.stored_length);
  // Only its own length decodes it.
  CAIRN_CHECK(!DecodeBlock(entry.codec, *coded, entry.raw_length) ||
              !DecodeBlock(entry.codec, *coded, entry.raw_length + 1));
  const auto plain = DecodeBlock(entry.codec, *std::move(coded), entry.raw_length);
  if (!plain) {
    ExpectRefusal(plain.error());
    return false;
  }
  CAIRN_CHECK(plain->size() == entry.raw_length);
  return true;
}

void CheckScan(const PackReader& reader, const PackScan& scan, uint64_t end,
               std::string_view file) {
  uint64_t at = kPackHeaderBytes;
  uint64_t hole_bytes = 0;
  uint64_t frame_bytes = 0;
  for (const PackEntry& entry : scan.entries) {
    CAIRN_CHECK(entry.offset >= at && entry.EndOffset() <= end);
    CAIRN_CHECK(reader.VerifyStored(entry).has_value());
    const uint64_t padding = entry.offset + kFrameHeaderBytes + entry.stored_length;
    CAIRN_CHECK(file.substr(padding, entry.EndOffset() - padding).find_first_not_of('\0') ==
                std::string_view::npos);
    frame_bytes += entry.EndOffset() - entry.offset;
    at = entry.EndOffset();
  }
  CAIRN_CHECK(scan.frames_end == at);
  for (const PackScan::Hole& hole : scan.holes) {
    CAIRN_CHECK(hole.length_bytes > 0 && hole.offset + hole.length_bytes <= at);
    hole_bytes += hole.length_bytes;
  }
  if (end > kPackHeaderBytes) {
    CAIRN_CHECK(hole_bytes + frame_bytes + scan.torn_bytes == end - kPackHeaderBytes);
  }
}

void CheckFooter(const PackReader& reader, const PackFooter& footer) {
  const uint64_t end = reader.file_bytes() - kPackTrailerBytes - footer.sha256.size();
  CAIRN_CHECK(footer.frames_end < end);
  const auto again = EncodeFooterBeforeDigest(footer.header, footer.entries) + footer.sha256;
  const auto trailer = DecodeTrailer(EncodeTrailer(footer.frames_end, again));
  CAIRN_CHECK(trailer.has_value());
  const auto decoded = DecodeFooter(*trailer, again);
  CAIRN_CHECK(decoded.has_value() && decoded->header == footer.header &&
              decoded->entries == footer.entries && decoded->sha256 == footer.sha256);
}

struct Verdict {
  uint64_t good = 0;
  uint64_t faults = 0;
  bool walked = false;
  std::set<uint64_t> found;
};

Verdict Verify(FileSystem& fs, const KeyRing& keys, uint8_t options, uint64_t file_bytes,
               uint64_t from_offset) {
  Verdict verdict;
  auto verifier = PackVerifier::Open({.fs = fs,
                                      .keys = keys,
                                      .path = kPath,
                                      .pack = Known().pack,
                                      .realm = Known().realm,
                                      .sealed = (options & kNotSealed) == 0,
                                      .from_offset = from_offset,
                                      .good = [&](const PackEntry&) { ++verdict.good; },
                                      .fault = [&](const auto&) { ++verdict.faults; }});
  if (!verifier) {
    ExpectRefusal(verifier.error());
    ++verdict.faults;
    return verdict;
  }
  for (uint64_t steps = 0;; ++steps) {
    CAIRN_CHECK(steps <= 4 * file_bytes + 16);
    const auto step = (*verifier)->Next(4096);
    CAIRN_CHECK(step.has_value());  // the disk has no faults of its own
    if (step->done) break;
  }
  verdict.walked = (*verifier)->walked();
  verdict.found.insert((*verifier)->found().begin(), (*verifier)->found().end());
  return verdict;
}

void Run(uint8_t repair, uint8_t options, std::string file) {
  RepairPack(repair, file);
  const uint64_t file_bytes = file.size();
  SimDisk disk;
  disk.Install(kPath, file);
  static const KeyRing none;
  const KeyRing& keys = (options & kNoKeys) != 0 ? none : Known().ring;
  const Verdict verdict = Verify(disk, keys, options, file_bytes, 0);

  Id128 pack = Known().pack;
  if ((options & kOtherPack) != 0) pack.bytes[15] ^= 1;
  const auto opened = PackReader::Open(disk, kPath, pack);
  if (!opened) return ExpectRefusal(opened.error());
  PackReader& reader = **opened;
  CAIRN_CHECK(*DecodePackHeader(EncodePackHeader(reader.header())) == reader.header());

  const auto unlocked = reader.Unlock(keys);
  if (!unlocked) ExpectRefusal(unlocked.error(), {ErrorCode::kNotFound});

  std::optional<uint64_t> end;
  if ((options & kBoundedScan) != 0) end = file_bytes / 2;
  const auto scan = reader.Scan(end);
  CAIRN_CHECK(scan.has_value());
  CheckScan(reader, *scan, end.value_or(file_bytes), file);
  if (unlocked) {
    for (const PackEntry& entry : scan->entries) ReadsWhole(reader, entry);
  }
  if (verdict.walked && !end) {
    for (const PackEntry& entry : scan->entries) CAIRN_CHECK(verdict.found.contains(entry.offset));
  }

  const auto footer = reader.ReadFooter();
  if (!footer) ExpectRefusal(footer.error());
  if (footer && footer->has_value()) {
    CheckFooter(reader, **footer);
    const bool good = verdict.faults == 0 && reader.header().realm == Known().realm;
    if (good) {
      // Its frames follow one on the other.
      CAIRN_CHECK(verdict.good == (*footer)->entries.size());
      uint64_t end_of_frames = kPackHeaderBytes;
      for (const PackEntry& entry : (*footer)->entries) {
        end_of_frames += PackEntry::FrameBytes(entry.stored_length);
      }
      CAIRN_CHECK(end_of_frames == (*footer)->frames_end);
    }
    size_t unreadable = 0;
    if (unlocked) {
      for (const PackEntry& entry : (*footer)->entries) {
        unreadable += ReadsWhole(reader, entry) ? 0 : 1;
      }
    }
    if (good) CAIRN_CHECK(unreadable == 0);
    // Resumed behind its first frame.
    uint64_t from = 0;
    for (const PackEntry& entry : (*footer)->entries) {
      if (from == 0 || entry.EndOffset() < from) from = entry.EndOffset();
    }
    const Verdict rest = Verify(disk, keys, options, file_bytes, from);
    CAIRN_CHECK(rest.good <= verdict.good);
    if (verdict.faults == 0) CAIRN_CHECK(rest.faults == 0);
  }
  const auto listing = ListPack(reader);
  if (!listing) return ExpectRefusal(listing.error());
  CAIRN_CHECK(listing->sealed == (footer && footer->has_value()));
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  cairn::SetLogLevel(cairn::LogLevel::kError);
  cairn::Run(data[0], data[1], std::string(reinterpret_cast<const char*>(data) + 2, size - 2));
  return 0;
}
