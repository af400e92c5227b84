// Opening: look at cairn.format (a newer or foreign directory is refused before anything is
// written) -> flock LOCK -> look again (it may have been initialised or upgraded while we waited)
// -> is it where it was served last, or a copy -> instance lock -> master key -> pid into LOCK ->
// open epoch + 1, durable. Initialising: folders, master.key, then cairn.format, whose rename makes
// the directory ours; what a crash leaves before that is recognised and completed. The lock is
// flock(2) on an open file description, so it ends with the process however that dies, and a second
// opening in the same process is refused too. Keys and the locks are opened by system calls: the
// file seam has no modes and locks.
#include "store/data_directory.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "store/base/check.h"
#include "store/base/hex.h"
#include "store/base/key_check.h"
#include "store/base/log.h"
#include "store/base/random.h"
#include "store/instance.h"
#include "store/manifest/backup_verify.h"
#include "store/master_key.h"
#include "store/space_guard.h"

namespace cairn {
namespace {

constexpr std::string_view kFirstLine = "cairn data directory";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMaxFormatBytes = 4096;
constexpr uint64_t kOpeningBytes = 1 << 20;  // what opening writes, and room for its names
constexpr size_t kLockBytes = 16;            // a pid, and newlines
constexpr std::string_view kFolders[] = {"catalog", "index", "keys", "packs", "trash", "volumes"};

std::unexpected<Error> Damaged(const std::string& what) {
  return Err(ErrorCode::kDataLoss,
             "cairn.format is damaged (" + what + "): restore it from a copy");
}

std::string Checksum(std::string_view text) {
  const uint64_t sum = XXH3_64bits(text.data(), text.size());
  std::string bytes(reinterpret_cast<const char*>(&sum), sizeof sum);
  std::ranges::reverse(bytes);  // printed with the high byte first
  return HexEncode(bytes);
}

template <typename T>
bool ParseNumber(std::string_view text, T& out) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), out);
  return !text.empty() && parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

std::string CheckOf(const Key256& key) { return HexEncode(KeyCheck(key)); }

// An instance of its own counts on from a number that no other is likely to reach or to choose:
// packs and nodes of two copies carry different epochs.
uint64_t JumpedEpoch(uint64_t epoch) {
  constexpr uint64_t kJump = 1 << 20;
  uint32_t random = 0;
  FillRandom(&random, sizeof random);
  return epoch + kJump * (1 + random % kJump);
}

// nullopt: there is no cairn.format.
Result<std::optional<DataDirectoryFormat>> ReadFormat(FileSystem& fs, const std::string& dir) {
  const std::string path = dir + "/cairn.format";
  if (!CAIRN_TRY(fs.Exists(path))) return std::optional<DataDirectoryFormat>();
  const auto text = ReadWholeFile(fs, path, kMaxFormatBytes);
  if (!text && text.error().code() == ErrorCode::kInvalidArgument) return Damaged("too long");
  if (!text) return std::unexpected(text.error());
  auto format = DecodeFormat(*text);
  if (!format) return std::unexpected(std::move(format).error().WithContext(dir));
  return std::optional<DataDirectoryFormat>(*std::move(format));
}

std::unexpected<Error> UnfinishedBackup(const std::string& dir) {
  return Err(
      ErrorCode::kFailedPrecondition,
      dir + " is an unfinished backup: it cannot be served. Run the backup again to its end");
}

// Whether the directory is a backup that nobody has served yet. FailedPrecondition: an unfinished
// one. DataLoss: a file of it is missing.
Result<bool> IsBackup(FileSystem& fs, const std::string& dir) {
  const auto marker = ReadBackupMarker(fs, dir);
  if (!marker && marker.error().code() == ErrorCode::kNotFound) return false;
  if (!marker) return std::unexpected(marker.error());
  if (!marker->complete) return UnfinishedBackup(dir);
  const auto format = CAIRN_TRY(ReadFormat(fs, dir));
  const bool served = format && !format->instance.is_zero();  // its removal was cut off
  if (!served) CAIRN_TRY(CheckBackupLengths(fs, dir, *marker));
  return true;
}

// A backup says what it is (BACKUP) before anything else is in it, but its directory is there
// first: a power cut may leave it empty. Its name says what it was to be.
Status CheckNameMayInitialise(const std::string& dir) {
  char resolved[PATH_MAX];
  std::string_view path = realpath(dir.c_str(), resolved) != nullptr ? resolved : dir.c_str();
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with(kPartialBackupSuffix)) return UnfinishedBackup(dir);
  return {};
}

