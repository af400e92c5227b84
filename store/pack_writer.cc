// Writes a pack in the order that docs/formats/pack.md asks for: header -> fdatasync -> fsync of
// the folder -> frames -> fdatasync -> footer, trailer (when full) -> fdatasync. The frame's offset
// is its nonce, so an offset is reserved once: after a failed write the pack is closed and nothing
// is ever appended to it again. Writes run side by side, so one may fail while others above it
// succeed; nobody has been told that those are in the pack (WaitWritten waits for all below), and
// Finish and Abandon cut them off. An fdatasync that failed is not retried, because the kernel
// marks the pages clean although they are not on disk (fsync(2), "fsyncgate"): the bytes past the
// last good fdatasync are cut off.
#include "store/pack_writer.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "store/base/check.h"
#include "store/base/log.h"
#include "store/pack_digest.h"

namespace cairn {
namespace {
constexpr uint64_t kWriteBytes = 256 << 10;
}  // namespace

std::string PackFileName(const Id128& pack) { return pack.ToHex() + ".pack"; }

PackWriter::PackWriter(FileSystem& fs, std::unique_ptr<File> file, PackHeader header,
                       const Key256& key)
    : fs_(fs),
      file_(std::move(file)),
      path_(file_->path()),
      header_(std::move(header)),
      key_(key),
      commit_([this] { return WrittenEnd(); }, [this] { return file_->Sync(); }, kPackHeaderBytes) {
}

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

void PackWriter::Reservation::End(bool written) {
  if (writer_ == nullptr) return;
  std::exchange(writer_, nullptr)->EndWrite(entries_.front().offset, written);
}

Result<PackWriter::Reservation> PackWriter::Reserve(std::span<const Frame> frames,
                                                    uint64_t limit_bytes) {
  MutexLock lock(mutex_);
  if (closed_) return Err(ErrorCode::kFailedPrecondition, "pack is closed");
  std::vector<PackEntry> reserved;
  const uint64_t begin = reserved_end_;
  for (const Frame& frame : frames) {
    if (!reserved.empty() && reserved_end_ >= limit_bytes) break;
    const PackEntry entry{.address = frame.address,
                          .offset = reserved_end_,
                          .stored_length = frame.StoredLength(),
                          .raw_length = frame.raw_length,
                          .kind = frame.kind,
                          .codec = frame.codec};
    CAIRN_CHECK(entry.stored_length <= kMaxStoredBytes && entry.EndOffset() <= kMaxPackBytes);
    reserved_end_ = entry.EndOffset();
    reserved.push_back(entry);
  }
  in_flight_.insert(begin);
  const size_t first = entries_.size();
  entries_.insert(entries_.end(), reserved.begin(), reserved.end());
  heads_.resize(entries_.size() * kHeadBytes);
  return Reservation(this, first, std::move(reserved));
}

Status PackWriter::Write(Reservation reservation, std::span<const Frame> frames,
                         std::span<char> room) {
  const std::vector<PackEntry>& entries = reservation.entries();
  CAIRN_CHECK(frames.size() == entries.size());
  const uint64_t begin = entries.front().offset;
  const uint64_t length = entries.back().EndOffset() - begin;
  CAIRN_CHECK(room.size() >= length);
  std::string heads;
  heads.reserve(frames.size() * kHeadBytes);
  AeadSealer sealer(key_);
  // While one piece is written the next is sealed.
  std::unique_ptr<WriteQueue> writes;
  if (length > kWriteBytes) writes = file_->BeginWrites();
  uint64_t begun = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    const PackEntry& entry = entries[i];
    char* const head = room.data() + (entry.offset - begin);
    char* const stored = head + kFrameHeaderBytes;
    sealer.Seal(FrameNonce(entry.offset), frames[i].bytes, FrameAad(entry), stored);
    const std::string header =
        EncodeFrameHeader(header_.pack, entry, XXH3_64bits(stored, entry.stored_length));
    std::memcpy(head, header.data(), kFrameHeaderBytes);
    std::fill(stored + entry.stored_length, room.data() + (entry.EndOffset() - begin), '\0');
    heads += header;
    heads.append(stored + entry.stored_length - kAeadTagBytes, kAeadTagBytes);
    if (const uint64_t sealed = entry.EndOffset() - begin;
        writes != nullptr && sealed - begun >= kWriteBytes) {
      writes->Add(begin + begun, std::string_view(room.data() + begun, sealed - begun));
      begun = sealed;
    }
  }
  {
    MutexLock lock(mutex_);
    heads_.replace(reservation.first_ * kHeadBytes, heads.size(), heads);
  }
  const std::string_view rest(room.data() + begun, length - begun);
  if (writes != nullptr) writes->Add(begin + begun, rest);
  Status written = writes != nullptr ? writes->Finish() : file_->WriteAt(begin, rest);
  reservation.End(written.has_value());
  return written;
}

