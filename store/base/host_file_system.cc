// The host's files by plain system calls (open, pread, pwrite, fdatasync, rename). EINTR is
// retried, short reads and writes are continued; nothing else is hidden.
//
// A batch of reads goes through a ring (io_ring.h). With bulk_direct each read is either taken from
// the page cache, when cachestat(2) (Linux 6.5) says that all of it is there, or made with O_DIRECT
// around it (docs/decisions/0009). Whatever a ring did not do in full (an end of file, EINVAL of a
// file system without O_DIRECT, an error) is done again by pread, whose answer counts.
//
// A queue of writes goes through a ring too, into the page cache: O_DIRECT was slower for appends
// that a fdatasync follows. Again pwrite has the last word on what a ring did not do in full.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "store/base/file_system.h"
#include "store/base/io_ring.h"
#include "store/base/log.h"
#include "store/base/uninitialized.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

// Two rings keep two disks busy; the rest is for callers that overlap.
constexpr size_t kMaxRings = 4;

// cachestat(2), which glibc does not have yet.
struct CachestatRange {
  uint64_t offset;
  uint64_t length_bytes;
};
struct Cachestat {
  uint64_t cached_pages, dirty_pages, writeback_pages, evicted_pages, recently_evicted_pages;
};
constexpr long kCachestatCall = 451;

bool IsCached(int fd, uint64_t offset, uint64_t length_bytes) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  CachestatRange range{.offset = offset, .length_bytes = length_bytes};
  Cachestat stat{};
  if (syscall(kCachestatCall, fd, &range, &stat, 0) != 0) return false;
  return stat.cached_pages > (offset + length_bytes - 1) / page_bytes - offset / page_bytes;
}

class HostFile final : public File {
 public:
  HostFile(UniqueFd fd, UniqueFd direct_fd, std::string path, IoRingPool& write_rings)
      : fd_(std::move(fd)),
        direct_fd_(std::move(direct_fd)),
        path_(std::move(path)),
        write_rings_(write_rings) {}

  // Where a ring should read a range from: the descriptor and the range it takes. Not valid: pread
  // does it as fast.
  struct RingRange {
    int fd = -1;
    uint64_t offset = 0;
    size_t length_bytes = 0;
  };
  RingRange RangeFor(uint64_t offset, size_t length_bytes) const {
    if (length_bytes == 0) return {};
    RingRange range{.fd = fd_.get(), .offset = offset, .length_bytes = length_bytes};
    if (direct_fd_.valid()) {
      if (IsCached(fd_.get(), offset, length_bytes)) return {};
      const uint64_t end = (offset + length_bytes + IoRing::kAlignment - 1) / IoRing::kAlignment;
      range.fd = direct_fd_.get();
      range.offset = offset / IoRing::kAlignment * IoRing::kAlignment;
      range.length_bytes = end * IoRing::kAlignment - range.offset;
    }
    return range.length_bytes <= IoRing::kMaxReadBytes ? range : RingRange{};
  }

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

  std::unique_ptr<WriteQueue> BeginWrites() override;

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
  const UniqueFd fd_;
  const UniqueFd direct_fd_;  // the same file with O_DIRECT, when batches shall use it
  const std::string path_;
  IoRingPool& write_rings_;
};

// What the ring did not write in full is written again by pwrite, whose answer counts.
class RingWrites final : public WriteQueue {
 public:
  RingWrites(HostFile& file, int fd, IoRingPool::Lease ring)
      : file_(file), fd_(fd), ring_(std::move(ring)) {}
  ~RingWrites() override {
    while (ring_->in_flight() > 0) ring_->Wait();
  }
  void Add(uint64_t offset, std::string_view data) override {
    if (data.empty()) return;
    writes_.emplace_back(offset, data);
    while (!ring_->StartWrite(fd_, offset, data, writes_.size() - 1)) Complete();
  }
  Status Finish() override {
    while (ring_->in_flight() > 0) Complete();
    return std::move(result_);
  }

 private:
  void Complete() {
    const IoRing::Completion completion = ring_->Wait();
    const auto [offset, data] = writes_[completion.tag];
    const auto written = static_cast<size_t>(std::max<ssize_t>(completion.result, 0));
    if (written < data.size() && result_) {
      result_ = file_.WriteAt(offset + written, data.substr(written));
    }
  }

  HostFile& file_;
  const int fd_;
  IoRingPool::Lease ring_;
  std::vector<std::pair<uint64_t, std::string_view>> writes_;
  Status result_;
};

