// What the cairn command prints: JSON, tables, errors, and the exit codes (docs/CLI.md).
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "api/host.pb.h"
#include "store/base/error.h"

namespace cairn {

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,       // the operation failed; the message says why
  kExitUnreachable = 2,  // no daemon, or the connection broke
  kExitNotFound = 3,
  kExitRefused = 4,   // a rule or a state forbids it; what blocks it is listed
  kExitDataLoss = 5,  // stored bytes are wrong or gone
  kExitUsage = 64,
};

ExitCode ExitCodeOf(std::string_view error_code);

// Prints an error (to stderr; as JSON to stdout too when `json`) and returns its exit code.
ExitCode PrintCallError(const host::CallError& error, bool json);
// An error of the client's own: the socket, a file.
ExitCode PrintError(const Error& error, ExitCode code, bool json);

void PrintJson(const google::protobuf::Message& message);
// "name: value" lines; times as UTC, *_bytes with units, empty fields left out.
void PrintRecord(const google::protobuf::Message& message);
// One row for each message of the repeated field `field`. Columns are field names.
void PrintTable(const google::protobuf::Message& message, const std::string& field,
                const std::vector<std::string>& columns);

}  // namespace cairn
