// Import. A walk with an explicit stack of open directories. Each name is opened once with O_PATH |
// O_NOFOLLOW relative to its directory; everything after that (type, attributes, contents, link
// target, xattrs) is of that descriptor, so that a host process that swaps names meanwhile changes
// which object is copied but never leads out of the tree.
//
// Order for one entry: make it in the volume -> data -> xattrs -> size, owner, mode and times in
// one transaction, last because the others move times. A directory's come when its last child is
// done. One Sync at the end.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "store/base/unique_fd.h"
#include "volume/tree_copy.h"

namespace cairn {
namespace {

constexpr size_t kCopyBytes = 1 << 20;
constexpr uint32_t kPermissions = 07777;

struct DirCloser {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

// A path of this process to what an O_PATH descriptor names.
std::string ProcPath(const UniqueFd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

TimeSpec ToTimeSpec(const timespec& time) {
  return {time.tv_sec, static_cast<uint32_t>(time.tv_nsec)};
}

class Importer {
 public:
  Importer(Volume& volume, std::string source) : volume_(volume), source_(std::move(source)) {}

  Result<TreeCopyReport> Run(const ImportOptions& options) {
    const Inode target = CAIRN_TRY(volume_.GetAttributes(options.target));
    if (!S_ISDIR(target.mode)) return ErrErrno(ENOTDIR, "the import's target");
    Level top;
    top.path = source_;
    top.ino = options.target;
    top.set_attributes = options.top_attributes;
    top.fd = UniqueFd(::open(source_.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!top.fd.valid() || ::fstat(top.fd.get(), &top.stat) != 0) return HostError("open", source_);
    device_ = top.stat.st_dev;
    CAIRN_TRY(Enter(std::move(top)));
    while (!levels_.empty()) {
      Level& level = levels_.back();
      if (level.next < level.names.size()) {
        CAIRN_TRY(CopyEntry(level.names[level.next++]));
        continue;
      }
      if (level.set_attributes) {
        CAIRN_TRY(CopyXattrs(level.fd, level.ino, level.path));
        CAIRN_TRY(SetAttributesOf(level.ino, level.stat, level.path));
      }
      levels_.pop_back();
    }
    CAIRN_TRY(volume_.Sync());
    return report_;
  }

 private:
  struct Level {
    UniqueFd fd;  // O_PATH
    struct stat stat = {};
    InodeNumber ino = 0;
    std::string path;
    std::vector<std::string> names;  // sorted: the same tree gives the same inode numbers
    size_t next = 0;
    bool set_attributes = true;
  };

  static std::unexpected<Error> HostError(std::string_view what, const std::string& path) {
    return ErrErrno(errno, fmt::format("{} {}", what, path));
  }
  // The error of a volume's call, with the path.
  template <typename T>
  static Result<T> Named(Result<T> result, const std::string& path) {
    if (!result) return std::unexpected(std::move(result).error().WithContext(path));
    return result;
  }

  Status Enter(Level level) {
    int listing = ::openat(level.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_NOATIME | O_CLOEXEC);
    if (listing < 0 && errno == EPERM) {  // not ours: without O_NOATIME
      listing = ::openat(level.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (listing < 0) return HostError("open", level.path);
    const std::unique_ptr<DIR, DirCloser> dir(::fdopendir(listing));
    if (!dir) {
      ::close(listing);
      return HostError("list", level.path);
    }
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(dir.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") level.names.emplace_back(name);
    }
    if (errno != 0) return HostError("list", level.path);
    std::sort(level.names.begin(), level.names.end());
    levels_.push_back(std::move(level));
    return {};
  }

  Status CopyEntry(const std::string& name) {
    const Level& dir = levels_.back();
    const InodeNumber parent = dir.ino;
    const std::string path = dir.path + "/" + name;
    UniqueFd fd(::openat(dir.fd.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat stat = {};
    if (!fd.valid() || ::fstat(fd.get(), &stat) != 0) return HostError("open", path);
    if (S_ISDIR(stat.st_mode)) return CopyDirectory(std::move(fd), stat, parent, name, path);

    const std::pair<dev_t, ino_t> identity(stat.st_dev, stat.st_ino);
    if (const auto known = linked_.find(identity); known != linked_.end()) {
      CAIRN_TRY(Named(volume_.Link({}, known->second, parent, name), path));
      ++report_.hard_links;
      return {};
    }
    InodeNumber ino = kNoInode;
    if (S_ISLNK(stat.st_mode)) {
      std::string target(PATH_MAX, '\0');
      const ssize_t length = ::readlinkat(fd.get(), "", target.data(), target.size());
      if (length < 0) return HostError("read the link", path);
      target.resize(static_cast<size_t>(length));
      ino = CAIRN_TRY(Named(volume_.Symlink({}, parent, name, target), path)).ino;
      ++report_.symlinks;
    } else {
      ino = CAIRN_TRY(Named(volume_.MakeNode({}, parent, name, (stat.st_mode & S_IFMT) | 0600,
                                             stat.st_rdev),
                            path))
                .ino;
      if (S_ISREG(stat.st_mode)) {
        CAIRN_TRY(CopyData(fd, static_cast<uint64_t>(stat.st_size), ino, path));
        ++report_.files;
      } else {
        ++report_.special_files;
      }
    }
    CAIRN_TRY(CopyXattrs(fd, ino, path));
    CAIRN_TRY(SetAttributesOf(ino, stat, path));
    if (stat.st_nlink > 1) linked_[identity] = ino;
    return {};
  }

  Status CopyDirectory(UniqueFd fd, const struct stat& stat, InodeNumber parent,
                       const std::string& name, const std::string& path) {
    auto made = volume_.MakeDir({}, parent, name, 0700);
    if (!made && made.error().sys_errno() == EEXIST) {
      auto present = volume_.Lookup(parent, name);
      if (present && S_ISDIR(present->inode.mode)) made = std::move(present);
    }
    const InodeNumber ino = CAIRN_TRY(Named(std::move(made), path)).ino;
    ++report_.directories;
    Level level;
    level.fd = std::move(fd);
    level.stat = stat;
    level.ino = ino;
    level.path = path;
    if (stat.st_dev == device_) return Enter(std::move(level));
    levels_.push_back(std::move(level));  // a mount point: nothing below it
    return {};
  }

  Status CopyData(const UniqueFd& path_fd, uint64_t size, InodeNumber ino,
                  const std::string& path) {
    if (size == 0) return {};
    const std::string proc = ProcPath(path_fd);
    UniqueFd fd(::open(proc.c_str(), O_RDONLY | O_NONBLOCK | O_NOATIME | O_CLOEXEC));
    if (!fd.valid() && errno == EPERM) {
      fd = UniqueFd(::open(proc.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    }
    if (!fd.valid()) return HostError("open", path);
    buffer_.resize(std::min<uint64_t>(kCopyBytes, std::max<uint64_t>(buffer_.size(), size)));
    uint64_t offset = 0;
    while (offset < size) {
      off_t data = ::lseek(fd.get(), static_cast<off_t>(offset), SEEK_DATA);
      if (data < 0 && errno == ENXIO) return {};  // a hole up to the end
      off_t hole = data < 0 ? -1 : ::lseek(fd.get(), data, SEEK_HOLE);
      if (data < 0 || hole < 0) {  // a filesystem that does not know
        if (errno != EINVAL && errno != EOPNOTSUPP) return HostError("seek in", path);
        data = static_cast<off_t>(offset);
        hole = static_cast<off_t>(size);
      }
      offset = static_cast<uint64_t>(data);
      const uint64_t end = std::min<uint64_t>(static_cast<uint64_t>(hole), size);
      while (offset < end) {
        const ssize_t n =
            ::pread(fd.get(), buffer_.data(), std::min<uint64_t>(buffer_.size(), end - offset),
                    static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return HostError("read", path);
        if (n == 0) return {};  // it became shorter meanwhile
        const std::string_view bytes(buffer_.data(), static_cast<size_t>(n));
        CAIRN_TRY(Named(volume_.Write({}, ino, offset, bytes, false), path));
        offset += bytes.size();
        report_.data_bytes += bytes.size();
      }
    }
    return {};
  }

  Status CopyXattrs(const UniqueFd& fd, InodeNumber ino, const std::string& path) {
    const std::string proc = ProcPath(fd);
    std::string names(kMaxXattrBytes, '\0');  // XATTR_LIST_MAX
    const ssize_t length = ::listxattr(proc.c_str(), names.data(), names.size());
    if (length < 0) {
      if (errno == EOPNOTSUPP) return {};
      return HostError("list the extended attributes of", path);
    }
    names.resize(static_cast<size_t>(length));
    for (size_t at = 0; at < names.size();) {
      const std::string name = names.c_str() + at;
      at += name.size() + 1;
      std::string value(kMaxXattrBytes, '\0');
      const ssize_t size = ::getxattr(proc.c_str(), name.c_str(), value.data(), value.size());
      if (size < 0) {
        if (errno == ENODATA) continue;  // gone since the listing
        return HostError("read an extended attribute of", path);
      }
      value.resize(static_cast<size_t>(size));
      const Status set = volume_.SetXattr({}, ino, name, value, 0);
      if (!set && set.error().sys_errno() == EOPNOTSUPP) {
        ++report_.skipped_xattrs;
        continue;
      }
      CAIRN_TRY(Named(set, path));
    }
    return {};
  }

  Status SetAttributesOf(InodeNumber ino, const struct stat& stat, const std::string& path) {
    SetAttributes attributes;
    if (!S_ISLNK(stat.st_mode)) attributes.mode = stat.st_mode & kPermissions;
    attributes.uid = stat.st_uid;
    attributes.gid = stat.st_gid;
    if (S_ISREG(stat.st_mode)) attributes.size_bytes = static_cast<uint64_t>(stat.st_size);
    attributes.atime = ToTimeSpec(stat.st_atim);
    attributes.mtime = ToTimeSpec(stat.st_mtim);
    CAIRN_TRY(Named(volume_.SetAttr({}, ino, attributes), path));
    return {};
  }

  Volume& volume_;
  const std::string source_;
  dev_t device_ = 0;
  std::string buffer_;
  std::vector<Level> levels_;
  std::map<std::pair<dev_t, ino_t>, InodeNumber> linked_;
  TreeCopyReport report_;
};

}  // namespace

Result<TreeCopyReport> ImportTree(Volume& volume, const std::string& source,
                                  const ImportOptions& options) {
  return Importer(volume, source).Run(options);
}

}  // namespace cairn
