// Mounts by volume. What their kernels may hold dirty is one reservation, as large as the number of
// mounts with files open for writing asks for: it changes when the first one opens and the last one
// closes, before the kernel is answered. An entry is made before mount(2) and filled after it, so
// that two mounts of one volume cannot race and the lock is never held over I/O. A mount that
// somebody else took away (umount(8)) counts as not mounted at once; what is left of it is cleared
// by the next call about its volume.
#include "cmd/fuse_mount_service.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "store/base/log.h"
#include "store/base/path_overlap.h"

namespace cairn {
namespace {

using std::filesystem::path;

// By name alone: `dir` may be on a mount of this very process, which must not be touched here.
bool CoversOrIsWithin(const std::string& dir, const std::string& data_dir) {
  std::error_code error;
  const path data = std::filesystem::canonical(data_dir, error);
  if (error) return false;
  path target = path(dir).lexically_normal();
  if (!target.has_filename() && target.has_relative_path()) target = target.parent_path();
  return IsWithinByName(data, target) || IsWithinByName(target, data);
}

// What the kernel lets all mounts together hold dirty: vm.dirty_ratio, by default a fifth of the
// memory it can use.
uint64_t MostDirtyBytes() {
  static const uint64_t bytes = static_cast<uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L)) *
                                static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 5;
  return bytes;
}

// By which the next server knows a mount: version, flags, volume.
constexpr char kCookieVersion = 1;
constexpr char kCookieReadOnly = 1;
constexpr char kCookieWriteback = 2;

std::string CookieOf(const Id128& volume, const MountOptions& options) {
  const char flags[] = {kCookieVersion,
                        static_cast<char>((options.read_only ? kCookieReadOnly : 0) |
                                          (options.writeback_cache ? kCookieWriteback : 0))};
  return std::string(flags, sizeof flags) + std::string(volume.view());
}

std::optional<std::pair<Id128, MountOptions>> ReadCookie(std::string_view cookie) {
  if (cookie.size() != 2 + sizeof(Id128) || cookie[0] != kCookieVersion) return std::nullopt;
  return std::pair(Id128::FromView(cookie.substr(2)),
                   MountOptions{.read_only = (cookie[1] & kCookieReadOnly) != 0,
                                .writeback_cache = (cookie[1] & kCookieWriteback) != 0});
}

}  // namespace

FuseMountOptions FuseMountService::OptionsFor(const std::string& dir, const MountOptions& options) {
  FuseMountOptions fuse;
  fuse.dir = dir;
  fuse.nosuid = !options.allow_suid;
  fuse.nodev = !options.allow_dev;
  fuse.read_only = options.read_only;
  fuse.writeback_cache = options.writeback_cache;
  if (space_ != nullptr && !options.read_only) {
    fuse.max_dirty_bytes = space_->limits().dirty_bytes_per_mount;
    fuse.on_writers = [this](bool writers) { CountWriters(writers); };
  }
  return fuse;
}

Status FuseMountService::Mount(Volume& volume, const std::string& dir,
                               const MountOptions& options) {
  if (CoversOrIsWithin(dir, data_dir_)) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("cannot mount at {}: it would cover the data directory {}, or parts of "
                           "it: name another directory",
                           dir, data_dir_));
  }
  std::shared_ptr<MountedVolume> gone;
  {
    MutexLock lock(mutex_);
    Entry& entry = mounts_[volume.id()];
    if (!entry.dir.empty() && (entry.mount == nullptr || !entry.mount->closed())) {
      return Err(ErrorCode::kFailedPrecondition,
                 fmt::format("the Environment is mounted at {} already", entry.dir), EBUSY);
    }
    gone = std::move(entry.mount);
    entry = {.dir = dir};
  }
  gone.reset();  // ends its threads before the next ones serve the same volume
  FuseMountOptions fuse = OptionsFor(dir, options);
  fuse.cookie = CookieOf(volume.id(), options);
  auto mounted = MountedVolume::Mount(keeper_, volume, fuse);
  MutexLock lock(mutex_);
  if (!mounted) {
    mounts_.erase(volume.id());
    return std::unexpected(
        std::move(mounted).error().WithContext(fmt::format("cannot mount at {}", dir)));
  }
  Entry& entry = mounts_[volume.id()];
  entry.mount = std::move(*mounted);
  return {};
}

void FuseMountService::LimitSpace(SpaceGuard& space) {
  space_ = &space;
  MutexLock lock(dirty_mutex_);
  dirty_ = *space.Reserve(SpaceUse::kDirty, 0, "page caches");  // never refused
}

// A mount without a writable open has nothing in the page cache that we do not know, and gets
// nothing there without asking us for one.
void FuseMountService::CountWriters(bool writers) {
  MutexLock lock(dirty_mutex_);
  if (writers) {
    ++mounts_with_writers_;
  } else {
    --mounts_with_writers_;
  }
  const uint64_t wanted_bytes =
      std::min(mounts_with_writers_ * space_->limits().dirty_bytes_per_mount, MostDirtyBytes());
  IgnoreError(dirty_.Cover(wanted_bytes, "page caches"), "this use is never refused");
  if (dirty_.bytes() <= wanted_bytes) return;
  SpaceReservation given_back = *space_->Reserve(SpaceUse::kDirty, 0, "page caches");
  given_back.TakeFrom(dirty_, dirty_.bytes() - wanted_bytes);
}

std::shared_ptr<MountedVolume> FuseMountService::Find(const Id128& volume) {
  MutexLock lock(mutex_);
  const auto it = mounts_.find(volume);
  if (it == mounts_.end() || it->second.mount == nullptr || it->second.mount->closed())
    return nullptr;
  return it->second.mount;
}

