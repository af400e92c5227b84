// Header, then frames wherever a frame's magic stands, then the footer, which is found by its magic
// from the end. The order matters: each checksum covers what was repaired before it.
#include "tests/fuzz/pack_repair.h"

#include <algorithm>
#include <map>
#include <vector>

#include "store/block_codec.h"
#include "store/pack_digest.h"
#include "store/pack_format.h"
#include "tests/fuzz/known_keys.h"
#include "tests/fuzz/patch.h"

namespace cairn {
namespace {

constexpr std::string_view kFooterMagic = "CFTR";
constexpr std::string_view kTrailerMagic("\n\x1a\n\rKPC\x89", 8);
constexpr size_t kFooterHeadBytes = 16 + kPackHeaderBytes;
constexpr size_t kDigestBytes = 32;

void RepairHeader(uint8_t repair, std::string& file) {
  if ((repair & kRepairPackHeader) != 0) {
    PackHeader header{.pack = Known().pack,
                      .realm = Known().realm,
                      .key_id = Known().key_id,
                      .epoch = Peek<uint64_t>(file, 56),
                      .created_ms = Peek<int64_t>(file, 64),
                      .wrapped_key = {}};
    header.wrapped_key = Known().WrapDataKey(PackKeyAad(header));
    file.replace(0, kPackHeaderBytes, EncodePackHeader(header));
  }
  if ((repair & kRepairPackHeaderSum) != 0) {
    Patch(file, kPackHeaderBytes - 8, Xxh3(std::string_view(file).substr(0, 152)));
  }
}

void RepairAddress(std::string& file, size_t at, std::string_view coded) {
  const auto kind = Peek<uint8_t>(file, at + 4);
  const auto codec = Peek<uint8_t>(file, at + 5);
  const auto raw_length = Peek<uint32_t>(file, at + 8);
  if (!IsKnownKind(kind) || codec > static_cast<uint8_t>(Codec::kZstd) ||
      raw_length > kMaxBlockBytes) {
    return;
  }
  const auto plain = DecodeBlock(static_cast<Codec>(codec), std::string(coded), raw_length);
  if (!plain) return;
  const auto address = Known().ring.AddressOf(Known().realm, static_cast<BlockKind>(kind), *plain);
  file.replace(at + 16, 32, address->view());
}

// Returns offset -> address, stored length, raw length, kind and codec as a footer's entry has
// them.
std::map<uint64_t, std::string> RepairFrames(uint8_t repair, std::string& file, size_t end) {
  uint64_t seed;
  std::memcpy(&seed, file.data() + 16, sizeof seed);  // of the pack id
  std::map<uint64_t, std::string> entries;
  for (size_t at = kPackHeaderBytes; at + kFrameHeaderBytes <= end;) {
    if (!LooksLikeFrame(std::string_view(file).substr(at))) {
      at += 8;
      continue;
    }
    const auto stored = Peek<uint32_t>(file, at + 12);
    const bool whole = stored > kAeadTagBytes && stored <= kMaxStoredBytes &&
                       at + kFrameHeaderBytes + stored <= end;
    if (whole) {
      const std::string coded = file.substr(at + kFrameHeaderBytes, stored - kAeadTagBytes);
      if ((repair & kRepairAddresses) != 0) RepairAddress(file, at, coded);
      std::string sealed;
      AppendSealed(Known().data_key, FrameNonce(at), coded, file.substr(at, kFrameAadBytes),
                   sealed);
      file.replace(at + kFrameHeaderBytes, stored, sealed);
      Patch(file, at + kFrameAadBytes, Xxh3(sealed));
    }
    Patch(file, at + kFrameHeaderBytes - 8,
          Xxh3(std::string_view(file).substr(at, kFrameHeaderBytes - 8), seed ^ at));
    std::string entry = file.substr(at + 16, 32);
    entry.append(reinterpret_cast<const char*>(&at), sizeof at);
    entry += file.substr(at + 12, 4) + file.substr(at + 8, 4) + file.substr(at + 4, 2);
    entry.append(6, '\0');
    entries.emplace(at, std::move(entry));
    at += whole ? PackEntry::FrameBytes(stored) : 8;
  }
  return entries;
}

void RepairEntries(std::string& file, size_t begin, const std::map<uint64_t, std::string>& frames) {
  const auto count = Peek<uint64_t>(file, begin + 8);
  const size_t room = file.size() - kPackTrailerBytes - kDigestBytes - begin - kFooterHeadBytes;
  if (count > room / kFooterEntryBytes) return;
  std::vector<std::string> entries;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = begin + kFooterHeadBytes + i * kFooterEntryBytes;
    const auto frame = frames.find(Peek<uint64_t>(file, at + 32));
    entries.push_back(frame == frames.end() ? file.substr(at, kFooterEntryBytes) : frame->second);
  }
  std::ranges::sort(entries);
  for (size_t i = 0; i < count; ++i) {
    file.replace(begin + kFooterHeadBytes + i * kFooterEntryBytes, kFooterEntryBytes, entries[i]);
  }
}

// Of what the footer's entries name, in file order, as far as they are frames of this file.
std::string Digest(const std::string& file, size_t begin, size_t digest,
                   const std::map<uint64_t, std::string>& frames) {
  const auto header = DecodePackHeader(std::string_view(file).substr(0, kPackHeaderBytes));
  PackHasher hasher(header ? *header
                           : PackHeader{.pack = {},
                                        .realm = {},
                                        .wrapped_key = std::string(kWrappedKeyBytes, '\0')});
  for (const auto& [at, entry] : frames) {
    const uint64_t end = at + kFrameHeaderBytes + Peek<uint32_t>(file, at + 12);
    if (end > begin || end < at + kFrameHeaderBytes + kAeadTagBytes) continue;
    const std::string_view bytes(file);
    hasher.AddFrame(bytes.substr(at, kFrameHeaderBytes),
                    bytes.substr(end - kAeadTagBytes, kAeadTagBytes));
  }
  return hasher.Finish(std::string_view(file).substr(begin, digest - begin));
}

}  // namespace

