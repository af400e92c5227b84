// What lies between a block's plaintext and the bytes that are encrypted: zstd, where it gains
// something.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "store/base/error.h"
#include "store/block_store.h"
#include "store/pack_format.h"

namespace cairn {

// What is to be stored: the plaintext itself, or what EncodeBlock wrote into `room`.
struct EncodedBlock {
  Codec codec = Codec::kRaw;
  std::string_view bytes;
};

// `room` is at least as long as `plain`. kBackground is level 2 for blocks over 128 KiB, 3 for
// others (decision 13). Thread-safe; pure computation.
EncodedBlock EncodeBlock(std::string_view plain, Compression compression, std::span<char> room);

// DataLoss unless the bytes decode to exactly `raw_length` bytes. Allocates no more than that.
Result<std::string> DecodeBlock(Codec codec, std::string bytes, uint32_t raw_length);

}  // namespace cairn
