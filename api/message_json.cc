// Protocol messages as JSON, by reflection: every field of the descriptor in its order, so that
// keys are always there. (The library's own JSON writes 64-bit numbers as strings.)
#include "api/message_json.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "api/utf8.h"

namespace cairn {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

std::string LowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Json Value(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool repeated = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? r.GetRepeatedInt32(message, &field, index) : r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return repeated ? r.GetRepeatedInt64(message, &field, index) : r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? r.GetRepeatedUInt32(message, &field, index) : r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return repeated ? r.GetRepeatedUInt64(message, &field, index) : r.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return repeated ? r.GetRepeatedDouble(message, &field, index) : r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return repeated ? r.GetRepeatedFloat(message, &field, index) : r.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? r.GetRepeatedBool(message, &field, index) : r.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return LowerCase(
          (repeated ? r.GetRepeatedEnum(message, &field, index) : r.GetEnum(message, &field))
              ->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return ToUtf8(repeated ? r.GetRepeatedString(message, &field, index)
                             : r.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(repeated ? r.GetRepeatedMessage(message, &field, index)
                                    : r.GetMessage(message, &field));
  }
  return nullptr;
}

}  // namespace

Json MessageToJson(const Message& message) {
  Json object = Json::object();
  const auto& descriptor = *message.GetDescriptor();
  const Reflection& r = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_map()) {
      Json entries = Json::object();
      const FieldDescriptor& value = *field.message_type()->map_value();
      for (int n = 0; n < r.FieldSize(message, &field); ++n) {
        const Message& entry = r.GetRepeatedMessage(message, &field, n);
        const std::string key =
            entry.GetReflection()->GetString(entry, field.message_type()->map_key());
        entries[key] = Value(entry, value, -1);
      }
      object[field.name()] = std::move(entries);
    } else if (field.is_repeated()) {
      Json list = Json::array();
      for (int n = 0; n < r.FieldSize(message, &field); ++n)
        list.push_back(Value(message, field, n));
      object[field.name()] = std::move(list);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
               !r.HasField(message, &field)) {
      object[field.name()] = nullptr;
    } else {
      object[field.name()] = Value(message, field, -1);
    }
  }
  return object;
}

}  // namespace cairn
