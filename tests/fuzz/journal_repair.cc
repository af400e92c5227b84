// Headers first, then records wherever a record's magic stands. Within a record: lengths, body
// (fields, places, tags of payloads, which are encrypted where they lie), then the body's own tag
// and the checksum over all of it.
#include "tests/fuzz/journal_repair.h"

#include <algorithm>

#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/patch.h"
#include "volume/log_file.h"

namespace cairn {
namespace {

void RepairLogHeader(uint8_t repair, LogKind kind, std::string& file) {
  if (file.size() < kLogHeaderBytes) return;
  if ((repair & kRepairLogHeaders) != 0) {
    LogHeader header{.kind = kind,
                     .realm = Known().realm,
                     .volume = Known().volume,
                     .generation = kKnownGeneration,
                     .segment_epoch = Peek<uint64_t>(file, 56),
                     .first_lsn = std::max<uint64_t>(1, Peek<uint64_t>(file, 64)),
                     .key = {.key_id = Known().key_id, .bytes = {}}};
    header.key.bytes = Known().WrapDataKey(header.KeyAad());
    file.replace(0, kLogHeaderBytes, header.Encode());
  }
  if ((repair & kRepairLogHeaderSums) != 0) {
    Patch(file, kLogHeaderBytes - 8, Xxh3(std::string_view(file).substr(0, kLogHeaderBytes - 8)));
  }
}

// `area`: where the record's own payloads begin in the journal.
void RepairOps(uint8_t repair, uint64_t area, uint32_t area_bytes, RecordBody& body,
               std::string& journal, std::string& side) {
  OffsetCipher cipher(Known().data_key);
  for (RecordOp& op : body.ops) {
    if (op.kind != Transaction::Op::Kind::kData) continue;
    std::string& file = op.place == PayloadPlace::kJournal ? journal : side;
    if ((repair & kRepairPlaces) != 0) {
      const bool own = op.place == PayloadPlace::kJournal;
      const uint64_t begin = own ? area : kLogContentOffset;
      const uint64_t room = own ? area_bytes : file.size() - std::min(file.size(), begin);
      if (op.length_bytes <= room) {
        op.log_offset = begin + op.log_offset % (room - op.length_bytes + 1);
      }
    }
    if ((repair & kRepairPayloads) == 0 || op.log_offset > file.size() ||
        op.length_bytes > file.size() - op.log_offset) {
      continue;
    }
    const std::string plain = file.substr(op.log_offset, op.length_bytes);
    op.tags.resize(FrameCount(op.length_bytes) * kGcmTagBytes);
    cipher.EncryptFrames(op.log_offset, plain, file.data() + op.log_offset, op.tags.data());
  }
}

// As many operations as decode: the number that stands in the fields is the largest that does.
void RepairCount(std::string& body) {
  constexpr size_t kCountAt = 84;
  if (body.size() < 112) return;
  for (uint32_t count = 0; count <= 32; ++count) {
    Patch(body, kCountAt, count);
    if (DecodeRecordBody(body)) return;
  }
}

}  // namespace

std::string EncodeBody(const RecordBody& body) {
  std::string out;
  RecordFields fields = body.fields;
  fields.op_count = static_cast<uint32_t>(body.ops.size());
  AppendFields(out, fields);
  for (const RecordOp& op : body.ops) {
    switch (op.kind) {
      case Transaction::Op::Kind::kPut:
        AppendPut(out, op.key, op.entry);
        break;
      case Transaction::Op::Kind::kDelete:
        AppendDelete(out, op.key);
        break;
      case Transaction::Op::Kind::kHole:
        AppendHole(out, op.ino, op.offset, op.length_bytes);
        break;
      case Transaction::Op::Kind::kData:
        PatchData(
            out,
            AppendData(out, op.place, op.ino, op.offset, static_cast<uint32_t>(op.length_bytes)),
            op.log_offset, op.tags);
        break;
    }
  }
  return out;
}

void RepairJournal(uint8_t repair, std::string& journal, std::string& side) {
  RepairLogHeader(repair, LogKind::kJournal, journal);
  RepairLogHeader(repair, LogKind::kSide, side);
  if (journal.size() < kLogHeaderBytes) return;
  const auto epoch = Peek<uint64_t>(journal, 56);
  auto lsn = Peek<uint64_t>(journal, 64);
  for (size_t at = kLogContentOffset; at + kRecordHeaderBytes <= journal.size();) {
    if (!StartsLikeRecord(std::string_view(journal).substr(at))) {
      at += kRecordAlignment;
      continue;
    }
    const size_t room = journal.size() - at - kRecordHeaderBytes;
    if ((repair & kRepairRecordHeads) != 0) {
      const auto body = std::min<size_t>(Peek<uint32_t>(journal, at + 4), room);
      const auto payload = std::min<size_t>(Peek<uint32_t>(journal, at + 8), room - body);
      Patch(journal, at + 4, static_cast<uint32_t>(body));
      Patch(journal, at + 8, static_cast<uint32_t>(payload));
      Patch<uint32_t>(journal, at + 12, 0);
      Patch(journal, at + 16, epoch);
      Patch(journal, at + 24, lsn);
    }
    if ((repair & kRepairSynced) != 0) {
      Patch(journal, at + 32, std::min(Peek<uint64_t>(journal, at + 32), lsn - 1));
    }
    const size_t body_bytes = Peek<uint32_t>(journal, at + 4);
    const size_t payload_bytes = Peek<uint32_t>(journal, at + 8);
    if (body_bytes > room || payload_bytes > room - body_bytes) {
      at += kRecordAlignment;
      continue;
    }
    const size_t body_at = at + kRecordHeaderBytes;
    std::string body = journal.substr(body_at, body_bytes);
    if ((repair & kRepairFields) != 0) {
      RepairCount(body);
      if (body.size() >= 8) Patch(body, 0, kKnownGeneration);
    }
    if (auto decoded = DecodeRecordBody(body)) {
      RepairOps(repair, body_at + body_bytes, static_cast<uint32_t>(payload_bytes), *decoded,
                journal, side);
      body = EncodeBody(*decoded);
    }
    if ((repair & kRepairBodies) != 0) {
      const std::string aad = journal.substr(at, kRecordAadBytes);
      OffsetCipher(Known().data_key)
          .Encrypt(body_at, aad, body, body.data(), journal.data() + at + kRecordAadBytes);
      journal.replace(body_at, body_bytes, body);
      Patch(journal, at + 56,
            RecordChecksum(std::string_view(journal).substr(at, kRecordHeaderBytes), body));
    }
    ++lsn;
    const size_t total = kRecordHeaderBytes + body_bytes + payload_bytes;
    at += (total + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }
}

}  // namespace cairn
