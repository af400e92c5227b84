// Output of the cairn command. Everything goes through the JSON form of a message
// (api/message_json.h), so that a table, a record and
// --json never disagree. Control characters of guest names are escaped before they reach a
// terminal.
#include "cmd/cairn_output.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "api/message_json.h"
#include "api/utf8.h"

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string Time(int64_t ms) {
  if (ms == 0) return "";
  const time_t seconds = ms / 1000;
  tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return std::to_string(ms);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%SZ", &parts);
  return text;
}

std::string Size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Cell(const std::string& name, const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return Printable(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer()) {
    if (name.ends_with("_ms")) return Time(value.get<int64_t>());
    if (name.ends_with("_bytes") || name == "bytes") return Size(value.get<uint64_t>());
    return value.dump();
  }
  if (value.is_array()) {
    std::string text;
    for (const Json& item : value) {
      if (!text.empty()) text += ", ";
      text += Cell("", item);
    }
    return text;
  }
  if (value.is_object()) {
    std::string text;
    for (const auto& [key, item] : value.items()) {
      const std::string cell = Cell(key, item);
      if (cell.empty()) continue;
      if (!text.empty()) text += " ";
      text += fmt::format("{}={}", key, cell);
    }
    return text;
  }
  return value.dump();
}

// Code points, which is near enough to columns for ids, numbers and most names.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void PrintRows(const std::vector<std::string>& columns, const Json& rows) {
  std::vector<std::vector<std::string>> table(1);
  for (std::string column : columns) {
    if (column.ends_with("_ms")) column.resize(column.size() - 3);
    std::transform(column.begin(), column.end(), column.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    table[0].push_back(column);
  }
  for (const Json& row : rows) {
    auto& cells = table.emplace_back();
    for (const std::string& column : columns) {
      const auto it = row.find(column);
      cells.push_back(it == row.end() ? "" : Cell(column, *it));
    }
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& row : table) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  for (const auto& row : table) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    std::fputs((line + "\n").c_str(), stdout);
  }
}

std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

ExitCode ExitCodeOf(std::string_view error_code) {
  if (error_code == "not_found") return kExitNotFound;
  if (error_code == "failed_precondition" || error_code == "already_exists" ||
      error_code == "permission_denied") {
    return kExitRefused;
  }
  if (error_code == "data_loss") return kExitDataLoss;
  if (error_code == "invalid_argument") return kExitUsage;
  return kExitFailed;
}

ExitCode PrintCallError(const host::CallError& error, bool json) {
  if (json) {
    Json object;
    object["error"] = MessageToJson(error);
    std::fputs(Dump(object).c_str(), stdout);
  }
  std::string text =
      fmt::format("cairn: {}", Printable(error.message().empty() ? error.code() : error.message()));
  if (!error.reason().empty()) text += fmt::format(" [{}]", error.reason());
  for (const std::string& id : error.blocking())
    text += fmt::format("\n  blocked by {}", Printable(id));
  std::fputs((text + "\n").c_str(), stderr);
  return ExitCodeOf(error.code());
}

ExitCode PrintError(const Error& error, ExitCode code, bool json) {
  host::CallError call_error;
  call_error.set_code(std::string(ErrorCodeName(error.code())));
  call_error.set_reason(code == kExitUnreachable ? "daemon_unreachable" : call_error.code());
  call_error.set_message(ToUtf8(error.message().empty() ? error.ToString() : error.message()));
  PrintCallError(call_error, json);
  return code;
}

void PrintJson(const google::protobuf::Message& message) {
  std::fputs(Dump(MessageToJson(message)).c_str(), stdout);
}

void PrintRecord(const google::protobuf::Message& message) {
  const Json object = MessageToJson(message);
  const auto label = [](const std::string& name) {
    return name.ends_with("_ms") ? name.substr(0, name.size() - 3) : name;
  };
  size_t width = 0;
  for (const auto& [name, value] : object.items()) {
    if (!Cell(name, value).empty()) width = std::max(width, label(name).size());
  }
  for (const auto& [name, value] : object.items()) {
    const std::string cell = Cell(name, value);
    // Messages in a message have their own table (PrintTable).
    if (cell.empty() || (value.is_array() && !value.empty() && value[0].is_object())) continue;
    std::fputs(fmt::format("{:<{}}  {}\n", label(name), width, cell).c_str(), stdout);
  }
}

void PrintTable(const google::protobuf::Message& message, const std::string& field,
                const std::vector<std::string>& columns) {
  const Json object = MessageToJson(message);
  const auto it = object.find(field);
  PrintRows(columns, it == object.end() ? Json::array() : *it);
}

}  // namespace cairn
