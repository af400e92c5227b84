// What lies between a block's plaintext and the bytes that are encrypted: zstd, where it gains
// something.
#pragma once

#include <string>
#include <string_view>

#include "store/base/error.h"
#include "store/block_store.h"
#include "store/pack_format.h"

namespace cairn {

struct EncodedBlock {
  Codec codec = Codec::kRaw;
  std::string bytes;  // empty for kRaw: the plaintext itself is stored
  std::string_view View(std::string_view plain) const {
    return codec == Codec::kRaw ? plain : std::string_view(bytes);
  }
};

// Thread-safe; pure computation.
EncodedBlock EncodeBlock(std::string_view plain, Compression compression);

// DataLoss unless the bytes decode to exactly `raw_length` bytes. Allocates no more than that.
Result<std::string> DecodeBlock(Codec codec, std::string bytes, uint32_t raw_length);

}  // namespace cairn
