// Volume: a writable POSIX filesystem as a library. The kernel's rules that a FUSE server must keep
// are here; permission checks are the kernel's (default_permissions), except where a comment says
// otherwise.
//
// Locks, in this order (docs/LOCKING.md): gate_ (shared by every operation, exclusive by Freeze and
// SetReadOnly) -> inode locks (striped, in ascending order) -> Head's own.
//
// Every mutating call is one Transaction: all of it or nothing after a crash. It is volatile until
// Sync.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/clock.h"
#include "store/base/error.h"
#include "volume/fs_view.h"
#include "volume/head.h"
#include "volume/open_table.h"

namespace cairn {

// Who calls, and the identity of the request for the reply log (zero for calls that are not the
// kernel's).
struct OpContext {
  uint32_t uid = 0;
  uint32_t gid = 0;
  ReplyRecord request;  // connection, unique, opcode and reply_floor are filled by the caller; the
                        // rest by Volume
};

struct NamedInode {
  InodeNumber ino = 0;
  Inode inode;
};

// Fields to set; absent ones stay. `now` times are taken from the volume's clock.
struct SetAttributes {
  std::optional<uint32_t> mode;  // permission bits only
  std::optional<uint32_t> uid, gid;
  std::optional<uint64_t> size_bytes;
  std::optional<TimeSpec> atime, mtime, ctime;
  bool atime_now = false, mtime_now = false;
  bool kill_privileges =
      false;  // clear setuid/setgid (truncate or chown by one without CAP_FSETID)
};

struct VolumeStatus {
  uint64_t inodes = 0;
  uint64_t logical_bytes = 0;  // sum of file sizes
  uint64_t quota_bytes = 0;    // 0: none
  uint64_t quota_inodes = 0;
  uint64_t unsealed_records = 0;
  uint64_t unsealed_bytes = 0;
  uint64_t unsealed_generations = 0;
  uint64_t open_handles = 0;
  bool read_only = false;
  // Of the file system below. Without a guard: unknown.
  std::optional<SpaceGuard::Usable> disk;
};

struct VolumeOptions {
  HeadOptions head;
  uint64_t hash_seed = 0;
  uint32_t rollback_epoch = 0;  // FUSE generation of every node
  uint64_t quota_bytes = 0;     // logical; ENOSPC above
  uint64_t quota_inodes = 0;
  bool read_only = false;
  // What the live connection (head.live_connection) has open; null: nothing is open.
  std::shared_ptr<OpenTable> opens;
};

// Thread-safe.
class Volume {
 public:
  // A new volume (base is an empty tree) gets its root directory (mode 0755, root:root) in its
  // first transaction. Orphans that a previous life left and nobody has open are purged here,
  // unless read_only.
  static Result<std::unique_ptr<Volume>> Open(FileSystem& fs, KeyRing& keys, BlockStore& store,
                                              Clock& clock, const VolumeOptions& options);
  // The same over a head that the caller made; options.head is not looked at but for `volume`.
  static Result<std::unique_ptr<Volume>> OpenOn(std::unique_ptr<Head> head, Clock& clock,
                                                const VolumeOptions& options);
  virtual ~Volume() = default;

  // ---- namespace ---- (names: 1 to 255 bytes without '/' and NUL, not "." or ".."; ENAMETOOLONG,
  // EINVAL)
  virtual Result<NamedInode> Lookup(InodeNumber dir, std::string_view name) = 0;
  virtual Result<Inode> GetAttributes(InodeNumber ino) = 0;
  virtual Result<Inode> SetAttr(const OpContext& ctx, InodeNumber ino,
                                const SetAttributes& attributes) = 0;
  // `mode` with its type bits; regular, fifo, socket, device. setgid directories give their group
  // (and the bit to directories).
  virtual Result<NamedInode> MakeNode(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                      uint32_t mode, uint64_t rdev) = 0;
  virtual Result<NamedInode> MakeDir(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                     uint32_t mode) = 0;
  virtual Result<NamedInode> Symlink(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                     std::string_view target) = 0;
  virtual Result<NamedInode> Link(const OpContext& ctx, InodeNumber ino, InodeNumber dir,
                                  std::string_view name) = 0;
  virtual Status Unlink(const OpContext& ctx, InodeNumber dir, std::string_view name) = 0;
  virtual Status RemoveDir(const OpContext& ctx, InodeNumber dir, std::string_view name) = 0;
  // `flags`: RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT.
  virtual Status Rename(const OpContext& ctx, InodeNumber old_dir, std::string_view old_name,
                        InodeNumber new_dir, std::string_view new_name, uint32_t flags) = 0;
  virtual Result<std::string> ReadLink(InodeNumber ino) = 0;
  virtual Status ReadDir(InodeNumber dir, uint64_t after,
                         const std::function<bool(const DirEntry&)>& visit) = 0;

