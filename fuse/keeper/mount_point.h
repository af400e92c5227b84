// Mounts of the kernel's side alone: mount(2), umount2(2), fusectl and the bdi. Nothing here waits
// for a FUSE server, but for Detach, which writes back what is dirty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fuse/keeper/protocol.h"
#include "store/base/error.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct Device {
  uint32_t major = 0;
  uint32_t minor = 0;
  bool operator==(const Device&) const = default;
};

// A mount that outlives its server.
struct KeptMount {
  std::string dir = {};
  Device device = {};
  UniqueFd fuse = {};
  UniqueFd file = {};     // the server's memory that outlives it
  std::string init = {};  // the kernel's INIT request, for who takes the mount over
  MountRequest request = {};
};

// Writes a kernel control file; false when it is not there or refuses.
bool WriteControl(const char* path, std::string_view value);

// The device that the directory `dir` is on, without a request to any FUSE server for `dir` itself.
// Nothing: errno says why.
std::optional<Device> DeviceOf(const std::string& dir);

// After a kill -9 of keeper and server together their mounts stay in the tree, dead: statfs(2)
// fails with ENOTCONN at once. A new mount would otherwise cover the dead one and reveal it again
// at its end.
void DetachDeadMounts(const std::string& dir);

// Opens /dev/fuse and mounts it on request.dir, which is on device `before`. Errors carry an errno
// and a text that says what to do.
Result<KeptMount> AttachMount(const MountRequest& request, const Device& before, UniqueFd file);

// Unmounts what AttachMount mounted; fine when somebody else has already. With `lazy` a busy mount
// is detached. EBUSY: in use, or covered. Blocks while the server writes back.
Status DetachMount(const std::string& dir, const Device& device, bool lazy);

// Nobody serves it any more: whoever waits for an answer gets an error instead.
void AbortMount(KeptMount& mount);

// The read-ahead and the dirty limit that the request asks for, once INIT has been answered.
void TuneMount(const KeptMount& mount);

}  // namespace cairn
