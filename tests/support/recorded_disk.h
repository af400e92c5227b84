// RecordedDisk: host files whose every change is remembered in order, and DiskReplay, which plays
// such a history and says at each point what a disk may hold if the power goes just then.
//
// The model (the weakest that a Linux file system may offer): File::Sync makes a file's bytes and
// length durable as they were when it was called, SyncDir the names in that directory. Of what is
// not durable each 512-byte sector, each change of a length, and a prefix of the changes of names
// may be there or not.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/base/random.h"

namespace cairn {

struct DiskChange {
  enum Kind {
    kCreate,
    kWrite,
    kTruncate,
    kExtend,  // the length becomes at least `offset`
    kSync,
    kRename,
    kUnlink,
    kMakeDir,
    kRemoveDir,
    kSyncDir
  } kind;
  std::string path;     // relative to the root
  std::string to;       // kRename
  uint64_t node = 0;    // of the file, for all that change one
  uint64_t offset = 0;  // of a write; a length; or, of a sync, how many changes came before it
  std::string data;
};

// Changes of files below `root` pass through to the host and are recorded; syncs are recorded only
// (the host keeps running). Thread-safe.
class RecordedDisk final : public FileSystem {
 public:
  explicit RecordedDisk(std::string root) : root_(std::move(root)) {}

  // How many changes there are so far: what returned before this call is below it.
  uint64_t position() const;
  // Nobody may use the disk any more.
  const std::vector<DiskChange>& history() const NO_THREAD_SAFETY_ANALYSIS { return history_; }

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Unlink(const std::string& path) override;
  Status MakeDir(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& dir) override;
  Status SyncDir(const std::string& dir) override;
  Result<bool> Exists(const std::string& path) override;
  Result<DiskSpace> Space(const std::string& dir) override;

 private:
  class RecordedFile;
  std::string Below(const std::string& path) const;
  void Record(DiskChange change) REQUIRES(mutex_) { history_.push_back(std::move(change)); }
  void Move(const std::string& from, const std::string& to) REQUIRES(mutex_);

  const std::string root_;
  mutable Mutex mutex_;  // held over each changing call, so that the order is the real one
  std::vector<DiskChange> history_ GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> nodes_ GUARDED_BY(mutex_);
  uint64_t next_node_ GUARDED_BY(mutex_) = 1;
};

// Thread-compatible. The history must outlive it.
class DiskReplay {
 public:
  explicit DiskReplay(const std::vector<DiskChange>& history) : history_(history) {}

  // Plays up to `position`, which must not be below the present one.
  void PlayTo(uint64_t position);

  enum class Unsynced { kLost, kKept, kTorn };
  // Makes `dir` (absent or empty) what the disk may hold now.
  Status Materialize(const std::string& dir, Unsynced unsynced, SeededRandom& random) const;

 private:
  struct Node {
    std::string durable;
    std::deque<uint64_t> pending;  // changes of the history
  };
  struct NameChange {
    uint64_t at = 0;
    std::vector<std::string> unsynced_dirs;
  };
  using Names = std::map<std::string, uint64_t>;  // path -> node; 0: a directory
  void Apply(const DiskChange& change, Names& names) const;
  static void ApplyBytes(const DiskChange& change, std::string& bytes);
  std::string Torn(const Node& node, SeededRandom& random) const;

  const std::vector<DiskChange>& history_;
  uint64_t position_ = 0;
  std::map<uint64_t, Node> nodes_;
  Names durable_names_;
  std::deque<NameChange> names_;  // the rest, in order
};

}  // namespace cairn
