// Everything under one lock, nodes by number. Data is a map of pages, so that holes are what is not
// there.
#include "fuse/memory/memory_volume.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "store/base/check.h"
#include "store/base/clock.h"

namespace cairn {

MemoryVolume::MemoryVolume(const MemoryVolumeOptions& options) : options_(options) {
  Node root;
  root.inode.mode = S_IFDIR | 0755;
  root.inode.nlink = 2;
  root.inode.parent = kRootInode;
  root.inode.atime = root.inode.mtime = root.inode.ctime = root.inode.btime = SystemClock().Now();
  nodes_[kRootInode] = root;
}

Head& MemoryVolume::head() {
  CAIRN_CHECK(false);  // no journal here
  __builtin_unreachable();
}

Result<MemoryVolume::Node*> MemoryVolume::Find(InodeNumber ino) {
  const auto found = nodes_.find(ino);
  if (found == nodes_.end()) return ErrErrno(ENOENT);
  return &found->second;
}

Result<MemoryVolume::Node*> MemoryVolume::FindDir(InodeNumber ino) {
  Node* node = CAIRN_TRY(Find(ino));
  if (!S_ISDIR(node->inode.mode)) return ErrErrno(ENOTDIR);
  return node;
}

Result<InodeNumber> MemoryVolume::FindChild(Node& dir, std::string_view name) {
  const auto cookie = dir.cookies.find(name);
  if (cookie == dir.cookies.end()) return ErrErrno(ENOENT);
  return dir.entries[cookie->second].second;
}

void MemoryVolume::Touch(Node& node) {
  node.inode.mtime = node.inode.ctime = SystemClock().Now();
  ++node.inode.change_counter;
}

void MemoryVolume::Enter(InodeNumber dir_ino, Node& dir, std::string_view name, InodeNumber child) {
  const uint64_t cookie = (3 + dir.next_cookie++) << 8;
  dir.entries[cookie] = {std::string(name), child};
  dir.cookies[std::string(name)] = cookie;
  Node& node = nodes_[child];
  if (S_ISDIR(node.inode.mode)) {
    node.inode.parent = dir_ino;
    ++dir.inode.nlink;
  }
  Touch(dir);
}

void MemoryVolume::Leave(Node& dir, std::string_view name) {
  const auto cookie = dir.cookies.find(name);
  Node& node = nodes_[dir.entries[cookie->second].second];
  if (S_ISDIR(node.inode.mode)) --dir.inode.nlink;
  dir.entries.erase(cookie->second);
  dir.cookies.erase(cookie);
  Touch(dir);
}

void MemoryVolume::Drop(InodeNumber ino, Node& node) {
  if (node.inode.nlink > 0 || node.readers > 0 || node.writers > 0) return;
  bytes_ -= node.inode.size_bytes;
  nodes_.erase(ino);
}

Result<NamedInode> MemoryVolume::Add(const OpContext& ctx, InodeNumber dir_ino,
                                     std::string_view name, uint32_t mode, uint64_t rdev) {
  if (read_only_.load()) return ErrErrno(EROFS);
  Node* dir = CAIRN_TRY(FindDir(dir_ino));
  if (name.size() > kMaxNameBytes) return ErrErrno(ENAMETOOLONG);
  if (!name.empty() && dir->cookies.contains(name)) return ErrErrno(EEXIST);
  if (options_.quota_inodes != 0 && nodes_.size() >= options_.quota_inodes) return ErrErrno(ENOSPC);
  const InodeNumber ino = next_ino_++;
  Node node;
  node.inode.mode = mode;
  node.inode.uid = ctx.uid;
  node.inode.gid = ctx.gid;
  node.inode.rdev = rdev;
  if ((dir->inode.mode & S_ISGID) != 0) {
    node.inode.gid = dir->inode.gid;
    if (S_ISDIR(mode)) node.inode.mode |= S_ISGID;
  }
  node.inode.nlink = name.empty() ? 0 : S_ISDIR(mode) ? 2 : 1;
  node.inode.atime = node.inode.mtime = node.inode.ctime = node.inode.btime = SystemClock().Now();
  nodes_[ino] = std::move(node);
  if (!name.empty()) Enter(dir_ino, nodes_[dir_ino], name, ino);
  last_request_ = ctx.request;
  return NamedInode{.ino = ino, .inode = nodes_[ino].inode};
}

Result<NamedInode> MemoryVolume::Lookup(InodeNumber dir_ino, std::string_view name) {
  MutexLock lock(mutex_);
  Node* dir = CAIRN_TRY(FindDir(dir_ino));
  if (name.size() > kMaxNameBytes) return ErrErrno(ENAMETOOLONG);
  const InodeNumber ino = CAIRN_TRY(FindChild(*dir, name));
  return NamedInode{.ino = ino, .inode = nodes_[ino].inode};
}

Result<Inode> MemoryVolume::GetAttributes(InodeNumber ino) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  return node->inode;
}

