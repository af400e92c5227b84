// Delta: what one generation changed, in memory. Entries by key (a tombstone where one was deleted)
// and pieces of files by range.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "volume/layer.h"

namespace cairn {

// A half-open range of a file; `end` is exclusive.
struct FileRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// One step of a transaction, as a delta takes it.
struct DeltaChange {
  enum class Kind : uint8_t { kPut, kDelete, kHole, kData } kind = Kind::kDelete;
  std::string key;                                 // put, delete
  Entry entry;                                     // put
  InodeNumber ino = 0;                             // hole, data
  FileRange range;                                 // hole, data
  std::shared_ptr<const UnsealedPayload> payload;  // data: where it is, from source_offset on
  uint64_t source_offset = 0;
};

// Thread-safe. Invariant: pieces of one inode never overlap; a put piece trims or splits what it
// covers, and the pieces of a split one share its payload.
class Delta {
 public:
  using KeyedEntry = std::pair<std::string, std::optional<Entry>>;  // nullopt: deleted here

  // All changes at once for every reader, in order. Moves out of `changes`.
  void Apply(std::vector<DeltaChange>& changes);

  // False: this delta says nothing about `key`. True: `entry` is what it says (nullopt: deleted).
  bool Get(std::string_view key, std::optional<Entry>& entry) const;

  // Appends the first `limit` entries with keys in [begin, end) (`end` empty: no bound).
  void Collect(std::string_view begin, std::string_view end, size_t limit,
               std::vector<KeyedEntry>& out) const;

  // Takes what this delta covers out of `gaps` (ascending, disjoint) into `out`, and leaves the
  // rest in `gaps`.
  void Resolve(InodeNumber ino, std::vector<FileRange>& gaps, std::vector<Segment>& out) const;

  // What `newer`, which is frozen, holds, over what this one holds. The payloads are shared.
  void Absorb(const Delta& newer);

  // From now on nothing is applied (CHECKed).
  void Freeze();

  // In key order, entries and extents merged. Only when frozen: no lock is held while `visit` runs.
  Status ForEach(const std::function<Status(std::string_view key, const DeltaValue&)>& visit) const;
  size_t count() const;

 private:
  struct Piece {
    uint64_t end = 0;
    uint64_t source_offset = 0;
    std::shared_ptr<const UnsealedPayload> payload;  // null: a hole
  };
  using PieceKey = std::pair<InodeNumber, uint64_t>;  // inode, offset

  void Cover(InodeNumber ino, FileRange range, std::shared_ptr<const UnsealedPayload> payload,
             uint64_t source_offset) REQUIRES(mutex_);
  static Segment ToSegment(uint64_t offset, const Piece& piece);

  mutable SharedMutex mutex_;
  bool frozen_ GUARDED_BY(mutex_) = false;
  std::map<std::string, std::optional<Entry>, std::less<>> entries_ GUARDED_BY(mutex_);
  std::map<PieceKey, Piece> pieces_ GUARDED_BY(mutex_);
};

}  // namespace cairn
