// Reading order of a frame: one pread of header, ciphertext and tag; header checksum; agreement
// with what led here; XXH3; GCM tag. A pack without a valid footer is walked frame by frame
// (docs/formats/pack.md, "Reading a pack without a valid footer"); after bytes that are no frame
// the walk goes on at the next valid one, so that one damaged frame hides only itself.
#include "store/pack_reader.h"

#include <xxhash.h>

#include <algorithm>

#include "store/base/check.h"
#include "store/base/uninitialized.h"

namespace cairn {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr size_t kFooterLeastBytes = 16 + kPackHeaderBytes + 32;

}  // namespace

PackReader::PackReader(std::unique_ptr<File> file, uint64_t file_bytes)
    : file_(std::move(file)), path_(file_->path()), file_bytes_(file_bytes) {}

PackReader::~PackReader() {
  if (key_) WipeKey(*key_);
}

Result<std::unique_ptr<PackReader>> PackReader::Open(FileSystem& fs, const std::string& path,
                                                     const Id128& pack, bool bulk_direct) {
  std::unique_ptr<File> file =
      CAIRN_TRY(fs.Open(path, {.read_only = true, .bulk_direct = bulk_direct}));
  const uint64_t file_bytes = CAIRN_TRY(file->SizeBytes());
  std::unique_ptr<PackReader> reader(new PackReader(std::move(file), file_bytes));
  const uint64_t head = std::min<uint64_t>(file_bytes, kPackHeaderBytes);
  Result<PackHeader> header = DecodePackHeader(CAIRN_TRY(reader->ReadBytes(0, head)));
  if (header && header->pack != pack) {
    header = Err(ErrorCode::kDataLoss, "pack header belongs to another pack");
  }
  if (!header) {
    if (header.error().code() != ErrorCode::kDataLoss) {
      return std::unexpected(std::move(header).error().WithContext(path));
    }
    const auto footer = reader->ReadFooter();
    if (!footer || !footer->has_value() || (*footer)->header.pack != pack) {
      return std::unexpected(std::move(header).error().WithContext(path));
    }
    reader->header_damaged_ = true;
    header = (*footer)->header;
  }
  reader->header_ = *std::move(header);
  return reader;
}

Status PackReader::Unlock(const KeyRing& keys) {
  key_ =
      CAIRN_TRY(keys.Unwrap(header_.realm, {.key_id = header_.key_id, .bytes = header_.wrapped_key},
                            PackKeyAad(header_)));
  return {};
}

Result<std::string> PackReader::ReadBytes(uint64_t offset, uint64_t length_bytes) const {
  std::string bytes;
  ResizeUninitialized(bytes, length_bytes);
  const size_t got = CAIRN_TRY(file_->ReadAt(offset, bytes));
  if (got != length_bytes) return Err(ErrorCode::kDataLoss, "pack ends too early");
  return bytes;
}

ReadOp PackReader::FrameOp(const PackEntry& entry) const {
  return {.file = file_.get(),
          .offset = entry.offset,
          .length_bytes = kFrameHeaderBytes + size_t{entry.stored_length}};
}

Result<std::string_view> PackReader::CheckStored(const PackEntry& entry,
                                                 std::string_view frame) const {
  if (frame.size() < kFrameHeaderBytes + uint64_t{entry.stored_length}) {
    return Err(ErrorCode::kDataLoss, "frame is cut short");
  }
  const FrameHeader header =
      CAIRN_TRY(DecodeFrameHeader(header_.pack, entry.offset, frame.substr(0, kFrameHeaderBytes)));
  if (header.entry != entry) {
    return Err(ErrorCode::kDataLoss, "frame header is of another block than expected");
  }
  const std::string_view stored = frame.substr(kFrameHeaderBytes, entry.stored_length);
  if (XXH3_64bits(stored.data(), stored.size()) != header.stored_xxh3) {
    return Err(ErrorCode::kDataLoss, "stored bytes (ciphertext or tag) checksum mismatch");
  }
  return stored;
}

Result<std::string> PackReader::OpenFrameBytes(const PackEntry& entry,
                                               std::string_view frame) const {
  CAIRN_CHECK(key_.has_value());
  const std::string_view stored = CAIRN_TRY(CheckStored(entry, frame));
  return OpenSealed(*key_, FrameNonce(entry.offset), stored, FrameAad(entry));
}

