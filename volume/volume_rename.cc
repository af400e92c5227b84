// rename(2) with its flags.
//
// Order: between two directories take the rename mutex (so that no other rename changes who is
// above whom), find both names, lock both directories and both children in stripe order, find the
// names again and start over if they changed, then decide in the order of Linux's do_renameat2 and
// vfs_rename: NOREPLACE / EXCHANGE presence, loops, same inode, type of the victim, emptiness. One
// transaction moves the entries, the parent of a moved directory, link counts and times.
//
// Invariant: the directories are a tree. A directory's ancestors are read by Inode.parent under the
// rename mutex; only renames between directories change it.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "volume/volume_impl_internal.h"

namespace cairn {
namespace {

constexpr uint32_t kNoReplace = RENAME_NOREPLACE;
constexpr uint32_t kExchange = RENAME_EXCHANGE;
constexpr uint32_t kWhiteout = RENAME_WHITEOUT;
constexpr size_t kMaxAncestors = 1 << 20;  // more is a loop, which damage alone can make

Status CheckFlags(uint32_t flags) {
  if (flags & ~(kNoReplace | kExchange | kWhiteout)) return ErrErrno(EINVAL);
  if ((flags & kExchange) && (flags & (kNoReplace | kWhiteout))) return ErrErrno(EINVAL);
  return {};
}

// Whether `ino` is `dir` or one of its ancestors.
Result<bool> IsAncestor(const FsView& view, InodeNumber ino, InodeNumber dir) {
  for (size_t depth = 0; depth < kMaxAncestors; ++depth) {
    if (dir == ino) return true;
    if (dir == kRootInode) return false;
    dir = CAIRN_TRY(view.GetInode(dir)).parent;
  }
  return Err(ErrorCode::kDataLoss, "directories form a loop", EIO);
}

// Holds `mutex` if `wanted`.
class MaybeLock {
 public:
  MaybeLock(Mutex& mutex, bool wanted) NO_THREAD_SAFETY_ANALYSIS
      : mutex_(wanted ? &mutex : nullptr) {
    if (mutex_) mutex_->Lock();
  }
  ~MaybeLock() NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_) mutex_->Unlock();
  }
  MaybeLock(const MaybeLock&) = delete;
  MaybeLock& operator=(const MaybeLock&) = delete;

 private:
  Mutex* mutex_;
};

}  // namespace

Status VolumeImpl::Rename(const OpContext& ctx, InodeNumber old_dir, std::string_view old_name,
                          InodeNumber new_dir, std::string_view new_name, uint32_t flags) {
  CAIRN_TRY(CheckFlags(flags));
  CAIRN_TRY(CheckName(old_name));
  CAIRN_TRY(CheckName(new_name));
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  MaybeLock rename_lock(rename_mutex_, old_dir != new_dir);
  for (;;) {
    RenameEnds ends{.old_dir = old_dir, .new_dir = new_dir};
    {
      const FsView view = View();
      CAIRN_TRY(FindEnds(view, old_name, new_name, ends));
    }
    const InodeNumber victim = ends.target ? ends.target->child : kNoInode;
    InodeLocks::Exclusive lock(inodes_, {old_dir, new_dir, ends.source.child, victim});
    const FsView view = View();
    RenameEnds locked{.old_dir = old_dir, .new_dir = new_dir};
    CAIRN_TRY(FindEnds(view, old_name, new_name, locked));
    const InodeNumber victim_now = locked.target ? locked.target->child : kNoInode;
    if (locked.source.child != ends.source.child || victim_now != victim) continue;
    return RenameLocked(ctx, view, locked, old_name, new_name, flags);
  }
}

Status VolumeImpl::FindEnds(const FsView& view, std::string_view old_name,
                            std::string_view new_name, RenameEnds& ends) const {
  ends.old_parent = CAIRN_TRY(LoadDirectory(view, ends.old_dir));
  ends.new_parent = CAIRN_TRY(LoadDirectory(view, ends.new_dir));
  const auto source =
      CAIRN_TRY(FindDirent(*view.layer(), options_.hash_seed, ends.old_dir, old_name));
  if (!source) return ErrErrno(ENOENT);
  ends.source = *source;
  const DirentSearch search =
      CAIRN_TRY(SearchDirent(*view.layer(), options_.hash_seed, ends.new_dir, new_name));
  ends.target = search.found;
  ends.free_cookie = search.free_cookie;
  return {};
}

