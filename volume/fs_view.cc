// Reading a filesystem through a layer. Everything is a point read, a range scan or an extent query
// of the key space in volume/inode.h; nothing is cached here and nothing is locked: over a frozen
// layer or a tree every answer is of one moment, over an active layer each single read is atomic
// but a sequence of them is not (Volume holds its inode locks around them).
//
// Paths are walked component by component by inode number and never through a symbolic link. Walks
// up use Inode.parent, walks down an explicit stack. Errors carry Linux's errno.
#include "volume/fs_view.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "volume/directory_internal.h"
#include "volume/file_pages_internal.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

constexpr size_t kFirstReadDirBatch = 64;
constexpr size_t kLastReadDirBatch = 1024;
constexpr size_t kMaxTreeDepth =
    4096;  // of FindPath's walk up: more is a loop, which damage alone can make

Status RequireDirectory(const Inode& inode) {
  if (!S_ISDIR(inode.mode)) return ErrErrno(ENOTDIR);
  return {};
}

Status RequireRegular(const Inode& inode) {
  if (S_ISDIR(inode.mode)) return ErrErrno(EISDIR);
  if (!S_ISREG(inode.mode)) return ErrErrno(EINVAL);
  return {};
}

// The whole contents of an inline file; nullopt when the file is not inline.
Result<std::optional<std::string>> InlineData(const Layer& layer, InodeNumber ino,
                                              const Inode& inode) {
  if (inode.size_bytes == 0 || inode.size_bytes > kInlineLimitBytes) return std::nullopt;
  std::optional<Entry> entry = CAIRN_TRY(layer.Get(InlineKey(ino)));
  if (!entry) return std::nullopt;
  return std::move(entry->payload);
}

// The name under which `dir` holds `child`; the first in cookie order.
Result<std::string> NameIn(const FsView& view, InodeNumber dir, InodeNumber child) {
  std::string name;
  CAIRN_TRY(view.ReadDir(dir, 0, [&](const DirEntry& entry) {
    if (entry.ino != child) return true;
    name = entry.name;
    return false;
  }));
  if (name.empty()) return ErrErrno(ENOENT);
  return name;
}

Result<std::string> DirectoryPath(const FsView& view, InodeNumber ino) {
  std::string path;
  for (size_t depth = 0; ino != kRootInode; ++depth) {
    if (depth == kMaxTreeDepth) return Err(ErrorCode::kDataLoss, "directories form a loop", EIO);
    const Inode inode = CAIRN_TRY(view.GetInode(ino));
    path = "/" + CAIRN_TRY(NameIn(view, inode.parent, ino)) + path;
    ino = inode.parent;
  }
  return path.empty() ? "/" : path;
}

}  // namespace

Result<Inode> FsView::GetInode(InodeNumber ino) const {
  if (ino == kNoInode) return ErrErrno(ENOENT);
  const std::optional<Entry> entry = CAIRN_TRY(layer_->Get(AttributesKey(ino)));
  if (!entry) return ErrErrno(ENOENT);
  return Inode::Decode(entry->payload);
}

Result<InodeNumber> FsView::Lookup(InodeNumber dir, std::string_view name) const {
  const Inode inode = CAIRN_TRY(GetInode(dir));
  CAIRN_TRY(RequireDirectory(inode));
  if (name == ".") return dir;
  if (name == "..") return inode.parent;
  if (name.size() > kMaxNameBytes) return ErrErrno(ENAMETOOLONG);
  const auto found = CAIRN_TRY(FindDirent(*layer_, hash_seed_, dir, name));
  if (!found) return ErrErrno(ENOENT);
  return found->child;
}

Status FsView::ReadDir(InodeNumber dir, uint64_t after,
                       const std::function<bool(const DirEntry&)>& visit) const {
  const Inode inode = CAIRN_TRY(GetInode(dir));
  CAIRN_TRY(RequireDirectory(inode));
  const std::string end = PrefixEnd(KeyPrefix(dir, KeyKind::kDirent));
  std::vector<DirEntry> entries;
  for (size_t batch = kFirstReadDirBatch;; batch = std::min(batch * 2, kLastReadDirBatch)) {
    if (after == UINT64_MAX) return {};
    entries.clear();
    Status decoded;
    const auto collect = [&](std::string_view key, const Entry& entry) {
      Result<StoredDirent> stored = DecodeStoredDirent(key, entry);
      if (!stored) {
        decoded = std::unexpected(std::move(stored).error());
        return false;
      }
      Dirent& dirent = stored->dirent;
      entries.push_back({stored->cookie, dirent.child, dirent.type, std::move(dirent.name)});
      return entries.size() < batch;
    };
    CAIRN_TRY(layer_->Scan(DirentKey(dir, after + 1), end, collect));
    CAIRN_TRY(std::move(decoded));
    for (const DirEntry& entry : entries) {
      if (!visit(entry)) return {};
    }
    if (entries.size() < batch) return {};
    after = entries.back().cookie;
  }
}