Result<std::string> PackReader::ReadFrame(const PackEntry& entry) const {
  const std::string frame =
      CAIRN_TRY(ReadBytes(entry.offset, kFrameHeaderBytes + uint64_t{entry.stored_length}));
  return OpenFrameBytes(entry, frame);
}

Status PackReader::VerifyFrameBytes(const PackEntry& entry, std::string_view frame) const {
  CAIRN_TRY(CheckStored(entry, frame));
  const std::string_view padding = frame.substr(kFrameHeaderBytes + entry.stored_length);
  if (padding.find_first_not_of('\0') != std::string_view::npos) {
    return Err(ErrorCode::kDataLoss, "frame padding is not zero");
  }
  return {};
}

Status PackReader::VerifyStored(const PackEntry& entry) const {
  return VerifyFrameBytes(
      entry, CAIRN_TRY(ReadBytes(entry.offset, PackEntry::FrameBytes(entry.stored_length))));
}

Result<std::optional<PackFooter>> PackReader::ReadFooter() const {
  if (file_bytes_ < kPackHeaderBytes + kFooterLeastBytes + kPackTrailerBytes ||
      file_bytes_ > 2 * kMaxPackBytes) {
    return std::optional<PackFooter>();
  }
  const uint64_t trailer_offset = file_bytes_ - kPackTrailerBytes;
  const auto trailer = DecodeTrailer(CAIRN_TRY(ReadBytes(trailer_offset, kPackTrailerBytes)));
  if (!trailer) return std::optional<PackFooter>();
  if (trailer->footer_offset < kPackHeaderBytes || trailer->footer_offset >= trailer_offset) {
    return Err(ErrorCode::kDataLoss, "pack trailer names an impossible footer");
  }
  const std::string footer =
      CAIRN_TRY(ReadBytes(trailer->footer_offset, trailer_offset - trailer->footer_offset));
  return std::optional<PackFooter>(CAIRN_TRY(DecodeFooter(*trailer, footer)));
}

Result<uint64_t> PackReader::FindFrame(uint64_t from, uint64_t end) const {
  for (uint64_t base = from; base + kFrameHeaderBytes <= end; base += kChunkBytes) {
    // One header longer than the step: a header never straddles two chunks unseen.
    const uint64_t length = std::min<uint64_t>(kChunkBytes + kFrameHeaderBytes, end - base);
    const std::string bytes = CAIRN_TRY(ReadBytes(base, length));
    const std::string_view chunk(bytes);
    for (size_t at = 0; at + kFrameHeaderBytes <= length && at < kChunkBytes; at += 8) {
      const std::string_view head = chunk.substr(at, kFrameHeaderBytes);
      if (LooksLikeFrame(head) && DecodeFrameHeader(header_.pack, base + at, head))
        return base + at;
    }
  }
  return end;
}

Result<PackScan> PackReader::Scan(std::optional<uint64_t> end_of_frames) const {
  const uint64_t end = std::min(end_of_frames.value_or(file_bytes_), file_bytes_);
  PackScan scan;
  uint64_t at = kPackHeaderBytes;
  std::vector<PackScan::Hole> pending;  // holes so far not followed by a valid frame
  while (at < end) {
    std::string what;
    std::optional<Address> address;
    uint64_t next = 0;
    const uint64_t head_bytes = std::min<uint64_t>(kFrameHeaderBytes, end - at);
    const auto frame = DecodeFrameHeader(header_.pack, at, CAIRN_TRY(ReadBytes(at, head_bytes)));
    if (!frame) {
      what = frame.error().message();
      next = CAIRN_TRY(FindFrame(at + 8, end));
    } else if (frame->entry.EndOffset() > end) {
      what = "frame is cut short";
      next = end;
    } else {
      next = frame->entry.EndOffset();
      const Status stored = VerifyStored(frame->entry);
      if (stored) {
        scan.holes.insert(scan.holes.end(), pending.begin(), pending.end());
        pending.clear();
        scan.entries.push_back(frame->entry);
        scan.frames_end = next;
        at = next;
        continue;
      }
      if (stored.error().code() != ErrorCode::kDataLoss) return std::unexpected(stored.error());
      what = stored.error().message();
      address = frame->entry.address;
    }
    pending.push_back(
        {.offset = at, .length_bytes = next - at, .what = std::move(what), .address = address});
    at = next;
  }
  if (!pending.empty()) scan.torn_what = pending.front().what;
  scan.torn_bytes = end > scan.frames_end ? end - scan.frames_end : 0;
  return scan;
}

}  // namespace cairn
