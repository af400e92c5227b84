// Structured log lines on stderr: time, level, event, then key=value pairs. Values never hold
// secrets, file contents or file names of guests.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogField {
  std::string_view key;
  std::string value;
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(fmt::format("{}", v)) {}
};

// Writes one line. Thread-safe; never fails.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});
void SetLogLevel(LogLevel level);

inline void LogInfo(std::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(std::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(std::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

}  // namespace cairn
