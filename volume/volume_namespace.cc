// Names: lookup, creation of every type of inode, hard links, removal.
//
// A creation locks the directory alone: its inode is not reachable before the commit. A removal
// must lock the child too, which it knows only after looking: it looks, locks both in stripe order
// and looks again; if the name changed hands meanwhile it starts over (LockChild). The errno of
// each case and the times that change are Linux's (fs/namei.c: may_delete, vfs_link, vfs_rmdir;
// ext4/namei.c).
#include <sys/stat.h>

#include <cerrno>

#include "volume/volume_impl_internal.h"

namespace cairn {
namespace {

// What a directory shows as its size and what it costs: one page, whatever it holds. Entries are
// not files' bytes, and a constant keeps the totals a sum over inodes.
constexpr uint64_t kDirectoryBytes = kPageBytes;
constexpr size_t kMaxSymlinkBytes = 4095;  // PATH_MAX without its NUL
constexpr uint32_t kPermissions = 07777;

void Touch(Inode& inode, TimeSpec now) {
  inode.mtime = inode.ctime = now;
  ++inode.change_counter;
}

}  // namespace

Result<Inode> VolumeImpl::LoadDirectory(const FsView& view, InodeNumber dir) const {
  Inode inode = CAIRN_TRY(view.GetInode(dir));
  if (!S_ISDIR(inode.mode)) return ErrErrno(ENOTDIR);
  if (inode.nlink == 0) return ErrErrno(ENOENT);
  return inode;
}

Inode VolumeImpl::MakeInode(const OpContext& ctx, const Inode& dir, InodeNumber ino,
                            uint32_t mode) const {
  Inode inode;
  inode.mode = mode & (S_IFMT | kPermissions);
  inode.uid = ctx.uid;
  inode.gid = ctx.gid;
  inode.nlink = 1;
  if (dir.mode & S_ISGID) {
    inode.gid = dir.gid;
    if (S_ISDIR(mode)) inode.mode |= S_ISGID;
  }
  if (S_ISDIR(mode)) {
    inode.nlink = 2;
    inode.size_bytes = inode.allocated_bytes = kDirectoryBytes;
  }
  inode.atime = inode.mtime = inode.ctime = inode.btime = clock_.Now();
  inode.birth_volume = options_.head.volume;
  inode.birth_sequence = ino;
  inode.change_counter = 1;
  return inode;
}

Result<NamedInode> VolumeImpl::CreateNamed(const OpContext& ctx, InodeNumber dir,
                                           std::string_view name, uint32_t mode,
                                           const std::function<void(Change&, NamedInode&)>& add) {
  CAIRN_TRY(CheckName(name));
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {dir});
  const FsView view = View();
  Inode parent = CAIRN_TRY(LoadDirectory(view, dir));
  const DirentSearch search = CAIRN_TRY(SearchDirent(*view.layer(), options_.hash_seed, dir, name));
  if (search.found) return ErrErrno(EEXIST);
  if (search.free_cookie == 0) return ErrErrno(ENOSPC);

  Change change;
  change.use = SpaceUse::kGrowing;
  NamedInode made;
  made.ino = NewInodeNumber(change);
  made.inode = MakeInode(ctx, parent, made.ino, mode);
  if (S_ISDIR(mode)) {
    made.inode.parent = dir;
    ++parent.nlink;
  }
  add(change, made);
  Touch(parent, made.inode.ctime);
  change.inodes = 1;
  change.bytes = static_cast<int64_t>(made.inode.size_bytes);
  change.tx.Put(DirentKey(dir, search.free_cookie),
                Entry{Dirent{made.ino, DirentType(mode), std::string(name)}.Encode(), {}});
  PutInode(change, made.ino, made.inode);
  PutInode(change, dir, parent);
  CAIRN_TRY(Commit(ctx, std::move(change), {.ino = made.ino}));
  return made;
}

