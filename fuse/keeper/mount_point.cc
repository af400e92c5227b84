// Invariants: every fd is close-on-exec; no path below a mount is opened; the mount's root is only
// looked at with AT_STATX_DONT_SYNC, which asks no server. Sources: mount(2), fuse(4), statx(2),
// Documentation/filesystems/fuse.rst of the kernel (fusectl).
#include "fuse/keeper/mount_point.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "store/base/log.h"

namespace cairn {
namespace {

// Whether a filesystem is mounted anywhere in our namespace; proc_pid_mountinfo(5).
bool IsMountedAnywhere(const Device& device) {
  std::ifstream mounts("/proc/self/mountinfo");
  const std::string wanted = fmt::format("{}:{}", device.major, device.minor);
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, number;
    if (fields >> id >> parent >> number && number == wanted) return true;
  }
  return false;
}

}  // namespace

bool WriteControl(const char* path, std::string_view value) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written =
      ::write(fd, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  ::close(fd);
  return written;
}

std::optional<Device> DeviceOf(const std::string& dir) {
  struct statx st{};
  const int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  if (::statx(AT_FDCWD, dir.c_str(), flags, STATX_TYPE, &st) != 0) return std::nullopt;
  if (!S_ISDIR(st.stx_mode)) {
    errno = ENOTDIR;
    return std::nullopt;
  }
  return Device{st.stx_dev_major, st.stx_dev_minor};
}

void DetachDeadMounts(const std::string& dir) {
  constexpr int kMostStacked = 16;
  for (int i = 0; i < kMostStacked; ++i) {
    struct statfs st{};
    if (::statfs(dir.c_str(), &st) == 0 || errno != ENOTCONN) return;
    LogWarning("keeper_detaching_dead_mount", {{"dir", dir}});
    if (::umount2(dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) return;
  }
}

Result<KeptMount> AttachMount(const MountRequest& request, const Device& before, UniqueFd file) {
  UniqueFd fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!fuse.valid()) {
    const int error = errno;
    return ErrErrno(error, fmt::format("cannot open /dev/fuse: {}", std::strerror(error)));
  }
  const uint32_t flags = request.flags;
  std::string text = fmt::format("fd={},rootmode=40000,user_id=0,group_id=0", fuse.get());
  if ((flags & MountRequest::kAllowOther) != 0) text += ",allow_other";
  if ((flags & MountRequest::kDefaultPermissions) != 0) text += ",default_permissions";
  if (request.max_read_bytes != 0) text += fmt::format(",max_read={}", request.max_read_bytes);
  unsigned long mount_flags = 0;
  if ((flags & MountRequest::kNoSuid) != 0) mount_flags |= MS_NOSUID;
  if ((flags & MountRequest::kNoDev) != 0) mount_flags |= MS_NODEV;
  if ((flags & MountRequest::kNoExec) != 0) mount_flags |= MS_NOEXEC;
  if ((flags & MountRequest::kReadOnly) != 0) mount_flags |= MS_RDONLY;
  const char* dir = request.dir.c_str();
  if (::mount("cairn", dir, "fuse.cairn", mount_flags, text.c_str()) != 0) {
    const int error = errno;
    return ErrErrno(error, fmt::format("mount(2) on {}: {}", request.dir, std::strerror(error)));
  }
  const auto device = DeviceOf(request.dir);
  if (!device || *device == before) {
    ::umount2(dir, MNT_DETACH | UMOUNT_NOFOLLOW);
    return ErrErrno(EIO, fmt::format("the mount on {} is not visible", request.dir));
  }
  return KeptMount{.dir = request.dir,
                   .device = *device,
                   .fuse = std::move(fuse),
                   .file = std::move(file),
                   .request = request};
}

Status DetachMount(const std::string& dir, const Device& device, bool lazy) {
  int error = 0;
  if (DeviceOf(dir) != device) {
    if (IsMountedAnywhere(device)) {
      return ErrErrno(EBUSY,
                      fmt::format("cannot unmount {}: something else is mounted over it, or it was "
                                  "moved: unmount that, or move it back, first",
                                  dir));
    }
    return {};  // somebody else has unmounted it already
  }
  if (::umount2(dir.c_str(), UMOUNT_NOFOLLOW) != 0) error = errno;
  if (error == EBUSY && lazy) {
    error = ::umount2(dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0 ? errno : 0;
  }
  if (error == 0) return {};
  return ErrErrno(
      error, fmt::format("cannot unmount {}: {}{}", dir, std::strerror(error),
                         error == EBUSY ? ": a process works in it or has a file open there; end "
                                          "it, or use --force to detach it now"
                                        : ""));
}

void AbortMount(KeptMount& mount) {
  LogWarning("keeper_aborting_connection", {{"dir", mount.dir}});
  WriteControl(fmt::format("/sys/fs/fuse/connections/{}/abort", mount.device.minor).c_str(), "1");
  mount.fuse.Reset();  // the last fd of the connection: aborts it where fusectl is not mounted
  if (DeviceOf(mount.dir) == mount.device) {
    ::umount2(mount.dir.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  }
}

void TuneMount(const KeptMount& mount) {
  const std::string bdi =
      fmt::format("/sys/class/bdi/{}:{}/", mount.device.major, mount.device.minor);
  const auto set = [&](const char* name, uint64_t value) {
    if (value == 0 || WriteControl((bdi + name).c_str(), fmt::format("{}", value))) return;
    LogWarning("keeper_bdi_unchanged", {{"dir", mount.dir}, {"name", name}});
  };
  set("read_ahead_kb", mount.request.read_ahead_kib);
  set("max_bytes", mount.request.max_dirty_bytes);
}

}  // namespace cairn
