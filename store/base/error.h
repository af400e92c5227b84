// Result<T>, Error and the codes a caller can act on. Nothing here throws.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

// A code exists because a caller acts on it differently from the others.
enum class ErrorCode : uint8_t {
  kNotFound,            // the named thing does not exist (or is not the caller's)
  kAlreadyExists,       // pick another name
  kExhausted,           // out of space or quota: back off, free something
  kUnavailable,         // retry the same call later
  kAborted,             // retry the transaction: somebody else changed what was read
  kFailedPrecondition,  // change the state first; the message says which
  kPermissionDenied,    // the caller may not
  kInvalidArgument,     // the request is wrong; the message names the argument
  kDataLoss,            // stored bytes are wrong or gone: stop, quarantine, alarm
  kInternal,            // a bug of ours, or a system call that should not fail
};

// "not_found", "data_loss", ... Stable: shown in JSON and logs.
std::string_view ErrorCodeName(ErrorCode code);

// Immutable value. `sys_errno` is 0 or a Linux errno that the cause had (or that a filesystem
// caller must see). `message` may be empty on hot paths (a failed lookup allocates nothing).
class [[nodiscard]] Error {
 public:
  explicit Error(ErrorCode code, std::string message = {}, int sys_errno = 0)
      : code_(code), sys_errno_(static_cast<int16_t>(sys_errno)), message_(std::move(message)) {}

  // An Error for a failed system call: the code follows from the errno (ENOENT -> kNotFound, ENOSPC
  // and EDQUOT -> kExhausted, EEXIST -> kAlreadyExists, EACCES/EPERM -> kPermissionDenied, others
  // kInternal).
  static Error FromErrno(int sys_errno, std::string message = {});

  // An error that a filesystem call answers with `sys_errno` and nothing else (no allocation).
  static Error Posix(int sys_errno) { return FromErrno(sys_errno); }

  ErrorCode code() const { return code_; }
  int sys_errno() const { return sys_errno_; }
  const std::string& message() const { return message_; }

  // "data_loss: block ab12.. in pack ..: tag mismatch (errno 5: Input/output error)".
  std::string ToString() const;

  // The same error with `prefix: ` before its message.
  Error WithContext(std::string_view prefix) &&;

 private:
  ErrorCode code_;
  int16_t sys_errno_;
  std::string message_;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> Err(ErrorCode code, std::string message = {}, int sys_errno = 0) {
  return std::unexpected<Error>(Error(code, std::move(message), sys_errno));
}
inline std::unexpected<Error> ErrErrno(int sys_errno, std::string message = {}) {
  return std::unexpected<Error>(Error::FromErrno(sys_errno, std::move(message)));
}

// Drops an error on purpose; `why` is for the reader, and grep finds every place.
template <typename T>
void IgnoreError(const Result<T>& result, std::string_view why) {
  (void)result;
  (void)why;
}

}  // namespace cairn

// Evaluates to the value of a Result, or returns its Error from the enclosing function:
//   Inode inode = CAIRN_TRY(ReadInode(ino));      CAIRN_TRY(file.Sync());
// (A statement expression: GCC and clang both have it.)
// Its variable has a name of its own each time, so that one CAIRN_TRY may stand inside another.
#define CAIRN_TRY(...) \
  CAIRN_TRY_NAMED_(CAIRN_TRY_JOIN_(cairn_try_result_, __COUNTER__), __VA_ARGS__)
#define CAIRN_TRY_JOIN_(a, b) CAIRN_TRY_JOIN_AGAIN_(a, b)
#define CAIRN_TRY_JOIN_AGAIN_(a, b) a##b
#define CAIRN_TRY_NAMED_(result, ...)                               \
  ({                                                                \
    auto result = (__VA_ARGS__);                                    \
    if (!result) return std::unexpected(std::move(result).error()); \
    std::move(result).operator*();                                  \
  })
