// Error codes, their names and their mapping from errno: the one place where Linux's numbers become
// codes that callers act on (the way back to errno is fuse/'s, to HTTP api/'s).
#include "store/base/error.h"

#include <cerrno>
#include <cstring>

namespace cairn {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kExhausted:
      return "exhausted";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kFailedPrecondition:
      return "failed_precondition";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kDataLoss:
      return "data_loss";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Error Error::FromErrno(int sys_errno, std::string message) {
  ErrorCode code = ErrorCode::kInternal;
  switch (sys_errno) {
    case ENOENT:
    case ENODATA:
    case ESTALE:
      code = ErrorCode::kNotFound;
      break;
    case EEXIST:
      code = ErrorCode::kAlreadyExists;
      break;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      code = ErrorCode::kExhausted;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermissionDenied;
      break;
    case EAGAIN:
    case EBUSY:
      code = ErrorCode::kUnavailable;
      break;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case EFBIG:
    case E2BIG:
    case EMLINK:
    case ENODEV:
    case ENXIO:
    case ERANGE:
    case ESPIPE:
    case EOPNOTSUPP:
      code = ErrorCode::kInvalidArgument;
      break;
    case ENOTEMPTY:
      code = ErrorCode::kFailedPrecondition;
      break;
    default:
      break;
  }
  return Error(code, std::move(message), sys_errno);
}

std::string Error::ToString() const {
  std::string text(ErrorCodeName(code_));
  if (!message_.empty()) text += ": " + message_;
  if (sys_errno_ != 0) {
    text += " (errno " + std::to_string(sys_errno_) + ": " + std::strerror(sys_errno_) + ")";
  }
  return text;
}

Error Error::WithContext(std::string_view prefix) && {
  message_ = message_.empty() ? std::string(prefix) : std::string(prefix) + ": " + message_;
  return std::move(*this);
}

}  // namespace cairn
