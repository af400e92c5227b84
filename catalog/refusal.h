// Refusal: why a control operation was not done, for machines as well as for people. It is an Error
// with a stable code of its own and the ids of what stands in the way: what a 409 body holds.
//
// It travels as the error of Ruled<T> = std::expected<T, Refusal>. CAIRN_TRY works both ways: an
// Error becomes a Refusal whose code is its ErrorCodeName, a Refusal becomes an Error whose message
// begins with its code.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.h"

namespace cairn {

// Stable codes: clients match on them, so they are only ever added.
namespace refusals {
inline constexpr std::string_view kEnvironmentInUse = "environment_in_use";  // blocking: Sessions
inline constexpr std::string_view kEnvironmentMounted = "environment_mounted";
inline constexpr std::string_view kEnvironmentDeleted = "environment_deleted";
inline constexpr std::string_view kEnvironmentExpired = "environment_expired";
inline constexpr std::string_view kInitializationInProgress = "initialization_in_progress";
inline constexpr std::string_view kInitializationFailed = "initialization_failed";
inline constexpr std::string_view kOperationInProgress =
    "operation_in_progress";                                             // blocking: operations
inline constexpr std::string_view kTurnInProgress = "turn_in_progress";  // blocking: the turn
inline constexpr std::string_view kTurnEnded = "turn_already_ended";
inline constexpr std::string_view kSnapshotInUse = "snapshot_in_use";  // blocking: Environments
inline constexpr std::string_view kSnapshotPinned = "snapshot_pinned";
inline constexpr std::string_view kIdempotencyConflict = "idempotency_conflict";
inline constexpr std::string_view kInvalidApiKey = "invalid_api_key";
}  // namespace refusals

// Immutable value.
class [[nodiscard]] Refusal {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): CAIRN_TRY on a Result inside a function that
  // returns Ruled.
  Refusal(Error error) : error_(std::move(error)), code_(ErrorCodeName(error_.code())) {}
  Refusal(ErrorCode error_code, std::string_view code, std::string message,
          std::vector<std::string> blocking = {})
      : error_(error_code, std::move(message)), code_(code), blocking_(std::move(blocking)) {}

  const Error& error() const { return error_; }
  const std::string& code() const { return code_; }
  const std::string& message() const { return error_.message(); }
  const std::vector<std::string>& blocking() const { return blocking_; }

  // NOLINTNEXTLINE(google-explicit-constructor): CAIRN_TRY on a Ruled inside a function that
  // returns Result.
  operator Error() const {
    if (code_ == ErrorCodeName(error_.code())) return error_;
    std::string message = code_ + ": " + error_.message();
    for (const std::string& id : blocking_) message += " " + id;
    return Error(error_.code(), std::move(message), error_.sys_errno());
  }

 private:
  Error error_;
  std::string code_;
  std::vector<std::string> blocking_;
};

template <typename T>
using Ruled = std::expected<T, Refusal>;

inline std::unexpected<Refusal> Refuse(std::string_view code, std::string message,
                                       std::vector<std::string> blocking = {}) {
  return std::unexpected(
      Refusal(ErrorCode::kFailedPrecondition, code, std::move(message), std::move(blocking)));
}
// Missing and foreign ids answer with the same words.
inline std::unexpected<Error> NoSuch(std::string_view noun, std::string_view id) {
  return Err(ErrorCode::kNotFound, "no " + std::string(noun) + " " + std::string(id.substr(0, 64)));
}

}  // namespace cairn
