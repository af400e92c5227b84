// The registry is memory only and filled when the store opens; the folders are the truth. A reader
// is opened outside the lock (two threads may open the same one; the second is dropped), and holds
// its file open, so that a pack that a collector moves away can still be read by whoever got its
// reader before.
#include "store/pack_set.h"

#include <charconv>

#include "store/base/log.h"
#include "store/pack_writer.h"

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".pack";
constexpr size_t kIdHexDigits = 32;

std::optional<Id128> ParseId(std::string_view hex) {
  if (hex.size() != kIdHexDigits) return std::nullopt;
  const auto id = Id128::FromHex(hex);
  if (!id || id->ToHex() != hex) return std::nullopt;
  return *id;
}

std::optional<Id128> ParsePackName(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  return ParseId(name.substr(0, name.size() - kSuffix.size()));
}

Result<uint64_t> FileBytes(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {.read_only = true}));
  return file->SizeBytes();
}

}  // namespace

Status PackSet::Prepare() {
  CAIRN_TRY(fs_.MakeDir(dir_ + "/packs"));
  CAIRN_TRY(fs_.MakeDir(dir_ + "/trash"));
  return fs_.SyncDir(dir_);
}

std::string PackSet::RealmDir(const Id128& realm) const { return dir_ + "/packs/" + realm.ToHex(); }

std::string PackSet::PathOf(const Id128& realm, const Id128& pack) const {
  return RealmDir(realm) + "/" + PackFileName(pack);
}

Status PackSet::EnsureRealmDir(const Id128& realm) {
  CAIRN_TRY(fs_.MakeDir(RealmDir(realm)));
  return fs_.SyncDir(dir_ + "/packs");
}

Result<std::vector<PackSet::PackFile>> PackSet::ListFiles() {
  std::vector<PackFile> files;
  for (const std::string& realm_name : CAIRN_TRY(fs_.List(dir_ + "/packs"))) {
    const std::optional<Id128> realm = ParseId(realm_name);
    if (!realm) {
      LogWarning("unknown_file", {{"path", dir_ + "/packs/" + realm_name}});
      continue;
    }
    for (const std::string& name : CAIRN_TRY(fs_.List(RealmDir(*realm)))) {
      const std::string path = RealmDir(*realm) + "/" + name;
      const std::optional<Id128> pack = ParsePackName(name);
      if (!pack) {
        LogWarning("unknown_file", {{"path", path}});
        continue;
      }
      files.push_back({.pack = *pack,
                       .realm = *realm,
                       .path = path,
                       .file_bytes = CAIRN_TRY(FileBytes(fs_, path))});
    }
  }
  return files;
}

Result<std::vector<PackSet::TrashFile>> PackSet::ListTrash() {
  std::vector<TrashFile> files;
  for (const std::string& name : CAIRN_TRY(fs_.List(dir_ + "/trash"))) {
    // <realm>-<pack>-<ms>.pack
    const std::string_view v = name;
    const std::string path = dir_ + "/trash/" + name;
    TrashFile file{.pack = {}, .realm = {}, .path = path};
    constexpr size_t kHead = 2 * kIdHexDigits + 2;
    bool good = v.size() > kHead + kSuffix.size() && v.ends_with(kSuffix) &&
                v[kIdHexDigits] == '-' && v[kHead - 1] == '-';
    if (good) {
      const auto realm = ParseId(v.substr(0, kIdHexDigits));
      const auto pack = ParseId(v.substr(kIdHexDigits + 1, kIdHexDigits));
      const char* end = v.data() + v.size() - kSuffix.size();
      const auto parsed = std::from_chars(v.data() + kHead, end, file.deleted_ms);
      good = realm && pack && parsed.ec == std::errc() && parsed.ptr == end;
      if (good) {
        file.realm = *realm;
        file.pack = *pack;
      }
    }
    if (!good) {
      LogWarning("unknown_file", {{"path", path}});
      continue;
    }
    file.file_bytes = CAIRN_TRY(FileBytes(fs_, path));
    files.push_back(std::move(file));
  }
  return files;
}

void PackSet::AddOpen(const Id128& pack, const Id128& realm) {
  MutexLock lock(mutex_);
  Known known;
  known.summary.pack = pack;
  known.summary.realm = realm;
  known.open = true;
  packs_[pack] = known;
}

