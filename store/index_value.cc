// Encoders and decoders of docs/formats/index.md. RocksDB has checksums of its own; these cover
// what it was given, and the key. A location also passes the checks of a pack's entry, because a
// reader takes memory for the length that it names.
#include "store/index_value.h"

#include <xxhash.h>

#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kBlockKeyBytes = 33;  // prefix and address
constexpr size_t kPackKeyBytes = 17;   // prefix and pack id
constexpr size_t kValueBytes = 64;     // of either

uint64_t Checksum(std::string_view key, std::string_view value) {
  return XXH3_64bits_withSeed(value.data(), value.size(), XXH3_64bits(key.data(), key.size()));
}

std::string Finish(std::string_view key, std::string value) {
  ByteWriter(value).U64(Checksum(key, value));
  CAIRN_CHECK(value.size() == kValueBytes);
  return value;
}

std::unexpected<Error> Damaged(const char* what) {
  return Err(ErrorCode::kDataLoss, std::string("block index: ") + what);
}

bool Verifies(std::string_view key, std::string_view value) {
  ByteReader sum(value.substr(kValueBytes - 8));
  return sum.U64() == Checksum(key, value.substr(0, kValueBytes - 8));
}

}  // namespace

PackSummary Summarize(const PackHeader& header, bool sealed, uint64_t file_bytes,
                      const std::vector<PackEntry>& entries) {
  PackSummary summary{.pack = header.pack,
                      .realm = header.realm,
                      .sealed = sealed,
                      .file_bytes = file_bytes,
                      .entry_count = static_cast<uint32_t>(entries.size())};
  for (const PackEntry& entry : entries) {
    summary.stored_bytes += entry.stored_length;
    summary.raw_bytes += entry.raw_length;
  }
  return summary;
}

std::string EncodeBlockLocation(std::string_view key, const BlockLocation& location) {
  std::string out;
  ByteWriter w(out);
  w.U8(kVersion);
  w.U8(static_cast<uint8_t>(location.entry.kind));
  w.U8(static_cast<uint8_t>(location.entry.codec));
  w.U8(0);
  w.U32(location.entry.stored_length);
  w.U32(location.entry.raw_length);
  w.U32(0);
  w.Bytes(location.pack.view());
  w.U64(location.entry.offset);
  w.U64(location.epoch);
  w.U64(location.condemn_cycle);
  return Finish(key, std::move(out));
}

Result<BlockLocation> DecodeBlockLocation(std::string_view key, std::string_view value) {
  if (key.size() != kBlockKeyBytes || value.size() != kValueBytes) {
    return Damaged("entry of a wrong size");
  }
  if (!Verifies(key, value)) return Damaged("entry does not verify");
  ByteReader r(value);
  BlockLocation location;
  const uint8_t version = r.U8();
  const uint8_t kind = r.U8();
  const uint8_t codec = r.U8();
  const uint8_t flags = r.U8();
  location.entry.stored_length = r.U32();
  location.entry.raw_length = r.U32();
  const uint32_t reserved = r.U32();
  location.pack = Id128::FromView(r.Bytes(16));
  location.entry.offset = r.U64();
  location.epoch = r.U64();
  location.condemn_cycle = r.U64();
  location.entry.address = Address::FromView(key.substr(1));
  if (version != kVersion || flags != 0 || reserved != 0) return Damaged("entry of another format");
  CAIRN_TRY(CheckPackEntry(location.entry, kind, codec));
  location.entry.kind = static_cast<BlockKind>(kind);
  location.entry.codec = static_cast<Codec>(codec);
  return location;
}

std::string EncodePackMarker(std::string_view key, const PackSummary& pack) {
  std::string out;
  ByteWriter w(out);
  w.U8(kVersion);
  w.U8(pack.sealed ? 1 : 0);
  w.Zeros(6);
  w.Bytes(pack.realm.view());
  w.U64(pack.file_bytes);
  w.U32(pack.entry_count);
  w.U32(0);
  w.U64(pack.stored_bytes);
  w.U64(pack.raw_bytes);
  return Finish(key, std::move(out));
}

Result<PackSummary> DecodePackMarker(std::string_view key, std::string_view value) {
  if (key.size() != kPackKeyBytes || value.size() != kValueBytes) {
    return Damaged("marker of a wrong size");
  }
  if (!Verifies(key, value)) return Damaged("marker does not verify");
  ByteReader r(value);
  PackSummary pack;
  const uint8_t version = r.U8();
  const uint8_t sealed = r.U8();
  const std::string_view zeros = r.Bytes(6);
  pack.pack = Id128::FromView(key.substr(1));
  pack.sealed = sealed == 1;
  pack.realm = Id128::FromView(r.Bytes(16));
  pack.file_bytes = r.U64();
  pack.entry_count = r.U32();
  const uint32_t reserved = r.U32();
  pack.stored_bytes = r.U64();
  pack.raw_bytes = r.U64();
  if (version != kVersion || sealed > 1 || reserved != 0 ||
      zeros.find_first_not_of('\0') != std::string_view::npos) {
    return Damaged("marker of another format");
  }
  return pack;
}

}  // namespace cairn
