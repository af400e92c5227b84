// In order: the destination and a .partial set in it -> collections held off -> the instant: key
// files into memory, the catalog's checkpoint and hard links to the journals into backup.tmp/ of
// the data directory -> open packs sealed, so that what the catalog refers to is in packs that
// never change -> everything copied, or linked where that is the same -> cairn.format -> all
// directories synced -> MANIFEST -> BACKUP -> rename.
//
// Why it is consistent: a root that the catalog names at the instant had its blocks synced into
// packs before, and no pack goes while collections are held off. What the catalog calls unsealed at
// the instant is in journals that were linked before any seal could remove them; of the journal
// that is being written, whole records are taken, each with its payloads, because the side log's
// length is read after the journal's.
#include "admin/backup.h"

#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <set>
#include <thread>

#include "catalog/keys.h"
#include "store/base/log.h"
#include "store/base/path_overlap.h"
#include "store/manifest/backup_verify.h"
#include "store/master_key.h"

namespace cairn {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

std::string SetName(int64_t at_ms) {
  const time_t seconds = static_cast<time_t>(at_ms / 1000);
  tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

Result<std::string> RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) return ErrErrno(errno, path);
  return std::string(resolved);
}

// False: the two are not on one file system, or it has no hard links, or the file has too many.
Result<bool> Link(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EXDEV || errno == EPERM || errno == EMLINK || errno == EOPNOTSUPP) return false;
  return ErrErrno(errno, "link " + from + " to " + to);
}

bool IsZero(std::string_view bytes) {
  return bytes.empty() ||
         (bytes[0] == '\0' && std::equal(bytes.begin() + 1, bytes.end(), bytes.begin()));
}

}  // namespace

Status Backup::RemoveStaging() { return RemoveTree(deps_.fs, StagingDir()); }

Result<BackupReport> Backup::Run(const BackupOptions& options) {
  if (running_.exchange(true)) {
    return Err(ErrorCode::kUnavailable, "another backup is running: try again when it has ended");
  }
  struct Ended {
    std::atomic<bool>& running;
    ~Ended() { running = false; }
  } ended{running_};
  CAIRN_TRY(CheckDestination(options.destination));
  const Collector::Held no_collection = CAIRN_TRY(deps_.collector.Hold());
  Set set = CAIRN_TRY(BeginSet(options.destination));
  CAIRN_TRY(RemoveStaging());
  const auto run = [&]() -> Status {
    const Instant instant = CAIRN_TRY(TakeInstant());
    CAIRN_TRY(SealPacksOf(deps_.store.ListPackFiles()));
    CAIRN_TRY(CopyControl(set, instant, options));
    CAIRN_TRY(CopyPacks(set));
    return Finish(set, instant, options.destination);
  };
  Status done = run();
  IgnoreError(RemoveStaging(), "the next backup or start removes it");
  if (!done) {
    return std::unexpected(std::move(done).error().WithContext(
        "the backup is unfinished (" + set.dir + "); the next one goes on with what it has"));
  }
  LogInfo("backup_made", {{"path", set.report.path},
                          {"files", set.report.files},
                          {"bytes", set.report.bytes},
                          {"copied_bytes", set.report.copied_bytes}});
  return set.report;
}

Status Backup::CheckDestination(const std::string& destination) {
  if (!destination.starts_with('/')) {
    return Err(ErrorCode::kInvalidArgument, "the destination must be an absolute path");
  }
  CAIRN_TRY(deps_.fs.MakeDir(destination));
  const std::string to = CAIRN_TRY(RealPath(destination));
  CAIRN_TRY(deps_.fs.SyncDir(to.substr(0, std::max<size_t>(1, to.rfind('/')))));
  const std::string from = CAIRN_TRY(RealPath(deps_.directory.dir()));
  if (CAIRN_TRY(PathsOverlap(to, from))) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} and the data directory {} lie in each other", to, from));
  }
  for (const std::string& name : CAIRN_TRY(deps_.fs.List(destination))) {
    if (name == "lost+found" || name.ends_with(kPartialBackupSuffix)) continue;
    if (name != "cairn.format" && ReadBackupMarker(deps_.fs, destination + "/" + name)) continue;
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has {}, which is no backup: name an empty or absent directory, or one "
                    "that holds backups only",
                    destination, name));
  }
  return {};
}

