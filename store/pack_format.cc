// Encoders and decoders of docs/formats/pack.md. Every structure ends in a checksum of itself; a
// decoder looks at magic, checksum and then at each field, and compares counts with the bytes it
// was given before it allocates. The frame checksum is seeded with pack and offset, so that a frame
// that a disk or a copy put elsewhere is not valid there.
#include "store/pack_format.h"

#include <xxhash.h>

#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {
namespace {

constexpr std::string_view kHeaderMagic(
    "\x89"
    "CPK\r\n\x1a\n",
    8);
constexpr std::string_view kTrailerMagic("\n\x1a\n\rKPC\x89", 8);
constexpr uint32_t kFrameMagic = 0x4d524643;   // "CFRM"
constexpr uint32_t kFooterMagic = 0x52544643;  // "CFTR"
constexpr uint16_t kVersion = 1;
constexpr size_t kFooterFixedBytes = 16 + kPackHeaderBytes;
constexpr size_t kDigestBytes = 32;

uint64_t Checksum(std::string_view bytes, uint64_t seed = 0) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t FrameSeed(const Id128& pack, uint64_t offset) {
  uint64_t seed;
  std::memcpy(&seed, pack.bytes.data(), sizeof seed);
  return seed ^ offset;
}

std::unexpected<Error> Bad(const char* what) { return Err(ErrorCode::kDataLoss, what); }

}  // namespace

Status CheckPackEntry(const PackEntry& entry, uint8_t kind, uint8_t codec) {
  if (!IsKnownKind(kind)) return Bad("unknown block kind");
  if (codec > static_cast<uint8_t>(Codec::kZstd)) return Bad("unknown codec");
  if (entry.raw_length == 0 || entry.raw_length > kMaxBlockBytes)
    return Bad("impossible raw length");
  if (entry.stored_length <= kAeadTagBytes || entry.stored_length > kMaxStoredBytes) {
    return Bad("impossible stored length");
  }
  if (entry.offset % 8 != 0 || entry.offset < kPackHeaderBytes || entry.offset > kMaxPackBytes) {
    return Bad("impossible frame offset");
  }
  return {};
}

std::string EncodePackHeader(const PackHeader& header) {
  CAIRN_CHECK(header.wrapped_key.size() == kWrappedKeyBytes);
  std::string out;
  ByteWriter w(out);
  w.Bytes(kHeaderMagic);
  w.U16(kVersion);
  w.U16(kVersion);
  w.U32(kPackHeaderBytes);
  w.Bytes(header.pack.view());
  w.Bytes(header.realm.view());
  w.U32(header.key_id);
  w.U32(0);
  w.U64(header.epoch);
  w.I64(header.created_ms);
  w.Bytes(header.wrapped_key);
  w.Zeros(20);
  w.U64(Checksum(out));
  CAIRN_CHECK(out.size() == kPackHeaderBytes);
  return out;
}

Result<PackHeader> DecodePackHeader(std::string_view bytes) {
  if (bytes.size() != kPackHeaderBytes) return Bad("pack header is cut short");
  ByteReader r(bytes);
  if (r.Bytes(8) != kHeaderMagic) return Bad("pack header has a wrong magic");
  r.U16();
  const uint16_t min_reader = r.U16();
  const uint32_t length = r.U32();
  PackHeader header;
  header.pack = Id128::FromView(r.Bytes(16));
  header.realm = Id128::FromView(r.Bytes(16));
  header.key_id = r.U32();
  const uint32_t flags = r.U32();
  header.epoch = r.U64();
  header.created_ms = r.I64();
  header.wrapped_key = r.Bytes(kWrappedKeyBytes);
  const std::string_view reserved = r.Bytes(20);
  if (r.U64() != Checksum(bytes.substr(0, kPackHeaderBytes - 8))) {
    return Bad("pack header checksum mismatch");
  }
  if (min_reader > kVersion) {
    return Err(ErrorCode::kFailedPrecondition,
               "pack was written for a newer version of this program");
  }
  if (length != kPackHeaderBytes || flags != 0 || reserved != std::string(20, '\0')) {
    return Bad("pack header has reserved fields set");
  }
  return header;
}

std::string PackKeyAad(const PackHeader& header) {
  std::string aad = "cairn pack";
  ByteWriter w(aad);
  w.Bytes(header.pack.view());
  w.Bytes(header.realm.view());
  w.U64(header.epoch);
  w.I64(header.created_ms);
  return aad;
}

std::string FrameAad(const PackEntry& entry) {
  std::string out;
  out.reserve(kFrameHeaderBytes);
  ByteWriter w(out);
  w.U32(kFrameMagic);
  w.U8(static_cast<uint8_t>(entry.kind));
  w.U8(static_cast<uint8_t>(entry.codec));
  w.U16(0);
  w.U32(entry.raw_length);
  w.U32(entry.stored_length);
  w.Bytes(entry.address.view());
  CAIRN_CHECK(out.size() == kFrameAadBytes);
  return out;
}

std::string EncodeFrameHeader(const Id128& pack, const PackEntry& entry, uint64_t stored_xxh3) {
  std::string out = FrameAad(entry);
  ByteWriter w(out);
  w.U64(stored_xxh3);
  w.U64(Checksum(out, FrameSeed(pack, entry.offset)));
  return out;
}

