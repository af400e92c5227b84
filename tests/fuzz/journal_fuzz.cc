// Fuzz target: a journal and its side log, through the opening and the replay that recovery uses.
// Input: repairs (journal_repair.h), options, length of the journal's part, then journal and side
// log, each as header and content (the zeros between them are put in here), with plaintext in place
// of ciphertext. Or, by an option, one record's body alone.
//
// Asserted: refusals are DataLoss (NotFound for a key that is not there); records come one after
// the other; what replay accepted reads back; a journal cut where replay stopped replays to the
// same, without damage; a check says the same as replay; pieces of files in the delta are apart and
// in order; a body that decodes encodes to the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "store/base/log.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/journal_repair.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/patch.h"
#include "tests/volume/sim_disk.h"
#include "volume/delta.h"
#include "volume/journal_reader.h"
#include "volume/log_file.h"

namespace cairn {
namespace {

constexpr char kDir[] = "volume";
enum Option : uint8_t { kBodyAlone = 1, kNoSide = 2, kNextKnown = 4, kMarked = 8, kBreakTag = 16 };

std::string PathOf(LogKind kind) {
  return std::string(kDir) + "/" + LogFileName(kKnownGeneration, kind);
}

// Header and content with the gap between them.
std::string Spread(std::string_view compact) {
  std::string file(compact.substr(0, kLogHeaderBytes));
  if (compact.size() > kLogHeaderBytes) {
    file.resize(kLogContentOffset);
    file += compact.substr(kLogHeaderBytes);
  }
  return file;
}

void Body(const std::string& plain) {
  const auto body = DecodeRecordBody(plain);
  if (!body) return ExpectRefusal(body.error());
  CAIRN_CHECK(body->ops.size() == body->fields.op_count);
  CAIRN_CHECK(EncodeBody(*body) == plain);
  for (const RecordOp& op : body->ops) {
    if (op.kind != Transaction::Op::Kind::kData) continue;
    CAIRN_CHECK(op.tags.size() == FrameCount(op.length_bytes) * kGcmTagBytes);
    CAIRN_CHECK(op.offset % kGridBytes + op.length_bytes <= kGridBytes);
  }
}

std::shared_ptr<LogFile> OpenLog(FileSystem& fs, LogKind kind, const std::string& bytes) {
  const auto header = LogHeader::Decode(bytes);
  if (header) CAIRN_CHECK(header->Encode() == bytes.substr(0, kLogHeaderBytes));
  auto log = LogFile::Open(fs, Known().ring, PathOf(kind),
                           {.kind = kind,
                            .realm = Known().realm,
                            .volume = Known().volume,
                            .generation = kKnownGeneration});
  if (log) return *std::move(log);
  ExpectRefusal(log.error(), {ErrorCode::kNotFound});
  return nullptr;
}

void CheckDelta(Delta& delta) {
  delta.Freeze();
  std::string previous;
  InodeNumber ino = 0;
  uint64_t end = 0;
  size_t visited = 0;
  const auto status = delta.ForEach([&](std::string_view key, const DeltaValue& value) -> Status {
    CAIRN_CHECK(visited == 0 || previous < key);
    previous = key;
    ++visited;
    const auto parsed = ParseKey(key);
    if (value.kind != DeltaValue::Kind::kExtent) return {};
    const Segment& piece = value.extent;
    CAIRN_CHECK(parsed.has_value() && piece.length_bytes > 0);
    CAIRN_CHECK(parsed->ino != ino || piece.offset >= end);
    ino = parsed->ino;
    end = RangeEnd(piece.offset, piece.length_bytes);
    if (piece.source != Segment::Source::kUnsealed) return {};
    // Replay verified it; the disk has not changed.
    std::string bytes(piece.length_bytes, '\0');
    CAIRN_CHECK(
        piece.payload->log->ReadPayload(*piece.payload, piece.source_offset, bytes).has_value());
    return {};
  });
  CAIRN_CHECK(status.has_value() && visited == delta.count());
}

// Of the first record; its checksum is right afterwards.
void BreakTag(std::string& journal) {
  RecordHeader header;
  if (journal.size() < kLogContentOffset + kRecordHeaderBytes ||
      !DecodeRecordHeader(std::string_view(journal).substr(kLogContentOffset), header) ||
      header.body_length_bytes > journal.size() - kLogContentOffset - kRecordHeaderBytes) {
    return;
  }
  header.tag[0] = static_cast<char>(header.tag[0] ^ 1);
  header.EncodeTo(journal.data() + kLogContentOffset,
                  std::string_view(journal).substr(kLogContentOffset + kRecordHeaderBytes,
                                                   header.body_length_bytes));
}

void Journal(uint8_t repair, uint8_t options, uint8_t next, std::string journal, std::string side) {
  RepairJournal(repair, journal, side);
  if ((options & kBreakTag) != 0) BreakTag(journal);
  const bool with_side = (options & kNoSide) == 0;
  SimDisk disk;
  disk.Install(PathOf(LogKind::kJournal), journal);
  if (with_side) disk.Install(PathOf(LogKind::kSide), side);

  // Names that are none of a journal's.
  for (const char* name : {"notes", "0000000000000004.journal.tmp", "zzzzzzzzzzzzzzzz.journal",
                           "0000000000000003.JOURNAL"}) {
    disk.Install(std::string(kDir) + "/" + name, {});
  }

  const auto reports =
      CheckJournals(disk, Known().ring, Known().realm, Known().volume, kDir, kKnownGeneration - 1);
  CAIRN_CHECK(reports.has_value());

  const auto log = OpenLog(disk, LogKind::kJournal, journal);
  const auto side_log = with_side ? OpenLog(disk, LogKind::kSide, side) : nullptr;
  if (log == nullptr || (with_side && side_log == nullptr)) return;

  const uint64_t first = log->header().first_lsn;
  std::optional<uint64_t> until;
  if ((options & kNextKnown) != 0) until = RangeEnd(first, next % 8);
  const uint64_t synced_lsn = (options & kMarked) != 0 ? RangeEnd(first, next / 8 % 8) : 0;
  Delta delta;
  uint64_t records = 0;
  uint64_t at = kLogContentOffset;  // of the next record
  const auto replay = ReplayJournal(
      log, side_log, until,
      [&](ReplayedRecord&& record) {
        CAIRN_CHECK(record.lsn == first + records);
        CAIRN_CHECK(record.fields.generation == kKnownGeneration);
        CAIRN_CHECK(record.changes.size() == record.fields.op_count);
        ++records;
        RecordHeader header;
        CAIRN_CHECK(DecodeRecordHeader(std::string_view(journal).substr(at), header));
        const uint64_t area = at + kRecordHeaderBytes + header.body_length_bytes;
        for (const DeltaChange& change : record.changes) {
          if (change.payload == nullptr || change.payload->log != log) continue;
          CAIRN_CHECK(change.payload->log_offset >= area &&
                      change.payload->log_offset + change.payload->length_bytes <=
                          area + header.payload_length_bytes);
        }
        at += header.total_bytes();
        delta.Apply(record.changes);
      },
      synced_lsn);
  CheckDelta(delta);
  if ((options & kBreakTag) != 0) CAIRN_CHECK(records == 0);
  if (!until) {
    CAIRN_CHECK(reports->size() == 1);
    CAIRN_CHECK(reports->front().records == records || !replay);
    if (synced_lsn == 0) {
      CAIRN_CHECK(reports->front().damage.empty() == replay.has_value());
    }
    if (replay) CAIRN_CHECK(replay->next_lsn > synced_lsn);
  }
  if (!replay) return ExpectRefusal(replay.error());
  CAIRN_CHECK(replay->records == records && replay->next_lsn == first + records);
  CAIRN_CHECK(replay->end_offset % kRecordAlignment == 0);
  if (until) {
    CAIRN_CHECK(replay->next_lsn == std::max(*until, first));
    return;
  }
  disk.Install(PathOf(LogKind::kJournal), journal.substr(0, replay->end_offset));
  const auto cut = OpenLog(disk, LogKind::kJournal, journal);
  CAIRN_CHECK(cut != nullptr);
  const auto again = ReplayJournal(cut, side_log, std::nullopt, [](ReplayedRecord&&) {});
  CAIRN_CHECK(again.has_value() && again->records == records &&
              again->end_offset == replay->end_offset);
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 5) return 0;
  cairn::SetLogLevel(cairn::LogLevel::kError);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 5, size - 5);
  if ((data[1] & cairn::kBodyAlone) != 0) {
    cairn::Body(std::string(rest));
    return 0;
  }
  const size_t journal_bytes = std::min<size_t>(data[3] | data[4] << 8, rest.size());
  cairn::Journal(data[0], data[1], data[2], cairn::Spread(rest.substr(0, journal_bytes)),
                 cairn::Spread(rest.substr(journal_bytes)));
  return 0;
}