void PackWriter::EndWrite(uint64_t begin, bool written) {
  MutexLock lock(mutex_);
  in_flight_.erase(begin);
  if (!written) {
    closed_ = true;
    FailFromLocked(begin);
  }
  UpdateWrittenEndLocked();
}

void PackWriter::FailFromLocked(uint64_t offset) {
  failed_from_.store(std::min(failed_from_.load(), offset));
}

void PackWriter::UpdateWrittenEndLocked() {
  const uint64_t written = in_flight_.empty() ? reserved_end_ : *in_flight_.begin();
  written_end_.store(std::min(written, failed_from_.load()));
  moved_.NotifyAll();
}

bool PackWriter::WaitWritten(uint64_t through) {
  if (written_end_.load() >= through) return true;
  MutexLock lock(mutex_);
  while (written_end_.load() < through && failed_from_.load() >= through) moved_.Wait(mutex_);
  return written_end_.load() >= through;
}

Status PackWriter::Sync(uint64_t through) {
  CAIRN_DCHECK(through <= WrittenEnd() || IsLost(through));
  Status synced = commit_.Through(through);
  if (!synced) {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  return synced;
}

// No write runs, and none will begin. What a failed write left open is no longer in the file: it
// ends at written_end_.
void PackWriter::CloseAndDrainLocked() {
  closed_ = true;
  while (!in_flight_.empty()) moved_.Wait(mutex_);
  std::erase_if(entries_, [end = written_end_.load()](const PackEntry& entry) {
    return entry.EndOffset() > end;
  });
}

Status PackWriter::Finish() {
  std::vector<PackEntry> entries;
  PackHasher hasher(header_);
  uint64_t end;
  {
    MutexLock lock(mutex_);
    CloseAndDrainLocked();
    entries = entries_;
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto head = std::string_view(heads_).substr(i * kHeadBytes, kHeadBytes);
      hasher.AddFrame(head.substr(0, kFrameHeaderBytes), head.substr(kFrameHeaderBytes));
    }
    heads_ = {};
    end = written_end_.load();
  }
  if (entries.empty()) return Err(ErrorCode::kUnavailable, "pack holds nothing");
  if (failed_from_.load() != kNever) CAIRN_TRY(file_->Truncate(end));
  std::ranges::sort(entries, {}, &PackEntry::address);
  std::string footer = EncodeFooterBeforeDigest(header_, entries);
  footer += hasher.Finish(footer);
  const std::string trailer = EncodeTrailer(end, footer);
  auto decoded = DecodeFooter(CAIRN_TRY(DecodeTrailer(trailer)), footer);
  CAIRN_CHECK(decoded.has_value() && decoded->entries == entries);

  // Frames first: a footer that reached the disk before them would vouch for bytes that are not
  // there.
  CAIRN_TRY(Sync(end));
  Status written = file_->WriteAt(end, footer + trailer);
  if (!written) {
    CAIRN_TRY(file_->Truncate(end));
    return written;
  }
  const Status synced = file_->Sync();
  if (!synced) {
    // Whatever the errno: the footer is in doubt, so it must go.
    return Err(ErrorCode::kInternal, synced.error().message(), synced.error().sys_errno());
  }
  MutexLock lock(mutex_);
  sealed_bytes_ = end + footer.size() + trailer.size();
  return {};
}

std::vector<PackEntry> PackWriter::Abandon() {
  const uint64_t synced_end = commit_.Fail();
  std::vector<PackEntry> entries;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    FailFromLocked(synced_end);
    UpdateWrittenEndLocked();
    CloseAndDrainLocked();
    entries = entries_;
  }
  const Status cut = entries.empty() ? fs_.Unlink(path_) : file_->Truncate(synced_end);
  if (!cut) {
    LogError("pack_abandon_incomplete", {{"pack", path_}, {"error", cut.error().ToString()}});
  }
  return entries;
}

std::vector<PackEntry> PackWriter::Entries() {
  MutexLock lock(mutex_);
  std::vector<PackEntry> written = entries_;
  std::erase_if(written, [end = written_end_.load()](const PackEntry& entry) {
    return entry.EndOffset() > end;
  });
  return written;
}

uint64_t PackWriter::FileBytes() {
  MutexLock lock(mutex_);
  return sealed_bytes_ != 0 ? sealed_bytes_ : written_end_.load();
}

bool PackWriter::sealed() {
  MutexLock lock(mutex_);
  return sealed_bytes_ != 0;
}

}  // namespace cairn
