// What the volume manager needs from the kernel's side. Implemented in cmd/ over fuse/; a fake in
// tests.
#pragma once

#include <string>

#include "store/base/error.h"
#include "store/base/id128.h"
#include "volume/volume.h"

namespace cairn {

struct MountOptions {
  bool allow_suid = false;
  bool allow_dev = false;
  bool read_only = false;
  bool writeback_cache = true;
};

// Thread-safe.
class MountService {
 public:
  virtual ~MountService() = default;
  // Serves `volume` at `dir` (an existing, empty or not, directory on the host). The volume
  // outlives the mount.
  virtual Status Mount(Volume& volume, const std::string& dir, const MountOptions& options) = 0;
  // Unmounts and stops serving; `force` detaches a busy mount. FailedPrecondition (EBUSY) when busy
  // and not forced.
  virtual Status Unmount(const Id128& volume, bool force) = 0;
  // Every byte (and its mtime and size) that write() returned for before this call has reached the
  // Volume on return.
  virtual Status Barrier(const Id128& volume) = 0;
  // Empty when not mounted.
  virtual std::string MountedAt(const Id128& volume) = 0;
};

}  // namespace cairn
