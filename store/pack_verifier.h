// PackVerifier: reads one pack from end to end, in steps, and says what does not verify.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/file_system.h"
#include "store/key_ring.h"
#include "store/pack_digest.h"
#include "store/pack_reader.h"

namespace cairn {

// Thread-compatible. Holds the file open: it goes on with a pack that is renamed or removed
// meanwhile. Errors are the machine's (but for EIO, which is damage of the place that was read).
class PackVerifier {
 public:
  struct Fault {
    std::string what;                // "pack header: ...", "frame at 1234 (data): ..."
    std::optional<PackEntry> entry;  // the frame that does not verify
    bool whole = false;              // no frame of the pack can be read
  };
  struct Options {
    FileSystem& fs;
    const KeyRing& keys;
    std::string path;
    Id128 pack;
    Id128 realm;
    bool sealed = true;  // it is to have a footer
    // Frames before it were verified earlier: only what the digest takes of them is read. Only for
    // a pack with a footer; another one is begun from its start.
    uint64_t from_offset = 0;
    std::function<void(const PackEntry&)> good;  // a frame verified wholly (with keys: its address)
    std::function<void(const Fault&)> fault;
  };
  // NotFound: no such file. A header that does not verify is a fault.
  static Result<std::unique_ptr<PackVerifier>> Open(Options options);

  struct Step {
    uint64_t bytes = 0;   // read
    uint64_t frames = 0;  // verified, good or not
    bool done = false;
  };
  // Goes on until `budget_bytes` (and at most a frame or 1 MiB more) were read or the pack is at
  // its end.
  Result<Step> Next(uint64_t budget_bytes);

  // Where a later verification can go on: all frames before it are verified.
  uint64_t offset() const { return at_; }
  // It had no valid footer and was walked to its end.
  bool walked() const { return walked_; }
  // The realm's keys opened the data key, so that tags and addresses are verified too.
  bool unlocked() const { return reader_ != nullptr && reader_->unlocked(); }
  // Frames found in a pack without a footer, ascending.
  const std::vector<uint64_t>& found() const { return found_; }

 private:
  explicit PackVerifier(Options options) : options_(std::move(options)) {}
  Status Begin();
  void Report(std::string what, std::optional<PackEntry> entry = std::nullopt, bool whole = false);
  void Judge(const PackEntry& entry, const Result<std::string>& frame);
  Status HashNextHead(Step& step);
  Status VerifyNextEntry(Step& step);
  Status WalkOn(Step& step);
  Status Finish(Step& step);

  const Options options_;
  std::unique_ptr<PackReader> reader_;  // null: the header is lost
  std::optional<PackFooter> footer_;    // entries in file order
  size_t next_ = 0;                     // entry of footer_
  size_t hashed_ = 0;                   // hasher_ has all entries before it
  uint64_t at_ = kPackHeaderBytes;
  uint64_t faults_ = 0;
  bool done_ = false;
  bool walked_ = false;
  std::optional<PackHasher> hasher_;
  std::vector<uint64_t> found_;
};

}  // namespace cairn
