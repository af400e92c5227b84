// What of a window of the grid is stored: pages of zeros are holes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn {

// A part of a window, in bytes from the window's start; `end` is exclusive.
struct WindowRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// `bytes` is not empty.
bool IsZero(std::string_view bytes);

// Appends, joined to the last range where it begins at its end.
void AddRange(std::vector<WindowRange>& ranges, uint64_t begin, uint64_t length_bytes);

// `ranges` (of `window`, whose first byte is at a multiple of the page size in its file) without
// those of their pages, whole or what they have of one, that are zero.
std::vector<WindowRange> DropZeroPages(std::string_view window,
                                       const std::vector<WindowRange>& ranges);

}  // namespace cairn
