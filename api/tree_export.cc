// Export: a walk over a view with one stack of open host directories. Every host name is made
// exclusively, relative to its directory's descriptor, in a tree that was empty and is not readable
// by others until it is done; so nothing that a guest wrote (a link, a "..") can lead elsewhere.
// Owner, then mode (chown clears setuid), then extended attributes, then times.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "api/tree_transfer.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr size_t kCopyBytes = 1u << 20;
constexpr size_t kMaxDepth = 1024;

Error HostError(std::string_view what, const std::string& path) {
  return Error::FromErrno(errno, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

class Exporter {
 public:
  Exporter(const FsView& view, std::string target)
      : view_(view), target_(std::move(target)), buffer_(kCopyBytes) {}

  Result<TransferCounts> Run(const std::string& path) {
    auto found = view_.Resolve(path, true);
    if (!found) {
      return std::unexpected(
          std::move(found).error().WithContext(fmt::format("{} inside the Environment", path)));
    }
    const InodeNumber top = *found;
    const Inode inode = CAIRN_TRY(view_.GetInode(top));
    if (!S_ISDIR(inode.mode))
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} is not a directory inside the Environment", path));
    if (::mkdir(target_.c_str(), 0700) != 0 && errno != EEXIST)
      return std::unexpected(HostError("cannot make", target_));
    root_ = UniqueFd(::open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root_.valid()) return std::unexpected(HostError("cannot open the directory", target_));
    CAIRN_TRY(RequireEmpty());
    UniqueFd fd(::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return std::unexpected(HostError("cannot open the directory", target_));
    CAIRN_TRY(Enter(std::move(fd), top, inode, {}));
    while (!stack_.empty()) {
      if (stack_.back().next == stack_.back().entries.size()) {
        Level level = std::move(stack_.back());
        stack_.pop_back();
        CAIRN_TRY(SetAttributesOf(level.fd.get(), level.ino, level.inode, level.path));
      } else {
        const DirEntry entry = stack_.back().entries[stack_.back().next++];
        CAIRN_TRY(CopyEntry(entry));
      }
    }
    return counts_;
  }

 private:
  struct Level {
    UniqueFd fd;
    InodeNumber ino = 0;
    Inode inode;
    std::string path;  // relative to the target, "" or "a/b/"
    std::vector<DirEntry> entries;
    size_t next = 0;
  };

  Status RequireEmpty() {
    const int listing = ::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* dir = listing < 0 ? nullptr : ::fdopendir(listing);
    if (dir == nullptr) {
      if (listing >= 0) ::close(listing);
      return std::unexpected(HostError("cannot list", target_));
    }
    bool empty = true;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") empty = false;
    }
    ::closedir(dir);
    if (!empty)
      return Err(ErrorCode::kAlreadyExists,
                 fmt::format("{} is not empty: name a new or an empty directory", target_));
    return {};
  }

  Status Enter(UniqueFd fd, InodeNumber ino, const Inode& inode, std::string path) {
    if (stack_.size() >= kMaxDepth)
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("the tree is deeper than {} directories", kMaxDepth));
    Level level{.fd = std::move(fd),
                .ino = ino,
                .inode = inode,
                .path = std::move(path),
                .entries = {},
                .next = 0};
    CAIRN_TRY(view_.ReadDir(ino, 0, [&](const DirEntry& entry) {
      level.entries.push_back(entry);
      return true;
    }));
    // A tree that was imported or unpacked has its inodes and its blocks in that order, not in the
    // directory's, which is that of hashes.
    std::ranges::sort(level.entries, {}, &DirEntry::ino);
    stack_.push_back(std::move(level));
    return {};
  }

  Status CopyEntry(const DirEntry& entry) {
    const Level& dir = stack_.back();
    const std::string path = dir.path + entry.name;
    const char* name = entry.name.c_str();
    // The view's names were checked when they were made; a damaged tree must still not lead out of
    // the target.
    if (entry.name.empty() || entry.name == "." || entry.name == ".." ||
        entry.name.find('/') != std::string::npos || entry.name.find('\0') != std::string::npos) {
      return Err(ErrorCode::kDataLoss, "a directory holds an impossible name");
    }
    const Inode inode = CAIRN_TRY(view_.GetInode(entry.ino));
    const auto failed = [&](std::string_view what) {
      return std::unexpected(HostError(what, target_ + "/" + path));
    };
    if (S_ISDIR(inode.mode)) {
      if (::mkdirat(dir.fd.get(), name, 0700) != 0) return failed("cannot make");
      UniqueFd fd(::openat(dir.fd.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!fd.valid()) return failed("cannot open");
      ++counts_.directories;
      return Enter(std::move(fd), entry.ino, inode, path + "/");
    }
    if (inode.nlink > 1) {
      const auto [known, fresh] = linked_.emplace(entry.ino, path);
      if (!fresh) {
        if (::linkat(root_.get(), known->second.c_str(), dir.fd.get(), name, 0) != 0)
          return failed("cannot link");
        ++counts_.links;
        return {};
      }
    }
    if (S_ISREG(inode.mode)) {
      UniqueFd fd(
          ::openat(dir.fd.get(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!fd.valid()) return failed("cannot make");
      CAIRN_TRY(CopyData(entry.ino, inode.size_bytes, fd.get(), path));
      ++counts_.files;
      return SetAttributesOf(fd.get(), entry.ino, inode, path);
    }
    if (S_ISLNK(inode.mode)) {
      const std::string link = CAIRN_TRY(view_.ReadLink(entry.ino));
      if (::symlinkat(link.c_str(), dir.fd.get(), name) != 0) return failed("cannot make");
      ++counts_.links;
    } else {
      if (::mknodat(dir.fd.get(), name, (inode.mode & S_IFMT) | 0600, inode.rdev) != 0)
        return failed("cannot make");
      ++counts_.special;
    }
    if (::fchownat(dir.fd.get(), name, inode.uid, inode.gid, AT_SYMLINK_NOFOLLOW) != 0)
      return failed("cannot set the owner of");
    if (!S_ISLNK(inode.mode) && ::fchmodat(dir.fd.get(), name, inode.mode & 07777, 0) != 0)
      return failed("cannot set the mode of");
    const std::string proc = fmt::format("/proc/self/fd/{}/{}", dir.fd.get(), entry.name);
    const auto set = [&](const std::string& key, const std::string& value) {
      return ::lsetxattr(proc.c_str(), key.c_str(), value.data(), value.size(), 0);
    };
    CAIRN_TRY(CopyXattrs(entry.ino, path, set));
    const timespec times[2] = {ToTimespec(inode.atime), ToTimespec(inode.mtime)};
    if (::utimensat(dir.fd.get(), name, times, AT_SYMLINK_NOFOLLOW) != 0)
      return failed("cannot set the times of");
    return {};
  }

  static timespec ToTimespec(const TimeSpec& time) {
    return {.tv_sec = time.seconds, .tv_nsec = time.nanoseconds};
  }

  template <typename Set>
  Status CopyXattrs(InodeNumber ino, const std::string& path, const Set& set) {
    const std::vector<std::string> names = CAIRN_TRY(view_.ListXattrs(ino));
    for (const std::string& name : names) {
      const std::string value = CAIRN_TRY(view_.GetXattr(ino, name));
      if (set(name, value) == 0) continue;
      const Error error = HostError(fmt::format("cannot set the extended attribute {} of", name),
                                    target_ + "/" + path);
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
  bool IsTooLarge(int error, size_t bytes) const {
    struct statvfs room{};
    if (error != ENOSPC) return error == E2BIG;
    return ::fstatvfs(root_.get(), &room) == 0 && room.f_bavail * room.f_frsize > 16 * bytes;
  }

  Status SetAttributesOf(int fd, InodeNumber ino, const Inode& inode, const std::string& path) {
    const auto failed = [&](std::string_view what) {
      return std::unexpected(HostError(what, target_ + "/" + path));
    };
    if (::fchown(fd, inode.uid, inode.gid) != 0) return failed("cannot set the owner of");
    if (::fchmod(fd, inode.mode & 07777) != 0) return failed("cannot set the mode of");
    CAIRN_TRY(CopyXattrs(ino, path, [&](const std::string& key, const std::string& value) {
      return ::fsetxattr(fd, key.c_str(), value.data(), value.size(), 0);
    }));
    const timespec times[2] = {ToTimespec(inode.atime), ToTimespec(inode.mtime)};
    if (::futimens(fd, times) != 0) return failed("cannot set the times of");
    return {};
  }

  Status CopyData(InodeNumber ino, uint64_t size, int fd, const std::string& path) {
    const auto failed = [&](std::string_view what) {
      return std::unexpected(HostError(what, target_ + "/" + path));
    };
    if (::ftruncate(fd, static_cast<off_t>(size)) != 0) return failed("cannot set the size of");
    uint64_t offset = 0;
    while (offset < size) {
      auto data = view_.SeekData(ino, offset);
      if (!data && data.error().sys_errno() == ENXIO) break;
      if (!data) return std::unexpected(std::move(data).error());
      const uint64_t hole = CAIRN_TRY(view_.SeekHole(ino, *data));
      offset = *data;
      while (offset < hole) {
        const size_t want = static_cast<size_t>(std::min<uint64_t>(buffer_.size(), hole - offset));
        const size_t got = CAIRN_TRY(view_.Read(ino, offset, {buffer_.data(), want}));
        if (got == 0) return {};
        size_t written = 0;
        while (written < got) {
          const ssize_t n = ::pwrite(fd, buffer_.data() + written, got - written,
                                     static_cast<off_t>(offset + written));
          if (n < 0 && errno == EINTR) continue;
          if (n < 0) return failed("cannot write");
          written += static_cast<size_t>(n);
        }
        counts_.bytes += got;
        offset += got;
      }
    }
    return {};
  }

  const FsView& view_;
  const std::string target_;
  std::vector<char> buffer_;
  UniqueFd root_;
  std::vector<Level> stack_;
  std::map<InodeNumber, std::string> linked_;
  TransferCounts counts_;
};

}  // namespace

Result<TransferCounts> ExportTree(const FsView& view, const std::string& path,
                                  const std::string& target) {
  CAIRN_TRY(RefuseFusePath(target));
  return Exporter(view, target).Run(path);
}

}  // namespace cairn
