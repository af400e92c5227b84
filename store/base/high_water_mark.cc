// One record of 40 bytes at the file's start, overwritten in place: it lies within one sector,
// which reaches the disk whole or not at all. Its block is allocated and zeroed when the file is
// made, so raising the mark takes no space and a full disk does not hinder it.
#include "store/base/high_water_mark.h"

#include <xxhash.h>

#include <span>
#include <string_view>
#include <utility>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CAIRNHWM";
constexpr uint32_t kVersion = 1;
constexpr size_t kMarkBytes = 40;

std::string Encode(LogPosition position) {
  std::string out;
  ByteWriter w(out);
  w.Bytes(kMagic);
  w.U32(kVersion);
  w.U32(0);
  w.U64(position.generation);
  w.U64(position.sequence);
  w.U64(XXH3_64bits(out.data(), out.size()));
  CAIRN_CHECK(out.size() == kMarkBytes);
  return out;
}

std::optional<LogPosition> Decode(std::string_view bytes) {
  ByteReader r(bytes);
  const std::string_view magic = r.Bytes(kMagic.size());
  const uint32_t version = r.U32();
  const uint32_t reserved = r.U32();
  LogPosition position;
  position.generation = r.U64();
  position.sequence = r.U64();
  const uint64_t checksum = r.U64();
  if (!r.ok() || magic != kMagic || version != kVersion || reserved != 0 ||
      checksum != XXH3_64bits(bytes.data(), kMarkBytes - 8)) {
    return std::nullopt;
  }
  return position;
}

// Null also for one that does not verify: it helps to find damage, and is not needed for anything
// else.
Result<std::optional<LogPosition>> ReadMark(File& file) {
  char bytes[kMarkBytes] = {};
  const size_t size = CAIRN_TRY(file.ReadAt(0, bytes));
  const std::string_view read(bytes, size);
  const auto position = Decode(read);
  if (!position && read.find_first_not_of('\0') != std::string_view::npos) {
    LogWarning("high_water_mark_damaged", {{"path", file.path()}});
  }
  return position;
}

}  // namespace

Result<std::unique_ptr<HighWaterMark>> HighWaterMark::Open(FileSystem& fs,
                                                           const std::string& path) {
  std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {.create = true}));
  if (CAIRN_TRY(file->SizeBytes()) < kMarkBytes) {
    CAIRN_TRY(file->WriteAt(0, std::string(kMarkBytes, '\0')));
    CAIRN_TRY(file->Sync());
  }
  const auto position = CAIRN_TRY(ReadMark(*file));
  return std::unique_ptr<HighWaterMark>(new HighWaterMark(std::move(file), position));
}

Result<std::optional<LogPosition>> HighWaterMark::Read(FileSystem& fs, const std::string& path) {
  const auto file = fs.Open(path, {.read_only = true});
  if (file) return ReadMark(**file);
  if (file.error().code() == ErrorCode::kNotFound) return std::nullopt;
  return std::unexpected(file.error());
}

std::optional<LogPosition> HighWaterMark::position() const {
  MutexLock lock(mutex_);
  return position_;
}

void HighWaterMark::Raise(LogPosition position) {
  MutexLock lock(mutex_);
  if (position_ && position <= *position_) return;
  position_ = position;
  if (failed_) return;
  const Status written = file_->WriteAt(0, Encode(position));
  if (written) return;
  failed_ = true;
  LogWarning("high_water_mark_not_written",
             {{"path", file_->path()}, {"error", written.error().ToString()}});
}

}  // namespace cairn
