// Range and conditional headers of a download (RFC 9110, 13 and 14).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

struct ByteRange {
  enum class Kind {
    kWhole,  // 200: no range asked for, or one that may be ignored (several, malformed, another
             // unit, If-Range differs)
    kPart,   // 206: [offset, offset + length)
    kUnsatisfiable,  // 416
  };
  Kind kind = Kind::kWhole;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// `range` is the Range header, `if_range` the If-Range header ("" when absent), `etag` the quoted
// tag of the content.
ByteRange ParseRange(std::string_view range, std::string_view if_range, std::string_view etag,
                     uint64_t size_bytes);

// If-None-Match holds `etag` (weak comparison) or "*".
bool NoneMatchHolds(std::string_view if_none_match, std::string_view etag);

// Content-Disposition for a download of a guest's file name: only the last path component, quoted
// ASCII without what could end the header or the quotes, and the UTF-8 form beside it (RFC 6266).
std::string AttachmentDisposition(std::string_view path);

}  // namespace cairn
