// Control records: messages to and from catalog values, and which message stands at which key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/keys.h"
#include "catalog/records.pb.h"
#include "store/base/error.h"

namespace cairn {

// DataLoss naming `key`: the bytes are not such a message.
template <typename Message>
Result<Message> ParseRecord(std::string_view key, std::string_view value) {
  Message message;
  if (!message.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
    return Err(ErrorCode::kDataLoss,
               "catalog record " + std::string(key) + " is not a " + message.GetTypeName());
  }
  return message;
}

// From a CatalogTransaction or a Catalog. Absence is a value.
template <typename Message, typename Reader>
Result<std::optional<Message>> GetRecord(Reader& reader, std::string_view key) {
  const std::optional<std::string> value = CAIRN_TRY(reader.Get(key));
  if (!value) return std::optional<Message>();
  return std::optional<Message>(CAIRN_TRY(ParseRecord<Message>(key, *value)));
}

template <typename Message>
void PutRecord(CatalogTransaction& transaction, std::string_view key, const Message& message) {
  transaction.Put(key, message.SerializeAsString());
}

// Visits the records of a range in order until `visit(key, message)` returns false. It must not
// write to the transaction while it visits.
template <typename Message, typename Reader, typename Visit>
Status ScanRecords(Reader& reader, const keys::Range& range, Visit&& visit) {
  Status parsed;
  CAIRN_TRY(reader.Scan(range.begin, range.end, [&](std::string_view key, std::string_view value) {
    auto message = ParseRecord<Message>(key, value);
    if (!message) {
      parsed = std::unexpected(std::move(message).error());
      return false;
    }
    return static_cast<bool>(visit(key, *message));
  }));
  return parsed;
}

// DataLoss: `value` is not what belongs at `key`, or no kind of record has such a key. For Check.
Status VerifyRecord(std::string_view key, std::string_view value);

}  // namespace cairn
