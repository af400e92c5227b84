// The value of an extent key in a tree (docs/formats/tree.md, part two): which bytes of which block
// a piece of a file is.
#pragma once

#include <string_view>

#include "store/base/error.h"
#include "store/tree.h"
#include "volume/inode.h"
#include "volume/layer.h"

namespace cairn {

// `piece` is of source kBlock, lies within one window of the grid and within its block (CHECKed).
Entry EncodeExtent(const Segment& piece);

// The piece at file offset `offset` (the key's). DataLoss when a rule of the format is broken.
Result<Segment> DecodeExtent(uint64_t offset, const Entry& entry);

}  // namespace cairn
