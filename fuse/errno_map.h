// The one place where an Error becomes the errno that a filesystem caller sees.
#pragma once

#include "store/base/error.h"

namespace cairn {

// Positive, one that user space may see (below 512). An errno that the error carries wins;
// otherwise the code decides: DataLoss, Internal, Unavailable, Aborted and FailedPrecondition are
// EIO, since no POSIX caller can act on the difference.
int ErrnoOf(const Error& error);

}  // namespace cairn
