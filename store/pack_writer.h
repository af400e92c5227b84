// PackWriter: appends encrypted frames to a new pack file and seals it with a footer.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/group_commit.h"
#include "store/key_ring.h"
#include "store/pack_format.h"

namespace cairn {

struct PackWriterOptions {
  std::string dir;  // exists and is durable; the file is dir/<pack id>.pack
  Id128 pack;
  Id128 realm;
  uint64_t epoch = 0;
  int64_t created_ms = 0;
};

// The file name of a pack in its realm's folder.
std::string PackFileName(const Id128& pack);

// Thread-safe; no lock is held over I/O. Frames get their places one after the other (Reserve) and
// are encrypted and written side by side (Write). States:
//
//   open --Write fails, Finish, Abandon--> closed --Finish--> sealed
//                                                 --Abandon--> abandoned (cut to synced_end)
//
//   kPackHeaderBytes <= synced_end <= written_end <= failed_from, reserved_end
//
// written_end is the lowest offset that is reserved and not yet written, so all below it is in the
// file without a hole. failed_from is the lowest offset at which a write failed, or what Abandon
// cut at: frames that end above it are lost.
//
// Destroying it in any state only closes the file.
class PackWriter {
 public:
  // Creates the file; its header is durable on return. Errors: Exhausted, NotFound (no keys for the
  // realm), Internal; no file is left then.
  static Result<std::unique_ptr<PackWriter>> Create(FileSystem& fs, const KeyRing& keys,
                                                    const PackWriterOptions& options);
  ~PackWriter();

  struct Frame {
    Address address;
    BlockKind kind = BlockKind::kData;
    Codec codec = Codec::kRaw;
    uint32_t raw_length = 0;
    std::string_view bytes;  // the plaintext as `codec` stores it

    uint32_t StoredLength() const { return static_cast<uint32_t>(bytes.size()) + kAeadTagBytes; }
    uint64_t FrameBytes() const { return PackEntry::FrameBytes(StoredLength()); }
  };

  // Places for frames one after the other. Given to Write; destroyed otherwise it counts as a
  // failed write. Move-only; lives no longer than its writer.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : writer_(std::exchange(other.writer_, nullptr)),
          first_(other.first_),
          entries_(std::move(other.entries_)) {}
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation() { End(false); }
    const std::vector<PackEntry>& entries() const { return entries_; }  // not empty

   private:
    friend class PackWriter;
    Reservation(PackWriter* writer, size_t first, std::vector<PackEntry> entries)
        : writer_(writer), first_(first), entries_(std::move(entries)) {}
    void End(bool written);

    PackWriter* writer_;
    size_t first_;  // of entries_, in the pack's
    std::vector<PackEntry> entries_;
  };

  // Reserves from the front of `frames` (not empty) until the pack has grown to `limit_bytes`; at
  // least one. FailedPrecondition: closed, use another pack.
  Result<Reservation> Reserve(std::span<const Frame> frames, uint64_t limit_bytes);

  // Encrypts into `room` (the sum of FrameBytes) and writes it with one call. `frames` are those
  // that were reserved. Volatile until Sync, and in the pack for good once WaitWritten says so.
  // After an error the pack is closed, and frames that ended below these are untouched. Errors:
  // Exhausted, Internal.
  Status Write(Reservation reservation, std::span<const Frame> frames, std::span<char> room);

  // Waits until everything below `through` is written. False: it never will be, because a write
  // below failed or the pack was abandoned: store it elsewhere.
  bool WaitWritten(uint64_t through);
  // The same of the present: false when it is lost already.
  bool IsLost(uint64_t through) const { return through > failed_from_.load(); }

  // All bytes below `through`, which are written, are durable on return (GroupCommit). An error
  // closes the pack for good; what an earlier Sync made durable stays so: see Abandon.
  Status Sync(uint64_t through);

  // Closes, waits for running writes, writes footer and trailer and syncs: sealed and durable on
  // return. Exhausted: no room for the footer, the frames are untouched and can be Synced. Other
  // errors (Unavailable: it holds nothing): Abandon it. Called once.
  Status Finish();

  // After a failed Sync or Finish: closes, waits for running writes and cuts off what is not known
  // to be durable (the kernel may have dropped it and yet show it); removes the file when nothing
  // is left. Returns the entries that are durable. Never fails: what cannot be cut off is left to
  // the checksums of recovery.
  std::vector<PackEntry> Abandon();

  std::vector<PackEntry> Entries();  // below WrittenEnd
  uint64_t WrittenEnd() const { return written_end_.load(); }
  uint64_t FileBytes();  // frames, plus the footer once sealed
  bool sealed();
  const PackHeader& header() const { return header_; }
  const std::string& path() const { return path_; }

 private:
  PackWriter(FileSystem& fs, std::unique_ptr<File> file, PackHeader header, const Key256& key);
  static constexpr size_t kHeadBytes = kFrameHeaderBytes + kAeadTagBytes;
  void EndWrite(uint64_t begin, bool written);
  void FailFromLocked(uint64_t offset) REQUIRES(mutex_);
  void UpdateWrittenEndLocked() REQUIRES(mutex_);
  void CloseAndDrainLocked() REQUIRES(mutex_);

  FileSystem& fs_;
  const std::unique_ptr<File> file_;
  const std::string path_;
  const PackHeader header_;
  Key256 key_;  // constant but for the destructor
  GroupCommit commit_;

  Mutex mutex_;
  CondVar moved_;  // written_end_ or failed_from_
  bool closed_ GUARDED_BY(mutex_) = false;
  uint64_t reserved_end_ GUARDED_BY(mutex_) = kPackHeaderBytes;
  std::set<uint64_t> in_flight_ GUARDED_BY(mutex_);    // where running writes begin
  std::vector<PackEntry> entries_ GUARDED_BY(mutex_);  // reserved, by offset
  // For each entry that is written its frame's header and tag, for the digest.
  std::string heads_ GUARDED_BY(mutex_);
  uint64_t sealed_bytes_ GUARDED_BY(mutex_) = 0;          // 0: not sealed
  std::atomic<uint64_t> written_end_ = kPackHeaderBytes;  // changed under mutex_
  std::atomic<uint64_t> failed_from_ = kNever;            // changed under mutex_
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
};

}  // namespace cairn