void MemoryVolume::Resize(Node& node, uint64_t size) {
  if (size < node.inode.size_bytes) {
    const uint64_t page = size / kPageBytes;
    const uint64_t within = size % kPageBytes;
    const auto first = node.pages.lower_bound(page);
    auto drop = first;
    if (drop != node.pages.end() && drop->first == page && within != 0) {
      std::memset(drop->second.data() + within, 0, kPageBytes - within);
      ++drop;
    }
    node.pages.erase(drop, node.pages.end());
  }
  bytes_ += size - node.inode.size_bytes;
  node.inode.size_bytes = size;
  node.inode.allocated_bytes =
      options_.keep_data ? node.pages.size() * kPageBytes : (size + 511) / 512 * 512;
  Touch(node);
}

Result<Inode> MemoryVolume::SetAttr(const OpContext& ctx, InodeNumber ino,
                                    const SetAttributes& set) {
  MutexLock lock(mutex_);
  if (read_only_.load()) return ErrErrno(EROFS);
  Node* node = CAIRN_TRY(Find(ino));
  Inode& inode = node->inode;
  inode.ctime = SystemClock().Now();
  if (set.size_bytes) Resize(*node, *set.size_bytes);
  if (set.uid) inode.uid = *set.uid;
  if (set.gid) inode.gid = *set.gid;
  if (set.kill_privileges) {
    inode.mode &= ~S_ISUID;
    if ((inode.mode & S_IXGRP) != 0) inode.mode &= ~S_ISGID;
  }
  if (set.mode) inode.mode = (inode.mode & S_IFMT) | (*set.mode & 07777);
  if (set.atime_now) inode.atime = SystemClock().Now();
  if (set.mtime_now) inode.mtime = SystemClock().Now();
  if (set.atime) inode.atime = *set.atime;
  if (set.mtime) inode.mtime = *set.mtime;
  if (set.ctime) inode.ctime = *set.ctime;
  last_request_ = ctx.request;
  return inode;
}

Result<NamedInode> MemoryVolume::MakeNode(const OpContext& ctx, InodeNumber dir,
                                          std::string_view name, uint32_t mode, uint64_t rdev) {
  MutexLock lock(mutex_);
  return Add(ctx, dir, name, mode, rdev);
}

Result<NamedInode> MemoryVolume::MakeDir(const OpContext& ctx, InodeNumber dir,
                                         std::string_view name, uint32_t mode) {
  MutexLock lock(mutex_);
  return Add(ctx, dir, name, S_IFDIR | (mode & 07777), 0);
}

Result<NamedInode> MemoryVolume::Symlink(const OpContext& ctx, InodeNumber dir,
                                         std::string_view name, std::string_view target) {
  MutexLock lock(mutex_);
  NamedInode made = CAIRN_TRY(Add(ctx, dir, name, S_IFLNK | 0777, 0));
  Node& node = nodes_[made.ino];
  node.target = target;
  node.inode.size_bytes = target.size();
  bytes_ += target.size();
  made.inode = node.inode;
  return made;
}

Result<NamedInode> MemoryVolume::Link(const OpContext& ctx, InodeNumber ino, InodeNumber dir_ino,
                                      std::string_view name) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  Node* dir = CAIRN_TRY(FindDir(dir_ino));
  if (S_ISDIR(node->inode.mode)) return ErrErrno(EPERM);
  if (dir->cookies.contains(name)) return ErrErrno(EEXIST);
  ++node->inode.nlink;
  node->inode.ctime = SystemClock().Now();
  Enter(dir_ino, *dir, name, ino);
  last_request_ = ctx.request;
  return NamedInode{.ino = ino, .inode = node->inode};
}