void PackSet::Settle(const PackSummary& summary) {
  MutexLock lock(mutex_);
  packs_[summary.pack] = Known{.summary = summary};
  DropReaderLocked(summary.pack);
}

void PackSet::AddDamaged(const PackFile& file) {
  MutexLock lock(mutex_);
  Known known;
  known.summary.pack = file.pack;
  known.summary.realm = file.realm;
  known.summary.file_bytes = file.file_bytes;
  known.damaged = true;
  packs_[file.pack] = known;
}

void PackSet::Remove(const Id128& pack) {
  MutexLock lock(mutex_);
  packs_.erase(pack);
  DropReaderLocked(pack);
}

std::optional<PackSet::Known> PackSet::Find(const Id128& pack) {
  MutexLock lock(mutex_);
  const auto it = packs_.find(pack);
  if (it == packs_.end()) return std::nullopt;
  return it->second;
}

std::vector<PackSet::Known> PackSet::List(std::optional<Id128> realm) {
  MutexLock lock(mutex_);
  std::vector<Known> known;
  for (const auto& [pack, k] : packs_) {
    if (!realm || k.summary.realm == *realm) known.push_back(k);
  }
  return known;
}

void PackSet::DropReaderLocked(const Id128& pack) {
  const auto it = reader_map_.find(pack);
  if (it == reader_map_.end()) return;
  readers_.erase(it->second);
  reader_map_.erase(it);
}

Result<std::shared_ptr<const PackReader>> PackSet::Reader(const Id128& pack) {
  std::string path;
  bool open = false;
  {
    MutexLock lock(mutex_);
    const auto cached = reader_map_.find(pack);
    if (cached != reader_map_.end()) {
      readers_.splice(readers_.begin(), readers_, cached->second);
      return cached->second->reader;
    }
    const auto known = packs_.find(pack);
    if (known == packs_.end())
      return Err(ErrorCode::kNotFound, "pack " + pack.ToHex() + " is gone");
    path = PathOf(known->second.summary.realm, pack);
    open = known->second.open;
  }
  std::shared_ptr<PackReader> reader = CAIRN_TRY(PackReader::Open(fs_, path, pack, !open));
  CAIRN_TRY(reader->Unlock(keys_));
  MutexLock lock(mutex_);
  if (!packs_.contains(pack) || reader_map_.contains(pack)) return reader;
  readers_.push_front({.pack = pack, .reader = reader});
  reader_map_[pack] = readers_.begin();
  if (readers_.size() > open_readers_) DropReaderLocked(readers_.back().pack);
  return reader;
}

void PackSet::ForgetReaders(const Id128& realm) {
  MutexLock lock(mutex_);
  for (auto it = readers_.begin(); it != readers_.end();) {
    const auto next = std::next(it);
    if (it->reader->header().realm == realm) DropReaderLocked(Id128(it->pack));
    it = next;
  }
}

Status PackSet::MoveToTrash(const Id128& realm, const Id128& pack, int64_t now_ms) {
  const std::string to = dir_ + "/trash/" + realm.ToHex() + "-" + pack.ToHex() + "-" +
                         std::to_string(now_ms) + std::string(kSuffix);
  const Status renamed = fs_.Rename(PathOf(realm, pack), to);
  if (!renamed && renamed.error().code() != ErrorCode::kNotFound) return renamed;
  CAIRN_TRY(fs_.SyncDir(dir_ + "/trash"));
  return fs_.SyncDir(RealmDir(realm));
}

Status PackSet::Unlink(const Id128& realm, const Id128& pack) {
  const Status unlinked = fs_.Unlink(PathOf(realm, pack));
  if (!unlinked && unlinked.error().code() != ErrorCode::kNotFound) return unlinked;
  return fs_.SyncDir(RealmDir(realm));
}

Result<PackListing> ListPack(const PackReader& reader) {
  PackListing listing;
  Result<std::optional<PackFooter>> footer = reader.ReadFooter();
  if (footer && footer->has_value()) {
    listing.sealed = true;
    listing.entries = std::move((*footer)->entries);
    return listing;
  }
  if (!footer && footer.error().code() != ErrorCode::kDataLoss) {
    return std::unexpected(std::move(footer).error());
  }
  PackScan scan = CAIRN_TRY(reader.Scan(std::nullopt));
  listing.entries = std::move(scan.entries);
  listing.holes = std::move(scan.holes);
  listing.torn_bytes = scan.torn_bytes;
  return listing;
}

}  // namespace cairn
