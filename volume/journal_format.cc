// Encoding and decoding of docs/formats/journal.md. Encoders append to a caller's buffer, so that a
// busy head allocates nothing per record; decoders are bounds-checked, limit what they allocate by
// what is there, and accept only canonical bytes (reserved zero, lengths within the limits, nothing
// behind the last operation).
#include "volume/journal_format.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {
namespace {

constexpr std::string_view kJournalMagic = "CAIRNJNL";
constexpr std::string_view kSideMagic = "CAIRNSID";
constexpr uint16_t kVersion = 1;
constexpr size_t kWrappedKeyBytes = 60;
constexpr size_t kHeaderReservedBytes = 116;
constexpr uint32_t kRecordMagic = 0x524a4e43;  // "CNJR"
constexpr size_t kChecksumOffset = 56;
constexpr size_t kFieldsBytes = 112;
constexpr size_t kMinOpBytes = 4;

static_assert(8 + 2 + 1 + 1 + 4 + 16 + 16 + 8 + 8 + 8 + kWrappedKeyBytes + kHeaderReservedBytes +
                  8 ==
              kLogHeaderBytes);
static_assert(4 * 4 + 3 * 8 == kRecordAadBytes);
static_assert(kRecordAadBytes + kGcmTagBytes == kChecksumOffset);
static_assert(kChecksumOffset + 8 == kRecordHeaderBytes);
static_assert(kRecordHeaderBytes % kRecordAlignment == 0);

bool AllZero(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

std::unexpected<Error> Bad(std::string_view what) {
  return Err(ErrorCode::kDataLoss, fmt::format("journal record: {}", what));
}

}  // namespace

std::string LogHeader::KeyAad() const {
  std::string aad;
  ByteWriter w(aad);
  w.Bytes(volume.view());
  w.U64(generation);
  w.U8(static_cast<uint8_t>(kind));
  return aad;
}

std::string LogHeader::Encode() const {
  CAIRN_CHECK(key.bytes.size() == kWrappedKeyBytes);
  std::string out;
  out.reserve(kLogHeaderBytes);
  ByteWriter w(out);
  w.Bytes(kind == LogKind::kJournal ? kJournalMagic : kSideMagic);
  w.U16(kVersion);
  w.U8(static_cast<uint8_t>(kind));
  w.U8(0);
  w.U32(key.key_id);
  w.Bytes(realm.view());
  w.Bytes(volume.view());
  w.U64(generation);
  w.U64(segment_epoch);
  w.U64(first_lsn);
  w.Bytes(key.bytes);
  w.Zeros(kHeaderReservedBytes);
  w.U64(XXH3_64bits(out.data(), out.size()));
  return out;
}

Result<LogHeader> LogHeader::Decode(std::string_view bytes) {
  if (bytes.size() < kLogHeaderBytes) return Err(ErrorCode::kDataLoss, "header is cut short");
  bytes = bytes.substr(0, kLogHeaderBytes);
  ByteReader r(bytes);
  LogHeader h;
  const std::string_view magic = r.Bytes(8);
  const uint16_t version = r.U16();
  const uint8_t kind = r.U8();
  const uint8_t reserved = r.U8();
  h.key.key_id = r.U32();
  h.realm = Id128::FromView(r.Bytes(16));
  h.volume = Id128::FromView(r.Bytes(16));
  h.generation = r.U64();
  h.segment_epoch = r.U64();
  h.first_lsn = r.U64();
  h.key.bytes = std::string(r.Bytes(kWrappedKeyBytes));
  const std::string_view zeros = r.Bytes(kHeaderReservedBytes);
  const uint64_t checksum = r.U64();
  if (magic != kJournalMagic && magic != kSideMagic) {
    return Err(ErrorCode::kDataLoss, "header has a wrong magic");
  }
  if (checksum != XXH3_64bits(bytes.data(), kLogHeaderBytes - 8)) {
    return Err(ErrorCode::kDataLoss, "header checksum does not match");
  }
  if (version != kVersion) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("header has version {}, not {}", version, kVersion));
  }
  h.kind = magic == kJournalMagic ? LogKind::kJournal : LogKind::kSide;
  if (kind != static_cast<uint8_t>(h.kind) || reserved != 0 || !AllZero(zeros)) {
    return Err(ErrorCode::kDataLoss, "header with fields out of range");
  }
  return h;
}

std::string LogFileName(uint64_t generation, LogKind kind) {
  return fmt::format("{:016x}.{}", generation, kind == LogKind::kJournal ? "journal" : "side");
}

