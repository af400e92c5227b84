// PackWriter: appends encrypted frames to a new pack file and seals it with a footer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
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

// Thread-safe. States:
//
//   open --Append fails, Finish, Sync fails--> closed --Finish--> sealed
//                                                     --Abandon--> abandoned (truncated to
//                                                     synced_end)
//
//   kPackHeaderBytes <= synced_end <= written_end <= length of the file
//
// Destroying it in any state only closes the file.
class PackWriter {
 public:
  // Creates the file; its header is durable on return. Errors: Exhausted, NotFound (no keys for the
  // realm), Internal; no file is left then.
  static Result<std::unique_ptr<PackWriter>> Create(FileSystem& fs, const KeyRing& keys,
                                                    const PackWriterOptions& options);
  ~PackWriter();

  struct Append {
    Address address;
    BlockKind kind = BlockKind::kData;
    Codec codec = Codec::kRaw;
    uint32_t raw_length = 0;
    std::string_view bytes;  // the plaintext as `codec` stores it
  };
  // Volatile until Sync. After an error the pack is closed, what was appended before is untouched.
  // Errors: Exhausted, FailedPrecondition (closed: use another pack), Internal.
  Result<PackEntry> AppendBlock(const Append& append);

  // All bytes below `through` are durable on return (group commit: one fdatasync serves all who
  // wait). An error closes the pack for good; what an earlier Sync made durable stays so: see
  // Abandon.
  Status Sync(uint64_t through);

  // Closes, writes footer and trailer and syncs: sealed and durable on return. Exhausted: no room
  // for the footer, the frames are untouched and can be Synced. Other errors: Abandon it.
  Status Finish();

  // After a failed Sync or Finish: cuts off what is not known to be durable (the kernel may have
  // dropped it and yet show it); removes the file when nothing is left. Returns the entries that
  // are durable. Never fails: what cannot be cut off is left to the checksums of recovery.
  std::vector<PackEntry> Abandon();

  std::vector<PackEntry> Entries();  // appended so far
  uint64_t WrittenEnd();
  uint64_t FileBytes();  // frames, plus the footer once sealed
  bool sealed();
  const PackHeader& header() const { return header_; }
  const std::string& path() const { return path_; }

 private:
  PackWriter(FileSystem& fs, std::unique_ptr<File> file, PackHeader header, const Key256& key);

  FileSystem& fs_;
  const std::unique_ptr<File> file_;
  const std::string path_;
  const PackHeader header_;
  Key256 key_;

  Mutex sync_mutex_;    // held over fdatasync; taken before append_mutex_
  Mutex append_mutex_;  // held over one pwrite: frames are appended one after the other
  bool closed_ GUARDED_BY(append_mutex_) = false;
  uint64_t written_end_ GUARDED_BY(append_mutex_) = kPackHeaderBytes;
  std::vector<PackEntry> entries_ GUARDED_BY(append_mutex_);
  uint64_t synced_end_ GUARDED_BY(sync_mutex_) = kPackHeaderBytes;
  bool failed_ GUARDED_BY(sync_mutex_) = false;
  bool sealed_ GUARDED_BY(sync_mutex_) = false;
  uint64_t file_bytes_ GUARDED_BY(sync_mutex_) = kPackHeaderBytes;
};

}  // namespace cairn
