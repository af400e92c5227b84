// KeptMounts: the mounts that a keeper holds for its servers.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fuse/keeper/keeper_state.h"
#include "fuse/keeper/mount_point.h"
#include "fuse/keeper/protocol.h"
#include "store/base/error.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe: unmounts run on threads of their own. Descriptors that it returns stay its own, and
// are good until the mount goes: send them at once, from the one thread that changes the table.
// Errors carry an errno and a text for the operator; ENOENT: no such mount.
class KeptMounts {
 public:
  struct Attached {
    MountReply reply;
    int fuse = -1;
  };
  struct Taken {
    TakeReply reply;
    int fuse = -1;
    int file = -1;  // -1: none came with the mount
  };

  // EBUSY: there is one already, or the directory lies in one.
  Result<Attached> Attach(const MountRequest& request, UniqueFd file);
  // Blocks while the server writes back what is dirty. EBUSY: in use, and not `lazy`.
  Status Detach(const Id128& connection, bool lazy);
  Result<Taken> Find(const Id128& connection);
  Status SaveInit(SaveInitRequest request);
  // Nobody serves it any more: callers get errors.
  Status Abort(const Id128& connection);
  void AbortAll();

  bool empty();
  std::vector<Id128> Connections();

  // For the keeper that follows in the same process, and from the one before.
  std::vector<KeeperState::Mount> State();
  void Resume(const std::vector<KeeperState::Mount>& mounts);

 private:
  Mutex mutex_;
  std::map<Id128, KeptMount> mounts_ GUARDED_BY(mutex_);
};

}  // namespace cairn
