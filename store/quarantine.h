// Quarantine: the places in packs that were found not to verify, kept across restarts.
// docs/formats/quarantine.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/address.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"

namespace cairn {

struct QuarantinedFrame {
  static constexpr uint64_t kWholePack = UINT64_MAX;
  Id128 realm;
  Id128 pack;
  uint64_t offset = kWholePack;
  Address address = {};  // zeros for a whole pack
  int64_t found_ms = 0;
  bool operator==(const QuarantinedFrame&) const = default;
};

// Thread-safe. Bounded by kMaxEntries. Changes are durable on return unless the disk refuses them
// (logged; they hold in memory and are written with a later change).
class Quarantine {
 public:
  static constexpr size_t kMaxEntries = 1 << 14;

  // Reads `path`; absent is empty. Never fails: what does not read is logged and begun anew, since
  // every read finds the damage again.
  static std::unique_ptr<Quarantine> Open(FileSystem& fs, std::string path);

  // Whether the frame at `offset` of `pack` is bad, by itself or with its whole pack. Cheap while
  // the quarantine is empty; never waits for I/O.
  bool Holds(const Id128& pack, uint64_t offset);
  bool HoldsPack(const Id128& pack) { return Holds(pack, QuarantinedFrame::kWholePack); }

  // True when it was not there yet. A full quarantine refuses (false, logged).
  bool Add(const QuarantinedFrame& frame);
  // The frame verifies after all; true when it was held by itself.
  bool ReleaseFrame(const Id128& pack, uint64_t offset);
  // The pack is gone (or, for a pack held as a whole, readable again): with all its frames.
  void ReleasePack(const Id128& pack);

  std::vector<QuarantinedFrame> List();
  size_t size() const { return count_.load(); }

 private:
  Quarantine(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}
  Status Load() REQUIRES(file_mutex_);
  bool Apply(bool add, const QuarantinedFrame& frame);
  void Save(bool add, const QuarantinedFrame& frame) REQUIRES(file_mutex_);
  Status AppendLocked(std::string_view record) REQUIRES(file_mutex_);
  Status RewriteLocked() REQUIRES(file_mutex_);

  FileSystem& fs_;
  const std::string path_;
  std::atomic<size_t> count_ = 0;

  Mutex file_mutex_;  // one change at a time; held over its write and fdatasync
  uint64_t file_records_ GUARDED_BY(file_mutex_) = 0;
  bool unsaved_ GUARDED_BY(file_mutex_) = false;  // the file lacks a change: replace it
  uint32_t failures_ GUARDED_BY(file_mutex_) = 0;
  uint32_t pause_ GUARDED_BY(file_mutex_) = 0;

  Mutex mutex_;  // the table alone; taken last
  std::map<Id128, std::map<uint64_t, QuarantinedFrame>> packs_ GUARDED_BY(mutex_);
};

}  // namespace cairn
