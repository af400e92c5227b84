// Import: a walk over the host's tree with one stack of open directories (no recursion), each entry
// opened relative to its directory with O_NOFOLLOW. Order for one entry: make it in the volume ->
// data -> owner, mode, extended attributes -> times last, because each of the others moves them; a
// directory's times after its last child. One Sync at the end.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
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
constexpr int64_t kFuseMagic = FUSE_SUPER_MAGIC;

Error HostError(std::string_view what, const std::string& path) {
  return Error::FromErrno(errno, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

TimeSpec ToTimeSpec(const timespec& time) {
  return {.seconds = time.tv_sec, .nanoseconds = static_cast<uint32_t>(time.tv_nsec)};
}

class Importer {
 public:
  Importer(Volume& volume, std::string source)
      : volume_(volume), source_(std::move(source)), buffer_(kCopyBytes) {}

  Result<TransferCounts> Run(const std::string& path) {
    into_ = path.substr(0, path.find_last_not_of('/') + 1);
    UniqueFd root(::open(source_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root.valid()) return std::unexpected(HostError("cannot open the directory", source_));
    struct stat info{};
    if (::fstat(root.get(), &info) != 0)
      return std::unexpected(HostError("cannot look at", source_));
    device_ = info.st_dev;
    const InodeNumber top = CAIRN_TRY(MakePath(path));
    CAIRN_TRY(Enter(std::move(root), top, {}, false, info));
    while (!stack_.empty()) {
      if (stack_.back().next == stack_.back().names.size()) {
        CAIRN_TRY(Leave());
      } else {
        const std::string name = stack_.back().names[stack_.back().next++];
        const std::string file = stack_.back().path + "/" + name;
        auto copied = CopyEntry(name);
        if (copied) continue;
        // The volume's own refusals (no space, a quota) name no path of the host.
        if (copied.error().message().find(file) != std::string::npos)
          return std::unexpected(std::move(copied).error());
        return std::unexpected(std::move(copied).error().WithContext(source_ + file));
      }
    }
    CAIRN_TRY(volume_.Sync());
    return counts_;
  }

 private:
  struct Level {
    UniqueFd fd;
    InodeNumber ino = 0;
    std::string path;                // of the host, for messages
    std::vector<std::string> names;  // sorted: the same tree gives the same inode numbers
    size_t next = 0;
    bool made = false;  // by us: gets the host directory's attributes
    struct stat info{};
  };

  // Directories of `path` inside the volume, made where missing.
  Result<InodeNumber> MakePath(const std::string& path) {
    InodeNumber dir = kRootInode;
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      begin = end + 1;
      if (name.empty()) continue;
      if (name == "." || name == "..")
        return Err(ErrorCode::kInvalidArgument,
                   "the path inside the Environment may not hold . or ..");
      auto found = volume_.Lookup(dir, name);
      if (!found && found.error().code() == ErrorCode::kNotFound)
        found = volume_.MakeDir({}, dir, name, 0755);
      if (!found) return std::unexpected(std::move(found).error());
      if (!S_ISDIR(found->inode.mode))
        return Err(ErrorCode::kInvalidArgument,
                   fmt::format("{} is not a directory inside the Environment", name));
      dir = found->ino;
    }
    return dir;
  }

  Status Enter(UniqueFd fd, InodeNumber ino, std::string path, bool made, const struct stat& info) {
    if (stack_.size() >= kMaxDepth)
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("the tree is deeper than {} directories", kMaxDepth));
    Level level{.fd = std::move(fd),
                .ino = ino,
                .path = std::move(path),
                .names = {},
                .next = 0,
                .made = made,
                .info = info};
    const int listing = ::openat(level.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* dir = listing < 0 ? nullptr : ::fdopendir(listing);
    if (dir == nullptr) {
      const Error error = HostError("cannot list", source_ + level.path);
      if (listing >= 0) ::close(listing);
      return std::unexpected(error);
    }
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(dir);
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") level.names.emplace_back(name);
    }
    const int error = errno;
    ::closedir(dir);
    errno = error;
    if (error != 0) return std::unexpected(HostError("cannot list", source_ + level.path));
    std::sort(level.names.begin(), level.names.end());
    stack_.push_back(std::move(level));
    return {};
  }

  Status Leave() {
    Level level = std::move(stack_.back());
    stack_.pop_back();
    if (!level.made) return {};
    CAIRN_TRY(CopyXattrs(level.fd.get(), {}, level.ino, level.path));
    return SetAttributesOf(level.ino, level.info);
  }

  Status SetAttributesOf(InodeNumber ino, const struct stat& info) {
    SetAttributes attributes;
    attributes.uid = info.st_uid;
    attributes.gid = info.st_gid;
    if (!S_ISLNK(info.st_mode)) attributes.mode = info.st_mode & 07777;
    attributes.atime = ToTimeSpec(info.st_atim);
    attributes.mtime = ToTimeSpec(info.st_mtim);
    CAIRN_TRY(volume_.SetAttr({}, ino, attributes));
    return {};
  }

  // Of the open file `fd`, or of the symlink `link` in the directory `fd` (through /proc: there is
  // no lgetxattrat).
  Status CopyXattrs(int fd, const std::string& link, InodeNumber ino, const std::string& path) {
    const std::string proc =
        link.empty() ? std::string() : fmt::format("/proc/self/fd/{}/{}", fd, link);
    const auto list = [&](char* out, size_t size) {
      return link.empty() ? ::flistxattr(fd, out, size) : ::llistxattr(proc.c_str(), out, size);
    };
    const auto get = [&](const char* name, char* out, size_t size) {
      return link.empty() ? ::fgetxattr(fd, name, out, size)
                          : ::lgetxattr(proc.c_str(), name, out, size);
    };
    const ssize_t names_size = list(nullptr, 0);
    if (names_size <= 0) {
      if (names_size == 0 || errno == ENOTSUP) return {};
      return std::unexpected(HostError("cannot list the extended attributes of", source_ + path));
    }
    std::string names(static_cast<size_t>(names_size), '\0');
    const ssize_t got = list(names.data(), names.size());
    if (got < 0)
      return std::unexpected(HostError("cannot list the extended attributes of", source_ + path));
    names.resize(static_cast<size_t>(got));
    for (size_t begin = 0; begin < names.size();) {
      const std::string name = names.c_str() + begin;
      begin += name.size() + 1;
      std::string value(kMaxXattrBytes, '\0');
      const ssize_t size = get(name.c_str(), value.data(), value.size());
      if (size < 0) {
        if (errno == ENODATA) continue;
        return std::unexpected(HostError(
            fmt::format("cannot read the extended attribute {} of", name), source_ + path));
      }
      value.resize(static_cast<size_t>(size));
      const Status set = volume_.SetXattr({}, ino, name, value, 0);
      if (!set && set.error().sys_errno() == EOPNOTSUPP) {
        ++counts_.skipped_xattrs;
        continue;
      }
      CAIRN_TRY(set);
    }
    return {};
  }

  Status CopyEntry(const std::string& name) {
    Level& dir = stack_.back();
    const std::string path = dir.path + "/" + name;
    struct stat info{};
    if (::fstatat(dir.fd.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
      return std::unexpected(HostError("cannot look at", source_ + path));
    const auto exists = [&](const Error& error) -> Error {
      if (error.code() != ErrorCode::kAlreadyExists) return error;
      return Error(
          ErrorCode::kAlreadyExists,
          fmt::format(
              "{}{} exists inside the Environment and is not a directory in both: remove it first",
              into_, path));
    };
    if (S_ISDIR(info.st_mode)) {
      bool made = true;
      auto found = volume_.MakeDir({}, dir.ino, name, 0700);
      if (!found && found.error().code() == ErrorCode::kAlreadyExists) {
        made = false;
        auto present = volume_.Lookup(dir.ino, name);
        if (present && S_ISDIR(present->inode.mode)) found = std::move(present);
      }
      if (!found) return std::unexpected(exists(found.error()));
      ++counts_.directories;
      // A mount point is copied as an empty directory, as tar --one-file-system does.
      if (info.st_dev != device_) return made ? SetAttributesOf(found->ino, info) : Status();
      UniqueFd fd(
          ::openat(dir.fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!fd.valid()) return std::unexpected(HostError("cannot open", source_ + path));
      return Enter(std::move(fd), found->ino, path, made, info);
    }
    const std::pair<dev_t, ino_t> identity(info.st_dev, info.st_ino);
    if (info.st_nlink > 1) {
      if (const auto known = linked_.find(identity); known != linked_.end()) {
        if (auto linked = volume_.Link({}, known->second, dir.ino, name); !linked)
          return std::unexpected(exists(linked.error()));
        ++counts_.links;
        return {};
      }
    }
    InodeNumber ino = 0;
    if (S_ISREG(info.st_mode)) {
      ino = CAIRN_TRY(CopyFile(dir, name, path, &info, exists));
    } else if (S_ISLNK(info.st_mode)) {
      std::string link(PATH_MAX, '\0');
      const ssize_t size = ::readlinkat(dir.fd.get(), name.c_str(), link.data(), link.size());
      if (size < 0) return std::unexpected(HostError("cannot read the link", source_ + path));
      link.resize(static_cast<size_t>(size));
      auto made = volume_.Symlink({}, dir.ino, name, link);
      if (!made) return std::unexpected(exists(made.error()));
      ino = made->ino;
      CAIRN_TRY(CopyXattrs(dir.fd.get(), name, ino, path));
      ++counts_.links;
    } else {
      auto made = volume_.MakeNode({}, dir.ino, name, info.st_mode, info.st_rdev);
      if (!made) return std::unexpected(exists(made.error()));
      ino = made->ino;
      ++counts_.special;
    }
    CAIRN_TRY(SetAttributesOf(ino, info));
    if (info.st_nlink > 1) linked_[identity] = ino;
    return {};
  }

  template <typename Exists>
  Result<InodeNumber> CopyFile(const Level& dir, const std::string& name, const std::string& path,
                               struct stat* info, const Exists& exists) {
    UniqueFd fd(
        ::openat(dir.fd.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid() || ::fstat(fd.get(), info) != 0)
      return std::unexpected(HostError("cannot open", source_ + path));
    auto made = volume_.Create({}, dir.ino, name, S_IFREG | 0600, true);
    if (!made) return std::unexpected(exists(made.error()));
    const InodeNumber ino = made->ino;
    auto copied = CopyData(fd.get(), ino, *info, path);
    if (copied) copied = CopyXattrs(fd.get(), {}, ino, path);
    const auto released = volume_.ReleaseInode({}, ino, true);
    CAIRN_TRY(std::move(copied));
    CAIRN_TRY(released);
    ++counts_.files;
    return ino;
  }

  Status CopyData(int fd, InodeNumber ino, const struct stat& info, const std::string& path) {
    const off_t size = info.st_size;
    const bool has_holes = info.st_blocks * 512 < size;  // most files have none: two calls less
    off_t offset = 0;
    while (has_holes || offset < size) {
      off_t data = has_holes ? ::lseek(fd, offset, SEEK_DATA) : offset;
      off_t hole = !has_holes ? size : data < 0 ? 0 : ::lseek(fd, data, SEEK_HOLE);
      if (data < 0 && errno == ENXIO) break;  // nothing but a hole is left
      if (data < 0 || hole < 0) return std::unexpected(HostError("cannot seek in", source_ + path));
      while (data < hole) {
        const size_t want = std::min<size_t>(buffer_.size(), static_cast<size_t>(hole - data));
        const ssize_t got = ::pread(fd, buffer_.data(), want, data);
        if (got < 0) return std::unexpected(HostError("cannot read", source_ + path));
        if (got == 0) break;  // it became shorter meanwhile
        CAIRN_TRY(volume_.Write({}, ino, static_cast<uint64_t>(data),
                                {buffer_.data(), static_cast<size_t>(got)}, false));
        counts_.bytes += static_cast<uint64_t>(got);
        data += got;
      }
      if (data < hole) break;
      offset = hole;
    }
    if (offset == size) return {};
    SetAttributes attributes;  // it ends in a hole, or became shorter
    attributes.size_bytes = static_cast<uint64_t>(size);
    CAIRN_TRY(volume_.SetAttr({}, ino, attributes));
    return {};
  }

  Volume& volume_;
  const std::string source_;
  std::string into_;  // inside the Environment, for messages
  std::vector<char> buffer_;
  dev_t device_ = 0;
  std::vector<Level> stack_;
  std::map<std::pair<dev_t, ino_t>, InodeNumber> linked_;
  TransferCounts counts_;
};

}  // namespace

Status RefuseFusePath(const std::string& path) {
  if (!path.starts_with('/'))
    return Err(ErrorCode::kInvalidArgument, fmt::format("{} must be an absolute path", path));
  std::string there = path;
  struct statfs info{};
  while (::statfs(there.c_str(), &info) != 0) {
    if (errno != ENOENT && errno != ENOTDIR)
      return std::unexpected(HostError("cannot look at", there));
    if (there == "/") return {};
    there.resize(std::max<size_t>(there.rfind('/'), 1));
  }
  if (static_cast<int64_t>(info.f_type) != kFuseMagic) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} is on a FUSE filesystem, and the daemon must not wait for a mount of "
                         "its own: use another directory",
                         path));
}

Result<TransferCounts> ImportTree(const std::string& source, Volume& volume,
                                  const std::string& path) {
  CAIRN_TRY(RefuseFusePath(source));
  return Importer(volume, source).Run(path);
}

}  // namespace cairn
