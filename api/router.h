// Router: from a method and a target to a route and its parameters. No sockets, no JSON.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"

namespace cairn {

// A target taken apart: segments and query, percent-decoded after splitting, so that an encoded '/'
// stays inside its segment.
struct Target {
  std::vector<std::string> segments;
  std::map<std::string, std::string> query;
};
// InvalidArgument: not absolute, a malformed escape, a NUL, an empty segment, or a query parameter
// given twice.
Result<Target> ParseTarget(std::string_view target);

// Route is what the caller wants back: an index, an enum, a function.
template <typename Route>
class Router {
 public:
  struct Match {
    const Route* route = nullptr;                   // nullptr: nothing there for this method
    std::map<std::string, std::string> parameters;  // by name in braces
    std::vector<std::string> allowed;  // methods that the path has; empty: no such path
  };

  // `pattern`: "/v1/things/{id}/parts". HEAD is answered by the GET route.
  void Add(std::string method, std::string_view pattern, Route route) {
    Entry entry{.method = std::move(method), .segments = {}, .route = std::move(route)};
    while (!pattern.empty()) {
      pattern.remove_prefix(1);
      const size_t end = std::min(pattern.find('/'), pattern.size());
      entry.segments.emplace_back(pattern.substr(0, end));
      pattern.remove_prefix(end);
    }
    entries_.push_back(std::move(entry));
  }

  Match Find(std::string_view method, const std::vector<std::string>& segments) const {
    Match match;
    for (const Entry& entry : entries_) {
      std::map<std::string, std::string> parameters;
      if (!Fits(entry, segments, &parameters)) continue;
      match.allowed.push_back(entry.method);
      if (entry.method == "GET") match.allowed.push_back("HEAD");
      if (entry.method == method || (entry.method == "GET" && method == "HEAD")) {
        match.route = &entry.route;
        match.parameters = std::move(parameters);
      }
    }
    return match;
  }

 private:
  struct Entry {
    std::string method;
    std::vector<std::string> segments;
    Route route;
  };
  static bool Fits(const Entry& entry, const std::vector<std::string>& segments,
                   std::map<std::string, std::string>* parameters) {
    if (entry.segments.size() != segments.size()) return false;
    for (size_t i = 0; i < segments.size(); ++i) {
      const std::string& pattern = entry.segments[i];
      if (pattern.starts_with('{')) {
        (*parameters)[pattern.substr(1, pattern.size() - 2)] = segments[i];
      } else if (pattern != segments[i]) {
        return false;
      }
    }
    return true;
  }

  std::vector<Entry> entries_;
};

}  // namespace cairn
