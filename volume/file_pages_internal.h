// Which 4 KiB pages of a file hold data: the unit of st_blocks, SEEK_DATA and SEEK_HOLE. A page
// counts as data as soon as one byte of it is in a data segment.
#pragma once

#include <cstdint>

#include "store/base/error.h"
#include "volume/layer.h"

namespace cairn {

inline uint64_t PageFloor(uint64_t offset) { return offset / kPageBytes * kPageBytes; }
inline uint64_t PageCeil(uint64_t offset) { return PageFloor(offset + kPageBytes - 1); }

struct PageCount {
  uint64_t now = 0;      // pages with data in the range
  uint64_t without = 0;  // the same after a hole over the range
};
// Counts in the pages that [begin, end) touches; `without` keeps those whose data lies partly
// outside [begin, end).
Result<PageCount> CountDataPages(const Layer& layer, InodeNumber ino, uint64_t begin, uint64_t end);

// The first offset >= `offset` in a page with (or without) data, below `size_bytes`; `size_bytes`
// if there is none.
Result<uint64_t> NextDataOffset(const Layer& layer, InodeNumber ino, uint64_t offset,
                                uint64_t size_bytes);
Result<uint64_t> NextHoleOffset(const Layer& layer, InodeNumber ino, uint64_t offset,
                                uint64_t size_bytes);

}  // namespace cairn
