// Pages of zeros are left out the same way wherever a window becomes a block, so that equal windows
// become equal blocks: in a seal (volume/sealer.cc) and in an import (volume/staged_head.cc).
#include "volume/window_ranges.h"

#include <algorithm>
#include <cstring>

#include "store/tree.h"
#include "volume/inode.h"

namespace cairn {

// memcmp with itself, one byte on: at memory speed.
bool IsZero(std::string_view bytes) {
  return bytes[0] == '\0' && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

void AddRange(std::vector<WindowRange>& ranges, uint64_t begin, uint64_t length_bytes) {
  const WindowRange range{static_cast<uint32_t>(begin),
                          static_cast<uint32_t>(begin + length_bytes)};
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

std::vector<WindowRange> DropZeroPages(std::string_view window,
                                       const std::vector<WindowRange>& ranges) {
  std::vector<WindowRange> out;
  for (const WindowRange& range : ranges) {
    for (uint32_t begin = range.begin; begin < range.end;) {
      const uint32_t end = std::min<uint32_t>(
          range.end, static_cast<uint32_t>((begin / kPageBytes + 1) * kPageBytes));
      if (!IsZero(window.substr(begin, end - begin))) AddRange(out, begin, end - begin);
      begin = end;
    }
  }
  return out;
}

}  // namespace cairn
