// Small files are read by the batch, before any of them is made: their blocks lie side by side in
// packs. Then each costs an open, a write for each range of data, what its owner and mode still
// need (most files are made with the right ones), and one call for its times.
// Order: data, owner, then mode (chown clears setuid), then extended attributes, then times.
#include "api/host_tree_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "store/base/check.h"

namespace cairn {
namespace {

timespec ToTimespec(const TimeSpec& time) {
  return {.tv_sec = time.seconds, .tv_nsec = time.nanoseconds};
}

// A directory below `root` that is reached without a symbolic link.
UniqueFd OpenBeneath(int root, const std::string& path) {
  open_how how = {};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  return UniqueFd(static_cast<int>(
      ::syscall(SYS_openat2, root, path.empty() ? "." : path.c_str(), &how, sizeof how)));
}

}  // namespace

Error HostTreeWriter::HostError(std::string_view what, const std::string& path) const {
  const std::string full = path.empty() ? target_ : target_ + "/" + path;
  return Error::FromErrno(errno, fmt::format("{} {}: {}", what, full, std::strerror(errno)));
}

Status HostTreeWriter::WriteFiles(std::span<const HostFile> files, std::span<char> room,
                                  TransferCounts& counts) const {
  CAIRN_CHECK(room.size() == kBatchBytes);
  std::vector<FileRead> reads;
  uint64_t total_bytes = 0;
  for (const HostFile& file : files) {
    const uint64_t size = file.inode.size_bytes;
    reads.push_back(
        {.ino = file.ino, .file_bytes = size, .offset = 0, .length_bytes = size, .data = {}});
    total_bytes += size;
  }
  if (total_bytes > room.size()) {
    CAIRN_CHECK(files.size() == 1);
    return WriteFile(files[0], nullptr, {}, room, counts);
  }
  const bool together = ReadTogether(view_, reads, room.first(total_bytes)).has_value();
  size_t at = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::span<char> data = room.subspan(at, reads[i].length_bytes);
    at += reads[i].length_bytes;
    if (!together) {
      if (Status status = ReadTogether(view_, {&reads[i], 1}, data); !status) {
        return std::unexpected(
            std::move(status).error().WithContext(files[i].dir->path + files[i].name));
      }
    }
    CAIRN_TRY(WriteFile(files[i], &reads[i], data, room, counts));
  }
  return {};
}

// `read` is null: it is read here, piece by piece.
Status HostTreeWriter::WriteFile(const HostFile& file, const FileRead* read,
                                 std::span<const char> data, std::span<char> room,
                                 TransferCounts& counts) const {
  const std::string path = file.dir->path + file.name;
  UniqueFd fd(::openat(file.dir->fd.get(), file.name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       file.inode.mode & 0777));
  if (!fd.valid()) return std::unexpected(HostError("cannot make", path));
  Status status = read != nullptr ? WriteData(fd.get(), *read, data, path, counts)
                                  : CopyLarge(fd.get(), file, room, path, counts);
  if (status) status = SetAttributes(fd.get(), file.ino, file.inode, path);
  if (!status) {
    ::unlinkat(file.dir->fd.get(), file.name.c_str(), 0);
    return status;
  }
  ++counts.files;
  return {};
}

// Sets the size too, where the part is the file's last.
Status HostTreeWriter::WriteData(int fd, const FileRead& read, std::span<const char> data,
                                 const std::string& path, TransferCounts& counts) const {
  uint64_t end = read.offset;
  for (const FileRange& range : read.data) {
    std::span<const char> left = data.subspan(range.begin - read.offset, range.end - range.begin);
    while (!left.empty()) {
      const ssize_t n =
          ::pwrite(fd, left.data(), left.size(), static_cast<off_t>(range.end - left.size()));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return std::unexpected(HostError("cannot write", path));
      left = left.subspan(static_cast<size_t>(n));
    }
    counts.bytes += range.end - range.begin;
    end = range.end;
  }
  if (read.offset + read.length_bytes == read.file_bytes && end < read.file_bytes &&
      ::ftruncate(fd, static_cast<off_t>(read.file_bytes)) != 0) {
    return std::unexpected(HostError("cannot set the size of", path));
  }
  return {};
}

Status HostTreeWriter::CopyLarge(int fd, const HostFile& file, std::span<char> room,
                                 const std::string& path, TransferCounts& counts) const {
  const uint64_t size = file.inode.size_bytes;
  const auto failed = [&](Error error) {
    return std::unexpected(std::move(error).WithContext(path));
  };
  if (::ftruncate(fd, static_cast<off_t>(size)) != 0) {
    return std::unexpected(HostError("cannot set the size of", path));
  }
  for (uint64_t offset = 0; offset < size;) {
    auto data = view_.SeekData(file.ino, offset);
    if (!data && data.error().sys_errno() == ENXIO) break;
    if (!data) return failed(std::move(data).error());
    FileRead read{.ino = file.ino,
                  .file_bytes = size,
                  .offset = *data,
                  .length_bytes = std::min<uint64_t>(room.size(), size - *data),
                  .data = {}};
    const std::span<char> part = room.first(read.length_bytes);
    if (Status status = ReadTogether(view_, {&read, 1}, part); !status) {
      return failed(std::move(status).error());
    }
    CAIRN_TRY(WriteData(fd, read, part, path, counts));
    offset = *data + read.length_bytes;
  }
  return {};
}