// Whether the directory holds nothing but what an initialisation that was cut off may have left.
Status CheckMayInitialise(FileSystem& fs, const std::string& dir) {
  CAIRN_TRY(CheckNameMayInitialise(dir));
  for (const std::string& name : CAIRN_TRY(fs.List(dir))) {
    if (name == "LOCK" || name == "master.key" || name == "master.key.tmp" ||
        name == "cairn.format.tmp")
      continue;
    if (std::ranges::find(kFolders, name) != std::end(kFolders)) {
      const auto inside = fs.List(dir + "/" + name);
      if (inside && inside->empty()) continue;
      if (inside) {
        return Err(ErrorCode::kInvalidArgument,
                   dir + " has data in " + name +
                       "/ but no cairn.format: restore that file, or choose another directory");
      }
    }
    return Err(ErrorCode::kInvalidArgument,
               dir + " is not empty and not a Cairn data directory (it has " + name +
                   "): choose an empty or absent directory");
  }
  return {};
}

Result<UniqueFd> Lock(const std::string& dir) {
  const std::string path = dir + "/LOCK";
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrErrno(errno, "open " + path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrErrno(errno, "flock " + path);
    char text[32] = {};
    const ssize_t got = pread(fd.get(), text, sizeof text - 1, 0);
    std::string pid(text, got > 0 ? static_cast<size_t>(got) : 0);
    std::erase(pid, '\n');
    return Err(
        ErrorCode::kFailedPrecondition,
        dir + " is served by process " + (pid.empty() ? "unknown" : pid) + ": stop that one first");
  }
  return fd;
}

// For the databases as well, which are opened later: unless they find it free, or in the reserve
// file.
void FreeOpeningRoom(FileSystem& fs, const std::string& dir, const UniqueFd& lock) {
  constexpr uint64_t kEnoughBytes = DataDirectory::kOpeningRoomBytes;
  const auto space = fs.Space(dir);
  struct stat reserve{};
  if (stat((dir + "/reserve").c_str(), &reserve) != 0) reserve.st_size = 0;
  if (!space || space->free_bytes + static_cast<uint64_t>(reserve.st_size) >= kEnoughBytes) return;
  struct stat st{};
  if (fstat(lock.get(), &st) != 0 || ftruncate(lock.get(), st.st_size) != 0 ||
      fsync(lock.get()) != 0) {
    LogWarning("opening_room", {{"dir", dir}, {"errno", errno}});
  }
}

// In place: a full disk has no other block for it, and what lies behind its end stays there.
Status WritePid(const UniqueFd& lock, const std::string& dir) {
  std::string pid = std::to_string(getpid());
  pid.resize(kLockBytes, '\n');
  if (pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrErrno(errno, "write " + dir + "/LOCK");
  }
  return {};
}

}  // namespace

std::string EncodeFormat(const DataDirectoryFormat& format) {
  std::string text(kFirstLine);
  text += "\nversion: " + std::to_string(format.version);
  text += "\nmin_reader: " + std::to_string(format.min_reader);
  text += "\nstore: " + format.store.ToHex();
  text += "\ncompatible: " + std::to_string(format.compatible);
  text += "\nro_compatible: " + std::to_string(format.ro_compatible);
  text += "\nincompatible: " + std::to_string(format.incompatible);
  text += "\nopen_epoch: " + std::to_string(format.open_epoch);
  text += "\nmaster_key_check: " + format.master_key_check;
  if (!format.next_master_key_check.empty()) {
    text += "\nnext_master_key_check: " + format.next_master_key_check;
  }
  if (!format.instance.is_zero()) text += "\ninstance: " + format.instance.ToHex();
  if (!format.home.empty()) text += "\nhome: " + format.home;
  text += "\n";
  text += "checksum: " + Checksum(text) + "\n";
  return text;
}

