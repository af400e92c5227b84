// Layouts of the journal and the side log (docs/formats/journal.md): file header, record header,
// record body.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/key_ring.h"
#include "volume/head.h"
#include "volume/inode.h"

namespace cairn {

inline constexpr uint32_t kLogHeaderBytes = 256;
inline constexpr uint64_t kLogContentOffset = 4096;
inline constexpr uint32_t kLogFrameBytes = kPageBytes;
inline constexpr uint32_t kGcmTagBytes = 16;
inline constexpr uint32_t kRecordHeaderBytes = 64;
inline constexpr uint32_t kRecordAadBytes = 40;  // header bytes that the body's tag covers
inline constexpr uint32_t kRecordAlignment = 16;
inline constexpr uint32_t kMaxRecordBodyBytes = 8u << 20;
inline constexpr uint32_t kMaxRecordPayloadBytes = 1u << 20;
inline constexpr uint32_t kMaxRecordOps = 65536;
inline constexpr uint32_t kMaxPutPayloadBytes = 128u << 10;
inline constexpr size_t kMaxEntryRefs = 16;
inline constexpr uint64_t kMaxDataEnd = uint64_t{1} << 63;
inline constexpr uint64_t kNoEnd = ~uint64_t{0};  // "to the end of all offsets"

// Offset + length, at most kNoEnd.
inline uint64_t RangeEnd(uint64_t offset, uint64_t length_bytes) {
  return length_bytes > kNoEnd - offset ? kNoEnd : offset + length_bytes;
}
inline uint64_t FrameCount(uint64_t length_bytes) {
  return (length_bytes + kLogFrameBytes - 1) / kLogFrameBytes;
}

inline constexpr uint64_t kUnborn = 0;  // in place of a first LSN

enum class LogKind : uint8_t { kJournal = 1, kSide = 2 };

struct LogHeader {
  LogKind kind = LogKind::kJournal;
  Id128 realm;
  Id128 volume;
  uint64_t generation = 0;
  uint64_t segment_epoch = 0;
  uint64_t first_lsn = 1;  // kUnborn: made ahead, nothing has been written to it yet
  KeyRing::Wrapped key;

  std::string Encode() const;                               // kLogHeaderBytes
  static Result<LogHeader> Decode(std::string_view bytes);  // DataLoss
  std::string KeyAad() const;                               // binds the wrapped key to its file
};

// "0000000000000003.journal" and "0000000000000003.side".
std::string LogFileName(uint64_t generation, LogKind kind);

struct RecordHeader {
  uint32_t body_length_bytes = 0;
  uint32_t payload_length_bytes = 0;
  uint64_t segment_epoch = 0;
  uint64_t lsn = 0;
  uint64_t synced_lsn = 0;
  std::array<char, kGcmTagBytes> tag{};
  uint64_t checksum = 0;

  uint64_t total_bytes() const;  // to the start of the next record
  // The first kRecordAadBytes, what the tag covers besides the body.
  void AppendAad(std::string& out) const;
  // Writes kRecordHeaderBytes to `out`, with the checksum of them and of the encrypted body.
  void EncodeTo(char* out, std::string_view body) const;
};
// The checksum of a record of which the header's bytes (the checksum itself is not looked at) and
// encrypted body are given.
uint64_t RecordChecksum(std::string_view header, std::string_view body);
// Cheap filter: do these bytes begin with a record's magic.
bool StartsLikeRecord(std::string_view bytes);
// Lengths, magic and reserved bytes are right; the checksum is not looked at. False: no record
// starts here.
bool DecodeRecordHeader(std::string_view bytes, RecordHeader& header);

// Where a data operation's payload is.
enum class PayloadPlace : uint8_t { kJournal = 0, kSide = 1 };

struct RecordOp {
  Transaction::Op::Kind kind = Transaction::Op::Kind::kDelete;
  std::string key;                              // put, delete
  Entry entry;                                  // put
  InodeNumber ino = 0;                          // hole, data
  uint64_t offset = 0;                          // hole, data
  uint64_t length_bytes = 0;                    // hole, data
  PayloadPlace place = PayloadPlace::kJournal;  // data
  uint64_t log_offset = 0;                      // data
  std::string tags;                             // data
};

// The fixed part of a body.
struct RecordFields {
  uint64_t generation = 0;
  uint64_t transaction_id = 0;
  ReplyRecord reply;
  InodeNumber open_ino = 0;
  int32_t open_change = 0;
  uint32_t op_count = 0;
  InodeNumber next_ino = 0;
  uint64_t total_inodes = 0;
  uint64_t total_bytes = 0;
};
struct RecordBody {
  RecordFields fields;
  std::vector<RecordOp> ops;
};

// Append to a body under construction: fields first, then fields.op_count operations.
void AppendFields(std::string& out, const RecordFields& fields);
void AppendPut(std::string& out, std::string_view key, const Entry& entry);
void AppendDelete(std::string& out, std::string_view key);
void AppendHole(std::string& out, InodeNumber ino, uint64_t offset, uint64_t length_bytes);
// Log offset and tags are zeros until PatchData. Returns the position to patch.
struct DataOpPosition {
  size_t log_offset = 0;
  size_t tags = 0;
};
DataOpPosition AppendData(std::string& out, PayloadPlace place, InodeNumber ino, uint64_t offset,
                          uint32_t length_bytes);
void PatchData(std::string& out, const DataOpPosition& position, uint64_t log_offset,
               std::string_view tags);

// DataLoss: anything but what the Append functions write within the limits.
Result<RecordBody> DecodeRecordBody(std::string_view plain);

// May `key` be put or deleted by a transaction: a well-formed key that is not an extent's.
bool IsEntryKey(std::string_view key);

}  // namespace cairn
