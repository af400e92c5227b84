// Well-formed UTF-8, as Unicode's table 3-7 lists it: the second byte's range depends on the first
// (no overlong forms, no surrogates, nothing above U+10FFFF), all further bytes are 80..BF.
#include "api/utf8.h"

#include <cstddef>

namespace cairn {
namespace {

// The length of the well-formed sequence at the start of `bytes`, or 0.
size_t SequenceLength(std::string_view bytes) {
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u;
  };
  const auto in = [](unsigned value, unsigned low, unsigned high) {
    return low <= value && value <= high;
  };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (in(first, 0xc2, 0xdf)) return in(at(1), 0x80, 0xbf) ? 2 : 0;
  if (in(first, 0xe0, 0xef)) {
    const unsigned low = first == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : 0xbf;
    return in(at(1), low, high) && in(at(2), 0x80, 0xbf) ? 3 : 0;
  }
  if (in(first, 0xf0, 0xf4)) {
    const unsigned low = first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xf4 ? 0x8f : 0xbf;
    return in(at(1), low, high) && in(at(2), 0x80, 0xbf) && in(at(3), 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string ToUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = SequenceLength(bytes);
    if (length == 0) {
      text += "\xef\xbf\xbd";
      bytes.remove_prefix(1);
    } else {
      text += bytes.substr(0, length);
      bytes.remove_prefix(length);
    }
  }
  return text;
}

}  // namespace cairn
