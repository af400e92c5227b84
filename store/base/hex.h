// Lower-case hexadecimal.
#pragma once

#include <string>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

std::string HexEncode(std::string_view bytes);
Result<std::string> HexDecode(
    std::string_view hex);  // InvalidArgument: odd length, other characters

}  // namespace cairn
