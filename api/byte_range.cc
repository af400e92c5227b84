// Headers of a download. Whatever a Range header holds that is not exactly one well-formed byte
// range is ignored, as RFC 9110 14.2 allows: the answer is then the whole, never something else.
#include "api/byte_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "api/utf8.h"

namespace cairn {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// What is beyond 64 bits is beyond every file: the largest number says as much.
std::optional<uint64_t> Number(std::string_view text) {
  if (text.empty()) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    const uint64_t digit = static_cast<uint64_t>(c - '0');
    value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
  }
  return value;
}

}  // namespace

ByteRange ParseRange(std::string_view range, std::string_view if_range, std::string_view etag,
                     uint64_t size_bytes) {
  const ByteRange whole{.kind = ByteRange::Kind::kWhole, .offset = 0, .length = size_bytes};
  range = Trim(range);
  if (range.size() < 6 || range.find(',') != std::string_view::npos) return whole;
  std::string unit(range.substr(0, 6));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (unit != "bytes=") return whole;
  if (!if_range.empty() && Trim(if_range) != etag) return whole;
  const std::string_view spec = Trim(range.substr(6));
  const size_t dash = spec.find('-');
  if (dash == std::string_view::npos) return whole;
  const std::string_view first_text = spec.substr(0, dash);
  const std::string_view last_text = spec.substr(dash + 1);
  const auto first = Number(first_text);
  const auto last = Number(last_text);
  if (first_text.empty()) {
    if (!last) return whole;
    if (*last == 0 || size_bytes == 0) return {.kind = ByteRange::Kind::kUnsatisfiable};
    const uint64_t length = std::min(*last, size_bytes);
    return {.kind = ByteRange::Kind::kPart, .offset = size_bytes - length, .length = length};
  }
  if (!first || (!last_text.empty() && (!last || *last < *first))) return whole;
  if (*first >= size_bytes) return {.kind = ByteRange::Kind::kUnsatisfiable};
  const uint64_t end = last ? std::min(*last, size_bytes - 1) : size_bytes - 1;
  return {.kind = ByteRange::Kind::kPart, .offset = *first, .length = end - *first + 1};
}

bool NoneMatchHolds(std::string_view if_none_match, std::string_view etag) {
  while (!if_none_match.empty()) {
    const size_t comma = std::min(if_none_match.find(','), if_none_match.size());
    std::string_view tag = Trim(if_none_match.substr(0, comma));
    if_none_match.remove_prefix(std::min(comma + 1, if_none_match.size()));
    if (tag == "*") return true;
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (!tag.empty() && tag == etag) return true;
  }
  return false;
}

std::string AttachmentDisposition(std::string_view path) {
  const std::string name = ToUtf8(path.substr(path.rfind('/') + 1));
  std::string ascii;
  std::string encoded;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                       (byte >= 'A' && byte <= 'Z') || byte == '.' || byte == '-' || byte == '_';
    ascii += plain || byte == ' ' ? c : '_';
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  // A name of dots alone, or none, means something to some client's disk.
  if (ascii.find_first_not_of('.') == std::string::npos) ascii = encoded = "download";
  return fmt::format("attachment; filename=\"{}\"; filename*=UTF-8''{}", ascii, encoded);
}

}  // namespace cairn
