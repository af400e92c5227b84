// Query parameters of a list. An unknown one is an error that names it: a misspelt "limit" must not
// silently give page one.
#include "api/page.h"

#include <fmt/format.h>

namespace cairn {

Result<PageQuery> ParsePageQuery(const std::map<std::string, std::string>& query,
                                 const std::vector<std::string>& other, std::string* param) {
  PageQuery page;
  for (const auto& [name, value] : query) {
    *param = name;
    if (name == "limit") {
      const bool digits = !value.empty() && value.size() <= 3 &&
                          value.find_first_not_of("0123456789") == std::string::npos;
      const int limit = digits ? std::stoi(value) : 0;
      if (limit < 1 || limit > 100)
        return Err(ErrorCode::kInvalidArgument, "limit must be a number from 1 to 100");
      page.limit = static_cast<uint32_t>(limit);
    } else if (name == "after") {
      page.after = value;
    } else if (name == "order") {
      if (value != "asc" && value != "desc")
        return Err(ErrorCode::kInvalidArgument, "order must be asc or desc");
      page.ascending = value == "asc";
    } else if (std::find(other.begin(), other.end(), name) == other.end()) {
      return Err(ErrorCode::kInvalidArgument, "this list has no such query parameter");
    }
  }
  param->clear();
  return page;
}

}  // namespace cairn
