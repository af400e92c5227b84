// The reference table that every branch block starts with: what a collector reads to walk blocks
// whose meaning it does not know.
//
//   magic u32 | version u16 | kind u8 | flags u8 = 0 | ref_count u32 | body_length u32 | refs:
//   ref_count x 40 B | body
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "store/address.h"

namespace cairn {

struct BranchBlock {
  BlockKind kind = BlockKind::kTreeNode;
  std::vector<BlockRef> refs;
  std::string body;
};

// Encodes; CHECKs that the result fits kMaxBlockBytes.
std::string EncodeBranch(BlockKind kind, const std::vector<BlockRef>& refs, std::string_view body);

// DataLoss on a wrong magic, version, kind, length or reference. `expected` is the kind of the
// reference that led here.
Result<BranchBlock> DecodeBranch(BlockKind expected, std::string_view plain);

}  // namespace cairn
