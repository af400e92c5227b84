// Targets (RFC 3986, 2.1 and 3.3). Decoding happens once, after splitting: "%2e%2e%2f" becomes the
// text "../" inside one segment, which is no id of anything, and never a path.
#include "api/router.h"

namespace cairn {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> Decode(std::string_view text, bool plus_is_space) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0)
        return Err(ErrorCode::kInvalidArgument, "a percent escape in the URL is malformed");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (c == '\0') return Err(ErrorCode::kInvalidArgument, "the URL holds a NUL");
    out.push_back(c);
  }
  return out;
}

}  // namespace

Result<Target> ParseTarget(std::string_view target) {
  if (!target.starts_with('/'))
    return Err(ErrorCode::kInvalidArgument, "the URL's path must begin with /");
  target = target.substr(0, target.find('#'));
  const size_t question = target.find('?');
  std::string_view path = target.substr(0, question);
  std::string_view query =
      question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
  Target result;
  if (path == "/") path = {};
  while (!path.empty()) {
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    if (end == 0) return Err(ErrorCode::kInvalidArgument, "the URL's path has an empty segment");
    result.segments.push_back(CAIRN_TRY(Decode(path.substr(0, end), false)));
    path.remove_prefix(end);
  }
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    std::string name = CAIRN_TRY(Decode(pair.substr(0, equals), true));
    std::string value = CAIRN_TRY(Decode(pair.substr(std::min(equals + 1, pair.size())), true));
    if (!result.query.emplace(std::move(name), std::move(value)).second) {
      return Err(ErrorCode::kInvalidArgument, "a query parameter is given twice");
    }
  }
  return result;
}

}  // namespace cairn
