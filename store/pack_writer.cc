// Writes a pack in the order that docs/formats/pack.md asks for: header -> fdatasync -> fsync of
// the folder -> frames -> fdatasync -> footer, trailer (when full) -> fdatasync. The
// frame's offset is its nonce, so an offset is used once: after a failed write the pack is closed
// and nothing is ever appended to it again. An fdatasync that failed is not retried, because the
// kernel marks the pages clean although they are not on disk (fsync(2), "fsyncgate"): the bytes
// past the last good fdatasync are cut off.
#include "store/pack_writer.h"

#include <xxhash.h>

#include <algorithm>

#include "store/base/check.h"
#include "store/base/log.h"
#include "store/pack_digest.h"

namespace cairn {
std::string PackFileName(const Id128& pack) { return pack.ToHex() + ".pack"; }

PackWriter::PackWriter(FileSystem& fs, std::unique_ptr<File> file, PackHeader header,
                       const Key256& key)
    : fs_(fs),
      file_(std::move(file)),
      path_(file_->path()),
      header_(std::move(header)),
      key_(key) {}

PackWriter::~PackWriter() { WipeKey(key_); }

Result<std::unique_ptr<PackWriter>> PackWriter::Create(FileSystem& fs, const KeyRing& keys,
                                                       const PackWriterOptions& options) {
  PackHeader header{.pack = options.pack,
                    .realm = options.realm,
                    .key_id = 0,
                    .epoch = options.epoch,
                    .created_ms = options.created_ms,
                    .wrapped_key = {}};
  Key256 key = RandomKey();
  auto wrapped = keys.Wrap(options.realm, key, PackKeyAad(header));
  if (!wrapped) return std::unexpected(std::move(wrapped).error());
  header.key_id = wrapped->key_id;
  header.wrapped_key = wrapped->bytes;

  const std::string path = options.dir + "/" + PackFileName(options.pack);
  std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {.create = true, .exclusive = true}));
  Status written = file->WriteAt(0, EncodePackHeader(header));
  if (written) written = file->Sync();
  if (written) written = fs.SyncDir(options.dir);
  if (!written) {
    IgnoreError(fs.Unlink(path), "the error of the write is the one to report");
    return std::unexpected(std::move(written).error());
  }
  std::unique_ptr<PackWriter> writer(new PackWriter(fs, std::move(file), std::move(header), key));
  WipeKey(key);
  return writer;
}

Result<PackEntry> PackWriter::AppendBlock(const Append& append) {
  MutexLock lock(append_mutex_);
  if (closed_) return Err(ErrorCode::kFailedPrecondition, "pack is closed");
  PackEntry entry{.address = append.address,
                  .offset = written_end_,
                  .stored_length = static_cast<uint32_t>(append.bytes.size() + kAeadTagBytes),
                  .raw_length = append.raw_length,
                  .kind = append.kind,
                  .codec = append.codec};
  CAIRN_CHECK(entry.stored_length <= kMaxStoredBytes && entry.EndOffset() <= kMaxPackBytes);
  std::string frame(kFrameHeaderBytes, '\0');
  frame.reserve(PackEntry::FrameBytes(entry.stored_length));
  AppendSealed(key_, FrameNonce(entry.offset), append.bytes, FrameAad(entry), frame);
  const uint64_t stored_xxh3 =
      XXH3_64bits(frame.data() + kFrameHeaderBytes, frame.size() - kFrameHeaderBytes);
  frame.replace(0, kFrameHeaderBytes, EncodeFrameHeader(header_.pack, entry, stored_xxh3));
  frame.resize(PackEntry::FrameBytes(entry.stored_length), '\0');

  Status written = file_->WriteAt(entry.offset, frame);
  if (!written) {
    closed_ = true;
    IgnoreError(file_->Truncate(entry.offset), "a partial frame is not a valid frame");
    return std::unexpected(std::move(written).error());
  }
  written_end_ = entry.EndOffset();
  entries_.push_back(entry);
  return entry;
}

Status PackWriter::Sync(uint64_t through) {
  MutexLock sync_lock(sync_mutex_);
  if (synced_end_ >= through) return {};
  if (failed_) return Err(ErrorCode::kUnavailable, "an earlier fdatasync of this pack failed");
  uint64_t end;
  {
    MutexLock lock(append_mutex_);
    end = written_end_;
  }
  Status synced = file_->Sync();
  if (!synced) {
    failed_ = true;
    MutexLock lock(append_mutex_);
    closed_ = true;
    return synced;
  }
  synced_end_ = end;
  return {};
}

Status PackWriter::Finish() {
  MutexLock sync_lock(sync_mutex_);
  if (sealed_) return {};
  if (failed_) return Err(ErrorCode::kUnavailable, "an earlier fdatasync of this pack failed");
  std::vector<PackEntry> entries;
  uint64_t end;
  {
    MutexLock lock(append_mutex_);
    closed_ = true;
    entries = entries_;
    end = written_end_;
  }
  std::ranges::sort(entries, {}, &PackEntry::address);
  std::string footer = EncodeFooterBeforeDigest(header_, entries);
  Result<std::string> digest = PackDigest(*file_, end, footer);
  if (!digest) {
    failed_ = true;
    return std::unexpected(std::move(digest).error());
  }
  footer += *digest;
  const std::string trailer = EncodeTrailer(end, footer);
  auto decoded = DecodeFooter(CAIRN_TRY(DecodeTrailer(trailer)), footer);
  CAIRN_CHECK(decoded.has_value() && decoded->entries == entries);

  // Frames first: a footer that reached the disk before them would vouch for bytes that are not
  // there.
  Status synced = synced_end_ < end ? file_->Sync() : Status();
  if (!synced) {
    failed_ = true;
    return synced;
  }
  synced_end_ = end;
  Status written = file_->WriteAt(end, footer + trailer);
  if (!written) {
    const Status cut = file_->Truncate(end);
    if (!cut || written.error().code() != ErrorCode::kExhausted) failed_ = true;
    return written;
  }
  synced = file_->Sync();
  if (!synced) {
    failed_ = true;
    return synced;
  }
  sealed_ = true;
  file_bytes_ = end + footer.size() + trailer.size();
  return {};
}

std::vector<PackEntry> PackWriter::Abandon() {
  MutexLock sync_lock(sync_mutex_);
  failed_ = true;
  MutexLock lock(append_mutex_);
  closed_ = true;
  std::erase_if(entries_, [&](const PackEntry& e)
                              NO_THREAD_SAFETY_ANALYSIS { return e.EndOffset() > synced_end_; });
  written_end_ = synced_end_;
  const Status cut = entries_.empty() ? fs_.Unlink(path_) : file_->Truncate(synced_end_);
  if (!cut) {
    LogError("pack_abandon_incomplete", {{"pack", path_}, {"error", cut.error().ToString()}});
  }
  return entries_;
}

std::vector<PackEntry> PackWriter::Entries() {
  MutexLock lock(append_mutex_);
  return entries_;
}

uint64_t PackWriter::WrittenEnd() {
  MutexLock lock(append_mutex_);
  return written_end_;
}

uint64_t PackWriter::FileBytes() {
  MutexLock sync_lock(sync_mutex_);
  if (sealed_) return file_bytes_;
  MutexLock lock(append_mutex_);
  return written_end_;
}

bool PackWriter::sealed() {
  MutexLock sync_lock(sync_mutex_);
  return sealed_;
}

}  // namespace cairn
