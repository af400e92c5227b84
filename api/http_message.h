// Requests and responses between the HTTP server (transport) and the routes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.h"

namespace cairn {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET", ...
  std::string target;   // path and query as received, still percent-encoded
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string request_id;  // "req_..": in the answer's header and in the log

  // The first header of that (lower-case) name; empty when there is none.
  std::string_view Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

// Bytes of a large body, read in bounded parts while they are sent. Used by one thread at a time.
class ContentSource {
 public:
  virtual ~ContentSource() = default;
  // Fills all of `out` from `offset`, or fails. The server ends the connection at an error: a body
  // is never short with success.
  virtual Status Read(uint64_t offset, std::span<char> out) = 0;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string body;
  // With `content`: the body is its bytes [content_offset, content_offset + content_length), and
  // `body` is empty.
  std::unique_ptr<ContentSource> content;
  uint64_t content_offset = 0;
  uint64_t content_length = 0;

  void Set(std::string name, std::string value) {
    headers.emplace_back(std::move(name), std::move(value));
  }
};

}  // namespace cairn