Result<DataDirectoryFormat> DecodeFormat(std::string_view text) {
  std::map<std::string, std::string, std::less<>> lines;
  std::string_view rest = text;
  std::string_view sum_covers;
  bool first = true;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) return Damaged("no end of line");
    const std::string_view line = rest.substr(0, end);
    if (first) {
      if (line != kFirstLine) return Damaged("wrong first line");
    } else {
      const size_t colon = line.find(": ");
      if (colon == std::string_view::npos) return Damaged("a line without a name");
      const std::string_view name = line.substr(0, colon);
      if (name == "checksum") sum_covers = text.substr(0, text.size() - rest.size());
      if (!lines.emplace(name, line.substr(colon + 2)).second) return Damaged("a line twice");
    }
    first = false;
    rest.remove_prefix(end + 1);
  }
  DataDirectoryFormat format;
  if (!ParseNumber(lines["version"], format.version) ||
      !ParseNumber(lines["min_reader"], format.min_reader)) {
    return Damaged("version");
  }
  if (format.min_reader > kVersion) {
    return Err(ErrorCode::kFailedPrecondition,
               "data directory has format " + std::to_string(format.version) +
                   " and needs a program that reads format " + std::to_string(format.min_reader) +
                   "; this one reads " + std::to_string(kVersion) + ": upgrade it");
  }
  if (sum_covers.empty() || lines["checksum"] != Checksum(sum_covers)) return Damaged("checksum");
  const auto store = Id128::FromHex(lines["store"]);
  format.master_key_check = lines["master_key_check"];
  format.next_master_key_check = lines["next_master_key_check"];
  format.home = lines["home"];
  if (const std::string& text_of = lines["instance"]; !text_of.empty()) {
    const auto instance = Id128::FromHex(text_of);
    if (!instance) return Damaged("a field does not parse");
    format.instance = *instance;
  }
  if (!store || format.master_key_check.size() != 16 ||
      (!format.next_master_key_check.empty() && format.next_master_key_check.size() != 16) ||
      !ParseNumber(lines["compatible"], format.compatible) ||
      !ParseNumber(lines["ro_compatible"], format.ro_compatible) ||
      !ParseNumber(lines["incompatible"], format.incompatible) ||
      !ParseNumber(lines["open_epoch"], format.open_epoch)) {
    return Damaged("a field does not parse");
  }
  format.store = *store;
  if (format.incompatible != 0 || format.ro_compatible != 0) {
    return Err(ErrorCode::kFailedPrecondition,
               "data directory uses features that this program does not know (incompatible " +
                   std::to_string(format.incompatible) + ", read-only compatible " +
                   std::to_string(format.ro_compatible) + "): upgrade it");
  }
  return format;
}

DataDirectory::~DataDirectory() { WipeKey(master_key_); }

void DataDirectory::KeepOpeningRoom() {
  const auto space = fs_.Space(dir_);
  if (!space) return;
  const uint64_t wanted = std::min(kOpeningRoomBytes, space->total_bytes / 32);
  struct stat st{};
  if (fstat(lock_.get(), &st) != 0 || static_cast<uint64_t>(st.st_blocks) * 512 >= wanted) return;
  // When it fails there is none: an opening on a full disk may then be refused, with ENOSPC.
  fallocate(lock_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(wanted));
}

Status DataDirectory::CheckFormat(FileSystem& fs, const std::string& dir) {
  const auto format = CAIRN_TRY(ReadFormat(fs, dir));
  if (!format) return Err(ErrorCode::kNotFound, dir + " has no cairn.format: nothing is there");
  return {};
}

