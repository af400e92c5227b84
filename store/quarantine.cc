// A table in memory and an append-only file of 96-byte records beside it. A change goes into the
// table first (so that no write trusts the place from then on), then to the file: one write, one
// fdatasync, under a lock of its own, so that look-ups never wait for the disk. The file is
// replaced by a shorter one when most of its records no longer count, or when an append had failed
// before. Invariant: what the file says after its last good record is what the table said at that
// moment. Layout and rules: docs/formats/quarantine.md.
#include "store/quarantine.h"

#include <xxhash.h>

#include <algorithm>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr uint8_t kVersion = 1;
constexpr uint8_t kAdd = 1;
constexpr uint8_t kRelease = 2;
constexpr size_t kRecordBytes = 96;
// Four times the most that can count: a file that grew so long was written by nobody of ours.
constexpr uint64_t kMaxFileBytes = 4ull * Quarantine::kMaxEntries * kRecordBytes;
// Below this a file is not worth shortening.
constexpr uint64_t kSlackRecords = 1024;
constexpr uint32_t kMaxPauseBits = 10;

std::string EncodeRecord(bool add, const QuarantinedFrame& frame) {
  std::string out;
  ByteWriter w(out);
  w.U8(kVersion);
  w.U8(add ? kAdd : kRelease);
  w.Zeros(6);
  w.I64(frame.found_ms);
  w.Bytes(frame.realm.view());
  w.Bytes(frame.pack.view());
  w.U64(frame.offset);
  w.Bytes(frame.address.view());
  w.U64(XXH3_64bits(out.data(), out.size()));
  CAIRN_CHECK(out.size() == kRecordBytes);
  return out;
}

struct Record {
  bool add = false;
  QuarantinedFrame frame;
};

Result<Record> DecodeRecord(std::string_view bytes) {
  ByteReader r(bytes);
  const uint8_t version = r.U8();
  const uint8_t operation = r.U8();
  const std::string_view reserved = r.Bytes(6);
  Record record;
  record.add = operation == kAdd;
  record.frame.found_ms = r.I64();
  record.frame.realm = Id128::FromView(r.Bytes(16));
  record.frame.pack = Id128::FromView(r.Bytes(16));
  record.frame.offset = r.U64();
  record.frame.address = Address::FromView(r.Bytes(32));
  if (r.U64() != XXH3_64bits(bytes.data(), kRecordBytes - 8) || version != kVersion ||
      (operation != kAdd && operation != kRelease) ||
      reserved.find_first_not_of('\0') != std::string_view::npos) {
    return Err(ErrorCode::kDataLoss, "quarantine record does not verify");
  }
  return record;
}

}  // namespace

std::unique_ptr<Quarantine> Quarantine::Open(FileSystem& fs, std::string path) {
  std::unique_ptr<Quarantine> quarantine(new Quarantine(fs, std::move(path)));
  MutexLock lock(quarantine->file_mutex_);
  const Status loaded = quarantine->Load();
  if (!loaded) {
    LogError("quarantine_unreadable",
             {{"path", quarantine->path_}, {"error", loaded.error().ToString()}});
    quarantine->unsaved_ = true;  // the next change replaces the file
  }
  return quarantine;
}

Status Quarantine::Load() {
  if (const std::string tmp = path_ + ".tmp"; CAIRN_TRY(fs_.Exists(tmp))) {
    IgnoreError(fs_.Unlink(tmp), "the next replacement takes it");
  }
  if (!CAIRN_TRY(fs_.Exists(path_))) return {};
  const std::string bytes = CAIRN_TRY(ReadWholeFile(fs_, path_, kMaxFileBytes));
  uint64_t bad = 0;
  for (size_t at = 0; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    const auto record = DecodeRecord(std::string_view(bytes).substr(at, kRecordBytes));
    if (record) {
      Apply(record->add, record->frame);
    } else {
      ++bad;
    }
  }
  file_records_ = bytes.size() / kRecordBytes;
  if (bad != 0 || bytes.size() % kRecordBytes != 0) {
    LogWarning("quarantine_records_skipped",
               {{"path", path_}, {"records", bad}, {"tail_bytes", bytes.size() % kRecordBytes}});
    unsaved_ = true;
  }
  return {};
}

