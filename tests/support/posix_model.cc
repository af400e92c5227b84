// The plainest code that gives POSIX's answers: a map of nodes, files as maps of pages that know
// which of their bytes were written. Where a filesystem is free (allocation of small files, what is
// a hole) it says what Volume promises: 4 KiB pages, files up to 2 KiB that never were larger
// stored whole.
#include "tests/support/posix_model.h"

#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

namespace cairn {

bool PosixModel::Node::is_dir() const { return S_ISDIR(mode); }

uint64_t PosixModel::Node::allocated_bytes() const {
  if (is_dir()) return 4096;
  if (is_inline) return (size + 511) / 512 * 512;
  return pages.size() * kPageBytes;
}

std::string PosixModel::Node::Read(uint64_t offset, uint64_t length) const {
  if (offset >= size) return {};
  std::string out(std::min(length, size - offset), '\0');
  for (auto it = pages.lower_bound(offset / kPageBytes); it != pages.end(); ++it) {
    const uint64_t start = it->first * kPageBytes;
    if (start >= offset + out.size()) break;
    const uint64_t begin = std::max(start, offset);
    const uint64_t end = std::min(start + kPageBytes, offset + out.size());
    out.replace(begin - offset, end - begin, it->second.bytes, begin - start, end - begin);
  }
  return out;
}

PosixModel::PosixModel(TimeSpec now) : now_(now) {
  Node root;
  root.mode = S_IFDIR | 0755;
  root.nlink = 2;
  root.size = 4096;
  root.parent = kRootInode;
  root.atime = root.mtime = root.ctime = now;
  nodes_[kRootInode] = root;
}

const PosixModel::Node* PosixModel::Find(InodeNumber ino) const {
  const auto it = nodes_.find(ino);
  return it == nodes_.end() ? nullptr : &it->second;
}

uint64_t PosixModel::TotalBytes() const {
  uint64_t total = 0;
  for (const auto& [ino, node] : nodes_) total += node.size;
  return total;
}

int PosixModel::CheckDir(InodeNumber dir) const {
  const Node* node = Find(dir);
  if (!node) return ENOENT;
  if (!node->is_dir()) return ENOTDIR;
  return node->nlink == 0 ? ENOENT : 0;
}

void PosixModel::Touch(InodeNumber dir) { nodes_[dir].mtime = nodes_[dir].ctime = now_; }

PosixModel::Node PosixModel::NewNode(const Who& who, const Node& dir, uint32_t mode) const {
  Node node;
  node.mode = mode;
  node.uid = who.uid;
  node.gid = dir.mode & S_ISGID ? dir.gid : who.gid;
  node.nlink = 1;
  node.atime = node.mtime = node.ctime = now_;
  if (S_ISDIR(mode)) {
    node.nlink = 2;
    node.size = 4096;
    if (dir.mode & S_ISGID) node.mode |= S_ISGID;
  }
  return node;
}

void PosixModel::AddName(const Name& at, InodeNumber ino) {
  nodes_[at.dir].names[at.name] = ino;
  Touch(at.dir);
}

int PosixModel::Make(const Who& who, const Name& at, uint32_t mode, uint64_t rdev,
                     InodeNumber ino) {
  if (const int error = CheckDir(at.dir)) return error;
  if (nodes_[at.dir].names.contains(at.name)) return EEXIST;
  Node node = NewNode(who, nodes_[at.dir], mode);
  node.rdev = rdev;
  if (node.is_dir()) {
    node.parent = at.dir;
    ++nodes_[at.dir].nlink;
  }
  nodes_[ino] = node;
  AddName(at, ino);
  return 0;
}

int PosixModel::Symlink(const Who& who, const Name& at, std::string_view target, InodeNumber ino) {
  if (const int error = Make(who, at, S_IFLNK | 0777, 0, ino)) return error;
  nodes_[ino].target = target;
  nodes_[ino].size = target.size();
  return 0;
}

int PosixModel::MakeUnnamed(const Who& who, InodeNumber dir, uint32_t mode, InodeNumber ino) {
  if (const int error = CheckDir(dir)) return error;
  Node node = NewNode(who, nodes_[dir], S_IFREG | mode);
  node.nlink = 0;
  node.handles = 1;
  nodes_[ino] = node;
  return 0;
}

int PosixModel::Link(InodeNumber ino, const Name& at) {
  if (!Find(ino)) return ENOENT;
  if (const int error = CheckDir(at.dir)) return error;
  if (nodes_[at.dir].names.contains(at.name)) return EEXIST;
  if (nodes_[ino].is_dir()) return EPERM;
  ++nodes_[ino].nlink;
  nodes_[ino].ctime = now_;
  AddName(at, ino);
  return 0;
}

void PosixModel::DropLink(InodeNumber ino) {
  Node& node = nodes_[ino];
  node.nlink = node.is_dir() ? 0 : node.nlink - 1;
  node.ctime = now_;
  if (node.nlink == 0 && node.handles == 0) nodes_.erase(ino);
}

int PosixModel::Unlink(const Name& at) {
  if (const int error = CheckDir(at.dir)) return error;
  const auto it = nodes_[at.dir].names.find(at.name);
  if (it == nodes_[at.dir].names.end()) return ENOENT;
  const InodeNumber ino = it->second;
  if (nodes_[ino].is_dir()) return EISDIR;
  nodes_[at.dir].names.erase(it);
  Touch(at.dir);
  DropLink(ino);
  return 0;
}

int PosixModel::RemoveDir(const Name& at) {
  if (const int error = CheckDir(at.dir)) return error;
  const auto it = nodes_[at.dir].names.find(at.name);
  if (it == nodes_[at.dir].names.end()) return ENOENT;
  const InodeNumber ino = it->second;
  if (!nodes_[ino].is_dir()) return ENOTDIR;
  if (!nodes_[ino].names.empty()) return ENOTEMPTY;
  nodes_[at.dir].names.erase(it);
  --nodes_[at.dir].nlink;
  Touch(at.dir);
  DropLink(ino);
  return 0;
}

bool PosixModel::IsAncestor(InodeNumber ino, InodeNumber dir) const {
  for (; dir != kRootInode; dir = nodes_.at(dir).parent) {
    if (dir == ino) return true;
  }
  return ino == kRootInode;
}

int PosixModel::Rename(const Who& who, const Name& from, const Name& to, uint32_t flags,
                       InodeNumber whiteout_ino) {
  const bool exchange = flags & RENAME_EXCHANGE;
  if (exchange && (flags & (RENAME_NOREPLACE | RENAME_WHITEOUT))) return EINVAL;
  if (const int error = CheckDir(from.dir)) return error;
  if (const int error = CheckDir(to.dir)) return error;
  const auto from_it = nodes_[from.dir].names.find(from.name);
  if (from_it == nodes_[from.dir].names.end()) return ENOENT;
  const auto to_it = nodes_[to.dir].names.find(to.name);
  const bool exists = to_it != nodes_[to.dir].names.end();
  if ((flags & RENAME_NOREPLACE) && exists) return EEXIST;
  if (exchange && !exists) return ENOENT;
  const InodeNumber source = from_it->second;
  const InodeNumber target = exists ? to_it->second : kNoInode;
  const bool source_dir = nodes_[source].is_dir();
  const bool target_dir = exists && nodes_[target].is_dir();
  if (source_dir && IsAncestor(source, to.dir)) return EINVAL;
  if (target_dir && IsAncestor(target, from.dir)) return exchange ? EINVAL : ENOTEMPTY;
  if (source == target) return 0;
  if (exists && !exchange) {
    if (source_dir && !target_dir) return ENOTDIR;
    if (!source_dir && target_dir) return EISDIR;
    if (target_dir && !nodes_[target].names.empty()) return ENOTEMPTY;
  }
  nodes_[from.dir].names.erase(from.name);
  nodes_[to.dir].names[to.name] = source;
  if (source_dir) {
    --nodes_[from.dir].nlink;
    ++nodes_[to.dir].nlink;
    nodes_[source].parent = to.dir;
  }
  nodes_[source].ctime = now_;
  if (exchange) {
    nodes_[from.dir].names[from.name] = target;
    nodes_[target].ctime = now_;
    if (target_dir) {
      --nodes_[to.dir].nlink;
      ++nodes_[from.dir].nlink;
      nodes_[target].parent = from.dir;
    }
  } else if (exists) {
    if (target_dir) --nodes_[to.dir].nlink;
    DropLink(target);
  }
  if (flags & RENAME_WHITEOUT) {
    nodes_[whiteout_ino] = NewNode(who, nodes_[from.dir], S_IFCHR);
    nodes_[from.dir].names[from.name] = whiteout_ino;
  }
  Touch(from.dir);
  Touch(to.dir);
  return 0;
}

int PosixModel::Open(InodeNumber ino) {
  if (!Find(ino)) return ENOENT;
  ++nodes_[ino].handles;
  return 0;
}

int PosixModel::Release(InodeNumber ino) {
  Node& node = nodes_.at(ino);
  if (--node.handles == 0 && node.nlink == 0) nodes_.erase(ino);
  return 0;
}

int PosixModel::Write(InodeNumber ino, uint64_t offset, std::string_view data) {
  if (!Find(ino)) return ENOENT;
  Node& node = nodes_[ino];
  if (node.is_dir()) return EISDIR;
  if (!S_ISREG(node.mode)) return EINVAL;
  if (data.empty()) return 0;
  const bool small = node.is_inline || node.pages.empty();
  if (offset + data.size() > node.size) Resize(node, offset + data.size());
  for (uint64_t i = 0; i < data.size();) {
    const uint64_t at = offset + i;
    const uint64_t within = at % kPageBytes;
    const uint64_t n = std::min<uint64_t>(kPageBytes - within, data.size() - i);
    Page& page = node.pages[at / kPageBytes];
    page.bytes.replace(within, n, data.substr(i, n));
    for (uint64_t b = 0; b < n; ++b) page.written.set(within + b);
    i += n;
  }
  if (small && node.size <= kInlineLimitBytes) {
    node.is_inline = true;
    for (uint64_t b = 0; b < node.size; ++b) node.pages[0].written.set(b);
  } else {
    node.is_inline = false;
  }
  node.mtime = node.ctime = now_;
  return 0;
}

void PosixModel::Cut(Node& node, uint64_t begin, uint64_t end) {
  for (auto it = node.pages.lower_bound(begin / kPageBytes); it != node.pages.end();) {
    const uint64_t start = it->first * kPageBytes;
    if (start >= end) break;
    for (uint64_t b = 0; b < kPageBytes; ++b) {
      if (start + b < begin || start + b >= end) continue;
      it->second.written.reset(b);
      it->second.bytes[b] = '\0';
    }
    it = it->second.written.none() ? node.pages.erase(it) : std::next(it);
  }
}

void PosixModel::Resize(Node& node, uint64_t size) {
  if (size < node.size) Cut(node, size, UINT64_MAX);
  if (node.is_inline) {
    if (size == 0) {
      node.pages.clear();
      node.is_inline = false;
    } else if (size <= kInlineLimitBytes) {
      for (uint64_t b = 0; b < size; ++b) node.pages[0].written.set(b);
    } else {
      node.is_inline = false;
    }
  }
  node.size = size;
}

int PosixModel::Truncate(InodeNumber ino, uint64_t size) {
  if (!Find(ino)) return ENOENT;
  Node& node = nodes_[ino];
  if (node.is_dir()) return EISDIR;
  if (!S_ISREG(node.mode)) return EINVAL;
  if (size == node.size) return 0;
  Resize(node, size);
  node.mtime = node.ctime = now_;
  return 0;
}

int PosixModel::Allocate(InodeNumber ino, uint64_t offset, uint64_t length, int mode) {
  const bool punch = mode & FALLOC_FL_PUNCH_HOLE;
  const bool zero = mode & FALLOC_FL_ZERO_RANGE;
  const bool keep = mode & FALLOC_FL_KEEP_SIZE;
  if (!Find(ino)) return ENOENT;
  Node& node = nodes_[ino];
  if (node.is_dir()) return EISDIR;
  if (!S_ISREG(node.mode)) return S_ISFIFO(node.mode) ? ESPIPE : ENODEV;
  if (punch || zero) {
    Cut(node, offset, std::min(offset + length, node.size));
    if (node.is_inline) {
      for (uint64_t b = 0; b < node.size; ++b) node.pages[0].written.set(b);
    }
    node.mtime = now_;
  }
  if (!keep && offset + length > node.size) {
    Resize(node, offset + length);
    node.mtime = now_;
  }
  node.ctime = now_;
  return 0;
}

int PosixModel::Chmod(InodeNumber ino, uint32_t mode) {
  if (!Find(ino)) return ENOENT;
  nodes_[ino].mode = (nodes_[ino].mode & S_IFMT) | mode;
  nodes_[ino].ctime = now_;
  return 0;
}

int PosixModel::Chown(InodeNumber ino, const Who& who, bool kill_privileges) {
  if (!Find(ino)) return ENOENT;
  Node& node = nodes_[ino];
  node.uid = who.uid;
  node.gid = who.gid;
  if (kill_privileges && !node.is_dir()) {
    node.mode &= ~uint32_t{S_ISUID};
    if (node.mode & S_IXGRP) node.mode &= ~uint32_t{S_ISGID};
    node.xattrs.erase("security.capability");
  }
  node.ctime = now_;
  return 0;
}

int PosixModel::SetTimes(InodeNumber ino, const Times& times) {
  if (!Find(ino)) return ENOENT;
  if (times.set_atime) nodes_[ino].atime = times.atime;
  if (times.set_mtime) nodes_[ino].mtime = times.mtime;
  nodes_[ino].ctime = now_;
  return 0;
}

int PosixModel::SetXattr(InodeNumber ino, const std::string& name, std::string_view value,
                         int flags) {
  if (!Find(ino)) return ENOENT;
  const bool exists = nodes_[ino].xattrs.contains(name);
  if (exists && (flags & XATTR_CREATE)) return EEXIST;
  if (!exists && (flags & XATTR_REPLACE)) return ENODATA;
  nodes_[ino].xattrs[name] = value;
  nodes_[ino].ctime = now_;
  return 0;
}

int PosixModel::RemoveXattr(InodeNumber ino, const std::string& name) {
  if (!Find(ino)) return ENOENT;
  if (nodes_[ino].xattrs.erase(name) == 0) return ENODATA;
  nodes_[ino].ctime = now_;
  return 0;
}

int64_t PosixModel::Seek(InodeNumber ino, uint64_t offset, bool data) const {
  const Node& node = nodes_.at(ino);
  if (offset >= node.size) return -1;
  if (node.is_inline) return static_cast<int64_t>(data ? offset : node.size);
  uint64_t page = offset / kPageBytes;
  if (data) {
    const auto it = node.pages.lower_bound(page);
    if (it == node.pages.end()) return -1;
    return static_cast<int64_t>(std::max(offset, it->first * kPageBytes));
  }
  while (node.pages.contains(page)) ++page;
  return static_cast<int64_t>(std::min(node.size, std::max(offset, page * kPageBytes)));
}

void PosixModel::CloseAll() {
  std::vector<InodeNumber> orphans;
  for (auto& [ino, node] : nodes_) {
    node.handles = 0;
    if (node.nlink == 0) orphans.push_back(ino);
  }
  for (const InodeNumber ino : orphans) nodes_.erase(ino);
}

}  // namespace cairn
