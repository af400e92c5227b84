// FaultyFileSystem: host files that fail when told to, and that lose on a power cut what was not
// synced.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/base/random.h"

namespace cairn {

// Calls pass through to the host, so that other code may look at the files; what would be lost is
// remembered beside.
//
// The model: File::Sync makes a file's bytes and length durable, SyncDir makes the names in that
// directory durable (a new file that was synced but whose directory was not may be gone). On
// PowerCut each unsynced 512-byte sector keeps its old or its new bytes, an unsynced length is the
// old, the new or one between, and of the unsynced changes of names a suffix is undone. A Sync that
// was told to fail drops what it should have written, as the kernel does: reads go on showing it, a
// later Sync succeeds, and a PowerCut takes it away.
//
// Thread-safe. Files outside `scratch`'s file system are not supported (removed files are kept in
// it until they are durable gone). File objects opened before a PowerCut fail with EIO after it.
class FaultyFileSystem final : public FileSystem {
 public:
  enum class Call {
    kOpen,
    kRead,
    kWrite,
    kSync,
    kTruncate,
    kAllocate,
    kRename,
    kUnlink,
    kMakeDir,
    kRemoveDir,
    kSyncDir
  };

  explicit FaultyFileSystem(std::string scratch);
  ~FaultyFileSystem() override;

  // The n-th call of this kind from now on (1: the next) fails with `sys_errno` and does nothing,
  // `times` in a row.
  void FailNth(Call call, uint64_t n, int sys_errno, uint64_t times = 1);
  // Writes and allocations that make a file longer fail with ENOSPC once `bytes` more have been
  // added; negative: no limit.
  void SetSpaceLeft(int64_t bytes);
  int64_t space_left() const;
  // The n-th changing call (all but kRead) still happens, then the machine is off: it and all later
  // ones fail with EIO.
  void PowerOffAfter(uint64_t n);
  bool off() const;
  uint64_t calls(Call call) const;
  uint64_t changing_calls() const;
  uint64_t read_bytes() const;  // that were asked for

  // Makes the host's files what a disk may hold after the power was cut, forgets all faults and
  // goes on.
  void PowerCut(SeededRandom& random);

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Unlink(const std::string& path) override;
  Status MakeDir(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& dir) override;
  Status SyncDir(const std::string& dir) override;
  Result<bool> Exists(const std::string& path) override;
  // What SetSpaceLeft has left, of a disk of kDiskBytes; without a limit the host's.
  Result<DiskSpace> Space(const std::string& dir) override;
  static constexpr uint64_t kDiskBytes = 1ull << 30;

 private:
  static constexpr uint64_t kSectorBytes = 512;
  static constexpr size_t kCallKinds = 11;
  class FaultyFile;

  // What a file loses when the power goes: for each unsynced sector its durable bytes (short at the
  // durable end).
  struct Node {
    std::string path;  // where it is now; empty when removed
    uint64_t durable_bytes = 0;
    std::map<uint64_t, std::string> undo;  // sector number -> durable contents
    std::map<uint64_t, std::string> lost;  // as undo, of sectors that a failed Sync dropped
  };
  struct NameChange {
    enum Kind { kCreate, kRename, kUnlink, kMakeDir, kRemoveDir } kind;
    std::string path;
    std::string to;      // kRename
    std::string buried;  // the removed or replaced file, in scratch; empty: there was none
    std::vector<std::string> unsynced_dirs;
  };
  struct Fault {
    uint64_t at = 0;  // number of the call
    uint64_t times = 0;
    int sys_errno = 0;
  };

  // Counts the call; an error if it must fail. `after` says to turn off once the call has happened.
  Status Enter(Call call, bool& after) REQUIRES(mutex_);
  Status Leave(bool after) REQUIRES(mutex_);
  std::shared_ptr<Node> NodeOf(const std::string& path) REQUIRES(mutex_);
  std::string Bury(const std::string& path) REQUIRES(mutex_);
  void Remember(Node& node, File& file, uint64_t offset, uint64_t length_bytes) REQUIRES(mutex_);
  void UndoName(const NameChange& change) REQUIRES(mutex_);
  void MoveNode(const std::string& from, const std::string& to) REQUIRES(mutex_);

  FileSystem& host_;
  const std::string scratch_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Node>> nodes_ GUARDED_BY(mutex_);
  std::deque<NameChange> names_ GUARDED_BY(mutex_);  // not yet durable, in order
  std::vector<Fault> faults_[kCallKinds] GUARDED_BY(mutex_);
  uint64_t counts_[kCallKinds] GUARDED_BY(mutex_) = {};
  uint64_t changing_ GUARDED_BY(mutex_) = 0;
  uint64_t read_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t off_at_ GUARDED_BY(mutex_) = 0;
  bool off_ GUARDED_BY(mutex_) = false;
  int64_t space_left_ GUARDED_BY(mutex_) = -1;
  uint64_t boot_ GUARDED_BY(mutex_) = 0;    // counts power cuts
  uint64_t buried_ GUARDED_BY(mutex_) = 0;  // names in scratch
};

}  // namespace cairn
