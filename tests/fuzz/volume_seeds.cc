// A journal with every kind of record and a side log, with plaintext in place of ciphertext; and
// bodies alone.
#include "store/base/random.h"
#include "tests/fuzz/journal_repair.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/seeds.h"

namespace cairn {
namespace {

using Kind = Transaction::Op::Kind;

std::string LogHeaderOf(LogKind kind) {
  LogHeader header{.kind = kind,
                   .realm = Known().realm,
                   .volume = Known().volume,
                   .generation = kKnownGeneration,
                   .segment_epoch = 99,
                   .first_lsn = 5,
                   .key = {.key_id = Known().key_id, .bytes = {}}};
  header.key.bytes = Known().WrapDataKey(header.KeyAad());
  return header.Encode();
}

RecordBody BodyOf(std::vector<RecordOp> ops) {
  RecordBody body;
  body.fields.generation = kKnownGeneration;
  body.fields.transaction_id = 5;
  body.fields.reply = {.connection = Known().pack, .unique = 2, .opcode = 16, .status = -2};
  body.fields.next_ino = 20;
  body.fields.total_inodes = 3;
  body.ops = std::move(ops);
  return body;
}

RecordOp Put(std::string key, Entry entry) {
  RecordOp op;
  op.kind = Kind::kPut;
  op.key = std::move(key);
  op.entry = std::move(entry);
  return op;
}
RecordOp Delete(std::string key) {
  RecordOp op;
  op.kind = Kind::kDelete;
  op.key = std::move(key);
  return op;
}
RecordOp Hole(uint64_t offset, uint64_t length_bytes) {
  RecordOp op;
  op.kind = Kind::kHole;
  op.ino = 12;
  op.offset = offset;
  op.length_bytes = length_bytes;
  return op;
}
// The tags are zeros: what points into the payload is repaired by the target.
RecordOp Data(PayloadPlace place, uint64_t offset, uint32_t length_bytes, uint64_t log_offset) {
  RecordOp op;
  op.kind = Kind::kData;
  op.place = place;
  op.ino = 12;
  op.offset = offset;
  op.length_bytes = length_bytes;
  op.log_offset = log_offset;
  op.tags.assign(FrameCount(length_bytes) * kGcmTagBytes, '\0');
  return op;
}

struct JournalSeed {
  std::string file = LogHeaderOf(LogKind::kJournal);
  uint64_t lsn = 5;

