// PackReader: reads and verifies one pack file, open, sealed or torn.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/file_system.h"
#include "store/key_ring.h"
#include "store/pack_format.h"

namespace cairn {

// What a walk over the frames of a pack found. Entries are in file order.
struct PackScan {
  std::vector<PackEntry> entries;
  struct Hole {
    uint64_t offset = 0;
    uint64_t length_bytes = 0;
    std::string what;
    std::optional<Address> address;  // when the frame's header is good
  };
  std::vector<Hole> holes;  // bytes that are no valid frame, with a valid frame after them
  uint64_t frames_end = kPackHeaderBytes;
  uint64_t torn_bytes = 0;  // after the last valid frame
  std::string torn_what;    // why they are not a frame
};

// Stored bytes are wrong, or their place does not read (EIO): damage of that place, not of the
// machine.
inline bool IsDamage(const Error& error) {
  return error.code() == ErrorCode::kDataLoss || error.sys_errno() == EIO;
}

// Immutable after Open and Unlock; thread-safe then. Holds one open file, so it goes on reading a
// pack that was renamed or removed meanwhile.
class PackReader {
 public:
  // Reads the header, or its copy in the footer when it is damaged. `bulk_direct`: OpenOptions';
  // for packs that are no longer written. Errors: NotFound (no such file), DataLoss (neither is
  // valid, or it is another pack's), FailedPrecondition (newer format), Internal.
  static Result<std::unique_ptr<PackReader>> Open(FileSystem& fs, const std::string& path,
                                                  const Id128& pack, bool bulk_direct = false);
  ~PackReader();

  // Unwraps the data key. NotFound: no keys for the realm. DataLoss: the wrapped key does not open.
  Status Unlock(const KeyRing& keys);

  // The frame's plaintext as its codec stores it: header, checksum and tag verified. Needs Unlock.
  // DataLoss otherwise.
  Result<std::string> ReadFrame(const PackEntry& entry) const;
  // Where its bytes are, without their padding: for who reads many at once (OpenFrameBytes).
  ReadOp FrameOp(const PackEntry& entry) const;
  // The same without a key: header, checksum and padding only.
  Status VerifyStored(const PackEntry& entry) const;

  // Bytes of the file as they are. DataLoss: it ends before.
  Result<std::string> ReadBytes(uint64_t offset, uint64_t length_bytes) const;
  // VerifyStored and ReadFrame on a frame's bytes that were read already, header to padding.
  Status VerifyFrameBytes(const PackEntry& entry, std::string_view frame) const;
  Result<std::string> OpenFrameBytes(const PackEntry& entry, std::string_view frame) const;
  bool unlocked() const { return key_.has_value(); }

  // The offset of the next valid frame header at or after `from`, or `end`.
  Result<uint64_t> FindFrame(uint64_t from, uint64_t end) const;

  // nullopt: there is no valid trailer (not sealed, or damaged: `what` says). DataLoss: trailer
  // without its footer.
  Result<std::optional<PackFooter>> ReadFooter() const;

  // Walks all frames up to `end` (or the end of the file), without keys.
  Result<PackScan> Scan(std::optional<uint64_t> end) const;

  const PackHeader& header() const { return header_; }
  bool header_damaged() const { return header_damaged_; }
  uint64_t file_bytes() const { return file_bytes_; }
  const std::string& path() const { return path_; }
  // Makes what was read through this reader durable (a torn pack after a kill may be in memory
  // only).
  Status Sync() const { return file_->Sync(); }

 private:
  PackReader(std::unique_ptr<File> file, uint64_t file_bytes);
  // The frame's stored bytes (ciphertext and tag) after header and checksum agreed. A view of
  // `frame`, whose padding may be missing.
  Result<std::string_view> CheckStored(const PackEntry& entry, std::string_view frame) const;

  const std::unique_ptr<File> file_;
  const std::string path_;
  const uint64_t file_bytes_;
  PackHeader header_;
  bool header_damaged_ = false;
  std::optional<Key256> key_;
};

}  // namespace cairn