Result<size_t> FsView::Read(InodeNumber ino, uint64_t offset, std::span<char> out) const {
  const Inode inode = CAIRN_TRY(GetInode(ino));
  CAIRN_TRY(RequireRegular(inode));
  if (offset >= inode.size_bytes || out.empty()) return size_t{0};
  out = out.first(std::min<uint64_t>(out.size(), inode.size_bytes - offset));
  if (const auto data = CAIRN_TRY(InlineData(*layer_, ino, inode))) {
    const size_t have = offset < data->size() ? std::min(out.size(), data->size() - offset) : 0;
    if (have > 0) std::memcpy(out.data(), data->data() + offset, have);
    std::fill(out.begin() + have, out.end(), '\0');
    return out.size();
  }
  const ReadAhead::Range ahead = read_ahead_->Note(ino, offset, out.size(), inode.size_bytes);
  if (ahead.begin < ahead.end) {
    // Before this read, so that both go on together. An error is left to who reads there.
    const auto segments = layer_->Extents(ino, ahead.begin, ahead.end - ahead.begin);
    if (segments) layer_->Prefetch(*segments);
  }
  const std::vector<Segment> segments = CAIRN_TRY(layer_->Extents(ino, offset, out.size()));
  CAIRN_TRY(layer_->ReadMany(segments, offset, out, {}));
  return out.size();
}

Result<std::string> FsView::ReadLink(InodeNumber ino) const {
  const Inode inode = CAIRN_TRY(GetInode(ino));
  if (!S_ISLNK(inode.mode)) return ErrErrno(EINVAL);
  std::optional<Entry> entry = CAIRN_TRY(layer_->Get(InlineKey(ino)));
  if (!entry) return Err(ErrorCode::kDataLoss, "symbolic link without a target", EIO);
  return std::move(entry->payload);
}

Result<std::string> FsView::GetXattr(InodeNumber ino, std::string_view name) const {
  if (name.empty() || name.size() > kMaxNameBytes) return ErrErrno(ERANGE);
  const std::optional<Entry> entry = CAIRN_TRY(layer_->Get(XattrKey(ino, name)));
  if (!entry) {
    CAIRN_TRY(GetInode(ino));
    return ErrErrno(ENODATA);
  }
  return ReadXattrValue(*layer_, *entry);
}

Result<std::vector<std::string>> FsView::ListXattrs(InodeNumber ino) const {
  CAIRN_TRY(GetInode(ino));
  const std::string begin = KeyPrefix(ino, KeyKind::kXattr);
  std::vector<std::string> names;
  CAIRN_TRY(layer_->Scan(begin, PrefixEnd(begin), [&](std::string_view key, const Entry&) {
    names.emplace_back(key.substr(begin.size()));
    return true;
  }));
  return names;
}

Result<uint64_t> FsView::SeekData(InodeNumber ino, uint64_t offset) const {
  const Inode inode = CAIRN_TRY(GetInode(ino));
  CAIRN_TRY(RequireRegular(inode));
  if (offset >= inode.size_bytes) return ErrErrno(ENXIO);
  if (CAIRN_TRY(InlineData(*layer_, ino, inode))) return offset;
  const uint64_t found = CAIRN_TRY(NextDataOffset(*layer_, ino, offset, inode.size_bytes));
  if (found >= inode.size_bytes) return ErrErrno(ENXIO);
  return found;
}

Result<uint64_t> FsView::SeekHole(InodeNumber ino, uint64_t offset) const {
  const Inode inode = CAIRN_TRY(GetInode(ino));
  CAIRN_TRY(RequireRegular(inode));
  if (offset >= inode.size_bytes) return ErrErrno(ENXIO);
  if (CAIRN_TRY(InlineData(*layer_, ino, inode))) return inode.size_bytes;
  return NextHoleOffset(*layer_, ino, offset, inode.size_bytes);
}

Result<InodeNumber> FsView::Resolve(std::string_view path, bool final_link_is_error) const {
  InodeNumber at = kRootInode;
  bool must_be_directory = false;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const std::string_view name = path.substr(0, slash);
    must_be_directory = slash != path.npos || name == ".";
    path = slash == path.npos ? std::string_view() : path.substr(slash + 1);
    if (name.empty() || name == ".") continue;
    CAIRN_TRY(CheckName(name));  // also refuses ".."
    const Inode inode = CAIRN_TRY(GetInode(at));
    if (S_ISLNK(inode.mode)) return ErrErrno(ELOOP);
    at = CAIRN_TRY(Lookup(at, name));
  }
  const Inode inode = CAIRN_TRY(GetInode(at));
  if (S_ISLNK(inode.mode) && (final_link_is_error || must_be_directory)) return ErrErrno(ELOOP);
  if (must_be_directory) CAIRN_TRY(RequireDirectory(inode));
  return at;
}

Result<std::string> FsView::FindPath(InodeNumber ino) const {
  const Inode inode = CAIRN_TRY(GetInode(ino));
  if (S_ISDIR(inode.mode)) return DirectoryPath(*this, ino);
  std::vector<std::pair<InodeNumber, std::string>> pending = {{kRootInode, ""}};
  std::string found;
  while (!pending.empty() && found.empty()) {
    const auto [dir, path] = std::move(pending.back());
    pending.pop_back();
    CAIRN_TRY(ReadDir(dir, 0, [&](const DirEntry& entry) {
      if (entry.ino == ino) {
        found = path + "/" + entry.name;
        return false;
      }
      if (entry.type == DirentType(S_IFDIR))
        pending.emplace_back(entry.ino, path + "/" + entry.name);
      return true;
    }));
  }
  if (found.empty()) return ErrErrno(ENOENT);
  return found;
}

}  // namespace cairn
