// The server's side of the keeper's socket and of the barrier helpers' sockets
// (docs/formats/keeper_protocol.md).
//
// A server started without --keeper-fd N replaces itself by the keeper, which starts it again with
// one:
//   if (keeper_fd < 0) return ExecUnderKeeper(argc, argv);       // returns only on failure
//   auto keeper = CAIRN_TRY(KeeperClient::Connect(UniqueFd(keeper_fd), [&] { stop.Request(); }));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fuse/keeper/channel.h"
#include "fuse/keeper/protocol.h"
#include "store/base/error.h"
#include "store/base/mutex.h"
#include "store/base/unique_fd.h"

namespace cairn {

// Execs cairn-keeper, found beside this program, with this program and its arguments as the server.
// Returns only an error (NotFound: no cairn-keeper there).
Status ExecUnderKeeper(int argc, char** argv);

struct MountedDevice {
  UniqueFd fuse;  // a /dev/fuse fd of the new connection; the keeper holds a copy
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
};

// A mount of an earlier server, for who takes it over.
struct TakenMount {
  MountRequest request;
  MountedDevice device;
  std::string init;  // empty: the kernel has not sent it to anybody, or to one who did not save it
  UniqueFd file;     // that came with Mount
};

// One running helper process. Move-only; closing it ends the process. Thread-compatible.
class BarrierHelper {
 public:
  BarrierHelper(Channel channel, uint32_t pid) : channel_(std::move(channel)), pid_(pid) {}

  // The pid that FUSE requests of the helper carry.
  uint32_t pid() const { return pid_; }

  // Flushes the inodes: on return what write(2) or a shared mapping put into them before the call
  // has reached the server, with mtime and size. Inodes that are gone are skipped. Blocks up to
  // `timeout_ms`. Errors: Unavailable (time ran out, or the helper died: drop this object),
  // DataLoss (a write-back failed; the message names inode and errno), what the helper reports
  // about the mount.
  Status Run(const MountRequest& mount, const MountedDevice& device, uint32_t generation,
             std::span<const uint64_t> inodes, int64_t timeout_ms);

 private:
  Channel channel_;
  uint32_t pid_;
  uint64_t next_id_ = 1;
};

// Thread-safe. Its thread ends when the keeper does or in the destructor.
class KeeperClient {
 public:
  // Says HELLO, and returns when it is this server's turn: while another one serves, it stands by.
  // `on_stop` is called, from the client's thread, when the keeper wants it or has
  // gone: the server should unmount and stop. Errors: Unavailable (no keeper answers at that fd).
  static Result<std::unique_ptr<KeeperClient>> Connect(UniqueFd socket,
                                                       std::function<void()> on_stop);
  ~KeeperClient();

  uint32_t keeper_pid() const { return keeper_pid_; }
  bool lost() const;

  // Mounts. The connection's INIT waits in the returned fd. `file` (or -1) is kept by the keeper
  // for who takes the mount over, and stays the caller's. Errors carry the errno of mount(2):
  // NotFound (no such directory, no /dev/fuse), EBUSY (mounted already), PermissionDenied;
  // Unavailable (keeper gone).
  Result<MountedDevice> Mount(const MountRequest& request, int file = -1);

  // ---- takeover ----
  // What an earlier server mounted and is still there.
  Result<std::vector<Id128>> ListMounts();
  // To serve it. NotFound: no such mount.
  Result<TakenMount> Take(const Id128& connection);
  // Aborts the connection and detaches the mount: nobody will serve it.
  Status Abandon(const Id128& connection);
  // From now on the keeper starts another server when this one is gone.
  Status Ready();

  // ---- upgrade ----
  // The keeper starts `program` (a descriptor, which stays the caller's) once this process is gone,
  // and this one again if that is not ready in time. FailedPrecondition: another is under way, or
  // everything stops.
  Status Upgrade(const UpgradeRequest& request, int program);
  // How the last one ended; nothing of a keeper that knows none.
  Result<UpgradeOutcome> LastUpgrade();
  // The keeper's process goes on with `program`. FailedPrecondition: not now, or that program does
  // not understand the keeper that runs.
  Status ReplaceKeeper(int program);

  // A descriptor that the keeper holds for the servers that follow, by its name.
  Status KeepFile(const std::string& name, int fd);
  Result<UniqueFd> KeptFile(const std::string& name);  // NotFound: none

  // Unmounts; writes back what is dirty through the server, so its threads must still serve. An
  // already unmounted one is fine. With `lazy` a busy mount is detached: it serves open files until
  // the last is closed. When the keeper is gone this process unmounts itself. Errors:
  // FailedPrecondition with EBUSY (in use), NotFound (not a mount of ours).
  Status Unmount(const Id128& connection, bool lazy);

  // Hands the kernel's INIT request to the keeper: before it is answered, and again after.
  Status SaveInit(const Id128& connection, std::string_view init, bool answered);

  // An idle helper or a new one; give it back after a Run that did not fail with Unavailable.
  Result<std::unique_ptr<BarrierHelper>> AcquireHelper();
  void ReturnHelper(std::unique_ptr<BarrierHelper> helper);

 private:
  struct Waiter {
    bool done = false;
    ReceivedMessage reply;
  };
  struct KnownMount {
    std::string dir;
    uint32_t device_major = 0;
    uint32_t device_minor = 0;
  };

  KeeperClient(Channel channel, std::function<void()> on_stop)
      : channel_(std::move(channel)), on_stop_(std::move(on_stop)) {}
  Result<ReceivedMessage> Call(MessageType type, std::string payload, int64_t timeout_ms,
                               int fd = -1);
  void ReadReplies();

  const Channel channel_;
  const std::function<void()> on_stop_;
  uint32_t keeper_pid_ = 0;
  std::thread reader_;

  mutable Mutex mutex_;
  CondVar replied_;
  bool lost_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Waiter*> waiters_ GUARDED_BY(mutex_);
  std::map<Id128, KnownMount> mounts_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<BarrierHelper>> idle_helpers_ GUARDED_BY(mutex_);
};

}  // namespace cairn
