// The log scanner on logs made here, byte by byte: what a crash leaves is torn, what it cannot
// leave is damage.
#include "catalog/log_scan.h"

#include <gtest/gtest.h>

#include <string>

#include "store/base/bytes.h"
#include "store/base/random.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 32768;
enum Type : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// crc32c bit by bit (not the scanner's table).
uint32_t Crc(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

void AppendPiece(std::string& log, Type type, std::string_view payload) {
  std::string covered(1, static_cast<char>(type));
  covered += payload;
  const uint32_t crc = Crc(covered);
  ByteWriter out(log);
  out.U32((crc >> 15 | crc << 17) + 0xa282ead8u);
  out.U16(static_cast<uint16_t>(payload.size()));
  out.Bytes(covered);
}

// As RocksDB appends a write.
void AppendWrite(std::string& log, std::string_view payload) {
  bool first = true;
  do {
    size_t left = kBlockBytes - log.size() % kBlockBytes;
    if (left < 7) {
      log.append(left, '\0');
      left = kBlockBytes;
    }
    const size_t take = std::min(payload.size(), left - 7);
    const bool last = take == payload.size();
    AppendPiece(log,
                first && last ? kFull
                : first       ? kFirst
                : last        ? kLast
                              : kMiddle,
                payload.substr(0, take));
    payload.remove_prefix(take);
    first = false;
    if (last) return;
  } while (true);
}

std::string Ciphertext(size_t size_bytes, uint64_t seed) {
  return SeededRandom(seed).Bytes(size_bytes);
}

TEST(LogScan, CrcIsCastagnolis) { EXPECT_EQ(Crc("123456789"), 0xe3069283u); }

TEST(LogScan, WholeLogsOfAllShapesAreWhole) {
  std::string log;
  EXPECT_EQ(ScanLog(log, true).end, LogScan::End::kWhole);
  for (const size_t size : {100, 40000, 1, 0, 32768 - 7, 100000, 5})
    AppendWrite(log, Ciphertext(size, size));
  EXPECT_EQ(ScanLog(log, true).end, LogScan::End::kWhole);
  EXPECT_EQ(ScanLog(log, false).end, LogScan::End::kWhole);
  EXPECT_EQ(ScanLog(log, true).sound_bytes, log.size());
}

TEST(LogScan, EveryTruncationKeepsExactlyTheWritesBeforeIt) {
  std::string log;
  std::vector<size_t> ends = {0};
  for (const size_t size : {200, 33000, 60, 70000}) {
    AppendWrite(log, Ciphertext(size, size));
    ends.push_back(log.size());
  }
  for (size_t cut = 0; cut <= log.size(); cut += cut < 600 ? 1 : 97) {
    const LogScan scan = ScanLog(std::string_view(log).substr(0, cut), true);
    const size_t sound = *(std::upper_bound(ends.begin(), ends.end(), cut) - 1);
    ASSERT_NE(scan.end, LogScan::End::kDamaged) << cut << ": " << scan.what;
    // A cut in a block's zero trailer leaves nothing torn: the trailer belongs to no write.
    if (scan.end == LogScan::End::kTorn) {
      ASSERT_EQ(scan.sound_bytes, sound) << cut;
    } else {
      ASSERT_TRUE(scan.sound_bytes == cut) << cut;
    }
    if (cut < log.size() && cut != sound && scan.end == LogScan::End::kWhole) {
      ASSERT_LT(cut - sound, 7u) << cut;
    }
  }
}

TEST(LogScan, EveryFlippedByteIsDamage) {
  std::string log;
  for (const size_t size : {300, 40000, 250}) AppendWrite(log, Ciphertext(size, size));
  SeededRandom random(7);
  for (size_t at = 0; at < log.size();
       at += at < 400 || at + 400 > log.size() ? 1 : 1 + random.Below(300)) {
    std::string flipped = log;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random.Below(8)));
    const LogScan scan = ScanLog(flipped, true);
    ASSERT_EQ(scan.end, LogScan::End::kDamaged) << "byte " << at << " of " << log.size();
    ASSERT_FALSE(scan.what.empty());
  }
}

TEST(LogScan, AMissingSectorOfTheLastWriteIsTornAndOfAnEarlierOneIsDamage) {
  std::string log;
  AppendWrite(log, Ciphertext(700, 1));
  const size_t first_end = log.size();
  AppendWrite(log, Ciphertext(2000, 2));
  for (size_t sector = (first_end / 512 + 1) * 512; sector < log.size(); sector += 512) {
    if (log.size() - sector < 8) break;  // too little to tell
    std::string torn = log;
    std::fill(torn.begin() + sector, torn.begin() + std::min(sector + 512, log.size()), '\0');
    const LogScan scan = ScanLog(torn, true);
    ASSERT_EQ(scan.end, LogScan::End::kTorn) << sector;
    EXPECT_EQ(scan.sound_bytes, first_end);
    EXPECT_EQ(ScanLog(torn, false).end, LogScan::End::kDamaged);  // a later log has commits
  }
  std::string early = log;
  std::fill(early.begin(), early.begin() + 512, '\0');
  EXPECT_EQ(ScanLog(early, true).end, LogScan::End::kDamaged);
}

TEST(LogScan, AFragmentedLastWriteIsCutWhole) {
  std::string log;
  AppendWrite(log, Ciphertext(100, 1));
  const size_t first_end = log.size();
  AppendWrite(log, Ciphertext(90000, 2));
  const std::string torn = log.substr(0, 2 * kBlockBytes);  // ends exactly between two fragments
  const LogScan scan = ScanLog(torn, true);
  EXPECT_EQ(scan.end, LogScan::End::kTorn);
  EXPECT_EQ(scan.sound_bytes, first_end);
}

TEST(LogScan, FragmentsOutOfOrderAreDamage) {
  std::string log;
  AppendPiece(log, kMiddle, "x");
  EXPECT_EQ(ScanLog(log, true).end, LogScan::End::kDamaged);
  log.clear();
  AppendPiece(log, kFirst, "x");
  AppendPiece(log, kFull, "y");
  EXPECT_EQ(ScanLog(log, true).end, LogScan::End::kDamaged);
}

TEST(LogScan, ATailOfZerosIsCut) {
  std::string log;
  AppendWrite(log, Ciphertext(100, 1));
  const size_t end = log.size();
  const LogScan scan = ScanLog(log + std::string(5000, '\0'), true);
  EXPECT_EQ(scan.end, LogScan::End::kTorn);
  EXPECT_EQ(scan.sound_bytes, end);
}

TEST(LogScan, TakesAnyBytes) {
  const uint64_t seed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  SeededRandom random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string log;
    while (random.Below(3) != 0) AppendWrite(log, random.Bytes(random.Below(200)));
    log += random.Bytes(random.Below(40));
    for (uint64_t flips = random.Below(4); flips > 0 && !log.empty(); --flips) {
      log[random.Below(log.size())] = static_cast<char>(random.Next());
    }
    const LogScan scan = ScanLog(log, random.OneIn(2));
    ASSERT_LE(scan.sound_bytes, log.size());
    ASSERT_EQ(scan.end == LogScan::End::kDamaged, !scan.what.empty());
  }
}

}  // namespace
}  // namespace cairn