Result<std::unique_ptr<DataDirectory>> DataDirectory::Open(const DataDirectoryOptions& options) {
  FileSystem& fs = options.fs;
  const std::string& dir = options.dir;
  const bool existed = CAIRN_TRY(fs.Exists(dir));
  if (!existed && !options.create) {
    return Err(ErrorCode::kNotFound, "no data directory " + dir);
  }
  if (!existed) CAIRN_TRY(CheckNameMayInitialise(dir));
  if (existed && !CAIRN_TRY(ReadFormat(fs, dir))) {
    CAIRN_TRY(IsBackup(fs, dir));
    CAIRN_TRY(CheckMayInitialise(fs, dir));
    if (!options.create) return Err(ErrorCode::kNotFound, dir + " is not initialised");
  }
  const bool restored = existed && CAIRN_TRY(IsBackup(fs, dir));
  CAIRN_TRY(fs.MakeDir(dir));

  std::unique_ptr<DataDirectory> out(new DataDirectory(fs, dir));
  out->lock_ = CAIRN_TRY(Lock(dir));
  FreeFromReserve(fs, dir, kOpeningBytes);
  FreeOpeningRoom(fs, dir, out->lock_);
  std::optional<DataDirectoryFormat> format = CAIRN_TRY(ReadFormat(fs, dir));
  const bool fresh = !format.has_value();
  const std::string home = CAIRN_TRY(HomeOf(dir, options.machine_id_file));
  if (fresh) {
    CAIRN_TRY(CheckMayInitialise(fs, dir));
  } else if (!format->instance.is_zero()) {
    const bool moved = !SameHome(format->home, home);
    if (!moved || !options.adopt) {
      out->instance_lock_ = CAIRN_TRY(LockInstance(format->instance));
    }
    if (moved && !options.adopt) {
      return Err(ErrorCode::kFailedPrecondition,
                 dir +
                     " was copied or moved since it was served last, or came to another machine. "
                     "Two that are served at once go apart for good: when the other one is never "
                     "served again, or this one is to be on its own, start with --adopt");
    }
    if (moved) format->instance = {};
  }
  if (!fresh && format->instance.is_zero()) format->open_epoch = JumpedEpoch(format->open_epoch);
  const bool own_key = options.master_key_file.empty() && options.master_key_command.empty();
  out->source_ = {.file = own_key ? dir + "/master.key" : options.master_key_file,
                  .command = options.master_key_command};
  if (fresh) {
    for (const std::string_view folder : kFolders) {
      CAIRN_TRY(fs.MakeDir(dir + "/" + std::string(folder)));
    }
    if (own_key && !CAIRN_TRY(fs.Exists(out->source_.file))) {
      Key256 key = RandomKey();
      const Status written = WriteMasterKeyFile(fs, out->source_.file, key);
      WipeKey(key);
      if (!written) return std::unexpected(written.error());
    }
    format =
        DataDirectoryFormat{.version = kVersion, .min_reader = kVersion, .store = Id128::Random()};
  } else {
    CAIRN_TRY(fs.MakeDir(out->KeysDir()));
  }
  out->master_key_ = CAIRN_TRY(ReadMasterKey(out->source_));
  const std::string check = CheckOf(out->master_key_);
  if (fresh) {
    format->master_key_check = check;
  } else if (check != format->master_key_check && check != format->next_master_key_check) {
    return Err(
        ErrorCode::kFailedPrecondition,
        "the master key (" +
            (out->source_.command.empty() ? out->source_.file : std::string("from the command")) +
            ") is of another data directory than " + dir + ", or from before or after a rotation");
  }
  // The index is made after the catalog, packs and volumes even later.
  for (const std::string_view folder : {"index", "packs", "trash", "volumes"}) {
    const std::string path = dir + "/" + std::string(folder);
    if (CAIRN_TRY(fs.Exists(path)) && !CAIRN_TRY(fs.List(path)).empty()) out->holds_data_ = true;
  }
  if (format->instance.is_zero()) {
    format->instance = Id128::Random();
    out->instance_lock_ = CAIRN_TRY(LockInstance(format->instance));
  }
  format->home = home;
  CAIRN_TRY(WritePid(out->lock_, dir));
  ++format->open_epoch;
  {
    MutexLock lock(out->mutex_);
    CAIRN_TRY(out->WriteFormat(*format));
  }
  if (restored) {
    for (const std::string_view name : {kManifestName, kBackupMarkerName}) {
      const Status removed = fs.Unlink(dir + "/" + std::string(name));
      if (!removed && removed.error().code() != ErrorCode::kNotFound) {
        return std::unexpected(removed.error());
      }
    }
    CAIRN_TRY(fs.SyncDir(dir));
    LogInfo("backup_restored", {{"dir", dir}, {"instance", format->instance.ToHex()}});
  }
  if (fresh) {
    const size_t slash = dir.rfind('/');
    CAIRN_TRY(fs.SyncDir(slash == std::string::npos ? "."
                         : slash == 0               ? "/"
                                                    : dir.substr(0, slash)));
    LogInfo("data_directory_created", {{"dir", dir}, {"store", format->store.ToHex()}});
  }
  out->store_ = format->store;
  out->instance_ = format->instance;
  out->open_epoch_ = format->open_epoch;
  return out;
}

Status DataDirectory::WriteFormat(const DataDirectoryFormat& format) {
  CAIRN_TRY(WriteFileAtomically(fs_, dir_ + "/cairn.format", EncodeFormat(format)));
  format_ = format;
  return {};
}

std::string DataDirectory::FormatOfBackup() {
  MutexLock lock(mutex_);
  DataDirectoryFormat format = format_;
  format.instance = {};
  format.home.clear();
  return EncodeFormat(format);
}

Status DataDirectory::SetNextMasterKey(const Key256& next) {
  MutexLock lock(mutex_);
  DataDirectoryFormat format = format_;
  format.next_master_key_check = CheckOf(next);
  return WriteFormat(format);
}

Status DataDirectory::ClearNextMasterKey() {
  MutexLock lock(mutex_);
  DataDirectoryFormat format = format_;
  format.next_master_key_check.clear();
  return WriteFormat(format);
}

Status DataDirectory::SetMasterKey(const Key256& key) {
  MutexLock lock(mutex_);
  DataDirectoryFormat format = format_;
  const std::string check = CheckOf(key);
  CAIRN_CHECK(check == format.master_key_check || check == format.next_master_key_check);
  format.master_key_check = check;
  format.next_master_key_check.clear();
  return WriteFormat(format);
}

bool DataDirectory::has_next_master_key() {
  MutexLock lock(mutex_);
  return !format_.next_master_key_check.empty();
}

bool DataDirectory::IsNextMasterKey(const Key256& key) {
  MutexLock lock(mutex_);
  return CheckOf(key) == format_.next_master_key_check;
}

}  // namespace cairn
