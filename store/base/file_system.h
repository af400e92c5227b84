// The seam between our storage code and the host's files. Packs, journals and side logs go through
// it, so that tests can drop unsynced data, tear sectors and fail the nth call
// (tests/support/faulty_file_system.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"

namespace cairn {

class File;

// One read of a batch.
struct ReadOp {
  File* file = nullptr;  // opened by the file system that is asked
  uint64_t offset = 0;
  size_t length_bytes = 0;
};
// The bytes of ops[index], fewer only at the end of the file. They are gone when this returns.
using ReadDone = std::function<void(size_t index, Result<std::string_view> bytes)>;

// Writes to one file that may run while the caller goes on. For one thread. Destroying it waits for
// what runs.
class WriteQueue {
 public:
  virtual ~WriteQueue() = default;
  // `data` stays as it is until Finish or the destructor.
  virtual void Add(uint64_t offset, std::string_view data) = 0;
  // Waits for all. The error is the first one's, as of WriteAt; any part of the others may be
  // written then. Volatile until Sync. Called at most once.
  virtual Status Finish() = 0;
};

// One open host file. Thread-safe for positional reads and writes at disjoint ranges.
class File {
 public:
  virtual ~File() = default;
  // Reads exactly out.size() bytes at `offset`, fewer only at the end of the file; returns the
  // count.
  virtual Result<size_t> ReadAt(uint64_t offset, std::span<char> out) = 0;
  // Writes all of `data`. Volatile until Sync. ENOSPC -> Exhausted.
  virtual Status WriteAt(uint64_t offset, std::string_view data) = 0;
  // For several writes of which the caller prepares the next while one runs. (Here: WriteAt.)
  virtual std::unique_ptr<WriteQueue> BeginWrites();
  // fdatasync(2). After an error the file's unsynced bytes are in doubt: abandon it, never retry.
  virtual Status Sync() = 0;
  virtual Status Truncate(uint64_t size_bytes) = 0;
  // fallocate(2), keeping the size when `keep_size`.
  virtual Status Allocate(uint64_t offset, uint64_t length_bytes, bool keep_size) = 0;
  virtual Result<uint64_t> SizeBytes() = 0;
  virtual const std::string& path() const = 0;
};

struct OpenOptions {
  bool create = false;     // create it (mode 0600) if it is not there
  bool exclusive = false;  // with create: fail with AlreadyExists if it is there
  bool read_only = false;
  bool truncate = false;
  bool bulk_direct = false;  // ReadMany passes the page cache by for what is not in it
};

// What statvfs(2) says of the file system that a directory lies on.
struct DiskSpace {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // to anybody: what only root may still take is not in it
};

// Paths are host paths; Open takes regular files (InvalidArgument). Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Unlink(const std::string& path) = 0;   // NotFound if absent
  virtual Status MakeDir(const std::string& path) = 0;  // mode 0700; an existing directory is fine
  virtual Status RemoveDir(const std::string& path) = 0;  // must be empty
  virtual Result<std::vector<std::string>> List(
      const std::string& dir) = 0;                     // names, sorted, no . and ..
  virtual Status SyncDir(const std::string& dir) = 0;  // fsync of the directory
  virtual Result<bool> Exists(const std::string& path) = 0;
  virtual Result<DiskSpace> Space(const std::string& dir) = 0;
  // Reads all of `ops`, as many at once as pays, and calls `done` once for each, in any order, on
  // this thread. An error is that read's alone. `done` may compute while others are in flight; it
  // must not block for long. (Here: one ReadAt after the other.)
  virtual void ReadMany(std::span<const ReadOp> ops, const ReadDone& done);
};

enum class IoBackend {
  kPosix,  // pread and pwrite only
  kRing,   // io_uring for batches of reads and of writes; as kPosix where the kernel refuses it
};
// The host's file system. Lives for the whole process; kRing unless the environment says
// CAIRN_IO=posix.
FileSystem& HostFileSystem();
std::unique_ptr<FileSystem> NewHostFileSystem(IoBackend backend);

// Whole small files. WriteFileAtomically: tmp + fsync + rename + fsync(dir); durable on return.
// This is the only place where that dance is written.
Result<std::string> ReadWholeFile(FileSystem& fs, const std::string& path, uint64_t limit_bytes);
Status WriteFileAtomically(FileSystem& fs, const std::string& path, std::string_view contents);

// Removes a directory and all below it (no link is followed). An absent one is fine.
Status RemoveTree(FileSystem& fs, const std::string& dir);

}  // namespace cairn
