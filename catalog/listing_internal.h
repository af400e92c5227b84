// Pages over the *_at indexes: a scan from a cursor that reads one page and one key more.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/keys.h"
#include "catalog/records.h"
#include "catalog/registry.h"

namespace cairn {

// `after_key`: the index key of query.after (also of a deleted object, whose key is no longer
// there), or empty. `key_of(id)`: the record's key. A record that went between index and record is
// left out.
template <typename Message, typename KeyOf>
Result<Listing<Message>> ListByTime(Catalog& catalog, const keys::Range& range,
                                    const ListQuery& query, const std::string& after_key,
                                    KeyOf&& key_of) {
  std::vector<std::string> ids;
  Status parsed;
  const auto visit = [&](std::string_view key, std::string_view value) {
    auto entry = ParseRecord<catalog::IndexEntry>(key, value);
    if (!entry) {
      parsed = std::unexpected(std::move(entry).error());
      return false;
    }
    ids.push_back(entry->id());
    return ids.size() <= query.limit;
  };
  if (query.ascending) {
    const std::string begin = after_key.empty() ? range.begin : after_key + '\0';
    CAIRN_TRY(catalog.Scan(begin, range.end, visit));
  } else {
    CAIRN_TRY(catalog.ScanBackward(range.begin, after_key.empty() ? range.end : after_key, visit));
  }
  CAIRN_TRY(std::move(parsed));
  Listing<Message> page;
  page.has_more = ids.size() > query.limit;
  if (page.has_more) ids.resize(query.limit);
  for (const std::string& id : ids) {
    auto record = CAIRN_TRY(GetRecord<Message>(catalog, key_of(id)));
    if (record) page.items.push_back(*std::move(record));
  }
  return page;
}

inline std::unexpected<Error> UnknownCursor() {
  return Err(ErrorCode::kInvalidArgument, "after: no such object in this list");
}

}  // namespace cairn
