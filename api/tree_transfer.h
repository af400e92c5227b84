// Copies of directory trees between the host and a volume: owners, modes, times (nanoseconds),
// extended attributes, hard links, symlinks, devices and holes come across exactly. No link is
// followed on either side.
#pragma once

#include <cstdint>
#include <string>

#include "store/base/error.h"
#include "volume/fs_view.h"
#include "volume/volume.h"

namespace cairn {

struct TransferCounts {
  uint64_t directories = 0;
  uint64_t files = 0;
  uint64_t links = 0;           // symlinks, and further names of files
  uint64_t special = 0;         // devices, fifos, sockets
  uint64_t bytes = 0;           // of data, without holes
  uint64_t skipped_xattrs = 0;  // of a namespace that a volume does not hold: POSIX ACLs
};

// The contents of the host directory `source` go into `path` inside `volume` (directories on the
// way are made, root:root 0755). Directories that exist are merged; any other existing name ends
// the import with AlreadyExists: what was copied before it stays. Durable on return. Blocks on I/O.
// Errors: InvalidArgument (not an absolute path, not a directory, a FUSE filesystem: the daemon may
// not wait for a mount of its own), NotFound, Exhausted (no space or quota left in the volume), and
// what reading the host says. Each names the path. Other filesystems below `source` are not
// entered.
Result<TransferCounts> ImportTree(const std::string& source, Volume& volume,
                                  const std::string& path);

// The contents of `path` in `view` go into the host directory `target`, which is made or must be
// empty. Not synced. Errors: AlreadyExists (not empty), NotFound (no such path in the view),
// InvalidArgument as above, DataLoss (a file could not be read: it is left out, the export ends).
Result<TransferCounts> ExportTree(const FsView& view, const std::string& path,
                                  const std::string& target);

// InvalidArgument when `path` (or its nearest existing parent) is on a FUSE filesystem: a daemon
// that waits for its own mount hangs.
Status RefuseFusePath(const std::string& path);

}  // namespace cairn
