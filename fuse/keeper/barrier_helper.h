// The barrier helper: touches the server's mounts on its behalf. A process that holds /dev/fuse
// must never hold a file of its own mount open (it could not die: its exit would flush through
// itself), so server and keeper leave it to this one, which holds no /dev/fuse.
#pragma once

#include "fuse/keeper/channel.h"
#include "fuse/keeper/protocol.h"
#include "store/base/error.h"

namespace cairn {

// Opens every inode by handle and fsyncs it: its dirty pages and its pending mtime, ctime and size
// reach the server. Unlinked but open inodes too. One thread: the server tells the helper's
// requests by its pid. Errors: InvalidArgument with ENODEV (the directory is not that mount), or
// what open(2) of the directory gives. Failures of single inodes are counted.
Result<BarrierResult> RunBarrier(const BarrierRequest& request);

// Serves requests until the peer closes its end. Returns the exit code of the process.
int RunBarrierHelper(Channel channel);

}  // namespace cairn
