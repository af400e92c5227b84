// JSON of protocol messages: field names as in the .proto, numbers as numbers (64-bit too), bytes
// (they hold paths) as text, enums by lower-case name, unset scalar fields with their default,
// absent messages as null; what is not UTF-8 becomes U+FFFD. Stable: scripts read it.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace cairn {

nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message);

}  // namespace cairn