  // ---- files ---- Open counts keep unlinked inodes; handles are stateless (an inode number).
  virtual Status OpenInode(const OpContext& ctx, InodeNumber ino, bool writable) = 0;
  virtual Status ReleaseInode(const OpContext& ctx, InodeNumber ino, bool writable) = 0;
  virtual Result<NamedInode> Create(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                    uint32_t mode,
                                    bool writable) = 0;  // and opens; EEXIST if there
  virtual Result<NamedInode> CreateUnnamed(const OpContext& ctx, InodeNumber dir,
                                           uint32_t mode) = 0;  // O_TMPFILE, opened
  virtual Result<size_t> Read(InodeNumber ino, uint64_t offset, std::span<char> out) = 0;
  // All of `data` or an error. `kill_privileges` clears setuid/setgid. ENOSPC before anything is
  // lost.
  virtual Result<size_t> Write(const OpContext& ctx, InodeNumber ino, uint64_t offset,
                               std::string_view data, bool kill_privileges) = 0;
  // FALLOC_FL_* as in fallocate(2): keep-size, punch-hole, zero-range; others EOPNOTSUPP. Without a
  // flag it extends the size. ENOSPC when so much could not be written now, but nothing is kept for
  // it: a later write may find the disk full.
  virtual Status Allocate(const OpContext& ctx, InodeNumber ino, uint64_t offset, uint64_t length,
                          int mode) = 0;
  virtual Result<uint64_t> SeekData(InodeNumber ino, uint64_t offset) = 0;
  virtual Result<uint64_t> SeekHole(InodeNumber ino, uint64_t offset) = 0;

  // ---- xattrs ---- flags: XATTR_CREATE, XATTR_REPLACE. system.posix_acl_*: EOPNOTSUPP in this
  // version.
  virtual Result<std::string> GetXattr(InodeNumber ino, std::string_view name) = 0;
  virtual Status SetXattr(const OpContext& ctx, InodeNumber ino, std::string_view name,
                          std::string_view value, int flags) = 0;
  virtual Result<std::vector<std::string>> ListXattrs(InodeNumber ino) = 0;
  virtual Status RemoveXattr(const OpContext& ctx, InodeNumber ino, std::string_view name) = 0;

  // ---- durability and states ----
  virtual Status
  Sync() = 0;  // everything that returned before is durable; concurrent callers share one fdatasync
  // Gate, rotate, fdatasync: what returned before is in the frozen layer, what starts after is not.
  // O(1).
  virtual Result<std::shared_ptr<const Layer>> Freeze() = 0;
  virtual void SetReadOnly(
      bool read_only) = 0;  // EROFS for every mutation; waits for those in flight
  virtual VolumeStatus GetStatus() = 0;
  virtual uint32_t rollback_epoch() const = 0;
  virtual uint64_t hash_seed() const = 0;
  virtual const Id128& id() const = 0;

  // Inodes with a writable open (for the barrier).
  virtual std::vector<InodeNumber> WritableOpens() = 0;
  // A kernel's connection to this volume begins (nothing is open yet): what a server that takes
  // over must know is kept from now on, replies in the journal, opens in `opens` (null: not beyond
  // this process).
  virtual void BeginConnection(const Id128& connection, std::shared_ptr<OpenTable> opens) = 0;
  // What an earlier server of that connection did and may not have answered; of a volume that was
  // opened with it as the live one.
  virtual std::vector<ReplyRecord> RecoveredReplies() = 0;
  // It has ended, and everything is released.
  virtual void EndConnection() = 0;
  // An open that a request asked for which is answered from its record: counted unless it was.
  virtual void CountOpen(const OpContext& ctx, InodeNumber ino, bool writable) = 0;
  virtual std::vector<OpenTable::Listed> ListOpens() = 0;
  virtual OpenTable::Opens OpensOf(InodeNumber ino) = 0;
  virtual OpenTable::Opens AllOpens() = 0;
  // A read-only view of now (the active layer: it keeps changing) for library readers.
  virtual FsView View() = 0;
  virtual Head& head() = 0;
};

}  // namespace cairn