Result<NamedInode> VolumeImpl::MakeNode(const OpContext& ctx, InodeNumber dir,
                                        std::string_view name, uint32_t mode, uint64_t rdev) {
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;  // mknod(2)
  const bool device = S_ISCHR(mode) || S_ISBLK(mode);
  if (S_ISDIR(mode)) return ErrErrno(EPERM);
  if (!device && !S_ISREG(mode) && !S_ISFIFO(mode) && !S_ISSOCK(mode)) return ErrErrno(EINVAL);
  return CreateNamed(ctx, dir, name, mode,
                     [&](Change&, NamedInode& made) { made.inode.rdev = device ? rdev : 0; });
}

Result<NamedInode> VolumeImpl::MakeDir(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                       uint32_t mode) {
  return CreateNamed(ctx, dir, name, S_IFDIR | (mode & kPermissions), [](Change&, NamedInode&) {});
}

Result<NamedInode> VolumeImpl::Symlink(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                       std::string_view target) {
  if (target.empty()) return ErrErrno(ENOENT);
  if (target.size() > kMaxSymlinkBytes) return ErrErrno(ENAMETOOLONG);
  if (target.find('\0') != target.npos) return ErrErrno(EINVAL);
  return CreateNamed(ctx, dir, name, S_IFLNK | 0777, [&](Change& change, NamedInode& made) {
    made.inode.size_bytes = target.size();
    change.tx.Put(InlineKey(made.ino), Entry{std::string(target), {}});
  });
}

Result<NamedInode> VolumeImpl::Create(const OpContext& ctx, InodeNumber dir, std::string_view name,
                                      uint32_t mode, bool writable) {
  // Opened before the commit makes it reachable, so that an unlink right after keeps it.
  InodeNumber opened = kNoInode;
  auto made = CreateNamed(ctx, dir, name, S_IFREG | (mode & kPermissions),
                          [&](Change&, NamedInode& created) {
                            opened = created.ino;
                            opens()->Add(opened, writable, ctx.request);
                          });
  if (!made && opened != kNoInode) opens()->UndoAdd(opened, writable, ctx.request);
  return made;
}

Result<NamedInode> VolumeImpl::Link(const OpContext& ctx, InodeNumber ino, InodeNumber dir,
                                    std::string_view name) {
  CAIRN_TRY(CheckName(name));
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino, dir});
  const FsView view = View();
  NamedInode linked{ino, CAIRN_TRY(view.GetInode(ino))};
  Inode parent = CAIRN_TRY(LoadDirectory(view, dir));
  const DirentSearch search = CAIRN_TRY(SearchDirent(*view.layer(), options_.hash_seed, dir, name));
  if (search.found) return ErrErrno(EEXIST);
  if (S_ISDIR(linked.inode.mode)) return ErrErrno(EPERM);
  if (linked.inode.nlink >= kMaxLinks) return ErrErrno(EMLINK);
  if (search.free_cookie == 0) return ErrErrno(ENOSPC);

  Change change;
  change.use = SpaceUse::kGrowing;
  const TimeSpec now = clock_.Now();
  if (linked.inode.nlink == 0) change.tx.Delete(OrphanKey(ino));
  ++linked.inode.nlink;
  linked.inode.ctime = now;
  ++linked.inode.change_counter;
  Touch(parent, now);
  change.tx.Put(DirentKey(dir, search.free_cookie),
                Entry{Dirent{ino, DirentType(linked.inode.mode), std::string(name)}.Encode(), {}});
  PutInode(change, ino, linked.inode);
  PutInode(change, dir, parent);
  CAIRN_TRY(Commit(ctx, std::move(change), {.ino = ino}));
  return linked;
}

Status VolumeImpl::LockChild(InodeNumber dir, std::string_view name, LockedChild& out) {
  for (;;) {
    const FsView before = View();
    CAIRN_TRY(LoadDirectory(before, dir));
    const auto seen = CAIRN_TRY(FindDirent(*before.layer(), options_.hash_seed, dir, name));
    if (!seen) return ErrErrno(ENOENT);
    out.lock.emplace(inodes_, std::initializer_list<InodeNumber>{dir, seen->child});
    out.view.emplace(View());
    out.dir = CAIRN_TRY(LoadDirectory(*out.view, dir));
    const auto again = CAIRN_TRY(FindDirent(*out.view->layer(), options_.hash_seed, dir, name));
    if (again && again->child == seen->child) {
      out.found = *again;
      out.child = CAIRN_TRY(out.view->GetInode(again->child));
      return {};
    }
    out.lock.reset();
  }
}