// A .partial of this store that a failure left is taken up, with its packs alone.
Result<Backup::Set> Backup::BeginSet(const std::string& destination) {
  FileSystem& fs = deps_.fs;
  Set set;
  for (const std::string& name : CAIRN_TRY(fs.List(destination))) {
    if (!name.ends_with(kPartialBackupSuffix)) continue;
    const std::string dir = destination + "/" + name;
    const auto marker = ReadBackupMarker(fs, dir);
    if (!marker && marker.error().code() == ErrorCode::kNotFound) {
      // Nothing but its name had become durable. One that is not empty is somebody's, and stays.
      IgnoreError(fs.RemoveDir(dir), "it is in nobody's way");
    }
    if (!marker || marker->store != deps_.directory.store()) continue;
    if (!marker->complete) {
      set.dir = dir;
      continue;
    }
    // Only its last step is missing.
    CAIRN_TRY(fs.Rename(dir, dir.substr(0, dir.size() - kPartialBackupSuffix.size())));
    CAIRN_TRY(fs.SyncDir(destination));
  }
  const std::string newest = CAIRN_TRY(NewestBackupSet(fs, destination, deps_.directory.store()));
  if (!newest.empty()) {
    const BackupMarker marker = CAIRN_TRY(ReadBackupMarker(fs, newest));
    auto entries = ReadManifest(fs, newest, marker);
    if (entries) {
      set.before.emplace(newest, std::map<std::string, ManifestEntry>());
      for (ManifestEntry& entry : *entries) set.before->second[entry.path] = entry;
    } else {
      LogWarning("backup_not_used", {{"path", newest}, {"error", entries.error().ToString()}});
    }
  }
  if (set.dir.empty()) {
    const std::string name = destination + "/" + SetName(deps_.clock.NowMs());
    set.dir = name + std::string(kPartialBackupSuffix);
    for (int i = 2; CAIRN_TRY(fs.Exists(set.dir)); ++i) {  // another store's
      set.dir = fmt::format("{}-{}{}", name, i, kPartialBackupSuffix);
    }
    CAIRN_TRY(fs.MakeDir(set.dir));
  }
  const BackupMarker marker{.store = deps_.directory.store(), .source = deps_.directory.instance()};
  CAIRN_TRY(WriteFileAtomically(fs, set.dir + "/" + std::string(kBackupMarkerName),
                                EncodeBackupMarker(marker)));
  CAIRN_TRY(fs.SyncDir(destination));
  for (const std::string& name : CAIRN_TRY(fs.List(set.dir))) {
    if (name == kBackupMarkerName || name == "packs") continue;
    const Status unlinked = fs.Unlink(set.dir + "/" + name);
    if (!unlinked) CAIRN_TRY(RemoveTree(fs, set.dir + "/" + name));
  }
  for (const char* folder : {"catalog", "index", "keys", "packs", "trash", "volumes"}) {
    CAIRN_TRY(fs.MakeDir(set.dir + "/" + folder));
  }
  return set;
}

Result<Backup::Instant> Backup::TakeInstant() {
  FileSystem& fs = deps_.fs;
  const std::string staging = StagingDir();
  CAIRN_TRY(fs.MakeDir(staging));
  CAIRN_TRY(fs.MakeDir(staging + "/volumes"));
  Instant instant;
  const auto checkpoint = [&]() -> Status {
    instant.at_ms = deps_.clock.NowMs();
    return deps_.catalog.Checkpoint(staging + "/db");
  };
  const auto take = [&](const VolumeManager::JournalFile& file) -> Status {
    const std::string dir = staging + "/volumes/" + file.volume.ToHex();
    CAIRN_TRY(fs.MakeDir(dir));
    const std::string staged = dir + "/" + file.name;
    if (!CAIRN_TRY(Link(file.path, staged))) {
      return Err(ErrorCode::kFailedPrecondition,
                 "the data directory's file system has no hard links: it cannot be backed up while "
                 "it is served");
    }
    instant.journals.push_back({.file = file, .staged = staged});
    return {};
  };
  CAIRN_TRY(deps_.keys.WithFilesHeld([&](const KeyStore::Files& files) -> Status {
    instant.keys = files;
    instant.format = deps_.directory.FormatOfBackup();
    return deps_.volumes.WithJournalsHeld(checkpoint, take);
  }));
  return instant;
}

