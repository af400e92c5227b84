// One lock; a change is a redo record, two stores and the end of the redo record. The index of
// inodes and the free entries are this process's own, made again by who takes over.
//
// Invariant: at every instant of a kill the memory is a table, or a table and one change that is
// not finished and says so.
#include "volume/open_table.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint64_t kMagic = 0x4e504f4e52494143;  // CAIRNOPN
constexpr uint64_t kVersion = 1;
constexpr uint64_t kNoLane = ~uint64_t{0};
constexpr size_t kOldRequests = 128;
constexpr size_t kFirstBytes = 64 << 10;

// Another process may go on from what memory holds after any one of these.
void Store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_seq_cst);
}

uint64_t Pack(const OpenTable::Opens& opens) {
  return opens.handles | uint64_t{opens.writable} << 32;
}
OpenTable::Opens Unpack(uint64_t counts) {
  return {.handles = static_cast<uint32_t>(counts),
          .writable = static_cast<uint32_t>(counts >> 32)};
}

std::unexpected<Error> NoTable(const char* what) {
  return Err(ErrorCode::kDataLoss, std::string("open table: ") + what);
}

}  // namespace

struct OpenTable::Entry {
  uint64_t ino;
  uint64_t counts;
};

struct OpenTable::Table {
  struct Request {
    uint64_t unique;
    uint64_t ino;
  };
  struct Redo {
    uint64_t valid;
    uint64_t entry;
    uint64_t counts;
    uint64_t ino;
    uint64_t lane;
    uint64_t unique;
  };
  uint64_t magic;
  uint64_t version;
  uint64_t used;
  uint64_t old_listed;
  Redo redo;
  uint64_t reserved[6];
  Request lanes[kLanes];
  Request old[kOldRequests];
  char padding[4096 - 1152 - kOldRequests * sizeof(Request)];

  void Finish() {
    Entry* const entries = reinterpret_cast<Entry*>(this + 1);
    Store(entries[redo.entry].counts, redo.counts);
    if (redo.lane != kNoLane) {
      Store(lanes[redo.lane].ino, redo.ino);
      Store(lanes[redo.lane].unique, redo.unique);
    }
    Store(redo.valid, 0);
  }
};

std::shared_ptr<OpenTable> OpenTable::Private() {
  std::shared_ptr<OpenTable> table(new OpenTable);
  CAIRN_CHECK(table->Map({}).has_value());
  return table;
}

Result<std::shared_ptr<OpenTable>> OpenTable::OnFile(UniqueFd file) {
  std::shared_ptr<OpenTable> table(new OpenTable);
  CAIRN_TRY(table->Map(std::move(file)));
  return table;
}

OpenTable::~OpenTable() {
  MutexLock lock(mutex_);
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

Status OpenTable::Map(UniqueFd file) {
  static_assert(sizeof(Table) == 4096 && offsetof(Table, lanes) == 128 &&
                offsetof(Table, old) == 1152);
  MutexLock lock(mutex_);
  size_t bytes = 0;
  if (file.valid()) {
    struct stat st{};
    if (::fstat(file.get(), &st) != 0) return ErrErrno(errno, "open table");
    bytes = static_cast<size_t>(st.st_size);
    if (bytes == 0 && ::ftruncate(file.get(), kFirstBytes) != 0) {
      return ErrErrno(errno, "open table");
    }
  }
  const bool is_new = bytes == 0;
  if (is_new) bytes = kFirstBytes;
  if (bytes < sizeof(Table) || bytes % sizeof(Entry) != 0) return NoTable("impossible size");
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
             file.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file.get(), 0);
  if (memory == MAP_FAILED) return ErrErrno(errno, "open table");
  memory_ = static_cast<char*>(memory);
  bytes_ = bytes;
  file_ = std::move(file);
  if (is_new) {
    Store(table().version, kVersion);
    Store(table().magic, kMagic);
    return {};
  }
  return TakeOver();
}

OpenTable::Table& OpenTable::table() { return *reinterpret_cast<Table*>(memory_); }

std::span<OpenTable::Entry> OpenTable::entries() {
  return {reinterpret_cast<Entry*>(memory_ + sizeof(Table)),
          (bytes_ - sizeof(Table)) / sizeof(Entry)};
}

Status OpenTable::TakeOver() {
  Table& found = table();
  if (found.magic != kMagic || found.version != kVersion) return NoTable("of no known version");
  if (found.used > entries().size()) return NoTable("more entries than fit");
  if (found.redo.valid != 0) {
    if (found.redo.entry >= found.used ||
        (found.redo.lane != kNoLane && found.redo.lane >= kLanes)) {
      return NoTable("impossible change");
    }
    found.Finish();
  }
  for (uint64_t i = 0; i < found.used; ++i) {
    const Entry& entry = entries()[i];
    const Opens opens = Unpack(entry.counts);
    if (entry.counts == 0) {
      free_.push_back(i);
      continue;
    }
    if (entry.ino == kNoInode || opens.writable > opens.handles)
      return NoTable("impossible counts");
    if (!index_.emplace(entry.ino, i).second) return NoTable("one inode twice");
    total_.handles += opens.handles;
    total_.writable += opens.writable;
  }
  for (Table::Request& lane : found.lanes) {
    if (lane.unique == 0) continue;
    found.old[found.old_listed % kOldRequests] = lane;
    Store(found.old_listed, found.old_listed + 1);
    Store(lane.unique, 0);
  }
  for (const Table::Request& old : found.old) {
    if (old.unique != 0) counted_before_.emplace(old.unique, old.ino);
  }
  return {};
}

