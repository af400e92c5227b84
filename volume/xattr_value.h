// The value of an xattr key (docs/formats/tree.md, part two): a form byte, then the value itself or
// nothing when the one reference of the entry is a kData block that holds it.
//
//   form 0 (inline): payload = 00 || value, no reference
//   form 1 (block):  payload = 01, refs = {kData block with exactly the value}
//
// Writers of a delta always use form 0, whatever the length (0 to kMaxXattrBytes). The sealer turns
// values over kInlineLimitBytes into form 1. Readers meet both.
#pragma once

#include <string>
#include <string_view>

#include "store/base/error.h"
#include "store/tree.h"
#include "volume/layer.h"

namespace cairn {

// Form 0. CHECKs value.size() <= kMaxXattrBytes.
Entry EncodeXattrInline(std::string_view value);

// Form 1. `block` is of kind kData and not over kMaxXattrBytes (CHECKed).
Entry EncodeXattrBlock(const BlockRef& block);

// What an entry says, without I/O. `inline_value` points into the entry; `block` is set for form 1.
struct XattrValue {
  std::string_view inline_value;
  const BlockRef* block = nullptr;
  size_t size_bytes() const { return block ? block->raw_length_bytes : inline_value.size(); }
};
// DataLoss: empty payload, unknown form, references that do not fit the form, over kMaxXattrBytes.
Result<XattrValue> DecodeXattrValue(const Entry& entry);

// The value of an entry that `layer` returned. Blocks on I/O for form 1; DataLoss passes through.
Result<std::string> ReadXattrValue(const Layer& layer, const Entry& entry);

}  // namespace cairn