Status HostTreeWriter::WriteSpecial(const HostFile& file, TransferCounts& counts) const {
  const Inode& inode = file.inode;
  const int dir = file.dir->fd.get();
  const char* name = file.name.c_str();
  const std::string path = file.dir->path + file.name;
  const auto failed = [&](std::string_view what) { return std::unexpected(HostError(what, path)); };
  if (S_ISLNK(inode.mode)) {
    const std::string link = CAIRN_TRY(view_.ReadLink(file.ino));
    if (::symlinkat(link.c_str(), dir, name) != 0) return failed("cannot make");
    ++counts.links;
  } else {
    if (::mknodat(dir, name, (inode.mode & S_IFMT) | 0600, inode.rdev) != 0)
      return failed("cannot make");
    ++counts.special;
  }
  if (::fchownat(dir, name, inode.uid, inode.gid, AT_SYMLINK_NOFOLLOW) != 0)
    return failed("cannot set the owner of");
  if (!S_ISLNK(inode.mode) && ::fchmodat(dir, name, inode.mode & 07777, 0) != 0)
    return failed("cannot set the mode of");
  const std::string proc = fmt::format("/proc/self/fd/{}/{}", dir, file.name);
  CAIRN_TRY(CopyXattrs(file.ino, path, [&](const std::string& key, const std::string& value) {
    return ::lsetxattr(proc.c_str(), key.c_str(), value.data(), value.size(), 0);
  }));
  const timespec times[2] = {ToTimespec(inode.atime), ToTimespec(inode.mtime)};
  if (::utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) != 0)
    return failed("cannot set the times of");
  return {};
}

Status HostTreeWriter::WriteLink(const HostFile& file, const std::string& first) const {
  const size_t slash = first.rfind('/');
  const UniqueFd dir = OpenBeneath(root_.get(), slash == first.npos ? "" : first.substr(0, slash));
  const std::string name = slash == first.npos ? first : first.substr(slash + 1);
  if (!dir.valid() ||
      ::linkat(dir.get(), name.c_str(), file.dir->fd.get(), file.name.c_str(), 0) != 0) {
    return std::unexpected(HostError("cannot link", file.dir->path + file.name));
  }
  return {};
}

Status HostTreeWriter::SetAttributes(int fd, InodeNumber ino, const Inode& inode,
                                     const std::string& path) const {
  const auto failed = [&](std::string_view what) { return std::unexpected(HostError(what, path)); };
  struct stat made{};
  if (::fstat(fd, &made) != 0) return failed("cannot look at");
  if ((made.st_uid != inode.uid || made.st_gid != inode.gid) &&
      ::fchown(fd, inode.uid, inode.gid) != 0) {
    return failed("cannot set the owner of");
  }
  // Names are made without setuid, so that a change of owner takes nothing from what is right here.
  if ((made.st_mode & 07777) != (inode.mode & 07777) && ::fchmod(fd, inode.mode & 07777) != 0) {
    return failed("cannot set the mode of");
  }
  CAIRN_TRY(CopyXattrs(ino, path, [&](const std::string& key, const std::string& value) {
    return ::fsetxattr(fd, key.c_str(), value.data(), value.size(), 0);
  }));
  const timespec times[2] = {ToTimespec(inode.atime), ToTimespec(inode.mtime)};
  if (::futimens(fd, times) != 0) return failed("cannot set the times of");
  return {};
}

Status HostTreeWriter::CopyXattrs(InodeNumber ino, const std::string& path,
                                  const SetXattr& set) const {
  const std::vector<std::string> names = CAIRN_TRY(view_.ListXattrs(ino));
  for (const std::string& name : names) {
    const std::string value = CAIRN_TRY(view_.GetXattr(ino, name));
    if (set(name, value) == 0) continue;
    const Error error =
        HostError(fmt::format("cannot set the extended attribute {} of", name), path);
    if (!IsTooLarge(error.sys_errno(), value.size())) return std::unexpected(error);
    return Err(ErrorCode::kFailedPrecondition,
               fmt::format("the file system of {} takes no extended attribute of {} bytes ({} of "
                           "{}): export to one that does, such as XFS",
                           target_, value.size(), name, path));
  }
  return {};
}

// Whether the file system has room and still refused `bytes` bytes of attribute. ext4 says ENOSPC
// then (xattr(7): all attributes of a file share one block), others E2BIG.
bool HostTreeWriter::IsTooLarge(int error, size_t bytes) const {
  struct statvfs room{};
  if (error != ENOSPC) return error == E2BIG;
  return ::fstatvfs(root_.get(), &room) == 0 && room.f_bavail * room.f_frsize > 16 * bytes;
}

}  // namespace cairn