  // `file` lacks the gap between header and content.
  uint64_t NextOffset() const { return kLogContentOffset + file.size() - kLogHeaderBytes; }
  void Add(const RecordBody& body, const std::string& payload = {}) {
    const std::string plain = EncodeBody(body);
    const RecordHeader header{.body_length_bytes = static_cast<uint32_t>(plain.size()),
                              .payload_length_bytes = static_cast<uint32_t>(payload.size()),
                              .segment_epoch = 99,
                              .lsn = lsn,
                              .synced_lsn = lsn - 1};
    std::string head(kRecordHeaderBytes, '\0');
    header.EncodeTo(head.data(), plain);
    file += head + plain + payload;
    file.resize((file.size() + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment);
    ++lsn;
  }
};

}  // namespace

std::vector<Seed> VolumeSeeds() {
  SeededRandom random(2);
  BlockRef ref;
  ref.raw_length_bytes = 100;
  Inode inode;
  inode.mode = 0100644;
  inode.nlink = 1;
  const RecordBody meta =
      BodyOf({Put(AttributesKey(12), {inode.Encode(), {}}),
              Put(DirentKey(1, 0x300), {Dirent{.child = 12, .type = 8, .name = "f"}.Encode(), {}}),
              Put(XattrKey(12, "user.x"), {std::string("\1", 1), {ref, ref}}),
              Delete(InlineKey(12)), Hole(0, ~uint64_t{0})});

  JournalSeed journal;
  journal.Add(meta);
  RecordBody data = BodyOf({Data(PayloadPlace::kJournal, 0, 40, kLogContentOffset)});
  data.ops[0].log_offset = journal.NextOffset() + kRecordHeaderBytes + EncodeBody(data).size();
  journal.Add(data, random.Bytes(40));
  journal.Add(BodyOf({Data(PayloadPlace::kSide, 65536, 100, kLogContentOffset)}));
  journal.Add(BodyOf({}));  // a mark
  RecordBody opened = BodyOf({Delete(AttributesKey(12)), Put(OrphanKey(12), {})});
  opened.fields.open_ino = 12;
  opened.fields.open_change = 1;
  journal.Add(opened);
  const std::string side = LogHeaderOf(LogKind::kSide) + random.Bytes(120);

  std::vector<Seed> seeds;
  const auto add = [&](std::string name, uint8_t repair, uint8_t options, const std::string& first,
                       const std::string& second) {
    std::string bytes = {static_cast<char>(repair), static_cast<char>(options), 3,
                         static_cast<char>(first.size() & 0xff),
                         static_cast<char>(first.size() >> 8)};
    seeds.push_back({"journal", std::move(name), bytes + first + second});
  };
  const uint8_t all = 0xff & ~kRepairLogHeaderSums;
  add("whole", all, 0, journal.file, side);
  add("whole-next-known", all, 4, journal.file, side);
  add("no-side", all, 2, journal.file, side);
  add("marked", all, 8, journal.file, side);
  add("tag-damaged", all, 16, journal.file, side);
  add("keeps-lsn", all & ~kRepairRecordHeads, 0, journal.file, side);
  add("torn", all, 0, journal.file.substr(0, journal.file.size() - 40), side);
  add("zeros-behind", all, 0, journal.file + std::string(64, '\0'), side);
  add("header-alone", all, 0, journal.file.substr(0, kLogHeaderBytes), side);
  add("header-sums", kRepairLogHeaderSums, 0, journal.file.substr(0, kLogHeaderBytes), side);
  add("payload-damaged", all & ~kRepairPayloads, 0, journal.file, side);
  add("side-cut", all & ~kRepairPlaces, 0, journal.file, side.substr(0, kLogHeaderBytes + 50));
  const auto add_header = [&](std::string name, size_t at, char byte) {
    std::string header = journal.file.substr(0, kLogHeaderBytes);
    header[at] = byte;
    add(std::move(name), kRepairLogHeaderSums, 0, header, side);
  };
  add_header("header-version", 8, 2);
  add_header("header-reserved", 11, 1);
  add_header("header-other-key", 12, 9);
  add_header("header-other-volume", 33, 9);
  add_header("header-wrapped-key", 80, 9);
  add_header("header-magic", 0, 'X');
  JournalSeed behind;  // a payload that ends one byte behind its record's
  RecordBody moved = data;
  moved.ops[0].log_offset = behind.NextOffset() + kRecordHeaderBytes + EncodeBody(data).size() + 1;
  behind.Add(moved, random.Bytes(40));
  add("payload-behind-record", all & ~kRepairPlaces, 2, behind.file + std::string(64, 'z'), {});
  JournalSeed big;
  RecordBody frames = BodyOf({Data(PayloadPlace::kJournal, 0, 5000, kLogContentOffset)});
  frames.ops[0].log_offset = big.NextOffset() + kRecordHeaderBytes + EncodeBody(frames).size();
  big.Add(frames, std::string(5000, 'p'));
  add("frames", all, 2, big.file, {});
  const auto add_body = [&](std::string name, const RecordBody& body) {
    seeds.push_back({"journal", std::move(name), std::string("\0\1\0\0\0", 5) + EncodeBody(body)});
  };
  add_body("body-meta", meta);
  add_body("body-data", frames);
  RecordBody crossing = frames;
  crossing.ops[0].offset = kGridBytes - 4999;
  add_body("body-grid-crossed", crossing);
  add_body("body-empty", BodyOf({}));
  return seeds;
}

}  // namespace cairn