uint64_t RecordHeader::total_bytes() const {
  const uint64_t bytes = uint64_t{kRecordHeaderBytes} + body_length_bytes + payload_length_bytes;
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

void RecordHeader::AppendAad(std::string& out) const {
  ByteWriter w(out);
  w.U32(kRecordMagic);
  w.U32(body_length_bytes);
  w.U32(payload_length_bytes);
  w.U32(0);
  w.U64(segment_epoch);
  w.U64(lsn);
  w.U64(synced_lsn);
}

void RecordHeader::EncodeTo(char* out, std::string_view body) const {
  std::string bytes;
  bytes.reserve(kRecordHeaderBytes);
  AppendAad(bytes);
  bytes.append(tag.data(), tag.size());
  const uint64_t sum = RecordChecksum(bytes, body);
  ByteWriter(bytes).U64(sum);
  std::memcpy(out, bytes.data(), kRecordHeaderBytes);
}

uint64_t RecordChecksum(std::string_view header, std::string_view body) {
  return XXH3_64bits_withSeed(body.data(), body.size(),
                              XXH3_64bits(header.data(), kChecksumOffset));
}

bool StartsLikeRecord(std::string_view bytes) { return ByteReader(bytes).U32() == kRecordMagic; }

bool DecodeRecordHeader(std::string_view bytes, RecordHeader& header) {
  ByteReader r(bytes);
  if (r.U32() != kRecordMagic) return false;
  header.body_length_bytes = r.U32();
  header.payload_length_bytes = r.U32();
  const uint32_t reserved = r.U32();
  header.segment_epoch = r.U64();
  header.lsn = r.U64();
  header.synced_lsn = r.U64();
  const std::string_view tag = r.Bytes(kGcmTagBytes);
  header.checksum = r.U64();
  if (!r.ok()) return false;
  std::copy(tag.begin(), tag.end(), header.tag.begin());
  return reserved == 0 && header.body_length_bytes >= kFieldsBytes &&
         header.body_length_bytes <= kMaxRecordBodyBytes &&
         header.payload_length_bytes <= kMaxRecordPayloadBytes && header.synced_lsn < header.lsn;
}

void AppendFields(std::string& out, const RecordFields& f) {
  ByteWriter w(out);
  w.U64(f.generation);
  w.U64(f.transaction_id);
  w.Bytes(f.reply.connection.view());
  w.U64(f.reply.unique);
  w.U16(f.reply.opcode);
  w.U16(f.reply.lane);
  w.U32(static_cast<uint32_t>(f.reply.status));
  w.U64(f.reply.ino);
  w.U64(f.reply.value);
  w.U64(f.reply.reply_floor);
  w.U64(f.open_ino);
  w.U32(static_cast<uint32_t>(f.open_change));
  w.U32(f.op_count);
  w.U64(f.next_ino);
  w.U64(f.total_inodes);
  w.U64(f.total_bytes);
}

void AppendPut(std::string& out, std::string_view key, const Entry& entry) {
  ByteWriter w(out);
  w.U8(static_cast<uint8_t>(Transaction::Op::Kind::kPut));
  w.U16(static_cast<uint16_t>(key.size()));
  w.U32(static_cast<uint32_t>(entry.payload.size()));
  w.U8(static_cast<uint8_t>(entry.refs.size()));
  w.Bytes(key);
  w.Bytes(entry.payload);
  for (const BlockRef& ref : entry.refs) ref.AppendTo(out);
}

void AppendDelete(std::string& out, std::string_view key) {
  ByteWriter w(out);
  w.U8(static_cast<uint8_t>(Transaction::Op::Kind::kDelete));
  w.U16(static_cast<uint16_t>(key.size()));
  w.Bytes(key);
}

void AppendHole(std::string& out, InodeNumber ino, uint64_t offset, uint64_t length_bytes) {
  ByteWriter w(out);
  w.U8(static_cast<uint8_t>(Transaction::Op::Kind::kHole));
  w.U64(ino);
  w.U64(offset);
  w.U64(length_bytes);
}

DataOpPosition AppendData(std::string& out, PayloadPlace place, InodeNumber ino, uint64_t offset,
                          uint32_t length_bytes) {
  ByteWriter w(out);
  w.U8(static_cast<uint8_t>(Transaction::Op::Kind::kData));
  w.U8(static_cast<uint8_t>(place));
  w.U64(ino);
  w.U64(offset);
  w.U32(length_bytes);
  const size_t position = out.size();
  w.U64(0);
  w.Zeros(FrameCount(length_bytes) * kGcmTagBytes);
  return {.log_offset = position, .tags = position + 8};
}

void PatchData(std::string& out, const DataOpPosition& position, uint64_t log_offset,
               std::string_view tags) {
  CAIRN_CHECK(position.tags + tags.size() <= out.size());
  std::memcpy(out.data() + position.log_offset, &log_offset, sizeof log_offset);
  out.replace(position.tags, tags.size(), tags);
}

bool IsEntryKey(std::string_view key) {
  if (key.size() > kMaxTreeKeyBytes) return false;
  const auto parsed = ParseKey(key);
  return parsed && parsed->kind != KeyKind::kExtent;
}

Result<RecordBody> DecodeRecordBody(std::string_view plain) {
  ByteReader r(plain);
  RecordBody body;
  RecordFields& f = body.fields;
  f.generation = r.U64();
  f.transaction_id = r.U64();
  const std::string_view connection = r.Bytes(16);
  f.reply.unique = r.U64();
  f.reply.opcode = r.U16();
  f.reply.lane = r.U16();
  f.reply.status = static_cast<int32_t>(r.U32());
  f.reply.ino = r.U64();
  f.reply.value = r.U64();
  f.reply.reply_floor = r.U64();
  f.open_ino = r.U64();
  f.open_change = static_cast<int32_t>(r.U32());
  f.op_count = r.U32();
  f.next_ino = r.U64();
  f.total_inodes = r.U64();
  f.total_bytes = r.U64();
  if (!r.ok()) return Bad("body is cut short");
  f.reply.connection = Id128::FromView(connection);
  if (f.op_count > kMaxRecordOps || f.op_count > r.remaining() / kMinOpBytes) {
    return Bad("more operations than fit");
  }
  body.ops.reserve(f.op_count);
  for (uint32_t i = 0; i < f.op_count; i++) {
    RecordOp op;
    op.kind = static_cast<Transaction::Op::Kind>(r.U8());
    switch (op.kind) {
      case Transaction::Op::Kind::kPut: {
        const uint16_t key_length = r.U16();
        const uint32_t payload_length = r.U32();
        const uint8_t refs = r.U8();
        if (payload_length > kMaxPutPayloadBytes || refs > kMaxEntryRefs)
          return Bad("put over limit");
        op.key = std::string(r.Bytes(key_length));
        op.entry.payload = std::string(r.Bytes(payload_length));
        for (uint8_t n = 0; n < refs; n++) {
          const std::string_view ref = r.Bytes(BlockRef::kEncodedBytes);
          if (!r.ok()) return Bad("put is cut short");
          op.entry.refs.push_back(CAIRN_TRY(BlockRef::Decode(ref)));
        }
        if (!IsEntryKey(op.key)) return Bad("put of a malformed key");
        break;
      }
      case Transaction::Op::Kind::kDelete: {
        const uint16_t key_length = r.U16();
        op.key = std::string(r.Bytes(key_length));
        if (!IsEntryKey(op.key)) return Bad("delete of a malformed key");
        break;
      }
      case Transaction::Op::Kind::kHole:
        op.ino = r.U64();
        op.offset = r.U64();
        op.length_bytes = r.U64();
        if (op.ino == kNoInode || op.length_bytes == 0 || op.offset == kNoEnd) {
          return Bad("hole out of range");
        }
        break;
      case Transaction::Op::Kind::kData: {
        op.place = static_cast<PayloadPlace>(r.U8());
        op.ino = r.U64();
        op.offset = r.U64();
        op.length_bytes = r.U32();
        op.log_offset = r.U64();
        if (op.place > PayloadPlace::kSide || op.ino == kNoInode || op.length_bytes == 0 ||
            op.length_bytes > kGridBytes || op.offset > kMaxDataEnd - op.length_bytes ||
            op.offset / kGridBytes != (op.offset + op.length_bytes - 1) / kGridBytes ||
            op.log_offset < kLogContentOffset || op.log_offset > kMaxDataEnd) {
          return Bad("data out of range");
        }
        op.tags = std::string(r.Bytes(FrameCount(op.length_bytes) * kGcmTagBytes));
        break;
      }
      default:
        return Bad("unknown operation");
    }
    if (!r.ok()) return Bad("operation is cut short");
    body.ops.push_back(std::move(op));
  }
  if (!r.done()) return Bad("bytes behind the last operation");
  return body;
}

}  // namespace cairn
