// Replay (docs/formats/journal.md, "Validity and recovery"): records in order until one does not
// count. Whether that is a torn tail or damage follows from what later bytes claim was durable, so
// a bad record that the high-water mark does not vouch for starts a search for later whole records
// of this segment; theirs is the highest synced LSN. Payloads of every record are verified here,
// once: a journal is short (a seal bounds it), and nothing later would notice a lost payload before
// a guest does.
#include "volume/journal_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/base/bytes.h"
#include "store/base/hex.h"
#include "store/base/uninitialized.h"

namespace cairn {
namespace {

constexpr size_t kReadAheadBytes = 1u << 20;

// The journal's bytes through one buffer that moves forward.
class Window {
 public:
  explicit Window(File& file) : file_(file) {}
  // Exactly n bytes at `offset`, or fewer at the end of the file. Valid until the next call.
  Result<std::string_view> At(uint64_t offset, size_t n) {
    if (offset < start_ || offset + n > start_ + size_) {
      const size_t want = std::max(n, kReadAheadBytes);
      if (buffer_.size() < want) ResizeUninitialized(buffer_, want);
      size_ = CAIRN_TRY(file_.ReadAt(offset, std::span(buffer_).first(want)));
      start_ = offset;
    }
    return std::string_view(buffer_).substr(offset - start_, n).substr(0, start_ + size_ - offset);
  }

 private:
  File& file_;
  std::string buffer_;
  uint64_t start_ = 0;
  size_t size_ = 0;
};

// Why a record does not count.
struct Refusal {
  std::string why;
  std::string file;
  uint64_t offset = 0;
  bool written_whole = false;  // its checksum is right: no torn write explains it
};

class Replayer {
 public:
  Replayer(const std::shared_ptr<LogFile>& journal, const std::shared_ptr<LogFile>& side)
      : journal_(journal), side_(side), window_(journal->file()) {}

  // The record at `offset` if it counts as `lsn`; `length` gets its bytes. An Error is a failed
  // read.
  Result<std::expected<ReplayedRecord, Refusal>> ReadRecord(uint64_t offset, uint64_t lsn,
                                                            uint64_t& length);
  // The highest synced LSN that a whole record above `lsn` at or behind `offset` claims (0: none).
  Result<uint64_t> HighestClaim(uint64_t offset, uint64_t lsn);

 private:
  // Is a whole record (checksum right) of this segment at `offset`? Then `header` is it.
  Result<bool> WholeRecordAt(uint64_t offset, RecordHeader& header);
  Result<std::optional<Refusal>> CheckPayload(const UnsealedPayload& payload);

