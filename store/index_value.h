// The values of the block index: where a block lies, and what the marker of a wholly indexed pack
// says. docs/formats/index.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/pack_format.h"

namespace cairn {

struct BlockLocation {
  Id128 pack;
  PackEntry entry;
  uint64_t epoch = 0;          // of the pack that it was first written to
  uint64_t condemn_cycle = 0;  // 0: not condemned
  bool operator==(const BlockLocation&) const = default;
};

// What the marker of a wholly indexed pack says.
struct PackSummary {
  Id128 pack;
  Id128 realm;
  bool sealed = false;
  uint64_t file_bytes = 0;
  uint32_t entry_count = 0;
  uint64_t stored_bytes = 0;
  uint64_t raw_bytes = 0;
  bool operator==(const PackSummary&) const = default;
};
PackSummary Summarize(const PackHeader& header, bool sealed, uint64_t file_bytes,
                      const std::vector<PackEntry>& entries);

// Each value carries a checksum with its key, so that one that stands at another key is not valid.
// The decoders answer DataLoss for whatever is not.
std::string EncodeBlockLocation(std::string_view key, const BlockLocation& location);
Result<BlockLocation> DecodeBlockLocation(std::string_view key, std::string_view value);
std::string EncodePackMarker(std::string_view key, const PackSummary& pack);
Result<PackSummary> DecodePackMarker(std::string_view key, std::string_view value);

}  // namespace cairn