bool Quarantine::Holds(const Id128& pack, uint64_t offset) {
  if (count_.load() == 0) return false;
  MutexLock lock(mutex_);
  const auto frames = packs_.find(pack);
  if (frames == packs_.end()) return false;
  return frames->second.contains(offset) || frames->second.contains(QuarantinedFrame::kWholePack);
}

// True when it changed anything.
bool Quarantine::Apply(bool add, const QuarantinedFrame& frame) {
  MutexLock lock(mutex_);
  if (add) {
    if (count_.load() >= kMaxEntries) return false;
    const bool added = packs_[frame.pack].emplace(frame.offset, frame).second;
    if (added) count_.fetch_add(1);
    return added;
  }
  const auto frames = packs_.find(frame.pack);
  if (frames == packs_.end()) return false;
  if (frame.offset == QuarantinedFrame::kWholePack) {
    count_.fetch_sub(frames->second.size());
    packs_.erase(frames);
    return true;
  }
  if (frames->second.erase(frame.offset) == 0) return false;
  count_.fetch_sub(1);
  if (frames->second.empty()) packs_.erase(frames);
  return true;
}

bool Quarantine::Add(const QuarantinedFrame& frame) {
  if (Holds(frame.pack, frame.offset)) return false;
  MutexLock lock(file_mutex_);
  if (!Apply(true, frame)) {
    if (size() >= kMaxEntries) {
      LogError("quarantine_full", {{"pack", frame.pack.ToHex()}, {"offset", frame.offset}});
    }
    return false;
  }
  Save(true, frame);
  return true;
}

bool Quarantine::ReleaseFrame(const Id128& pack, uint64_t offset) {
  if (!Holds(pack, offset)) return false;
  MutexLock lock(file_mutex_);
  const QuarantinedFrame frame{.realm = {}, .pack = pack, .offset = offset};
  if (!Apply(false, frame)) return false;
  Save(false, frame);
  return true;
}

void Quarantine::ReleasePack(const Id128& pack) {
  if (count_.load() == 0) return;
  MutexLock lock(file_mutex_);
  const QuarantinedFrame whole{.realm = {}, .pack = pack};
  if (Apply(false, whole)) Save(false, whole);
}

void Quarantine::Save(bool add, const QuarantinedFrame& frame) {
  if (pause_ > 0) {
    --pause_;
    return;
  }
  Status saved;
  if (unsaved_ || file_records_ > 2 * size() + kSlackRecords) {
    saved = RewriteLocked();
  } else {
    saved = AppendLocked(EncodeRecord(add, frame));
  }
  unsaved_ = !saved.has_value();
  if (saved) {
    failures_ = 0;
    return;
  }
  // A disk that stays full is asked again after 0, 1, 3, 7 ... further changes.
  pause_ = (1u << std::min(failures_++, kMaxPauseBits)) - 1;
  LogError("quarantine_not_saved", {{"path", path_}, {"error", saved.error().ToString()}});
}

Status Quarantine::AppendLocked(std::string_view record) {
  const bool created = file_records_ == 0;
  const std::unique_ptr<File> file = CAIRN_TRY(fs_.Open(path_, {.create = true}));
  CAIRN_TRY(file->WriteAt(file_records_ * kRecordBytes, record));
  CAIRN_TRY(file->Sync());
  if (created) CAIRN_TRY(fs_.SyncDir(path_.substr(0, path_.rfind('/'))));
  ++file_records_;
  return {};
}

Status Quarantine::RewriteLocked() {
  std::string bytes;
  const std::vector<QuarantinedFrame> frames = List();
  for (const QuarantinedFrame& frame : frames) bytes += EncodeRecord(true, frame);
  CAIRN_TRY(WriteFileAtomically(fs_, path_, bytes));
  file_records_ = frames.size();
  return {};
}

std::vector<QuarantinedFrame> Quarantine::List() {
  std::vector<QuarantinedFrame> all;
  MutexLock lock(mutex_);
  for (const auto& [pack, frames] : packs_) {
    for (const auto& [offset, frame] : frames) all.push_back(frame);
  }
  return all;
}

}  // namespace cairn