void RepairFooterHead(std::string& file, size_t begin, const std::string& header) {
  const size_t end = file.size() - kPackTrailerBytes;
  if (end < begin + kFooterHeadBytes + kDigestBytes) return;
  file.replace(begin, kFooterMagic.size(), kFooterMagic);
  Patch<uint16_t>(file, begin + 4, 1);
  Patch<uint16_t>(file, begin + 6, 0);
  file.replace(begin + 16, kPackHeaderBytes, header);
  const size_t entry_bytes = end - begin - kFooterHeadBytes - kDigestBytes;
  Patch<uint64_t>(file, begin + 8, entry_bytes / kFooterEntryBytes);
  const size_t excess = entry_bytes % kFooterEntryBytes;
  file.erase(end - kDigestBytes - excess, excess);
}

void RepairTrailerSums(std::string& file, size_t begin, uint64_t footer_offset) {
  const size_t trailer = file.size() - kPackTrailerBytes;
  Patch(file, trailer, footer_offset);
  Patch(file, trailer + 8, Xxh3(std::string_view(file).substr(begin, trailer - begin)));
  Patch(file, trailer + 16, Xxh3(std::string_view(file).substr(trailer, 16)));
  file.replace(trailer + 24, kTrailerMagic.size(), kTrailerMagic);
}

void RepairPack(uint8_t repair, std::string& file) {
  if (file.size() < kPackHeaderBytes) return;
  RepairHeader(repair, file);
  size_t footer = std::string::npos;
  if (file.size() >= kPackHeaderBytes + kFooterHeadBytes + kDigestBytes + kPackTrailerBytes) {
    footer = file.rfind(kFooterMagic, file.size() - kPackTrailerBytes - kDigestBytes);
    if (footer != std::string::npos && footer < kPackHeaderBytes) footer = std::string::npos;
  }
  std::map<uint64_t, std::string> frames;
  if ((repair & kRepairFrames) != 0) {
    frames = RepairFrames(repair, file, std::min(footer, file.size()));
  }
  if (footer == std::string::npos) return;
  const size_t footer_end = file.size() - kPackTrailerBytes;
  if ((repair & kRepairFooter) != 0 && footer_end >= footer + kFooterHeadBytes + kDigestBytes) {
    RepairFooterHead(file, footer, file.substr(0, kPackHeaderBytes));
    if ((repair & kRepairEntries) != 0) RepairEntries(file, footer, frames);
    const size_t digest = file.size() - kPackTrailerBytes - kDigestBytes;
    file.replace(digest, kDigestBytes, Digest(file, footer, digest, frames));
  }
  if ((repair & kRepairTrailer) != 0) RepairTrailerSums(file, footer, footer);
}

}  // namespace cairn