// Every pack that was open at the instant is sealed, by us or by whoever has it in hand.
Status Backup::SealPacksOf(const std::vector<LocalBlockStore::PackFile>& at_instant) {
  constexpr int kTries = 1200;
  constexpr auto kPause = std::chrono::milliseconds(50);
  std::set<Id128> open;
  for (const auto& pack : at_instant) {
    if (pack.open) open.insert(pack.pack);
  }
  CAIRN_TRY(deps_.store.SealOpenPacks());
  for (int i = 0; i < kTries; ++i) {
    const auto packs = deps_.store.ListPackFiles();
    const bool waiting = std::ranges::any_of(
        packs, [&](const auto& pack) { return pack.open && open.contains(pack.pack); });
    if (!waiting) return {};
    std::this_thread::sleep_for(kPause);
  }
  return Err(ErrorCode::kUnavailable, "a pack is not sealed: try again");
}

Status Backup::WriteFile(Set& set, const std::string& path, std::string_view contents) {
  CAIRN_TRY(WriteFileAtomically(deps_.fs, set.dir + "/" + path, contents));
  Sha256Stream digest;
  digest.Update(contents);
  set.files[path] = {.path = path, .sha256 = digest.Finish(), .size_bytes = contents.size()};
  set.report.copied_bytes += contents.size();
  return {};
}

// At most `limit_bytes` of it; runs of zeros become holes. Under its name only when it is durable.
Status Backup::CopyFile(Set& set, const std::string& from, const std::string& path,
                        uint64_t limit_bytes) {
  const std::string to = set.dir + "/" + path;
  const std::string temporary = to + ".tmp";
  const std::unique_ptr<File> source = CAIRN_TRY(deps_.fs.Open(from, {.read_only = true}));
  const std::unique_ptr<File> target =
      CAIRN_TRY(deps_.fs.Open(temporary, {.create = true, .truncate = true}));
  Sha256Stream digest;
  std::string buffer(kChunkBytes, '\0');
  uint64_t done = 0;
  while (done < limit_bytes) {
    const size_t wanted = std::min<uint64_t>(buffer.size(), limit_bytes - done);
    const size_t got = CAIRN_TRY(source->ReadAt(done, std::span(buffer).first(wanted)));
    const std::string_view chunk = std::string_view(buffer).substr(0, got);
    digest.Update(chunk);
    if (!IsZero(chunk)) {
      CAIRN_TRY(target->WriteAt(done, chunk));
      set.report.copied_bytes += got;
    }
    done += got;
    if (got < wanted) break;
  }
  CAIRN_TRY(target->Truncate(done));
  CAIRN_TRY(target->Sync());
  CAIRN_TRY(deps_.fs.Rename(temporary, to));
  set.files[path] = {.path = path, .sha256 = digest.Finish(), .size_bytes = done};
  return {};
}

Status Backup::CopyControl(Set& set, const Instant& instant, const BackupOptions& options) {
  FileSystem& fs = deps_.fs;
  for (const auto& [name, bytes] : instant.keys) {
    CAIRN_TRY(WriteFile(set, "keys/" + name, bytes));
  }
  const std::string db = StagingDir() + "/db";
  CAIRN_TRY(fs.MakeDir(set.dir + "/catalog/db"));
  for (const std::string& name : CAIRN_TRY(fs.List(db))) {
    CAIRN_TRY(CopyFile(set, db + "/" + name, "catalog/db/" + name, UINT64_MAX));
  }
  CAIRN_TRY(fs.SyncDir(set.dir + "/catalog/db"));
  // The copy is read back; and of the journals, those are wanted whose volumes it knows (one that
  // was made a moment later is not in it).
  std::set<std::string> known;
  CAIRN_TRY(LocalCatalog::ReadCheckpoint(deps_.keys, set.dir + "/catalog/db",
                                         [&](std::string_view key, std::string_view) {
                                           if (key.starts_with("volume/"))
                                             known.insert(std::string(keys::LastPart(key)));
                                         }));
  for (const Journal& journal : instant.journals) {
    const std::string volume = journal.file.volume.ToHex();
    if (!known.contains(volume)) continue;
    CAIRN_TRY(fs.MakeDir(set.dir + "/volumes/" + volume));
    CAIRN_TRY(CopyFile(set, journal.staged, "volumes/" + volume + "/" + journal.file.name,
                       journal.file.limit_bytes));
  }
  if (options.with_master_key) {
    Key256 key = deps_.keys.CopyMaster();
    std::string text = EncodeMasterKey(key);
    WipeKey(key);
    CAIRN_TRY(WriteFile(set, "master.key", text));
    std::fill(text.begin(), text.end(), '\0');
  }
  return {};
}

