// The SHA-256 that a pack's footer ends with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/file_system.h"

namespace cairn {

// SHA-256 of the first `end` bytes of `file`, then of `rest`: 32 bytes. DataLoss when the file is
// shorter.
Result<std::string> PackDigest(File& file, uint64_t end, std::string_view rest);

}  // namespace cairn
