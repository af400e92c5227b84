#include "fuse/keeper/kept_mounts.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "store/base/log.h"

namespace cairn {
namespace {

std::unexpected<Error> NoSuchMount() { return ErrErrno(ENOENT, "no such mount"); }

TakeReply ReplyOf(const KeptMount& mount) {
  return {.device_major = mount.device.major,
          .device_minor = mount.device.minor,
          .init = mount.init,
          .mount = mount.request};
}

}  // namespace

Result<KeptMounts::Attached> KeptMounts::Attach(const MountRequest& request, UniqueFd file) {
  DetachDeadMounts(request.dir);
  const auto before = DeviceOf(request.dir);
  if (!before) {
    const int error = errno;
    return ErrErrno(error, fmt::format("{}: name an existing directory", std::strerror(error)));
  }
  {
    MutexLock lock(mutex_);
    for (const auto& [connection, mount] : mounts_) {
      if (connection != request.connection && mount.device != *before) continue;
      return ErrErrno(
          EBUSY,
          mount.dir == request.dir
              ? std::string("something is mounted there already: unmount it first")
              : fmt::format("that is inside the mount at {}: name another directory", mount.dir));
    }
  }
  KeptMount mount = CAIRN_TRY(AttachMount(request, *before, std::move(file)));
  const Attached attached{
      .reply = {.device_major = mount.device.major, .device_minor = mount.device.minor},
      .fuse = mount.fuse.get()};
  LogInfo("keeper_mounted", {{"dir", request.dir}, {"device", mount.device.minor}});
  MutexLock lock(mutex_);
  mounts_[request.connection] = std::move(mount);
  return attached;
}

Status KeptMounts::Detach(const Id128& connection, bool lazy) {
  std::string dir;
  Device device;
  {
    MutexLock lock(mutex_);
    const auto found = mounts_.find(connection);
    if (found == mounts_.end()) return NoSuchMount();
    dir = found->second.dir;
    device = found->second.device;
  }
  CAIRN_TRY(DetachMount(dir, device, lazy));
  LogInfo("keeper_unmounted", {{"dir", dir}});
  // Closes our copy of the fd. After a lazy unmount the server's copy carries the connection until
  // the last file is closed.
  MutexLock lock(mutex_);
  mounts_.erase(connection);
  return {};
}

Result<KeptMounts::Taken> KeptMounts::Find(const Id128& connection) {
  MutexLock lock(mutex_);
  const auto found = mounts_.find(connection);
  if (found == mounts_.end()) return NoSuchMount();
  return Taken{.reply = ReplyOf(found->second),
               .fuse = found->second.fuse.get(),
               .file = found->second.file.get()};
}

// Once INIT has been answered the bdi is ours to tune (the answer itself lowers its read-ahead).
Status KeptMounts::SaveInit(SaveInitRequest request) {
  MutexLock lock(mutex_);
  const auto found = mounts_.find(request.connection);
  if (found == mounts_.end()) return NoSuchMount();
  found->second.init = std::move(request.init);
  if (request.answered) TuneMount(found->second);
  return {};
}

Status KeptMounts::Abort(const Id128& connection) {
  MutexLock lock(mutex_);
  const auto found = mounts_.find(connection);
  if (found == mounts_.end()) return NoSuchMount();
  AbortMount(found->second);
  mounts_.erase(found);
  return {};
}

void KeptMounts::AbortAll() {
  std::map<Id128, KeptMount> left;
  {
    MutexLock lock(mutex_);
    left.swap(mounts_);
  }
  for (auto& [connection, mount] : left) AbortMount(mount);
}

bool KeptMounts::empty() {
  MutexLock lock(mutex_);
  return mounts_.empty();
}

std::vector<Id128> KeptMounts::Connections() {
  std::vector<Id128> connections;
  MutexLock lock(mutex_);
  for (const auto& [connection, mount] : mounts_) connections.push_back(connection);
  return connections;
}

std::vector<KeeperState::Mount> KeptMounts::State() {
  std::vector<KeeperState::Mount> mounts;
  MutexLock lock(mutex_);
  for (const auto& [connection, mount] : mounts_) {
    mounts.push_back({.reply = ReplyOf(mount), .fuse = mount.fuse.get(), .file = mount.file.get()});
  }
  return mounts;
}

void KeptMounts::Resume(const std::vector<KeeperState::Mount>& mounts) {
  MutexLock lock(mutex_);
  for (const KeeperState::Mount& mount : mounts) {
    mounts_[mount.reply.mount.connection] = {
        .dir = mount.reply.mount.dir,
        .device = {.major = mount.reply.device_major, .minor = mount.reply.device_minor},
        .fuse = UniqueFd(mount.fuse),
        .file = UniqueFd(mount.file),
        .init = mount.reply.init,
        .request = mount.reply.mount};
  }
}

}  // namespace cairn
