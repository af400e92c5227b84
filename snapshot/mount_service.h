// What the volume manager needs from the kernel's side. Implemented in cmd/ over fuse/; a fake in
// tests.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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

// A mount of an earlier server that nobody serves yet: the kernel's requests wait.
struct LiveConnection {
  Id128 connection;
  std::shared_ptr<OpenTable> opens;
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

  // ---- takeover ---- Who opens a volume opens it with its live connection, if it has one.
  virtual std::vector<Id128> VolumesToTakeOver() { return {}; }
  virtual std::optional<LiveConnection> LiveConnectionOf(const Id128& /*volume*/) { return {}; }
  // Goes on serving it.
  virtual Status TakeOver(Volume& /*volume*/) {
    return Err(ErrorCode::kFailedPrecondition, "nothing to take over");
  }
  // Nobody will serve it: it is detached, and who waits for an answer gets an error.
  virtual void Abandon(const Id128& /*volume*/) {}
  // Stops serving everything and unmounts nothing: another server takes over.
  virtual void HandOver() {}
};

}  // namespace cairn