Status FuseMountService::Unmount(const Id128& volume, bool force) {
  std::shared_ptr<MountedVolume> mount = Find(volume);
  if (mount != nullptr) CAIRN_TRY(mount->Unmount(force));
  std::shared_ptr<MountedVolume> last;
  {
    MutexLock lock(mutex_);
    const auto it = mounts_.find(volume);
    // Not one that another call is just making.
    if (it != mounts_.end() && it->second.mount != nullptr &&
        (it->second.mount == mount || it->second.mount->closed())) {
      last = std::move(it->second.mount);
      mounts_.erase(it);
    }
  }
  return {};
}

Status FuseMountService::Barrier(const Id128& volume) {
  const std::shared_ptr<MountedVolume> mount = Find(volume);
  if (mount == nullptr) return {};  // an unmount has written everything back
  auto done = mount->Barrier();
  if (!done && mount->closed()) return {};
  return done;
}

std::string FuseMountService::MountedAt(const Id128& volume) {
  MutexLock lock(mutex_);
  const auto it = mounts_.find(volume);
  if (it == mounts_.end()) return {};
  if (it->second.mount != nullptr && it->second.mount->closed()) return {};
  return it->second.dir;
}

Status FuseMountService::FindLiveMounts() {
  for (const Id128& connection : CAIRN_TRY(keeper_.ListMounts())) {
    const auto take = [&]() -> Status {
      TakenMount mount = CAIRN_TRY(keeper_.Take(connection));
      const auto known = ReadCookie(mount.request.cookie);
      if (!known) return Err(ErrorCode::kDataLoss, "it does not say what it is");
      auto opens = CAIRN_TRY(MountedVolume::OpensOf(mount));
      MutexLock lock(mutex_);
      live_[known->first] = {
          .mount = std::move(mount), .opens = std::move(opens), .options = known->second};
      return {};
    };
    const Status taken = take();
    if (taken) continue;
    LogError("mount_not_taken_over", {{"error", taken.error().ToString()}});
    AbandonUnlessTried(connection);
  }
  return {};
}

void FuseMountService::AbandonUnlessTried(const Id128& connection) {
  const auto upgrade = keeper_.LastUpgrade();
  if (upgrade && upgrade->state == UpgradeOutcome::kUnderWay) {
    MutexLock lock(mutex_);
    ++left_;
    return;
  }
  IgnoreError(keeper_.Abandon(connection), "it has gone by itself");
}

Status FuseMountService::AllTaken() {
  MutexLock lock(mutex_);
  if (left_ == 0) return {};
  return Err(ErrorCode::kFailedPrecondition,
             fmt::format("{} mounts could not be taken over", left_));
}

std::vector<Id128> FuseMountService::VolumesToTakeOver() {
  MutexLock lock(mutex_);
  std::vector<Id128> volumes;
  for (const auto& [volume, live] : live_) volumes.push_back(volume);
  return volumes;
}

std::optional<LiveConnection> FuseMountService::LiveConnectionOf(const Id128& volume) {
  MutexLock lock(mutex_);
  const auto found = live_.find(volume);
  if (found == live_.end()) return std::nullopt;
  return LiveConnection{.connection = found->second.mount.request.connection,
                        .opens = found->second.opens};
}

Status FuseMountService::TakeOver(Volume& volume) {
  Live live;
  {
    MutexLock lock(mutex_);
    const auto found = live_.find(volume.id());
    if (found == live_.end()) return Err(ErrorCode::kNotFound, "no such mount");
    live.mount.device.fuse = std::move(found->second.mount.device.fuse);
    live.mount.file = std::move(found->second.mount.file);
    live.mount.device.device_major = found->second.mount.device.device_major;
    live.mount.device.device_minor = found->second.mount.device.device_minor;
    live.mount.request = found->second.mount.request;
    live.mount.init = found->second.mount.init;
    live.options = found->second.options;
  }
  const std::string dir = live.mount.request.dir;
  auto mounted = MountedVolume::TakeOver(keeper_, volume, std::move(live.mount),
                                         OptionsFor(dir, live.options));
  if (!mounted) return std::unexpected(std::move(mounted).error().WithContext(dir));
  LogInfo("mount_taken_over", {{"dir", dir}});
  MutexLock lock(mutex_);
  mounts_[volume.id()] = {.dir = dir, .mount = std::move(*mounted)};
  live_.erase(volume.id());
  return {};
}

void FuseMountService::Abandon(const Id128& volume) {
  Id128 connection;
  {
    MutexLock lock(mutex_);
    const auto found = live_.find(volume);
    if (found == live_.end()) return;
    connection = found->second.mount.request.connection;
    live_.erase(found);
  }
  AbandonUnlessTried(connection);
}

void FuseMountService::HandOver() {
  std::map<Id128, Entry> mounts;
  {
    MutexLock lock(mutex_);
    mounts.swap(mounts_);
  }
  for (auto& [volume, entry] : mounts) {
    if (entry.mount != nullptr) entry.mount->HandOver();
  }
}

std::vector<std::pair<Id128, std::string>> FuseMountService::List() {
  std::vector<std::pair<Id128, std::string>> list;
  MutexLock lock(mutex_);
  for (const auto& [volume, entry] : mounts_) {
    if (entry.mount != nullptr && !entry.mount->closed()) list.emplace_back(volume, entry.dir);
  }
  return list;
}

}  // namespace cairn