Status VolumeImpl::RenameLocked(const OpContext& ctx, const FsView& view, RenameEnds& ends,
                                std::string_view old_name, std::string_view new_name,
                                uint32_t flags) {
  const bool same_dir = ends.old_dir == ends.new_dir;
  if ((flags & kNoReplace) && ends.target) return ErrErrno(EEXIST);
  if ((flags & kExchange) && !ends.target) return ErrErrno(ENOENT);

  Inode source = CAIRN_TRY(view.GetInode(ends.source.child));
  const bool source_is_dir = S_ISDIR(source.mode);
  std::optional<Inode> target;
  if (ends.target) target = CAIRN_TRY(view.GetInode(ends.target->child));
  const bool target_is_dir = target && S_ISDIR(target->mode);

  if (!same_dir && source_is_dir && CAIRN_TRY(IsAncestor(view, ends.source.child, ends.new_dir))) {
    return ErrErrno(EINVAL);
  }
  if (!same_dir && target_is_dir && CAIRN_TRY(IsAncestor(view, ends.target->child, ends.old_dir))) {
    return ErrErrno((flags & kExchange) ? EINVAL : ENOTEMPTY);
  }
  if (ends.target && ends.target->child == ends.source.child) return {};
  if (target && !(flags & kExchange)) {
    if (source_is_dir && !target_is_dir) return ErrErrno(ENOTDIR);
    if (!source_is_dir && target_is_dir) return ErrErrno(EISDIR);
    if (target_is_dir && !CAIRN_TRY(DirectoryIsEmpty(*view.layer(), ends.target->child))) {
      return ErrErrno(ENOTEMPTY);
    }
  }
  if (!target && ends.free_cookie == 0) return ErrErrno(ENOSPC);

  Change change;
  const TimeSpec now = clock_.Now();
  Inode& old_parent = ends.old_parent;
  Inode& new_parent = same_dir ? ends.old_parent : ends.new_parent;
  const uint64_t new_cookie = ends.target ? ends.target->cookie : ends.free_cookie;
  change.tx.Put(
      DirentKey(ends.new_dir, new_cookie),
      Entry{Dirent{ends.source.child, ends.source.type, std::string(new_name)}.Encode(), {}});
  source.ctime = now;
  ++source.change_counter;
  if (source_is_dir) {
    --old_parent.nlink;
    ++new_parent.nlink;
    source.parent = ends.new_dir;
  }
  PutInode(change, ends.source.child, source);

  if (flags & kExchange) {
    change.tx.Put(
        DirentKey(ends.old_dir, ends.source.cookie),
        Entry{Dirent{ends.target->child, ends.target->type, std::string(old_name)}.Encode(), {}});
    target->ctime = now;
    ++target->change_counter;
    if (target_is_dir) {
      --new_parent.nlink;
      ++old_parent.nlink;
      target->parent = ends.old_dir;
    }
    PutInode(change, ends.target->child, *target);
  } else {
    if (target) {
      if (target_is_dir) --new_parent.nlink;
      CAIRN_TRY(DropLink(view, change, ends.target->child, *target, now));
    }
    if (flags & kWhiteout) {
      const InodeNumber ino = NewInodeNumber(change);
      const Inode whiteout = MakeInode(ctx, old_parent, ino, S_IFCHR);  // device 0:0
      change.tx.Put(DirentKey(ends.old_dir, ends.source.cookie),
                    Entry{Dirent{ino, DirentType(S_IFCHR), std::string(old_name)}.Encode(), {}});
      PutInode(change, ino, whiteout);
      change.inodes += 1;
    } else {
      change.tx.Delete(DirentKey(ends.old_dir, ends.source.cookie));
    }
  }
  const auto touch = [now](Inode& parent) {
    parent.mtime = parent.ctime = now;
    ++parent.change_counter;
  };
  touch(old_parent);
  if (!same_dir) touch(new_parent);
  PutInode(change, ends.old_dir, old_parent);
  if (!same_dir) PutInode(change, ends.new_dir, new_parent);
  return Commit(ctx, std::move(change), {.ino = ends.source.child});
}

}  // namespace cairn