// A ring lets another core copy into the page cache; where there is none, it costs more than it
// gives.
bool HasAnotherCore() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) > 1;
}

std::unique_ptr<WriteQueue> HostFile::BeginWrites() {
  std::optional<IoRingPool::Lease> ring = HasAnotherCore() ? write_rings_.Take() : std::nullopt;
  if (!ring) return File::BeginWrites();
  return std::make_unique<RingWrites>(*this, fd_.get(), *std::move(ring));
}

class HostFileSystemImpl final : public FileSystem {
 public:
  explicit HostFileSystemImpl(IoBackend backend)
      : read_rings_(IoRing::Use::kReads, backend == IoBackend::kRing ? kMaxRings : 0),
        write_rings_(IoRing::Use::kWrites, backend == IoBackend::kRing ? kMaxRings : 0) {}

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& o) override {
    // Not blocking: a fifo in place of a file would wait for its other end.
    int flags = O_CLOEXEC | O_NONBLOCK | (o.read_only ? O_RDONLY : O_RDWR);
    if (o.create) flags |= O_CREAT;
    if (o.exclusive) flags |= O_EXCL;
    if (o.truncate) flags |= O_TRUNC;
    UniqueFd fd(open(path.c_str(), flags, 0600));
    if (!fd.valid()) return ErrErrno(errno, "open " + path);
    struct stat st{};
    if (fstat(fd.get(), &st) != 0) return ErrErrno(errno, "stat " + path);
    if (!S_ISREG(st.st_mode)) {
      return Err(ErrorCode::kInvalidArgument, "open " + path + ": not a regular file");
    }
    UniqueFd direct_fd;
    // Not valid where the file system has no O_DIRECT: batches go through the page cache then.
    if (o.bulk_direct) direct_fd = UniqueFd(open(path.c_str(), O_CLOEXEC | O_RDONLY | O_DIRECT));
    return std::make_unique<HostFile>(std::move(fd), std::move(direct_fd), path, write_rings_);
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

  void ReadMany(std::span<const ReadOp> ops, const ReadDone& done) override {
    // One alone gains nothing.
    std::optional<IoRingPool::Lease> ring = ops.size() > 1 ? read_rings_.Take() : std::nullopt;
    if (!ring) return FileSystem::ReadMany(ops, done);
    std::string scratch;
    const auto by_pread = [&](size_t index) {
      ResizeUninitialized(scratch, ops[index].length_bytes);
      const Result<size_t> got = ops[index].file->ReadAt(ops[index].offset, scratch);
      if (!got) return done(index, std::unexpected(got.error()));
      done(index, std::string_view(scratch).substr(0, *got));
    };
    size_t next = 0;
    while (true) {
      for (; next < ops.size(); ++next) {
        const ReadOp& op = ops[next];
        const HostFile::RingRange range =
            static_cast<const HostFile*>(op.file)->RangeFor(op.offset, op.length_bytes);
        if (range.fd < 0) {
          by_pread(next);
        } else if (!(*ring)->Start(range.fd, range.offset, range.length_bytes, next)) {
          break;
        }
      }
      if ((*ring)->in_flight() == 0) return;
      const IoRing::Completion completion = (*ring)->Wait();
      const ReadOp& op = ops[completion.tag];
      const size_t before = op.offset - completion.offset;
      if (completion.result >= static_cast<ssize_t>(before + op.length_bytes)) {
        done(completion.tag, std::string_view(completion.buffer.data() + before, op.length_bytes));
        (*ring)->Release(completion);
      } else {
        (*ring)->Release(completion);
        by_pread(completion.tag);
      }
    }
  }

 private:
  IoRingPool read_rings_;
  IoRingPool write_rings_;
};

}  // namespace

std::unique_ptr<FileSystem> NewHostFileSystem(IoBackend backend) {
  return std::make_unique<HostFileSystemImpl>(backend);
}

FileSystem& HostFileSystem() {
  static const std::unique_ptr<FileSystem> fs = [] {
    const char* const asked = getenv("CAIRN_IO");
    const std::string_view io = asked == nullptr ? "" : asked;
    if (io == "posix")
      LogInfo("io_backend", {{"reads", "posix"}, {"writes", "posix"}, {"why", "CAIRN_IO"}});
    if (!io.empty() && io != "posix") LogWarning("unknown_setting", {{"CAIRN_IO", io}});
    return NewHostFileSystem(io == "posix" ? IoBackend::kPosix : IoBackend::kRing);
  }();
  return *fs;
}

}  // namespace cairn
