// Attributes, truncation and extended attributes.
//
// Times follow Linux: whatever SetAttr changes moves ctime, unless the caller gives one (a kernel
// with a writeback cache keeps mtime and ctime itself and sends them); a new size moves mtime too,
// the old size again moves nothing (truncate(2) by path; for ftruncate the kernel asks for mtime
// explicitly). Capabilities in security.capability fall with setuid.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>

#include "volume/volume_impl_internal.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

constexpr uint32_t kPermissions = 07777;
constexpr std::string_view kCapabilityXattr = "security.capability";
constexpr uint32_t kNanosecondsPerSecond = 1000000000;

bool ValidTime(const std::optional<TimeSpec>& time) {
  return !time || time->nanoseconds < kNanosecondsPerSecond;
}

Status CheckXattrName(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNamespaces = {"user.", "trusted.", "security."};
  if (name.empty() || name.size() > kMaxNameBytes) return ErrErrno(ERANGE);
  for (const std::string_view space : kNamespaces) {
    if (!name.starts_with(space)) continue;
    if (name.size() == space.size() || name.find('\0') != name.npos) return ErrErrno(EINVAL);
    return {};
  }
  return ErrErrno(EOPNOTSUPP);
}

}  // namespace

Result<Inode> VolumeImpl::GetAttributes(InodeNumber ino) { return View().GetInode(ino); }

Status VolumeImpl::KillPrivileges(const FsView& view, Change& change, InodeNumber ino,
                                  Inode& inode) const {
  if (S_ISDIR(inode.mode)) return {};
  inode.mode &= ~uint32_t{S_ISUID};
  if (inode.mode & S_IXGRP)
    inode.mode &= ~uint32_t{S_ISGID};  // without it the bit means mandatory locking
  const std::string key = XattrKey(ino, kCapabilityXattr);
  if (CAIRN_TRY(view.layer()->Get(key))) change.tx.Delete(key);
  return {};
}

Result<Inode> VolumeImpl::SetAttr(const OpContext& ctx, InodeNumber ino,
                                  const SetAttributes& attributes) {
  if (!ValidTime(attributes.atime) || !ValidTime(attributes.mtime) ||
      !ValidTime(attributes.ctime)) {
    return ErrErrno(EINVAL);
  }
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino});
  const FsView view = View();
  Inode inode = CAIRN_TRY(view.GetInode(ino));
  const Inode before = inode;
  Change change;
  std::optional<std::string> contents;
  bool resized = false;
  if (attributes.size_bytes) {
    const uint64_t size = *attributes.size_bytes;
    if (S_ISDIR(inode.mode)) return ErrErrno(EISDIR);
    if (!S_ISREG(inode.mode)) return ErrErrno(EINVAL);
    if (size > kMaxFileBytes) return ErrErrno(EFBIG);
    resized = size != inode.size_bytes;
    if (resized) {
      if (size < inode.size_bytes) change.use = SpaceUse::kFreeing;
      contents = CAIRN_TRY(InlineContents(view, ino, inode));
      CAIRN_TRY(ResizeData(view, change, ino, inode, size, contents));
      StoreInline(change, ino, inode, contents);
      change.bytes = static_cast<int64_t>(size - before.size_bytes);
    }
  }
  if (attributes.mode) inode.mode = (inode.mode & S_IFMT) | (*attributes.mode & kPermissions);
  if (attributes.uid) inode.uid = *attributes.uid;
  if (attributes.gid) inode.gid = *attributes.gid;
  if (attributes.kill_privileges) CAIRN_TRY(KillPrivileges(view, change, ino, inode));

  const TimeSpec now = clock_.Now();
  if (resized || attributes.mtime_now) inode.mtime = now;
  if (attributes.atime_now) inode.atime = now;
  if (attributes.mtime) inode.mtime = *attributes.mtime;
  if (attributes.atime) inode.atime = *attributes.atime;
  const bool same_size_only = attributes.size_bytes && !resized && change.tx.empty() &&
                              inode == before && !attributes.mode && !attributes.uid &&
                              !attributes.gid && !attributes.atime && !attributes.mtime &&
                              !attributes.ctime;
  if (same_size_only) return inode;
  inode.ctime = attributes.ctime.value_or(now);
  ++inode.change_counter;
  PutInode(change, ino, inode);
  CAIRN_TRY(Commit(ctx, std::move(change), {.ino = ino}));
  return inode;
}

Result<std::string> VolumeImpl::GetXattr(InodeNumber ino, std::string_view name) {
  CAIRN_TRY(CheckXattrName(name));
  return View().GetXattr(ino, name);
}

Result<std::vector<std::string>> VolumeImpl::ListXattrs(InodeNumber ino) {
  InodeLocks::Shared lock(inodes_, ino);
  return View().ListXattrs(ino);
}

Status VolumeImpl::SetXattr(const OpContext& ctx, InodeNumber ino, std::string_view name,
                            std::string_view value, int flags) {
  CAIRN_TRY(CheckXattrName(name));
  if (flags & ~(XATTR_CREATE | XATTR_REPLACE)) return ErrErrno(EINVAL);
  if (value.size() > kMaxXattrBytes) return ErrErrno(E2BIG);
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino});
  const FsView view = View();
  Inode inode = CAIRN_TRY(view.GetInode(ino));
  const std::string key = XattrKey(ino, name);
  if (flags != 0) {
    const bool exists = CAIRN_TRY(view.layer()->Get(key)).has_value();
    if (exists && (flags & XATTR_CREATE)) return ErrErrno(EEXIST);
    if (!exists && (flags & XATTR_REPLACE)) return ErrErrno(ENODATA);
  }
  Change change;
  change.tx.Put(key, EncodeXattrInline(value));
  inode.ctime = clock_.Now();
  ++inode.change_counter;
  PutInode(change, ino, inode);
  return Commit(ctx, std::move(change), {.ino = ino});
}

Status VolumeImpl::RemoveXattr(const OpContext& ctx, InodeNumber ino, std::string_view name) {
  CAIRN_TRY(CheckXattrName(name));
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino});
  const FsView view = View();
  Inode inode = CAIRN_TRY(view.GetInode(ino));
  const std::string key = XattrKey(ino, name);
  if (!CAIRN_TRY(view.layer()->Get(key))) return ErrErrno(ENODATA);
  Change change;
  change.use = SpaceUse::kFreeing;
  change.tx.Delete(key);
  inode.ctime = clock_.Now();
  ++inode.change_counter;
  PutInode(change, ino, inode);
  return Commit(ctx, std::move(change), {.ino = ino});
}

}  // namespace cairn
