// VolumeImpl: Volume over a Head. One class, its methods spread over files by concern:
//   volume.cc             opening, quota and commit, freeze, states, orphans of an earlier life
//   volume_namespace.cc   lookup, create, link, unlink
//   volume_rename.cc      rename
//   volume_files.cc       opens and releases, unnamed files, read, write, allocate, seek
//   volume_attributes.cc  attributes, truncation, xattrs
//
// Locks, in this order: gate_ -> rename_mutex_ (renames between directories) -> inodes_ (ascending)
// -> totals_mutex_ -> the open table's
// -> Head's own.
//
// Invariants
//   1. Every transaction of an inode is committed while its inode lock is held exclusively; of a
//   dirent, the directory's.
//   2. inodes_total_ and bytes_total_ are at least the sums over all inodes, and exactly that when
//   no commit is under way: growth
//      is added before its commit (against the quotas), shrinkage taken off after it. The journal's
//      own totals are the head's.
//   3. nlink == 0 <=> the inode is on the orphan list; its count there is the open table's.
//   4. A regular file is inline <=> it has an inline entry; then it is its whole contents, no
//   extent holds
//      data, and allocated_bytes is its size rounded up to 512. Otherwise allocated_bytes is 4096
//      for each page with data, as far as no seal has moved holes (volume_files.cc). No data lies
//      beyond the size; a file of size 0 has neither form.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "volume/directory_internal.h"
#include "volume/volume.h"
#include "volume/volume_locks_internal.h"

namespace cairn {

class VolumeImpl final : public Volume {
 public:
  VolumeImpl(Clock& clock, const VolumeOptions& options, std::unique_ptr<Head> head);

  // Makes the root directory of a new volume; purges orphans.
  Status Start();

  Result<NamedInode> Lookup(InodeNumber dir, std::string_view name) override;
  Result<Inode> GetAttributes(InodeNumber ino) override;
  Result<Inode> SetAttr(const OpContext& ctx, InodeNumber ino,
                        const SetAttributes& attributes) override;
  Result<NamedInode> MakeNode(const OpContext& ctx, InodeNumber dir, std::string_view name,
                              uint32_t mode, uint64_t rdev) override;
  Result<NamedInode> MakeDir(const OpContext& ctx, InodeNumber dir, std::string_view name,
                             uint32_t mode) override;
  Result<NamedInode> Symlink(const OpContext& ctx, InodeNumber dir, std::string_view name,
                             std::string_view target) override;
  Result<NamedInode> Link(const OpContext& ctx, InodeNumber ino, InodeNumber dir,
                          std::string_view name) override;
  Status Unlink(const OpContext& ctx, InodeNumber dir, std::string_view name) override;
  Status RemoveDir(const OpContext& ctx, InodeNumber dir, std::string_view name) override;
  Status Rename(const OpContext& ctx, InodeNumber old_dir, std::string_view old_name,
                InodeNumber new_dir, std::string_view new_name, uint32_t flags) override;
  Result<std::string> ReadLink(InodeNumber ino) override;
  Status ReadDir(InodeNumber dir, uint64_t after,
                 const std::function<bool(const DirEntry&)>& visit) override;

  Status OpenInode(const OpContext& ctx, InodeNumber ino, bool writable) override;
  Status ReleaseInode(const OpContext& ctx, InodeNumber ino, bool writable) override;
  Result<NamedInode> Create(const OpContext& ctx, InodeNumber dir, std::string_view name,
                            uint32_t mode, bool writable) override;
  Result<NamedInode> CreateUnnamed(const OpContext& ctx, InodeNumber dir, uint32_t mode) override;
  Result<size_t> Read(InodeNumber ino, uint64_t offset, std::span<char> out) override;
  Result<size_t> Write(const OpContext& ctx, InodeNumber ino, uint64_t offset,
                       std::string_view data, bool kill_privileges) override;
  Status Allocate(const OpContext& ctx, InodeNumber ino, uint64_t offset, uint64_t length,
                  int mode) override;
  Result<uint64_t> SeekData(InodeNumber ino, uint64_t offset) override;
  Result<uint64_t> SeekHole(InodeNumber ino, uint64_t offset) override;

  Result<std::string> GetXattr(InodeNumber ino, std::string_view name) override;
  Status SetXattr(const OpContext& ctx, InodeNumber ino, std::string_view name,
                  std::string_view value, int flags) override;
  Result<std::vector<std::string>> ListXattrs(InodeNumber ino) override;
  Status RemoveXattr(const OpContext& ctx, InodeNumber ino, std::string_view name) override;

  Status Sync() override;
  Result<std::shared_ptr<const Layer>> Freeze() override;
  void SetReadOnly(bool read_only) override;
  VolumeStatus GetStatus() override;
  uint32_t rollback_epoch() const override { return options_.rollback_epoch; }
  uint64_t hash_seed() const override { return options_.hash_seed; }
  const Id128& id() const override { return options_.head.volume; }
  std::vector<InodeNumber> WritableOpens() override;
  void BeginConnection(const Id128& connection, std::shared_ptr<OpenTable> opens) override;
  std::vector<ReplyRecord> RecoveredReplies() override { return head_->recovered_replies(); }
  void EndConnection() override { BeginConnection({}, nullptr); }
  void CountOpen(const OpContext& ctx, InodeNumber ino, bool writable) override;
  std::vector<OpenTable::Listed> ListOpens() override { return opens()->List(); }
  OpenTable::Opens OpensOf(InodeNumber ino) override { return opens()->Get(ino); }
  OpenTable::Opens AllOpens() override { return opens()->total(); }
  FsView View() override { return FsView(head_->current(), options_.hash_seed, read_ahead_); }
  Head& head() override { return *head_; }

