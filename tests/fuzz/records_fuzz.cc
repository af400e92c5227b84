// Fuzz target: the small values: catalog records and their envelope, the catalog's log, values of
// the file system's keys, cairn.format, the quarantine, sealed values of the key ring, values of
// the block index, high-water marks. Input: which one, repairs (checksums and envelopes; what a
// repair encrypts is plaintext in the input), then key and value, or the file.
//
// Asserted: refusals are of the contract's codes; what decodes encodes to what decodes to the same,
// and where the layout is canonical to the same bytes; what the log scan calls sound scans as
// whole.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "catalog/log_scan.h"
#include "catalog/records.h"
#include "catalog/value_cipher.h"
#include "store/base/bytes.h"
#include "store/base/hex.h"
#include "store/base/high_water_mark.h"
#include "store/base/log.h"
#include "store/data_directory.h"
#include "store/index_value.h"
#include "store/quarantine.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/patch.h"
#include "tests/volume/sim_disk.h"
#include "volume/extent_value.h"
#include "volume/inode.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

Nonce96 KnownNonce() {
  Nonce96 nonce;
  nonce.fill(0x77);
  return nonce;
}

std::string SealKnown(const Key256& key, std::string_view plain, std::string_view aad) {
  const Nonce96 nonce = KnownNonce();
  std::string out(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  AppendSealed(key, nonce, plain, aad, out);
  return out;
}

// The first byte is the key's length.
struct KeyAndValue {
  explicit KeyAndValue(std::string_view bytes) {
    ByteReader r(bytes);
    const size_t length = std::min<size_t>(r.U8(), r.remaining());
    key = r.Bytes(length);
    value = r.Bytes(r.remaining());
  }
  std::string key;
  std::string value;
};

// ---- catalog ----

void CatalogRecord(uint8_t repair, const KeyAndValue& input) {
  const ValueCipher cipher(Known().data_key, 1);
  std::string sealed = input.value;
  if ((repair & 1) != 0) {
    std::string header;
    ByteWriter w(header);
    w.U8(1);
    w.Zeros(3);
    w.U32(1);
    sealed = header + SealKnown(Known().data_key, input.value, header + input.key);
  }
  const auto value = cipher.Open(input.key, sealed);
  if (!value) return ExpectRefusal(value.error());
  if ((repair & 1) != 0) CAIRN_CHECK(*value == input.value);
  const auto verified = VerifyRecord(input.key, *value);
  if (!verified) ExpectRefusal(verified.error());
  const auto environment = ParseRecord<catalog::Environment>(input.key, *value);
  if (!environment) return ExpectRefusal(environment.error());
  const std::string bytes = environment->SerializeAsString();
  const auto again = ParseRecord<catalog::Environment>(input.key, bytes);
  CAIRN_CHECK(again.has_value() && again->SerializeAsString() == bytes);
}

// RocksDB's masked crc32c (its wiki, "Write Ahead Log File Format").
uint32_t MaskedCrc(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// Behind the last record, by their lengths alone; or where one crosses the end of its block.
size_t EndOfRecords(std::string_view log) {
  size_t at = 0;
  while (at < log.size()) {
    const size_t end = (at / 32768 + 1) * 32768;
    if (end - at < 7) {
      at = std::min(end, log.size());
      continue;
    }
    if (at + 7 > log.size() || at + 7 + Peek<uint16_t>(log, at + 4) > end) break;
    at += 7 + Peek<uint16_t>(log, at + 4);
  }
  return at;
}

void CatalogLogFile(uint8_t repair, std::string log) {
  size_t at = 0;
  if ((repair & 2) != 0) {  // behind one record that almost fills a block: the end of it is near
    log.insert(0, 32768 - 100, 'p');
    Patch<uint16_t>(log, 4, 32768 - 107);
    Patch<uint8_t>(log, 6, 1);
  }
  while ((repair & 1) != 0 && at + 7 <= log.size()) {
    const size_t end = std::min<size_t>(log.size(), (at / 32768 + 1) * 32768);
    if (end - at < 7) {
      at = end;
      continue;
    }
    const size_t length = Peek<uint16_t>(log, at + 4);
    if (at + 7 + length > end) {
      // The checksum of what there is of it.
      if ((repair & 8) != 0) {
        Patch(log, at, MaskedCrc(std::string_view(log).substr(at + 6, end - at - 6)));
      }
      break;
    }
    Patch(log, at, MaskedCrc(std::string_view(log).substr(at + 6, 1 + length)));
    at += 7 + length;
  }
  const bool is_last = (repair & 4) == 0;
  const LogScan scan = ScanLog(log, is_last);
  CAIRN_CHECK(scan.sound_bytes <= log.size());
  CAIRN_CHECK(scan.what.empty() == (scan.end != LogScan::End::kDamaged));
  if (scan.end == LogScan::End::kWhole) {
    CAIRN_CHECK(scan.sound_bytes == log.size());
    CAIRN_CHECK(EndOfRecords(log) == log.size());
  }
  if (!is_last) CAIRN_CHECK(scan.end != LogScan::End::kTorn);
  const LogScan sound = ScanLog(std::string_view(log).substr(0, scan.sound_bytes), is_last);
  CAIRN_CHECK(sound.end == LogScan::End::kWhole);

  SimDisk disk;
  disk.Install("catalog", {});
  disk.Install("catalog/000007.log", log);
  const auto cut = CutTornLog(disk, "catalog");
  const LogScan alone = ScanLog(log, true);
  CAIRN_CHECK(cut.has_value() == (alone.end != LogScan::End::kDamaged));
  if (!cut) return ExpectRefusal(cut.error());
  CAIRN_CHECK(disk.Bytes("catalog/000007.log") == log.substr(0, alone.sound_bytes));
}

// ---- volume ----

void TreeValue(const KeyAndValue& input) {
  const auto parsed = ParseKey(input.key);
  if (!parsed) return ExpectRefusal(parsed.error());
  Entry entry{input.value, {}};
  // References stand behind the payload, as many as its last byte says.
  if (!input.value.empty()) {
    size_t refs = static_cast<uint8_t>(input.value.back()) % 4;
    entry.payload.pop_back();
    while (refs-- > 0 && entry.payload.size() >= BlockRef::kEncodedBytes) {
      const size_t at = entry.payload.size() - BlockRef::kEncodedBytes;
      const auto ref = BlockRef::Decode(std::string_view(entry.payload).substr(at));
      if (!ref) return ExpectRefusal(ref.error());
      CAIRN_CHECK(ref->Encode() == entry.payload.substr(at));
      entry.refs.push_back(*ref);
      entry.payload.resize(at);
    }
  }
  switch (parsed->kind) {
    case KeyKind::kAttributes: {
      CAIRN_CHECK(AttributesKey(parsed->ino) == input.key);
      const auto inode = Inode::Decode(entry.payload);
      if (!inode) return ExpectRefusal(inode.error());
      CAIRN_CHECK(inode->Encode() == entry.payload);
      return;
    }
    case KeyKind::kDirent: {
      const auto dirent = Dirent::Decode(entry.payload);
      if (!dirent) return ExpectRefusal(dirent.error());
      CAIRN_CHECK(dirent->Encode() == entry.payload && dirent->name.size() <= kMaxNameBytes);
      CAIRN_CHECK(dirent->child != kNoInode && !dirent->name.empty());
      return;
    }
    case KeyKind::kXattr: {
      CAIRN_CHECK(XattrKey(parsed->ino, parsed->subkey) == input.key);
      const auto value = DecodeXattrValue(entry);
      if (!value) return ExpectRefusal(value.error());
      CAIRN_CHECK(value->size_bytes() <= kMaxXattrBytes);
      CAIRN_CHECK((value->block != nullptr ? EncodeXattrBlock(*value->block)
                                           : EncodeXattrInline(value->inline_value)) == entry);
      return;
    }
    case KeyKind::kExtent: {
      const uint64_t offset = BigEndian64(parsed->subkey);
      CAIRN_CHECK(ExtentKey(parsed->ino, offset) == input.key);
      const auto piece = DecodeExtent(offset, entry);
      if (!piece) return ExpectRefusal(piece.error());
      CAIRN_CHECK(piece->length_bytes > 0 && piece->block.kind == BlockKind::kData);
      CAIRN_CHECK(piece->source_offset + piece->length_bytes <= piece->block.raw_length_bytes);
      CAIRN_CHECK(piece->offset % kGridBytes + piece->length_bytes <= kGridBytes);
      CAIRN_CHECK(EncodeExtent(*piece) == entry);
      return;
    }
    case KeyKind::kInline:
      CAIRN_CHECK(InlineKey(parsed->ino) == input.key);
      return;
    case KeyKind::kOrphan:
      CAIRN_CHECK(OrphanKey(BigEndian64(parsed->subkey)) == input.key);
      return;
  }
}

// ---- store ----

void Format(uint8_t repair, std::string text) {
  const size_t sum = text.rfind("checksum: ");
  if ((repair & 1) != 0 && sum != std::string::npos) {
    const uint64_t xxh3 = __builtin_bswap64(Xxh3(std::string_view(text).substr(0, sum)));
    text.resize(sum);
    text += "checksum: " + HexEncode({reinterpret_cast<const char*>(&xxh3), sizeof xxh3}) + "\n";
  }
  const auto format = DecodeFormat(text);
  if (!format) return ExpectRefusal(format.error());
  CAIRN_CHECK(format->master_key_check.size() == 16 && format->incompatible == 0);
  const std::string canonical = EncodeFormat(*format);
  const auto again = DecodeFormat(canonical);
  CAIRN_CHECK(again.has_value() && EncodeFormat(*again) == canonical);
}

// Keys have one length each: the input gives what it gives of them.
void IndexValue(uint8_t repair, std::string_view bytes) {
  const bool marker = (repair & 2) != 0;
  const size_t key_bytes = marker ? 17 : 33;
  const std::string key(bytes.substr(0, key_bytes));
  std::string value(bytes.substr(key.size()));
  if ((repair & 1) != 0) {
    value.resize(64);
    Patch(value, 56, Xxh3(std::string_view(value).substr(0, 56), Xxh3(key)));
  }
  if (marker) {
    const auto pack = DecodePackMarker(key, value);
    if (!pack) return ExpectRefusal(pack.error());
    CAIRN_CHECK(EncodePackMarker(key, *pack) == value);
    return;
  }
  const auto location = DecodeBlockLocation(key, value);
  if (!location) return ExpectRefusal(location.error());
  const PackEntry& entry = location->entry;
  CAIRN_CHECK(IsKnownKind(static_cast<uint8_t>(entry.kind)) && entry.codec <= Codec::kZstd);
  CAIRN_CHECK(entry.raw_length >= 1 && entry.raw_length <= kMaxBlockBytes);
  CAIRN_CHECK(entry.stored_length > kAeadTagBytes && entry.stored_length <= kMaxStoredBytes);
  CAIRN_CHECK(entry.offset % 8 == 0 && entry.offset >= kPackHeaderBytes &&
              entry.offset <= kMaxPackBytes);
  CAIRN_CHECK(EncodeBlockLocation(key, *location) == value);
}

void QuarantineFile(uint8_t repair, std::string file) {
  constexpr size_t kRecordBytes = 96;
  for (size_t at = 0; (repair & 1) != 0 && at + kRecordBytes <= file.size(); at += kRecordBytes) {
    Patch(file, at + 88, Xxh3(std::string_view(file).substr(at, 88)));
  }
  SimDisk disk;
  disk.Install("data/quarantine", file);
  const auto quarantine = Quarantine::Open(disk, "data/quarantine");
  const auto held = quarantine->List();
  CAIRN_CHECK(held.size() == quarantine->size());
  CAIRN_CHECK(held.size() <= std::min(file.size() / kRecordBytes, Quarantine::kMaxEntries));
  for (const QuarantinedFrame& frame : held) {
    CAIRN_CHECK(quarantine->Holds(frame.pack, frame.offset));
    // Some record of the file says so, as it would be written.
    std::string record;
    ByteWriter w(record);
    w.U8(1);
    w.U8(1);
    w.Zeros(6);
    w.I64(frame.found_ms);
    w.Bytes(frame.realm.view());
    w.Bytes(frame.pack.view());
    w.U64(frame.offset);
    w.Bytes(frame.address.view());
    w.U64(Xxh3(record));
    CAIRN_CHECK(file.find(record) != std::string::npos);
  }
  // A change is written behind what was read, or in place of it: either way it reads back.
  QuarantinedFrame fresh{.realm = Known().realm, .pack = Known().volume, .offset = 4242};
  quarantine->Add(fresh);
  const auto after = quarantine->List();
  const auto reopened = Quarantine::Open(disk, "data/quarantine");
  CAIRN_CHECK(reopened->List() == after);
}

void Mark(uint8_t repair, std::string file) {
  constexpr size_t kMarkBytes = 40;
  if ((repair & 1) != 0 && file.size() >= kMarkBytes) {
    Patch(file, kMarkBytes - 8, Xxh3(std::string_view(file).substr(0, kMarkBytes - 8)));
  }
  SimDisk disk;
  disk.Install("synced", file);
  const auto read = HighWaterMark::Read(disk, "synced");
  const auto mark = HighWaterMark::Open(disk, "synced");
  CAIRN_CHECK(read.has_value() && mark.has_value() && (*mark)->position() == *read);
  if (!*read) return;
  const auto fresh = HighWaterMark::Open(disk, "fresh");
  CAIRN_CHECK(fresh.has_value());
  (*fresh)->Raise(**read);
  CAIRN_CHECK(disk.Bytes("fresh") == file.substr(0, kMarkBytes));
}

void RingValue(uint8_t repair, std::string bytes) {
  if ((repair & 1) != 0) {
    std::string sealed;
    ByteWriter(sealed).U32(Known().key_id);
    bytes = sealed + SealKnown(Known().wrapping_key, bytes, "aad");
  }
  Id128 realm = Known().realm;
  if ((repair & 2) != 0) realm.bytes[0] ^= 1;
  const auto opened = Known().ring.Open(realm, bytes, "aad");
  if (!opened) ExpectRefusal(opened.error(), {ErrorCode::kNotFound});
  const KeyRing::Wrapped wrapped{
      .key_id = bytes.size() < 4 ? Known().key_id : Peek<uint32_t>(bytes, 0),
      .bytes = bytes.size() < 4 ? bytes : bytes.substr(4)};
  const auto key = Known().ring.Unwrap(realm, wrapped, "aad");
  if (!key) return ExpectRefusal(key.error(), {ErrorCode::kNotFound});
  CAIRN_CHECK(opened.has_value() && opened->size() == key->size());
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const bool quiet = [] {
    cairn::SetLogLevel(cairn::LogLevel::kError);
    google::protobuf::SetLogHandler(nullptr);
    return true;
  }();
  (void)quiet;
  const uint8_t repair = data[1];
  const std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 8) {
    case 0:
      cairn::CatalogRecord(repair, cairn::KeyAndValue(bytes));
      break;
    case 1:
      cairn::CatalogLogFile(repair, bytes);
      break;
    case 2:
      cairn::TreeValue(cairn::KeyAndValue(bytes));
      break;
    case 3:
      cairn::Format(repair, bytes);
      break;
    case 4:
      cairn::QuarantineFile(repair, bytes);
      break;
    case 5:
      cairn::RingValue(repair, bytes);
      break;
    case 6:
      cairn::IndexValue(repair, bytes);
      break;
    default:
      cairn::Mark(repair, bytes);
  }
  return 0;
}