Status Backup::CopyPacks(Set& set) {
  std::set<std::string> wanted;
  for (const LocalBlockStore::PackFile& pack : deps_.store.ListPackFiles()) {
    if (pack.open) continue;  // begun after the instant
    const std::string realm = "packs/" + pack.realm.ToHex();
    CAIRN_TRY(deps_.fs.MakeDir(set.dir + "/" + realm));
    CAIRN_TRY(CopyPack(set, pack));
    wanted.insert(realm + pack.path.substr(pack.path.rfind('/')));
  }
  // What an unfinished set had and is gone since.
  for (const std::string& realm : CAIRN_TRY(deps_.fs.List(set.dir + "/packs"))) {
    for (const std::string& name : CAIRN_TRY(deps_.fs.List(set.dir + "/packs/" + realm))) {
      const std::string path = "packs/" + realm + "/" + name;
      if (!wanted.contains(path)) CAIRN_TRY(deps_.fs.Unlink(set.dir + "/" + path));
    }
  }
  return {};
}

Status Backup::CopyPack(Set& set, const LocalBlockStore::PackFile& pack) {
  const std::string path = "packs/" + pack.realm.ToHex() + pack.path.substr(pack.path.rfind('/'));
  const std::string to = set.dir + "/" + path;
  const auto digested = [&]() -> Status {
    ManifestEntry entry = CAIRN_TRY(DigestFile(deps_.fs, to));
    entry.path = path;
    set.files[path] = std::move(entry);
    return {};
  };
  if (CAIRN_TRY(deps_.fs.Exists(to))) {
    ++set.report.packs_kept;
    return digested();
  }
  if (set.before && set.before->second.contains(path)) {
    if (CAIRN_TRY(Link(set.before->first + "/" + path, to))) {
      set.files[path] = set.before->second[path];
      ++set.report.packs_kept;
      return {};
    }
  }
  if (CAIRN_TRY(Link(pack.path, to))) {
    ++set.report.packs_linked;
    return digested();
  }
  ++set.report.packs_copied;
  return CopyFile(set, pack.path, path, UINT64_MAX);
}

Status Backup::Finish(Set& set, const Instant& instant, const std::string& destination) {
  FileSystem& fs = deps_.fs;
  CAIRN_TRY(WriteFile(set, "cairn.format", instant.format));
  std::set<std::string> folders = {"",       "/catalog", "/index",  "/keys",
                                   "/packs", "/trash",   "/volumes"};
  BackupMarker marker{.complete = true,
                      .store = deps_.directory.store(),
                      .source = deps_.directory.instance(),
                      .created_ms = instant.at_ms};
  std::vector<ManifestEntry> entries;
  for (const auto& [path, entry] : set.files) {
    entries.push_back(entry);
    marker.bytes += entry.size_bytes;
    if (path.find('/') != std::string::npos) folders.insert("/" + path.substr(0, path.rfind('/')));
  }
  marker.files = entries.size();
  for (const std::string& folder : folders) CAIRN_TRY(fs.SyncDir(set.dir + folder));

  const std::string manifest = EncodeManifest(entries);
  if (manifest.size() > kMaxManifestBytes) {
    return Err(ErrorCode::kInvalidArgument, "too many files for one backup");
  }
  Sha256Stream digest;
  digest.Update(manifest);
  marker.manifest_sha256 = digest.Finish();
  CAIRN_TRY(WriteFileAtomically(fs, set.dir + "/" + std::string(kManifestName), manifest));
  CAIRN_TRY(ReadManifest(fs, set.dir, marker));
  CAIRN_TRY(WriteFileAtomically(fs, set.dir + "/" + std::string(kBackupMarkerName),
                                EncodeBackupMarker(marker)));
  const std::string name = destination + "/" + SetName(instant.at_ms);
  std::string path = name;
  for (int i = 2; CAIRN_TRY(fs.Exists(path)); ++i) path = fmt::format("{}-{}", name, i);
  CAIRN_TRY(fs.Rename(set.dir, path));
  CAIRN_TRY(fs.SyncDir(destination));
  set.report.path = path;
  set.report.files = marker.files;
  set.report.bytes = marker.bytes;
  return {};
}

}  // namespace cairn
