// OpenTable: how often each inode of a volume is open, in memory that may outlive this process
// (docs/formats/open_table.md).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/error.h"
#include "store/base/mutex.h"
#include "store/base/unique_fd.h"
#include "volume/head.h"

namespace cairn {

// Thread-safe.
class OpenTable {
 public:
  static constexpr uint16_t kLanes = 64;  // threads that serve one mount, at most

  struct Opens {
    uint32_t handles = 0;
    uint32_t writable = 0;  // of them
  };
  struct Listed {
    InodeNumber ino = 0;
    Opens opens;
  };

  // In this process's memory alone.
  static std::shared_ptr<OpenTable> Private();
  // In a memory file: an empty one becomes a table, any other is taken over. DataLoss: it is none.
  static Result<std::shared_ptr<OpenTable>> OnFile(UniqueFd file);
  ~OpenTable();

  Opens Get(InodeNumber ino);
  // One handle more, one less. Nothing when a server before this one has counted that very request;
  // requests without a connection are nobody's. What is so afterwards.
  Opens Add(InodeNumber ino, bool writable, const ReplyRecord& request);
  Opens Drop(InodeNumber ino, bool writable, const ReplyRecord& request);
  // Takes an Add of this process back.
  void UndoAdd(InodeNumber ino, bool writable, const ReplyRecord& request);

  // Nobody has `ino` open: it was counted for a request whose server was killed before it made the
  // inode. The request counts again when it comes again. Before any request is served.
  void Forget(InodeNumber ino);

  Opens total();  // of all inodes
  std::vector<Listed> List();

 private:
  struct Entry;
  struct Table;

  OpenTable() = default;
  Status Map(UniqueFd file);
  Status TakeOver() REQUIRES(mutex_);
  Table& table() REQUIRES(mutex_);
  std::span<Entry> entries() REQUIRES(mutex_);
  uint64_t EntryOf(InodeNumber ino) REQUIRES(mutex_);
  void Write(uint64_t entry, InodeNumber ino, const Opens& opens, uint64_t lane, uint64_t unique)
      REQUIRES(mutex_);
  Opens Change(InodeNumber ino, int handles, int writable, const ReplyRecord& request, bool undo)
      EXCLUDES(mutex_);

  UniqueFd file_;  // none: anonymous memory
  Mutex mutex_;
  char* memory_ GUARDED_BY(mutex_) = nullptr;
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  Opens total_ GUARDED_BY(mutex_);
  std::unordered_map<InodeNumber, uint64_t> index_ GUARDED_BY(mutex_);  // entries that count
  std::vector<uint64_t> free_ GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, InodeNumber>> counted_before_ GUARDED_BY(mutex_);
};

}  // namespace cairn
