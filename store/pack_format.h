// The layouts of a pack: header, frame header, footer, trailer. docs/formats/pack.md. Pure encoding
// and decoding; the decoders take bytes from disk and answer DataLoss for whatever is not valid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/address.h"
#include "store/base/aead.h"
#include "store/base/error.h"
#include "store/base/id128.h"

namespace cairn {

inline constexpr size_t kPackHeaderBytes = 160;
inline constexpr size_t kFrameHeaderBytes = 64;
inline constexpr size_t kFrameAadBytes = 48;
inline constexpr size_t kPackTrailerBytes = 32;
inline constexpr size_t kFooterEntryBytes = 56;
inline constexpr size_t kWrappedKeyBytes = 60;
inline constexpr uint32_t kMaxStoredBytes = kMaxBlockBytes + kAeadTagBytes;
inline constexpr uint64_t kMaxPackBytes = 1ull << 30;

enum class Codec : uint8_t { kRaw = 0, kZstd = 1 };

struct PackHeader {
  Id128 pack;
  Id128 realm;
  uint32_t key_id = 0;
  uint64_t epoch = 0;  // the data directory's open epoch of the writer
  int64_t created_ms = 0;
  std::string wrapped_key;  // kWrappedKeyBytes
  bool operator==(const PackHeader&) const = default;
};
std::string EncodePackHeader(const PackHeader& header);
// FailedPrecondition: written for a newer reader. DataLoss: not a valid header.
Result<PackHeader> DecodePackHeader(std::string_view bytes);
// What the wrapped data key is bound to.
std::string PackKeyAad(const PackHeader& header);

// One frame as the footer and the index know it.
struct PackEntry {
  Address address;
  uint64_t offset = 0;
  uint32_t stored_length = 0;  // ciphertext and tag
  uint32_t raw_length = 0;
  BlockKind kind = BlockKind::kData;
  Codec codec = Codec::kRaw;
  bool operator==(const PackEntry&) const = default;

  // Where the next frame begins: end of the padding.
  uint64_t EndOffset() const { return offset + FrameBytes(stored_length); }
  static uint64_t FrameBytes(uint64_t stored_length) {
    return (kFrameHeaderBytes + stored_length + 7) & ~7ull;
  }
};

// The limits of an entry, of which `kind` and `codec` are still bytes: what frame headers, footer
// and index have in common. DataLoss.
Status CheckPackEntry(const PackEntry& entry, uint8_t kind, uint8_t codec);

// The first 64 bytes of a frame: `entry` plus the checksum of the stored bytes.
std::string EncodeFrameHeader(const Id128& pack, const PackEntry& entry, uint64_t stored_xxh3);
// The part of it that is authenticated with the ciphertext (kFrameAadBytes).
std::string FrameAad(const PackEntry& entry);
struct FrameHeader {
  PackEntry entry;
  uint64_t stored_xxh3 = 0;
};
Result<FrameHeader> DecodeFrameHeader(const Id128& pack, uint64_t offset, std::string_view bytes);
// True when the bytes begin with a frame's magic (a cheap test before DecodeFrameHeader).
bool LooksLikeFrame(std::string_view bytes);
Nonce96 FrameNonce(uint64_t offset);

struct PackFooter {
  PackHeader header;
  std::vector<PackEntry> entries;  // ascending by address
  std::string sha256;              // PackHasher's
  uint64_t frames_end = 0;         // = offset of the footer
};
// Up to, not including, the digest: what the digest still has to cover. `entries` must be sorted.
std::string EncodeFooterBeforeDigest(const PackHeader& header,
                                     const std::vector<PackEntry>& entries);
std::string EncodeTrailer(uint64_t footer_offset, std::string_view footer);

struct PackTrailer {
  uint64_t footer_offset = 0;
  uint64_t footer_xxh3 = 0;
};
Result<PackTrailer> DecodeTrailer(std::string_view bytes);
// `footer` is what lies between the footer's offset and the trailer.
Result<PackFooter> DecodeFooter(const PackTrailer& trailer, std::string_view footer);

}  // namespace cairn