Status MemoryVolume::Unlink(const OpContext& ctx, InodeNumber dir_ino, std::string_view name) {
  MutexLock lock(mutex_);
  Node* dir = CAIRN_TRY(FindDir(dir_ino));
  const InodeNumber ino = CAIRN_TRY(FindChild(*dir, name));
  Node& node = nodes_[ino];
  if (S_ISDIR(node.inode.mode)) return ErrErrno(EISDIR);
  Leave(*dir, name);
  --node.inode.nlink;
  node.inode.ctime = SystemClock().Now();
  Drop(ino, node);
  last_request_ = ctx.request;
  return {};
}

Status MemoryVolume::RemoveDir(const OpContext& ctx, InodeNumber dir_ino, std::string_view name) {
  MutexLock lock(mutex_);
  Node* dir = CAIRN_TRY(FindDir(dir_ino));
  const InodeNumber ino = CAIRN_TRY(FindChild(*dir, name));
  Node& node = nodes_[ino];
  if (!S_ISDIR(node.inode.mode)) return ErrErrno(ENOTDIR);
  if (!node.entries.empty()) return ErrErrno(ENOTEMPTY);
  Leave(*dir, name);
  node.inode.nlink = 0;
  Drop(ino, node);
  last_request_ = ctx.request;
  return {};
}

Status MemoryVolume::Rename(const OpContext& ctx, InodeNumber old_ino, std::string_view old_name,
                            InodeNumber new_ino, std::string_view new_name, uint32_t flags) {
  MutexLock lock(mutex_);
  Node* old_dir = CAIRN_TRY(FindDir(old_ino));
  Node* new_dir = CAIRN_TRY(FindDir(new_ino));
  const InodeNumber moved = CAIRN_TRY(FindChild(*old_dir, old_name));
  const Result<InodeNumber> replaced = FindChild(*new_dir, new_name);
  if (flags == RENAME_EXCHANGE) {
    if (!replaced) return ErrErrno(ENOENT);
    Leave(*old_dir, old_name);
    Leave(*new_dir, new_name);
    Enter(old_ino, *old_dir, old_name, *replaced);
    Enter(new_ino, *new_dir, new_name, moved);
    return {};
  }
  if (flags != 0 && flags != RENAME_NOREPLACE) return ErrErrno(EINVAL);
  if (replaced && flags == RENAME_NOREPLACE) return ErrErrno(EEXIST);
  if (replaced && *replaced == moved) return {};
  if (replaced) {
    Node& node = nodes_[*replaced];
    if (S_ISDIR(node.inode.mode) && !node.entries.empty()) return ErrErrno(ENOTEMPTY);
    Leave(*new_dir, new_name);
    node.inode.nlink = S_ISDIR(node.inode.mode) ? 0 : node.inode.nlink - 1;
    Drop(*replaced, node);
  }
  Leave(*old_dir, old_name);
  Enter(new_ino, *new_dir, new_name, moved);
  nodes_[moved].inode.ctime = SystemClock().Now();
  last_request_ = ctx.request;
  return {};
}

Result<std::string> MemoryVolume::ReadLink(InodeNumber ino) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  if (!S_ISLNK(node->inode.mode)) return ErrErrno(EINVAL);
  return node->target;
}

Status MemoryVolume::ReadDir(InodeNumber dir_ino, uint64_t after,
                             const std::function<bool(const DirEntry&)>& visit) {
  MutexLock lock(mutex_);
  Node* dir = CAIRN_TRY(FindDir(dir_ino));
  for (auto it = dir->entries.upper_bound(after); it != dir->entries.end(); ++it) {
    const auto& [name, ino] = it->second;
    const DirEntry entry{.cookie = it->first,
                         .ino = ino,
                         .type = static_cast<uint8_t>(IFTODT(nodes_[ino].inode.mode)),
                         .name = name};
    if (!visit(entry)) break;
  }
  return {};
}

void MemoryVolume::CountHandle(Node& node, bool writable, int change) {
  (writable ? node.writers : node.readers) += static_cast<uint32_t>(change);
  all_opens_.handles += static_cast<uint32_t>(change);
  if (writable) all_opens_.writable += static_cast<uint32_t>(change);
}

Status MemoryVolume::OpenInode(const OpContext&, InodeNumber ino, bool writable) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  CountHandle(*node, writable, 1);
  return {};
}