 private:
  // One transaction being built, and what it does to the totals.
  struct Change {
    Transaction tx;
    int64_t inodes = 0;
    int64_t bytes = 0;
    SpaceUse use = SpaceUse::kWriting;
  };
  // What a reply names (for the reply record).
  struct Answer {
    InodeNumber ino = kNoInode;
    uint64_t value = 0;
  };
  // A directory and one child of it, found and then locked together.
  struct LockedChild {
    std::optional<InodeLocks::Exclusive> lock;
    std::optional<FsView> view;
    Inode dir;
    FoundDirent found;
    Inode child;
  };

  // ---- volume.cc ----
  // EROFS when read-only. Call inside the gate.
  Status CheckWritable() const;
  // ENOSPC against the quotas before anything is changed; then commits.
  Status Commit(const OpContext& ctx, Change&& change, const Answer& answer);
  Status CheckQuota(int64_t inodes, int64_t bytes) const REQUIRES(totals_mutex_);
  // Takes room for growth out of the quotas, or ENOSPC.
  Status Reserve(int64_t inodes, int64_t bytes) EXCLUDES(totals_mutex_);
  InodeNumber NewInodeNumber(Change& change);
  void PutInode(Change& change, InodeNumber ino, const Inode& inode);
  Status PurgeUnopenedOrphans();

  // ---- volume_namespace.cc ----
  // A live directory that may be changed: ENOTDIR, ENOENT.
  Result<Inode> LoadDirectory(const FsView& view, InodeNumber dir) const;
  // An inode that `ctx` creates in `dir`, all times now.
  Inode MakeInode(const OpContext& ctx, const Inode& dir, InodeNumber ino, uint32_t mode) const;
  // The common part of every creation of a name. `inode` gets its number; `add` puts what else
  // belongs to it.
  Result<NamedInode> CreateNamed(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                 uint32_t mode,
                                 const std::function<void(Change&, NamedInode&)>& add);
  Status LockChild(InodeNumber dir, std::string_view name, LockedChild& out);
  // Takes a name (or, of a directory, the only one) from `inode` and puts or purges it.
  Status DropLink(const FsView& view, Change& change, InodeNumber ino, Inode inode, TimeSpec now);
  Status Purge(const FsView& view, Change& change, InodeNumber ino, const Inode& inode);

  // ---- volume_rename.cc ----
  // Both ends of a rename as one look finds them.
  struct RenameEnds {
    InodeNumber old_dir = kNoInode;
    InodeNumber new_dir = kNoInode;
    Inode old_parent = {};
    Inode new_parent = {};
    FoundDirent source = {};
    std::optional<FoundDirent> target = {};
    uint64_t free_cookie = 0;  // for the new name, if there is no target
  };
  Status FindEnds(const FsView& view, std::string_view old_name, std::string_view new_name,
                  RenameEnds& ends) const;
  Status RenameLocked(const OpContext& ctx, const FsView& view, RenameEnds& ends,
                      std::string_view old_name, std::string_view new_name, uint32_t flags);

  // ---- volume_files.cc ----
  std::shared_ptr<OpenTable> opens() EXCLUDES(opens_mutex_) {
    MutexLock lock(opens_mutex_);
    return opens_;
  }
  void PutOrphan(Change& change, InodeNumber ino, uint32_t handles, int32_t open_change);
  Result<std::optional<std::string>> InlineContents(const FsView& view, InodeNumber ino,
                                                    const Inode& inode) const;
  // Change contents, inode.size_bytes and inode.allocated_bytes; the caller puts `inode`.
  // `contents` are the bytes of an inline file: changed in memory, then stored by StoreInline. What
  // is put into `change` may point into `keep` and `contents`, which must live until the commit.
  Status WriteData(const FsView& view, Change& change, InodeNumber ino, Inode& inode,
                   uint64_t offset, std::string_view data, std::string& keep);
  Status ResizeData(const FsView& view, Change& change, InodeNumber ino, Inode& inode,
                    uint64_t new_size, std::optional<std::string>& contents);
  Status ZeroData(const FsView& view, Change& change, InodeNumber ino, Inode& inode,
                  uint64_t offset, uint64_t length, std::optional<std::string>& contents);
  void StoreInline(Change& change, InodeNumber ino, Inode& inode,
                   std::optional<std::string>& contents);

  // ---- volume_attributes.cc ----
  // Clears setuid, and setgid of group-executable files; takes security.capability away.
  Status KillPrivileges(const FsView& view, Change& change, InodeNumber ino, Inode& inode) const;

  Clock& clock_;
  VolumeOptions options_;  // constant after construction
  const std::shared_ptr<ReadAhead> read_ahead_ = std::make_shared<ReadAhead>();
  std::unique_ptr<Head> head_;

  Gate gate_;
  std::atomic<bool> read_only_;  // changes with the gate closed
  Mutex rename_mutex_;
  InodeLocks inodes_;
  std::atomic<InodeNumber> next_ino_;

  Mutex totals_mutex_;
  uint64_t inodes_total_ GUARDED_BY(totals_mutex_) = 0;
  uint64_t bytes_total_ GUARDED_BY(totals_mutex_) = 0;

  Mutex opens_mutex_;
  std::shared_ptr<OpenTable> opens_ GUARDED_BY(opens_mutex_);  // never null
};

}  // namespace cairn