  const std::shared_ptr<LogFile>& journal_;
  const std::shared_ptr<LogFile>& side_;
  Window window_;
  std::string body_;
  std::string aad_;
  std::string payload_;
};

Result<bool> Replayer::WholeRecordAt(uint64_t offset, RecordHeader& header) {
  const std::string_view bytes = CAIRN_TRY(window_.At(offset, kRecordHeaderBytes));
  if (bytes.size() < kRecordHeaderBytes || !DecodeRecordHeader(bytes, header) ||
      header.segment_epoch != journal_->header().segment_epoch) {
    return false;
  }
  const size_t size = kRecordHeaderBytes + header.body_length_bytes;
  const std::string_view record = CAIRN_TRY(window_.At(offset, size));
  return record.size() == size &&
         RecordChecksum(record.substr(0, kRecordHeaderBytes), record.substr(kRecordHeaderBytes)) ==
             header.checksum;
}

Result<std::optional<Refusal>> Replayer::CheckPayload(const UnsealedPayload& payload) {
  payload_.resize(payload.length_bytes);
  const Status read = payload.log->ReadPayload(payload, 0, payload_);
  if (read) return std::nullopt;
  if (read.error().code() != ErrorCode::kDataLoss) return std::unexpected(read.error());
  return Refusal{"its payload does not verify", payload.log->path(), payload.log_offset, false};
}

Result<std::expected<ReplayedRecord, Refusal>> Replayer::ReadRecord(uint64_t offset, uint64_t lsn,
                                                                    uint64_t& length) {
  const auto refuse = [&](std::string_view why, bool written_whole) {
    return std::unexpected(Refusal{std::string(why), journal_->path(), offset, written_whole});
  };
  using Outcome = std::expected<ReplayedRecord, Refusal>;
  RecordHeader header;
  if (!CAIRN_TRY(WholeRecordAt(offset, header))) {
    return Outcome(refuse("its header or checksum is wrong", false));
  }
  if (header.lsn != lsn) {
    return Outcome(refuse(fmt::format("it is record {}", header.lsn), true));
  }
  length = header.total_bytes();
  const std::string_view cipher_text =
      CAIRN_TRY(window_.At(offset, kRecordHeaderBytes + header.body_length_bytes))
          .substr(kRecordHeaderBytes);
  body_.resize(cipher_text.size());
  aad_.clear();
  header.AppendAad(aad_);
  if (!journal_->cipher().Decrypt(offset + kRecordHeaderBytes, aad_, cipher_text, body_.data(),
                                  header.tag.data())) {
    return Outcome(refuse("its tag is wrong", true));
  }
  auto body = DecodeRecordBody(body_);
  if (!body) return Outcome(refuse(body.error().message(), true));
  if (body->fields.generation != journal_->header().generation) {
    return Outcome(refuse("it is of another generation", true));
  }

  ReplayedRecord record;
  record.lsn = lsn;
  record.fields = body->fields;
  record.changes.reserve(body->ops.size());
  const uint64_t area = offset + kRecordHeaderBytes + header.body_length_bytes;
  for (RecordOp& op : body->ops) {
    DeltaChange change;
    switch (op.kind) {
      case Transaction::Op::Kind::kPut:
        change.kind = DeltaChange::Kind::kPut;
        change.key = std::move(op.key);
        change.entry = std::move(op.entry);
        break;
      case Transaction::Op::Kind::kDelete:
        change.kind = DeltaChange::Kind::kDelete;
        change.key = std::move(op.key);
        break;
      case Transaction::Op::Kind::kHole:
        change.kind = DeltaChange::Kind::kHole;
        change.ino = op.ino;
        change.range = {op.offset, RangeEnd(op.offset, op.length_bytes)};
        break;
      case Transaction::Op::Kind::kData: {
        const bool in_journal = op.place == PayloadPlace::kJournal;
        if (in_journal && (op.log_offset < area ||
                           op.log_offset + op.length_bytes > area + header.payload_length_bytes)) {
          return Outcome(refuse("its payload is outside of it", true));
        }
        if (!in_journal && side_ == nullptr) {
          return Outcome(refuse("its payload is in a side log that is not there", false));
        }
        auto payload = std::make_shared<UnsealedPayload>();
        payload->log = in_journal ? journal_ : side_;
        payload->log_offset = op.log_offset;
        payload->length_bytes = static_cast<uint32_t>(op.length_bytes);
        payload->tags = std::move(op.tags);
        auto refusal = CAIRN_TRY(CheckPayload(*payload));
        if (refusal) return Outcome(std::unexpected(std::move(*refusal)));
        change.kind = DeltaChange::Kind::kData;
        change.ino = op.ino;
        change.range = {op.offset, op.offset + op.length_bytes};
        change.payload = std::move(payload);
        break;
      }
    }
    record.changes.push_back(std::move(change));
  }
  return Outcome(std::move(record));
}

Result<uint64_t> Replayer::HighestClaim(uint64_t offset, uint64_t lsn) {
  uint64_t claim = 0;
  while (true) {
    const std::string_view start = CAIRN_TRY(window_.At(offset, kRecordAlignment));
    if (start.size() < kRecordAlignment) return claim;
    RecordHeader header;
    if (StartsLikeRecord(start) && CAIRN_TRY(WholeRecordAt(offset, header)) && header.lsn > lsn) {
      claim = std::max(claim, header.synced_lsn);
    }
    offset += kRecordAlignment;
  }
}

}  // namespace

Result<ReplayResult> ReplayJournal(const std::shared_ptr<LogFile>& journal,
                                   const std::shared_ptr<LogFile>& side,
                                   std::optional<uint64_t> durable_until_lsn,
                                   const std::function<void(ReplayedRecord&&)>& apply,
                                   uint64_t synced_lsn) {
  Replayer replayer(journal, side);
  ReplayResult result;
  result.next_lsn = journal->header().first_lsn;
  result.end_offset = kLogContentOffset;
  while (!durable_until_lsn || result.next_lsn < *durable_until_lsn) {
    uint64_t length = 0;
    auto record = CAIRN_TRY(replayer.ReadRecord(result.end_offset, result.next_lsn, length));
    if (!record) {
      const Refusal& refusal = record.error();
      const bool damage =
          durable_until_lsn.has_value() || refusal.written_whole || synced_lsn >= result.next_lsn ||
          CAIRN_TRY(replayer.HighestClaim(result.end_offset, result.next_lsn)) >= result.next_lsn;
      if (!damage) return result;
      return Err(ErrorCode::kDataLoss,
                 fmt::format("{}: damaged at offset {}: record {} was durable but {} (replay of "
                             "{} stopped at offset {})",
                             refusal.file, refusal.offset, result.next_lsn, refusal.why,
                             journal->path(), result.end_offset));
    }
    apply(std::move(*record));
    result.records++;
    result.next_lsn++;
    result.end_offset += length;
  }
  return result;
}

Result<JournalDirectory> ListJournals(FileSystem& fs, const std::string& dir) {
  JournalDirectory found;
  auto names = fs.List(dir);
  if (!names) {
    if (names.error().code() == ErrorCode::kNotFound) return found;
    return std::unexpected(std::move(names).error());
  }
  for (const std::string& name : *names) {
    if (name.ends_with(".journal.tmp")) {
      found.unborn.push_back(name);
      continue;
    }
    const auto id = ParseLogFileName(name);
    if (id) (id->is_journal ? found.journals : found.sides).push_back(id->generation);
  }
  return found;
}

std::optional<LogFileId> ParseLogFileName(std::string_view name) {
  if (name.size() < 17 || name[16] != '.') return std::nullopt;
  const auto generation_bytes = HexDecode(name.substr(0, 16));
  if (!generation_bytes) return std::nullopt;
  const uint64_t generation = BigEndian64(*generation_bytes);
  const bool is_journal = name == LogFileName(generation, LogKind::kJournal);
  if (!is_journal && name != LogFileName(generation, LogKind::kSide)) return std::nullopt;
  return LogFileId{.generation = generation, .is_journal = is_journal};
}

}  // namespace cairn
