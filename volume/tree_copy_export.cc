// Export. A walk with an explicit stack of open host directories. Every host name is made
// exclusively, relative to the descriptor of a directory that this export made itself, so nothing
// that a guest wrote (a link, a name of dots) leads elsewhere. Further names of a hard-linked inode
// are found again with openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS).
//
// Order for one entry: make it (0600, 0700) -> data -> owner -> mode (chown clears setuid) ->
// xattrs (chown clears capabilities) -> times. A directory's come when its last child is done. One
// syncfs at the end.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "store/base/unique_fd.h"
#include "volume/directory_internal.h"
#include "volume/tree_copy.h"

namespace cairn {
namespace {

constexpr size_t kCopyBytes = 1 << 20;
constexpr uint32_t kPermissions = 07777;

struct DirCloser {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

std::string ProcPath(const UniqueFd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

std::array<timespec, 2> TimesOf(const Inode& inode) {
  return {timespec{inode.atime.seconds, inode.atime.nanoseconds},
          timespec{inode.mtime.seconds, inode.mtime.nanoseconds}};
}

class Exporter {
 public:
  Exporter(const FsView& view, std::string target) : view_(view), target_(std::move(target)) {}

  Result<TreeCopyReport> Run(std::string_view from) {
    const InodeNumber ino = CAIRN_TRY(view_.Resolve(from, /*final_link_is_error=*/true));
    const Inode inode = CAIRN_TRY(view_.GetInode(ino));
    if (!S_ISDIR(inode.mode)) return ErrErrno(ENOTDIR, std::string(from));
    if (::mkdir(target_.c_str(), 0700) != 0 && errno != EEXIST) return HostError("make", target_);
    root_ = UniqueFd(::open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root_.valid()) return HostError("open", target_);
    CAIRN_TRY(RequireEmpty());
    UniqueFd top(::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!top.valid()) return HostError("open", target_);
    CAIRN_TRY(Enter(std::move(top), ino, inode, ""));
    while (!levels_.empty()) {
      Level& level = levels_.back();
      if (level.next < level.entries.size()) {
        CAIRN_TRY(CopyEntry(level.entries[level.next++]));
        continue;
      }
      CAIRN_TRY(SetAttributesOf(level.fd, level.ino, level.inode, HostPath(level.path)));
      levels_.pop_back();
    }
    if (::syncfs(root_.get()) != 0) return HostError("sync", target_);
    return report_;
  }

 private:
  struct Level {
    UniqueFd fd;
    InodeNumber ino = 0;
    Inode inode;
    std::string path;  // below the target, "" or "a/b"
    std::vector<DirEntry> entries;
    size_t next = 0;
  };

  std::string HostPath(const std::string& path) const {
    return path.empty() ? target_ : target_ + "/" + path;
  }
  static std::unexpected<Error> HostError(std::string_view what, const std::string& path) {
    return ErrErrno(errno, fmt::format("{} {}", what, path));
  }
  template <typename T>
  static Result<T> Named(Result<T> result, const std::string& path) {
    if (!result) return std::unexpected(std::move(result).error().WithContext(path));
    return result;
  }

  Status RequireEmpty() {
    const int listing = ::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (listing < 0) return HostError("open", target_);
    const std::unique_ptr<DIR, DirCloser> dir(::fdopendir(listing));
    if (!dir) {
      ::close(listing);
      return HostError("list", target_);
    }
    while (const dirent* entry = ::readdir(dir.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") return ErrErrno(ENOTEMPTY, target_);
    }
    return {};
  }

  Status Enter(UniqueFd fd, InodeNumber ino, const Inode& inode, std::string path) {
    Level level;
    level.fd = std::move(fd);
    level.ino = ino;
    level.inode = inode;
    level.path = std::move(path);
    CAIRN_TRY(Named(view_.ReadDir(ino, 0,
                                  [&](const DirEntry& entry) {
                                    level.entries.push_back(entry);
                                    return true;
                                  }),
                    HostPath(level.path)));
    levels_.push_back(std::move(level));
    return {};
  }

  Status CopyEntry(const DirEntry& entry) {
    const Level& dir = levels_.back();
    const int dir_fd = dir.fd.get();
    const std::string path = dir.path.empty() ? entry.name : dir.path + "/" + entry.name;
    const std::string host_path = HostPath(path);
    if (!CheckName(entry.name)) {
      return Err(ErrorCode::kDataLoss,
                 "a name that no directory can hold, in " + HostPath(dir.path));
    }
    const char* name = entry.name.c_str();
    const Inode inode = CAIRN_TRY(Named(view_.GetInode(entry.ino), host_path));
    if (S_ISDIR(inode.mode)) {
      if (::mkdirat(dir_fd, name, 0700) != 0) return HostError("make", host_path);
      UniqueFd fd(::openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!fd.valid()) return HostError("open", host_path);
      ++report_.directories;
      return Enter(std::move(fd), entry.ino, inode, path);
    }
    if (inode.nlink > 1) {
      const auto [first, is_first] = linked_.emplace(entry.ino, path);
      if (!is_first) return LinkAgain(first->second, dir_fd, name, host_path);
    }
    if (S_ISREG(inode.mode)) {
      UniqueFd fd(
          ::openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!fd.valid()) return HostError("make", host_path);
      CAIRN_TRY(CopyData(fd, entry.ino, inode.size_bytes, host_path));
      ++report_.files;
      return SetAttributesOf(fd, entry.ino, inode, host_path);
    }
    if (S_ISLNK(inode.mode)) {
      const std::string link = CAIRN_TRY(Named(view_.ReadLink(entry.ino), host_path));
      if (::symlinkat(link.c_str(), dir_fd, name) != 0) return HostError("make", host_path);
      ++report_.symlinks;
    } else {
      if (::mknodat(dir_fd, name, (inode.mode & S_IFMT) | 0600, inode.rdev) != 0) {
        return HostError("make", host_path);
      }
      ++report_.special_files;
    }
    UniqueFd fd(::openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) return HostError("open", host_path);
    return SetAttributesOf(fd, entry.ino, inode, host_path);
  }

  // One more name for what this export made at `first`.
  Status LinkAgain(const std::string& first, int dir_fd, const char* name,
                   const std::string& host_path) {
    open_how how = {};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    UniqueFd fd(
        static_cast<int>(::syscall(SYS_openat2, root_.get(), first.c_str(), &how, sizeof how)));
    if (!fd.valid()) return HostError("find again", HostPath(first));
    if (::linkat(AT_FDCWD, ProcPath(fd).c_str(), dir_fd, name, AT_SYMLINK_FOLLOW) != 0) {
      return HostError("link", host_path);
    }
    ++report_.hard_links;
    return {};
  }

  Status CopyData(const UniqueFd& fd, InodeNumber ino, uint64_t size, const std::string& path) {
    buffer_.resize(std::min<uint64_t>(kCopyBytes, std::max<uint64_t>(buffer_.size(), size)));
    uint64_t offset = 0;
    while (offset < size) {
      const Result<uint64_t> data = view_.SeekData(ino, offset);
      if (!data && data.error().sys_errno() == ENXIO) break;  // a hole up to the end
      offset = CAIRN_TRY(Named(data, path));
      const uint64_t end = CAIRN_TRY(Named(view_.SeekHole(ino, offset), path));
      while (offset < end) {
        const std::span<char> piece(buffer_.data(),
                                    std::min<uint64_t>(buffer_.size(), end - offset));
        const size_t n = CAIRN_TRY(Named(view_.Read(ino, offset, piece), path));
        if (n == 0) return Err(ErrorCode::kDataLoss, path + " is shorter than its size");
        for (size_t done = 0; done < n;) {
          const ssize_t written = ::pwrite(fd.get(), buffer_.data() + done, n - done,
                                           static_cast<off_t>(offset + done));
          if (written < 0 && errno == EINTR) continue;
          if (written < 0) return HostError("write", path);
          done += static_cast<size_t>(written);
        }
        offset += n;
        report_.data_bytes += n;
      }
    }
    if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return HostError("size", path);
    return {};
  }

  // `fd` may be an O_PATH descriptor.
  Status SetAttributesOf(const UniqueFd& fd, InodeNumber ino, const Inode& inode,
                         const std::string& path) {
    const std::string proc = ProcPath(fd);
    if (::fchownat(fd.get(), "", inode.uid, inode.gid, AT_EMPTY_PATH) != 0) {
      return HostError("set the owner of", path);
    }
    if (!S_ISLNK(inode.mode) && ::chmod(proc.c_str(), inode.mode & kPermissions) != 0) {
      return HostError("set the mode of", path);
    }
    const std::vector<std::string> names = CAIRN_TRY(Named(view_.ListXattrs(ino), path));
    for (const std::string& name : names) {
      const std::string value = CAIRN_TRY(Named(view_.GetXattr(ino, name), path));
      if (::setxattr(proc.c_str(), name.c_str(), value.data(), value.size(), 0) != 0) {
        return HostError("set an extended attribute of", path);
      }
    }
    const std::array<timespec, 2> times = TimesOf(inode);
    if (::utimensat(fd.get(), "", times.data(), AT_EMPTY_PATH) != 0) {
      return HostError("set the times of", path);
    }
    return {};
  }

  const FsView& view_;
  const std::string target_;
  UniqueFd root_;
  std::string buffer_;
  std::vector<Level> levels_;
  std::map<InodeNumber, std::string> linked_;
  TreeCopyReport report_;
};

}  // namespace

Result<TreeCopyReport> ExportTree(const FsView& view, std::string_view from,
                                  const ExportOptions& options) {
  return Exporter(view, options.target).Run(from);
}

}  // namespace cairn
