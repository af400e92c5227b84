// Error -> errno. The kernel refuses replies with an errno above 999 and user space must not see
// the kernel-internal ones from 512 up.
#include "fuse/errno_map.h"

#include <cerrno>

namespace cairn {

int ErrnoOf(const Error& error) {
  constexpr int kFirstKernelInternal = 512;
  if (error.sys_errno() > 0 && error.sys_errno() < kFirstKernelInternal) return error.sys_errno();
  switch (error.code()) {
    case ErrorCode::kNotFound:
      return ENOENT;
    case ErrorCode::kAlreadyExists:
      return EEXIST;
    case ErrorCode::kExhausted:
      return ENOSPC;
    case ErrorCode::kPermissionDenied:
      return EPERM;
    case ErrorCode::kInvalidArgument:
      return EINVAL;
    case ErrorCode::kUnavailable:
    case ErrorCode::kAborted:
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kDataLoss:
    case ErrorCode::kInternal:
      return EIO;
  }
  return EIO;
}

}  // namespace cairn
