// Copies of directory trees between the host and a volume, exact in both directions: names of any
// bytes, contents with their holes, symbolic links, hard links within the tree, devices, fifos,
// sockets, owners, modes, nanosecond times (of directories too) and extended attributes. No
// symbolic link is followed on either side, whatever names and targets say.
//
// Not copied: POSIX ACLs and other system.* attributes (counted), birth and change times, the
// contents of other filesystems mounted below the source (their mount points become empty
// directories).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/error.h"
#include "volume/fs_view.h"
#include "volume/volume.h"

namespace cairn {

struct TreeCopyReport {
  uint64_t directories = 0;  // below the top
  uint64_t files = 0;
  uint64_t symlinks = 0;
  uint64_t hard_links = 0;      // further names of what is already copied
  uint64_t special_files = 0;   // devices, fifos, sockets
  uint64_t data_bytes = 0;      // without holes
  uint64_t skipped_xattrs = 0;  // of a namespace that the volume does not hold
};

struct ImportOptions {
  InodeNumber target = kRootInode;  // existing directory that the source's contents go into
  bool top_attributes =
      true;  // the target takes the source directory's owner, mode, times and xattrs
};

// The contents of host directory `source` into the volume. Directories that exist already are
// merged into (and take the source's attributes); any other name that exists ends the import with
// EEXIST. What was copied before an error stays. Durable on return. Blocks on I/O. Errors name the
// host path and carry the errno of the call that failed, on the host (ENOENT, ENOTDIR, EACCES, ...)
// or in the volume (ENOSPC, EROFS, ...).
Result<TreeCopyReport> ImportTree(Volume& volume, const std::string& source,
                                  const ImportOptions& options);

struct ExportOptions {
  std::string target;  // host directory: made (its parent exists) or empty; gets the top
                       // directory's attributes
};

// The contents of directory `from` (as FsView::Resolve takes it) into the host directory
// options.target. Nothing is readable by others before its final owner and mode are set. Durable on
// return (syncfs). Errors name the host path: ENOTEMPTY (target), what the host says (EPERM:
// owners, devices and trusted.* need root), and DataLoss where the volume's bytes are damaged.
Result<TreeCopyReport> ExportTree(const FsView& view, std::string_view from,
                                  const ExportOptions& options);

}  // namespace cairn
