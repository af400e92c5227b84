// Guest names are bytes; JSON is UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

// `bytes` with every byte that is not part of well-formed UTF-8 (RFC 3629) replaced by U+FFFD.
std::string ToUtf8(std::string_view bytes);

}  // namespace cairn