Status MemoryVolume::ReleaseInode(const OpContext&, InodeNumber ino, bool writable) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  CountHandle(*node, writable, -1);
  Drop(ino, *node);
  return {};
}

Result<NamedInode> MemoryVolume::Create(const OpContext& ctx, InodeNumber dir,
                                        std::string_view name, uint32_t mode, bool writable) {
  MutexLock lock(mutex_);
  const NamedInode made = CAIRN_TRY(Add(ctx, dir, name, S_IFREG | (mode & 07777), 0));
  Node& node = nodes_[made.ino];
  CountHandle(node, writable, 1);
  return made;
}

Result<NamedInode> MemoryVolume::CreateUnnamed(const OpContext& ctx, InodeNumber dir,
                                               uint32_t mode) {
  MutexLock lock(mutex_);
  const NamedInode made = CAIRN_TRY(Add(ctx, dir, {}, S_IFREG | (mode & 07777), 0));
  CountHandle(nodes_[made.ino], true, 1);
  return made;
}

Result<size_t> MemoryVolume::Read(InodeNumber ino, uint64_t offset, std::span<char> out) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  if (offset >= node->inode.size_bytes) return 0;
  const size_t count = std::min<uint64_t>(out.size(), node->inode.size_bytes - offset);
  std::memset(out.data(), 0, count);
  for (size_t done = 0; done < count;) {
    const uint64_t at = offset + done;
    const size_t within = at % kPageBytes;
    const size_t piece = std::min<size_t>(kPageBytes - within, count - done);
    const auto page = node->pages.find(at / kPageBytes);
    if (page != node->pages.end()) {
      std::memcpy(out.data() + done, page->second.data() + within, piece);
    }
    done += piece;
  }
  return count;
}

Result<size_t> MemoryVolume::Write(const OpContext& ctx, InodeNumber ino, uint64_t offset,
                                   std::string_view data, bool kill_privileges) {
  if (options_.before_write) options_.before_write();
  if (fail_writes_.load()) return ErrErrno(EIO);
  MutexLock lock(mutex_);
  if (read_only_.load()) return ErrErrno(EROFS);
  Node* node = CAIRN_TRY(Find(ino));
  const uint64_t end = offset + data.size();
  const uint64_t growth = end > node->inode.size_bytes ? end - node->inode.size_bytes : 0;
  if (options_.quota_bytes != 0 && bytes_ + growth > options_.quota_bytes) return ErrErrno(ENOSPC);
  for (size_t done = 0; options_.keep_data && done < data.size();) {
    const uint64_t at = offset + done;
    const size_t within = at % kPageBytes;
    const size_t piece = std::min<size_t>(kPageBytes - within, data.size() - done);
    std::string& page = node->pages[at / kPageBytes];
    page.resize(kPageBytes, '\0');
    std::memcpy(page.data() + within, data.data() + done, piece);
    done += piece;
  }
  Resize(*node, std::max(end, node->inode.size_bytes));
  if (kill_privileges) {
    node->inode.mode &= ~S_ISUID;
    if ((node->inode.mode & S_IXGRP) != 0) node->inode.mode &= ~S_ISGID;
  }
  last_request_ = ctx.request;
  return data.size();
}

Status MemoryVolume::Allocate(const OpContext&, InodeNumber ino, uint64_t offset, uint64_t length,
                              int mode) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  if (mode == 0) {
    Resize(*node, std::max(offset + length, node->inode.size_bytes));
    return {};
  }
  if (mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) return ErrErrno(EOPNOTSUPP);
  for (auto page = node->pages.begin(); page != node->pages.end();) {
    const uint64_t start = page->first * kPageBytes;
    const uint64_t from = std::max(start, offset);
    const uint64_t to = std::min(start + kPageBytes, offset + length);
    if (from < to) std::memset(page->second.data() + (from - start), 0, to - from);
    const bool whole = from <= start && to >= start + kPageBytes && from < to;
    page = whole ? node->pages.erase(page) : std::next(page);
  }
  Resize(*node, node->inode.size_bytes);
  return {};
}