OpenTable::Opens OpenTable::Get(InodeNumber ino) {
  MutexLock lock(mutex_);
  const auto found = index_.find(ino);
  return found == index_.end() ? Opens{} : Unpack(entries()[found->second].counts);
}

// A free entry is made the inode's, if it has none.
uint64_t OpenTable::EntryOf(InodeNumber ino) {
  if (const auto found = index_.find(ino); found != index_.end()) return found->second;
  if (free_.empty()) {
    if (table().used == entries().size()) {
      const size_t bytes = 2 * bytes_;
      CAIRN_CHECK(!file_.valid() || ::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0);
      void* const memory = ::mremap(memory_, bytes_, bytes, MREMAP_MAYMOVE);
      CAIRN_CHECK(memory != MAP_FAILED);  // a few bytes for each file that the kernel holds open
      memory_ = static_cast<char*>(memory);
      bytes_ = bytes;
    }
    free_.push_back(table().used);
    Store(table().used, table().used + 1);
  }
  const uint64_t entry = free_.back();
  free_.pop_back();
  Store(entries()[entry].ino, ino);
  index_.emplace(ino, entry);
  return entry;
}

OpenTable::Opens OpenTable::Change(InodeNumber ino, int handles, int writable,
                                   const ReplyRecord& request, bool undo) {
  MutexLock lock(mutex_);
  const bool known = index_.contains(ino);
  if (handles < 0 && !known) return {};
  const uint64_t entry = EntryOf(ino);
  Opens opens = Unpack(entries()[entry].counts);
  const bool is_request = !request.connection.is_zero();
  if (is_request && !undo && counted_before_.contains({request.unique, ino})) {
    if (!known) {
      index_.erase(ino);
      free_.push_back(entry);
    }
    return opens;
  }
  if (writable < 0 && opens.writable == 0) writable = 0;
  opens.handles += static_cast<uint32_t>(handles);
  opens.writable += static_cast<uint32_t>(writable);
  total_.handles += static_cast<uint32_t>(handles);
  total_.writable += static_cast<uint32_t>(writable);
  Write(entry, ino, opens, is_request ? request.lane % kLanes : kNoLane, undo ? 0 : request.unique);
  return opens;
}

void OpenTable::Write(uint64_t entry, InodeNumber ino, const Opens& opens, uint64_t lane,
                      uint64_t unique) {
  Table& all = table();
  Store(all.redo.entry, entry);
  Store(all.redo.counts, Pack(opens));
  Store(all.redo.ino, ino);
  Store(all.redo.lane, lane);
  Store(all.redo.unique, unique);
  Store(all.redo.valid, 1);
  all.Finish();
  if (opens.handles == 0) {
    index_.erase(ino);
    free_.push_back(entry);
  }
}

void OpenTable::Forget(InodeNumber ino) {
  MutexLock lock(mutex_);
  const auto found = index_.find(ino);
  if (found == index_.end()) return;
  // First, so that a kill in between leaves a count that is forgotten then.
  for (Table::Request& old : table().old) {
    if (old.ino == ino) Store(old.unique, 0);
  }
  std::erase_if(counted_before_, [&](const auto& request) { return request.second == ino; });
  const Opens opens = Unpack(entries()[found->second].counts);
  total_.handles -= opens.handles;
  total_.writable -= opens.writable;
  Write(found->second, ino, {}, kNoLane, 0);
}

OpenTable::Opens OpenTable::Add(InodeNumber ino, bool writable, const ReplyRecord& request) {
  return Change(ino, 1, writable ? 1 : 0, request, false);
}

OpenTable::Opens OpenTable::Drop(InodeNumber ino, bool writable, const ReplyRecord& request) {
  return Change(ino, -1, writable ? -1 : 0, request, false);
}

void OpenTable::UndoAdd(InodeNumber ino, bool writable, const ReplyRecord& request) {
  Change(ino, -1, writable ? -1 : 0, request, true);
}

OpenTable::Opens OpenTable::total() {
  MutexLock lock(mutex_);
  return total_;
}

std::vector<OpenTable::Listed> OpenTable::List() {
  MutexLock lock(mutex_);
  std::vector<Listed> list;
  for (const auto& [ino, entry] : index_) {
    list.push_back({.ino = ino, .opens = Unpack(entries()[entry].counts)});
  }
  return list;
}

}  // namespace cairn