Result<FrameHeader> DecodeFrameHeader(const Id128& pack, uint64_t offset, std::string_view bytes) {
  if (bytes.size() != kFrameHeaderBytes) return Bad("frame header is cut short");
  ByteReader r(bytes);
  if (r.U32() != kFrameMagic) return Bad("frame header has a wrong magic");
  FrameHeader frame;
  const uint8_t kind = r.U8();
  const uint8_t codec = r.U8();
  const uint16_t flags = r.U16();
  frame.entry.raw_length = r.U32();
  frame.entry.stored_length = r.U32();
  frame.entry.address = Address::FromView(r.Bytes(32));
  frame.stored_xxh3 = r.U64();
  frame.entry.offset = offset;
  if (r.U64() != Checksum(bytes.substr(0, kFrameHeaderBytes - 8), FrameSeed(pack, offset))) {
    return Bad("frame header checksum mismatch");
  }
  if (flags != 0) return Bad("frame header has reserved bits set");
  CAIRN_TRY(CheckPackEntry(frame.entry, kind, codec));
  frame.entry.kind = static_cast<BlockKind>(kind);
  frame.entry.codec = static_cast<Codec>(codec);
  return frame;
}

bool LooksLikeFrame(std::string_view bytes) {
  uint32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kFrameMagic;
}

Nonce96 FrameNonce(uint64_t offset) {
  Nonce96 nonce{};
  std::memcpy(nonce.data(), &offset, sizeof offset);
  return nonce;
}

std::string EncodeFooterBeforeDigest(const PackHeader& header,
                                     const std::vector<PackEntry>& entries) {
  std::string out;
  out.reserve(kFooterFixedBytes + entries.size() * kFooterEntryBytes + kDigestBytes);
  ByteWriter w(out);
  w.U32(kFooterMagic);
  w.U16(kVersion);
  w.U16(0);
  w.U64(entries.size());
  w.Bytes(EncodePackHeader(header));
  for (const PackEntry& entry : entries) {
    w.Bytes(entry.address.view());
    w.U64(entry.offset);
    w.U32(entry.stored_length);
    w.U32(entry.raw_length);
    w.U8(static_cast<uint8_t>(entry.kind));
    w.U8(static_cast<uint8_t>(entry.codec));
    w.Zeros(6);
  }
  return out;
}

std::string EncodeTrailer(uint64_t footer_offset, std::string_view footer) {
  std::string out;
  ByteWriter w(out);
  w.U64(footer_offset);
  w.U64(Checksum(footer));
  w.U64(Checksum(out));
  w.Bytes(kTrailerMagic);
  CAIRN_CHECK(out.size() == kPackTrailerBytes);
  return out;
}

Result<PackTrailer> DecodeTrailer(std::string_view bytes) {
  if (bytes.size() != kPackTrailerBytes) return Bad("pack trailer is cut short");
  ByteReader r(bytes);
  PackTrailer trailer;
  trailer.footer_offset = r.U64();
  trailer.footer_xxh3 = r.U64();
  const uint64_t checksum = r.U64();
  if (r.Bytes(8) != kTrailerMagic) return Bad("pack trailer has a wrong magic");
  if (checksum != Checksum(bytes.substr(0, 16))) return Bad("pack trailer checksum mismatch");
  return trailer;
}

Result<PackFooter> DecodeFooter(const PackTrailer& trailer, std::string_view footer) {
  if (Checksum(footer) != trailer.footer_xxh3) return Bad("pack footer checksum mismatch");
  ByteReader r(footer);
  const uint32_t magic = r.U32();
  const uint16_t version = r.U16();
  const uint16_t flags = r.U16();
  const uint64_t count = r.U64();
  const std::string_view header = r.Bytes(kPackHeaderBytes);
  if (!r.ok() || magic != kFooterMagic || version != kVersion || flags != 0) {
    return Bad("pack footer has a wrong head");
  }
  if (count > r.remaining() / kFooterEntryBytes ||
      count * kFooterEntryBytes + kDigestBytes != r.remaining()) {
    return Bad("pack footer's count disagrees with its length");
  }
  PackFooter out;
  out.header = CAIRN_TRY(DecodePackHeader(header));
  out.frames_end = trailer.footer_offset;
  out.entries.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    PackEntry entry;
    entry.address = Address::FromView(r.Bytes(32));
    entry.offset = r.U64();
    entry.stored_length = r.U32();
    entry.raw_length = r.U32();
    const uint8_t kind = r.U8();
    const uint8_t codec = r.U8();
    const bool reserved_clear = r.U16() == 0 && r.U32() == 0;
    CAIRN_TRY(CheckPackEntry(entry, kind, codec));
    entry.kind = static_cast<BlockKind>(kind);
    entry.codec = static_cast<Codec>(codec);
    if (!reserved_clear) return Bad("pack footer has reserved bits set");
    if (entry.EndOffset() > trailer.footer_offset)
      return Bad("pack footer names a frame past its end");
    if (!out.entries.empty() && !(out.entries.back().address < entry.address)) {
      return Bad("pack footer is not sorted");
    }
    out.entries.push_back(entry);
  }
  out.sha256 = r.Bytes(kDigestBytes);
  return out;
}

}  // namespace cairn
