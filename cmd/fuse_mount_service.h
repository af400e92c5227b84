// FuseMountService: the volume manager's MountService over fuse/ and the keeper.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fuse/keeper_client.h"
#include "fuse/mounted_volume.h"
#include "snapshot/mount_service.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "store/space_guard.h"

namespace cairn {

// Thread-safe. The keeper and all mounted volumes outlive it; whoever owns the volumes unmounts
// them first.
class FuseMountService final : public MountService {
 public:
  // Mounts nothing over `data_dir`: the daemon opens its files by path.
  FuseMountService(KeeperClient& keeper, std::string data_dir)
      : keeper_(keeper), data_dir_(std::move(data_dir)) {}

  // Bounds what the kernel may hold dirty for each mount, and sets that aside while a file in it is
  // open for writing. Before the first mount; the guard outlives them.
  void LimitSpace(SpaceGuard& space);

  Status Mount(Volume& volume, const std::string& dir, const MountOptions& options) override;
  Status Unmount(const Id128& volume, bool force) override;
  Status Barrier(const Id128& volume) override;
  std::string MountedAt(const Id128& volume) override;

  // Asks the keeper for what an earlier server mounted. Before the first volume is opened. A mount
  // of which that cannot be told is given up.
  Status FindLiveMounts();
  std::vector<Id128> VolumesToTakeOver() override;
  std::optional<LiveConnection> LiveConnectionOf(const Id128& volume) override;
  Status TakeOver(Volume& volume) override;
  void Abandon(const Id128& volume) override;
  // FailedPrecondition: some mount could not be taken over, by a server that is tried in place of
  // another: it should end, so that the other can. (Otherwise such mounts have been abandoned.)
  Status AllTaken();
  void HandOver() override;

  // Volume and directory of each live mount.
  std::vector<std::pair<Id128, std::string>> List();

 private:
  void AbandonUnlessTried(const Id128& connection) EXCLUDES(mutex_);
  struct Entry {
    std::string dir;
    std::shared_ptr<MountedVolume> mount = nullptr;  // null while it is being mounted
  };
  struct Live {
    TakenMount mount;
    std::shared_ptr<OpenTable> opens;
    MountOptions options;
  };
  FuseMountOptions OptionsFor(const std::string& dir, const MountOptions& options);
  // Null when nothing is mounted, or it has gone (umount(8), an abort).
  std::shared_ptr<MountedVolume> Find(const Id128& volume);

  KeeperClient& keeper_;
  const std::string data_dir_;
  void CountWriters(bool writers);

  SpaceGuard* space_ = nullptr;
  Mutex dirty_mutex_;
  uint64_t mounts_with_writers_ GUARDED_BY(dirty_mutex_) = 0;
  SpaceReservation dirty_ GUARDED_BY(dirty_mutex_);  // for all of them together
  Mutex mutex_;
  std::map<Id128, Entry> mounts_ GUARDED_BY(mutex_);
  uint32_t left_ GUARDED_BY(mutex_) = 0;           // not taken over, and not abandoned
  std::map<Id128, Live> live_ GUARDED_BY(mutex_);  // not served yet
};

}  // namespace cairn
