// MountedVolume: one volume, mounted and served. What cmd holds for each mount.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fuse/device_transport.h"
#include "fuse/keeper_client.h"
#include "fuse/volume_server.h"
#include "store/base/error.h"
#include "store/base/mutex.h"
#include "volume/volume.h"

namespace cairn {

struct FuseMountOptions {
  std::string dir;  // absolute; an existing directory
  bool nosuid = true;
  bool nodev = true;
  bool noexec = false;
  bool read_only = false;
  bool allow_other = true;
  bool default_permissions = true;
  bool writeback_cache = true;
  int threads = 4;
  uint32_t read_ahead_kib = 1024;
  uint64_t max_dirty_bytes = 0;  // limit of dirty page cache (bdi max_bytes); 0: the kernel's
  int64_t barrier_timeout_ms = 60'000;
  std::function<void()> on_closed;  // the connection has ended, by whomever; on a transport thread:
                                    // do not Stop() from it
  std::function<void(bool writers)> on_writers;  // as VolumeServerOptions says
  bool resends = true;                           // false, for tests: as before Linux 6.9
  std::function<void()> before_reply;            // as DeviceTransportOptions says
  std::string cookie;  // by which who takes the mount over knows what it is; at most 1024 bytes
};

// Thread-safe. Keeper and volume outlive it.
class MountedVolume {
 public:
  // Mounts through the keeper and serves. On return the mount answers. Errors:
  // KeeperClient::Mount's; Unavailable (the kernel did not finish INIT in time; unmounted again).
  static Result<std::unique_ptr<MountedVolume>> Mount(KeeperClient& keeper, Volume& volume,
                                                      const FuseMountOptions& options);
  // Serves a mount of an earlier server: what the kernel sent and got no answer to is answered
  // once, done or not. `volume` was opened with that connection as its live one and OpensOf(taken).
  // Of `options` only threads, writeback_cache, the timeout and the callbacks count. Errors:
  // Unavailable (the mount has ended meanwhile; KeeperClient::Abandon what is left of it).
  static Result<std::unique_ptr<MountedVolume>> TakeOver(KeeperClient& keeper, Volume& volume,
                                                         TakenMount taken,
                                                         const FuseMountOptions& options);
  // What is open in it. DataLoss: that cannot be told.
  static Result<std::shared_ptr<OpenTable>> OpensOf(const TakenMount& taken);

  // Unmounts lazily if that has not been done, stops.
  ~MountedVolume();

  // Ends serving in the middle of everything, for the server that comes next: requests in progress
  // are answered, the mount stays. The volume may be closed then.
  void HandOver();

  // Whatever write(2) or a store to a shared mapping put into the mount before this call has
  // reached the volume on return, with its mtime and size (volatile: Volume::Freeze or Sync
  // follows). Blocks; must not be called from a transport thread. Errors: Unavailable (time ran
  // out, no helper), DataLoss (a write-back failed: somebody's data is not in the volume),
  // FailedPrecondition (not mounted any more).
  Status Barrier();

  // Unmounts and stops serving. Errors: FailedPrecondition with EBUSY (files are open; it goes on
  // serving). With `lazy` a busy mount vanishes from the tree, what is dirty is flushed by a
  // barrier first, and open files get errors from then on.
  Status Unmount(bool lazy);

  // The mount has gone (umount(8), an abort): only Stop is left to do.
  bool closed() const { return closed_.load(); }

  // Of a mount that was taken over.
  std::map<uint32_t, VolumeServer::Resends> resends() const { return server_->resends(); }

  const std::string& dir() const { return request_.dir; }
  const Id128& connection() const { return request_.connection; }

 private:
  MountedVolume(KeeperClient& keeper, Volume& volume, const FuseMountOptions& options)
      : keeper_(keeper), volume_(volume), options_(options) {}
  Status Serve(UniqueFd fuse, int file, const std::string* taken_init);
  Status TakeRequestsOver();
  Status RunBarrier() REQUIRES(barrier_mutex_);
  void Stop(bool hand_over = false);

  KeeperClient& keeper_;
  Volume& volume_;
  const FuseMountOptions options_;
  MountRequest request_;
  MountedDevice device_;  // its fd has gone to the transport
  std::unique_ptr<DeviceTransport> transport_;
  std::unique_ptr<VolumeServer> server_;
  std::atomic<bool> closed_{false};

  Mutex barrier_mutex_;  // one barrier at a time: the server knows one helper pid
  Mutex unmount_mutex_;
  bool stopped_ GUARDED_BY(unmount_mutex_) = false;
};

}  // namespace cairn
