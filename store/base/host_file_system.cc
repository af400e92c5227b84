// The host's files by plain system calls (open, pread, pwrite, fdatasync, rename). EINTR is
// retried, short reads and writes are continued; nothing else is hidden.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "store/base/file_system.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

class HostFile final : public File {
 public:
  HostFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<size_t> ReadAt(uint64_t offset, std::span<char> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n =
          pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrErrno(errno, "read " + path_);
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  Status WriteAt(uint64_t offset, std::string_view data) override {
    size_t done = 0;
    while (done < data.size()) {
      const ssize_t n = pwrite(fd_.get(), data.data() + done, data.size() - done,
                               static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrErrno(errno, "write " + path_);
      done += static_cast<size_t>(n);
    }
    return {};
  }

  Status Sync() override {
    if (fdatasync(fd_.get()) != 0) return ErrErrno(errno, "fdatasync " + path_);
    return {};
  }

  Status Truncate(uint64_t size_bytes) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) != 0) {
      return ErrErrno(errno, "truncate " + path_);
    }
    return {};
  }

  Status Allocate(uint64_t offset, uint64_t length_bytes, bool keep_size) override {
    const int mode = keep_size ? FALLOC_FL_KEEP_SIZE : 0;
    if (fallocate(fd_.get(), mode, static_cast<off_t>(offset), static_cast<off_t>(length_bytes)) !=
        0) {
      return ErrErrno(errno, "fallocate " + path_);
    }
    return {};
  }

  Result<uint64_t> SizeBytes() override {
    struct stat st{};
    if (fstat(fd_.get(), &st) != 0) return ErrErrno(errno, "stat " + path_);
    return static_cast<uint64_t>(st.st_size);
  }

  const std::string& path() const override { return path_; }

 private:
  UniqueFd fd_;
  std::string path_;
};

class HostFileSystemImpl final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& o) override {
    int flags = O_CLOEXEC | (o.read_only ? O_RDONLY : O_RDWR);
    if (o.create) flags |= O_CREAT;
    if (o.exclusive) flags |= O_EXCL;
    if (o.truncate) flags |= O_TRUNC;
    UniqueFd fd(open(path.c_str(), flags, 0600));
    if (!fd.valid()) return ErrErrno(errno, "open " + path);
    return std::make_unique<HostFile>(std::move(fd), path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) {
      return ErrErrno(errno, "rename " + from + " to " + to);
    }
    return {};
  }
  Status Unlink(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return ErrErrno(errno, "unlink " + path);
    return {};
  }
  Status MakeDir(const std::string& path) override {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrErrno(errno, "mkdir " + path);
    return {};
  }
  Status RemoveDir(const std::string& path) override {
    if (rmdir(path.c_str()) != 0) return ErrErrno(errno, "rmdir " + path);
    return {};
  }
  Result<std::vector<std::string>> List(const std::string& dir) override {
    DIR* d = opendir(dir.c_str());
    if (d == nullptr) return ErrErrno(errno, "open directory " + dir);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(d)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    closedir(d);
    if (error != 0) return ErrErrno(error, "read directory " + dir);
    std::sort(names.begin(), names.end());
    return names;
  }
  Status SyncDir(const std::string& dir) override {
    UniqueFd fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return ErrErrno(errno, "open directory " + dir);
    if (fsync(fd.get()) != 0) return ErrErrno(errno, "fsync directory " + dir);
    return {};
  }
  Result<bool> Exists(const std::string& path) override {
    struct stat st{};
    if (lstat(path.c_str(), &st) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return ErrErrno(errno, "stat " + path);
  }
  Result<DiskSpace> Space(const std::string& dir) override {
    struct statvfs st{};
    if (statvfs(dir.c_str(), &st) != 0) return ErrErrno(errno, "statvfs " + dir);
    return DiskSpace{.total_bytes = st.f_blocks * st.f_frsize,
                     .free_bytes = st.f_bavail * st.f_frsize};
  }
};

}  // namespace

FileSystem& HostFileSystem() {
  static HostFileSystemImpl fs;
  return fs;
}

}  // namespace cairn
