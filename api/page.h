// Cursor pages: limit, after, order (the list conventions of the OpenAI API).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "store/base/error.h"

namespace cairn {

struct PageQuery {
  uint32_t limit = 20;     // 1 to 100
  std::string after;       // id of the last object of the page before; empty: from the start
  bool ascending = false;  // by creation
};

// Reads limit, after and order. `other` are further parameters that the route knows: any other is
// an error. InvalidArgument: `*param` names the parameter, the message says what it must be.
Result<PageQuery> ParsePageQuery(const std::map<std::string, std::string>& query,
                                 const std::vector<std::string>& other, std::string* param);

template <typename T>
struct Page {
  std::vector<T> data;
  bool has_more = false;
};

// The page of `all` (in ascending order of creation) that `query` asks for; `id_of(item)` is an
// item's id. InvalidArgument: nothing with the id `after` is in the list.
template <typename T, typename IdOf>
Result<Page<T>> TakePage(std::vector<T> all, const PageQuery& query, IdOf id_of) {
  if (!query.ascending) std::reverse(all.begin(), all.end());
  auto begin = all.begin();
  if (!query.after.empty()) {
    begin = std::find_if(all.begin(), all.end(),
                         [&](const T& item) { return id_of(item) == query.after; });
    if (begin == all.end())
      return Err(ErrorCode::kInvalidArgument, "after: no such object in this list");
    ++begin;
  }
  const size_t rest = static_cast<size_t>(all.end() - begin);
  const size_t count = std::min<size_t>(rest, query.limit);
  Page<T> page;
  page.has_more = rest > count;
  page.data.assign(std::make_move_iterator(begin),
                   std::make_move_iterator(begin + static_cast<std::ptrdiff_t>(count)));
  return page;
}

}  // namespace cairn
