// The log format (RocksDB wiki, "Write Ahead Log File Format"; db/log_format.h of 7.8): blocks of
// 32 KiB; a record is {masked crc32c of type and payload, u32; payload length, u16; type, u8;
// payload} and never crosses a block; a write that does is FIRST, MIDDLE..., LAST. Fewer than 7
// bytes at a block's end are zeros. The length is not in the checksum.
//
// Every commit is synced before the next write begins. So when a record does not verify, a later
// FULL or FIRST record proves that it had been acknowledged: damage. With nothing after it, the
// record is one of two things:
//   - torn by a crash: the file ends inside it, or whole sectors of it never arrived and read as
//   zeros (our values are
//     ciphertext: eight zero bytes at a sector's start do not happen by chance);
//   - a damaged last commit: all its bytes are there, but wrong.
// Only the first is cut. In doubt it is damage: a commit is never dropped because it might have
// been unfinished.
#include "catalog/log_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "store/base/bytes.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;
constexpr size_t kSectorBytes = 512;
constexpr size_t kLeastZeros = 8;
constexpr uint64_t kMaxLogBytes = 1ull << 30;
enum RecordType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

// As stored: rotated and offset, so that a checksum of bytes that hold checksums stays strong.
uint32_t MaskedCrc(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

struct Header {
  uint32_t crc = 0;
  uint16_t length_bytes = 0;
  uint8_t type = 0;
};
// Needs kHeaderBytes at `at`.
Header HeaderAt(std::string_view log, size_t at) {
  ByteReader in(log.substr(at, kHeaderBytes));
  const uint32_t crc = in.U32();
  const uint16_t length = in.U16();
  return {.crc = crc, .length_bytes = length, .type = in.U8()};
}

// Where the block of `at`, or the file, ends.
size_t RoomEnd(std::string_view log, size_t at) {
  return std::min(log.size(), (at / kBlockBytes + 1) * kBlockBytes);
}

bool IsKnownType(uint8_t type) { return type >= kFull && type <= kLast; }

// Does the record at `at` verify if its payload has `length` bytes?
bool Verifies(std::string_view log, size_t at, size_t length) {
  return MaskedCrc(log.substr(at + 6, 1 + length)) == HeaderAt(log, at).crc;
}

// The type of a sound record at `at`.
std::optional<Header> SoundRecord(std::string_view log, size_t at) {
  const size_t end = RoomEnd(log, at);
  if (at + kHeaderBytes > end) return std::nullopt;
  const Header header = HeaderAt(log, at);
  if (!IsKnownType(header.type) || at + kHeaderBytes + header.length_bytes > end ||
      !Verifies(log, at, header.length_bytes)) {
    return std::nullopt;
  }
  return header;
}

std::optional<size_t> FindLaterWrite(std::string_view log, size_t after) {
  for (size_t at = after; at + kHeaderBytes <= log.size(); ++at) {
    const uint8_t type = static_cast<uint8_t>(log[at + 6]);
    if (type != kFull && type != kFirst) continue;
    if (SoundRecord(log, at)) return at;
  }
  return std::nullopt;
}

bool AllZeros(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

// Is some sector of [begin, end) zeros, as far as it lies in there?
bool HasZeroSector(std::string_view log, size_t begin, size_t end) {
  for (size_t at = begin; at < end;) {
    const size_t next = std::min(end, (at / kSectorBytes + 1) * kSectorBytes);
    if (next - at >= kLeastZeros && AllZeros(log.substr(at, next - at))) return true;
    at = next;
  }
  return false;
}

// Nothing sound follows the bad record at `at`: was it torn?
bool IsTorn(std::string_view log, size_t at) {
  if (AllZeros(log.substr(at)) || at + kHeaderBytes > log.size()) return true;
  const Header header = HeaderAt(log, at);
  const size_t room = RoomEnd(log, at) - at - kHeaderBytes;
  if (IsKnownType(header.type) && Verifies(log, at, room))
    return false;  // only its length is wrong
  if (IsKnownType(header.type) && header.length_bytes > room) {
    const size_t block_room = (at / kBlockBytes + 1) * kBlockBytes - at - kHeaderBytes;
    if (header.length_bytes <= block_room) return true;  // the file ends inside it
  }
  return HasZeroSector(log, at, log.size());
}

bool Follows(bool in_write, uint8_t type) {
  return in_write ? type == kMiddle || type == kLast : type == kFull || type == kFirst;
}

LogScan Damaged(size_t sound, size_t at, std::string_view why) {
  return {.end = LogScan::End::kDamaged,
          .sound_bytes = sound,
          .what = fmt::format("record at offset {}: {}", at, why)};
}

}  // namespace

LogScan ScanLog(std::string_view log, bool is_last) {
  size_t write_begin = 0;  // of the write being read; all before it is whole
  bool in_write = false;   // between FIRST and LAST
  size_t at = 0;
  while (at < log.size()) {
    const size_t block_left = kBlockBytes - at % kBlockBytes;
    if (block_left < kHeaderBytes) {
      if (!AllZeros(log.substr(at, block_left))) {
        return Damaged(write_begin, at, "a block's trailer is not zero");
      }
      at = std::min(log.size(), at + block_left);
      if (!in_write) write_begin = at;
      continue;
    }
    const std::optional<Header> header = SoundRecord(log, at);
    if (!header) {
      if (const auto later = FindLaterWrite(log, at + 1)) {
        return Damaged(
            write_begin, at,
            fmt::format("does not verify, but an acknowledged commit follows at {}", *later));
      }
      if (!is_last) return Damaged(write_begin, at, "does not verify, and a later log follows");
      if (!IsTorn(log, at)) return Damaged(write_begin, at, "the last commit does not verify");
      return {.end = LogScan::End::kTorn, .sound_bytes = write_begin, .what = {}};
    }
    if (!Follows(in_write, header->type)) return Damaged(write_begin, at, "fragments out of order");
    at += kHeaderBytes + header->length_bytes;
    in_write = header->type == kFirst || header->type == kMiddle;
    if (!in_write) write_begin = at;
  }
  if (!in_write) return {.end = LogScan::End::kWhole, .sound_bytes = log.size(), .what = {}};
  if (!is_last) return Damaged(write_begin, write_begin, "has no end, and a later log follows");
  return {.end = LogScan::End::kTorn, .sound_bytes = write_begin, .what = {}};
}

Result<std::vector<CatalogLog>> ReadLogs(FileSystem& fs, const std::string& dir) {
  std::vector<CatalogLog> logs;
  if (!CAIRN_TRY(fs.Exists(dir))) return logs;
  for (const std::string& name : CAIRN_TRY(fs.List(dir))) {  // sorted: by number
    if (!name.ends_with(".log")) continue;
    CatalogLog log{.path = dir + "/" + name, .bytes = {}};
    log.bytes = CAIRN_TRY(ReadWholeFile(fs, log.path, kMaxLogBytes));
    if (!log.bytes.empty()) logs.push_back(std::move(log));
  }
  return logs;
}

Status CutTornLog(FileSystem& fs, const std::string& dir, const std::function<Status()>& before) {
  const std::vector<CatalogLog> logs = CAIRN_TRY(ReadLogs(fs, dir));
  std::optional<uint64_t> kept_bytes;  // of the last one
  for (const CatalogLog& log : logs) {
    const LogScan scan = ScanLog(log.bytes, &log == &logs.back());
    if (scan.end == LogScan::End::kDamaged) {
      return Err(ErrorCode::kDataLoss, fmt::format("catalog log {}: {}", log.path, scan.what));
    }
    if (scan.end == LogScan::End::kTorn) kept_bytes = scan.sound_bytes;
  }
  if (before) CAIRN_TRY(before());
  if (!kept_bytes) return {};
  const CatalogLog& torn = logs.back();
  LogWarning("catalog_log_torn", {{"log", torn.path},
                                  {"kept_bytes", *kept_bytes},
                                  {"cut_bytes", torn.bytes.size() - *kept_bytes}});
  const auto file = CAIRN_TRY(fs.Open(torn.path, {}));
  CAIRN_TRY(file->Truncate(*kept_bytes));
  return file->Sync();
}

}  // namespace cairn