Status VolumeImpl::Purge(const FsView& view, Change& change, InodeNumber ino, const Inode& inode) {
  if (inode.nlink == 0) change.tx.Delete(OrphanKey(ino));
  change.tx.Delete(AttributesKey(ino));
  const bool inline_file =
      S_ISREG(inode.mode) && CAIRN_TRY(InlineContents(view, ino, inode)).has_value();
  if (inline_file || S_ISLNK(inode.mode)) {
    change.tx.Delete(InlineKey(ino));
  } else if (S_ISREG(inode.mode) && inode.size_bytes > 0) {
    change.tx.PutHole(ino, 0, UINT64_MAX);
  }
  for (const std::string& name : CAIRN_TRY(view.ListXattrs(ino))) {
    change.tx.Delete(XattrKey(ino, name));
  }
  change.inodes -= 1;
  change.bytes -= static_cast<int64_t>(inode.size_bytes);
  return {};
}

Status VolumeImpl::DropLink(const FsView& view, Change& change, InodeNumber ino, Inode inode,
                            TimeSpec now) {
  const uint32_t left = S_ISDIR(inode.mode) ? 0 : inode.nlink - 1;
  const uint32_t handles = left == 0 ? opens()->Get(ino).handles : 0;
  if (left == 0 && handles == 0) return Purge(view, change, ino, inode);
  if (left == 0) PutOrphan(change, ino, handles, 0);
  inode.nlink = left;
  inode.ctime = now;
  ++inode.change_counter;
  PutInode(change, ino, inode);
  return {};
}

Status VolumeImpl::Unlink(const OpContext& ctx, InodeNumber dir, std::string_view name) {
  CAIRN_TRY(CheckName(name));
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  LockedChild at;
  CAIRN_TRY(LockChild(dir, name, at));
  if (S_ISDIR(at.child.mode)) return ErrErrno(EISDIR);
  Change change;
  change.use = SpaceUse::kFreeing;
  const TimeSpec now = clock_.Now();
  change.tx.Delete(DirentKey(dir, at.found.cookie));
  Touch(at.dir, now);
  PutInode(change, dir, at.dir);
  CAIRN_TRY(DropLink(*at.view, change, at.found.child, at.child, now));
  return Commit(ctx, std::move(change), {.ino = at.found.child});
}

Status VolumeImpl::RemoveDir(const OpContext& ctx, InodeNumber dir, std::string_view name) {
  CAIRN_TRY(CheckName(name));
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  LockedChild at;
  CAIRN_TRY(LockChild(dir, name, at));
  if (!S_ISDIR(at.child.mode)) return ErrErrno(ENOTDIR);
  if (!CAIRN_TRY(DirectoryIsEmpty(*at.view->layer(), at.found.child))) return ErrErrno(ENOTEMPTY);
  Change change;
  change.use = SpaceUse::kFreeing;
  const TimeSpec now = clock_.Now();
  change.tx.Delete(DirentKey(dir, at.found.cookie));
  --at.dir.nlink;
  Touch(at.dir, now);
  PutInode(change, dir, at.dir);
  CAIRN_TRY(DropLink(*at.view, change, at.found.child, at.child, now));
  return Commit(ctx, std::move(change), {.ino = at.found.child});
}

Result<NamedInode> VolumeImpl::Lookup(InodeNumber dir, std::string_view name) {
  InodeLocks::Shared lock(inodes_, dir);
  const FsView view = View();
  NamedInode found;
  found.ino = CAIRN_TRY(view.Lookup(dir, name));
  found.inode = CAIRN_TRY(view.GetInode(found.ino));
  return found;
}

Result<std::string> VolumeImpl::ReadLink(InodeNumber ino) { return View().ReadLink(ino); }

Status VolumeImpl::ReadDir(InodeNumber dir, uint64_t after,
                           const std::function<bool(const DirEntry&)>& visit) {
  return View().ReadDir(dir, after, visit);
}

}  // namespace cairn