Result<uint64_t> MemoryVolume::SeekData(InodeNumber ino, uint64_t offset) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  if (offset >= node->inode.size_bytes) return ErrErrno(ENXIO);
  const auto page = node->pages.lower_bound(offset / kPageBytes);
  if (page == node->pages.end()) return ErrErrno(ENXIO);
  return std::max<uint64_t>(offset, page->first * kPageBytes);
}

Result<uint64_t> MemoryVolume::SeekHole(InodeNumber ino, uint64_t offset) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  if (offset >= node->inode.size_bytes) return ErrErrno(ENXIO);
  uint64_t at = offset;
  while (node->pages.contains(at / kPageBytes)) at = (at / kPageBytes + 1) * kPageBytes;
  return std::min(at, node->inode.size_bytes);
}

Result<std::string> MemoryVolume::GetXattr(InodeNumber ino, std::string_view name) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  const auto found = node->xattrs.find(name);
  if (found == node->xattrs.end()) return ErrErrno(ENODATA);
  return found->second;
}

Status MemoryVolume::SetXattr(const OpContext&, InodeNumber ino, std::string_view name,
                              std::string_view value, int flags) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  const bool there = node->xattrs.contains(name);
  if (flags == XATTR_CREATE && there) return ErrErrno(EEXIST);
  if (flags == XATTR_REPLACE && !there) return ErrErrno(ENODATA);
  node->xattrs.insert_or_assign(std::string(name), std::string(value));
  return {};
}

Result<std::vector<std::string>> MemoryVolume::ListXattrs(InodeNumber ino) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  std::vector<std::string> names;
  for (const auto& [name, value] : node->xattrs) names.push_back(name);
  return names;
}

Status MemoryVolume::RemoveXattr(const OpContext&, InodeNumber ino, std::string_view name) {
  MutexLock lock(mutex_);
  Node* node = CAIRN_TRY(Find(ino));
  const auto found = node->xattrs.find(name);
  if (found == node->xattrs.end()) return ErrErrno(ENODATA);
  node->xattrs.erase(found);
  return {};
}

Status MemoryVolume::Sync() {
  syncs_.fetch_add(1);
  if (fail_syncs_.load()) return Err(ErrorCode::kInternal, "journal sync failed", EIO);
  return {};
}

Result<std::shared_ptr<const Layer>> MemoryVolume::Freeze() {
  return Err(ErrorCode::kFailedPrecondition, "a memory volume has no generations");
}

void MemoryVolume::SetReadOnly(bool read_only) { read_only_.store(read_only); }

VolumeStatus MemoryVolume::GetStatus() {
  MutexLock lock(mutex_);
  VolumeStatus status;
  status.inodes = nodes_.size();
  status.logical_bytes = bytes_;
  status.quota_bytes = options_.quota_bytes;
  status.quota_inodes = options_.quota_inodes;
  status.read_only = read_only_.load();
  status.open_handles = all_opens_.handles;
  return status;
}

std::vector<InodeNumber> MemoryVolume::WritableOpens() {
  MutexLock lock(mutex_);
  std::vector<InodeNumber> opens;
  for (const auto& [ino, node] : nodes_) {
    if (node.writers > 0) opens.push_back(ino);
  }
  return opens;
}

void MemoryVolume::CountOpen(const OpContext& ctx, InodeNumber ino, bool writable) {
  IgnoreError(OpenInode(ctx, ino, writable), "it is gone");
}

std::vector<OpenTable::Listed> MemoryVolume::ListOpens() {
  MutexLock lock(mutex_);
  std::vector<OpenTable::Listed> list;
  for (const auto& [ino, node] : nodes_) {
    if (node.readers + node.writers == 0) continue;
    list.push_back(
        {.ino = ino, .opens = {.handles = node.readers + node.writers, .writable = node.writers}});
  }
  return list;
}

OpenTable::Opens MemoryVolume::OpensOf(InodeNumber ino) {
  MutexLock lock(mutex_);
  const auto found = nodes_.find(ino);
  if (found == nodes_.end()) return {};
  return {.handles = found->second.readers + found->second.writers,
          .writable = found->second.writers};
}

OpenTable::Opens MemoryVolume::AllOpens() {
  MutexLock lock(mutex_);
  return all_opens_;
}

uint64_t MemoryVolume::open_handles() { return GetStatus().open_handles; }

ReplyRecord MemoryVolume::last_request() {
  MutexLock lock(mutex_);
  return last_request_;
}

}  // namespace cairn
