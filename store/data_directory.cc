// Opening: look at cairn.format (a newer or foreign directory is refused before anything is
// written) -> flock LOCK, write the pid -> look again (it may have been initialised or upgraded
// while we waited) -> master key -> open epoch + 1, durable. Initialising: folders, master.key,
// then cairn.format, whose rename makes the directory ours; what a crash leaves before that is
// recognised and completed. The lock is flock(2) on an open file description, so it ends with the
// process however that dies, and a second opening in the same process is refused too. Keys and the
// lock are opened by system calls: the file seam has no modes and locks.
#include "store/data_directory.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
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
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr std::string_view kFirstLine = "cairn data directory";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMaxFormatBytes = 4096;
constexpr std::string_view kFolders[] = {"catalog", "index", "packs", "trash", "volumes"};

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

std::string KeyCheck(const Key256& key) {
  static constexpr std::string_view kText = "cairn master key";
  uint8_t mac[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CAIRN_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                   reinterpret_cast<const uint8_t*>(kText.data()), kText.size(), mac,
                   &length) != nullptr);
  return HexEncode({reinterpret_cast<const char*>(mac), 8});
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

// Whether the directory holds nothing but what an initialisation that was cut off may have left.
Status CheckMayInitialise(FileSystem& fs, const std::string& dir) {
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

Status WritePid(const UniqueFd& lock, const std::string& dir) {
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrErrno(errno, "write " + dir + "/LOCK");
  }
  return {};
}

Result<Key256> ReadMasterKey(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) {
    return Err(ErrorCode::kFailedPrecondition,
               "master key file " + path + " is missing: without it nothing here can be read");
  }
  if (!fd.valid()) return ErrErrno(errno, "open " + path);
  struct stat st{};
  if (fstat(fd.get(), &st) != 0) return ErrErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode) || (st.st_mode & 077) != 0 ||
      (st.st_uid != geteuid() && st.st_uid != 0)) {
    return Err(ErrorCode::kFailedPrecondition,
               "master key file " + path + " must be a file of this user's alone: chmod 600 it");
  }
  char text[66] = {};
  const ssize_t got = pread(fd.get(), text, sizeof text, 0);
  if (got < 0) return ErrErrno(errno, "read " + path);
  const bool shape = got == 64 || (got == 65 && text[64] == '\n');
  auto raw = shape ? HexDecode({text, 64})
                   : Result<std::string>(Err(ErrorCode::kInvalidArgument, "wrong length"));
  OPENSSL_cleanse(text, sizeof text);
  if (!raw) {
    return Err(ErrorCode::kInvalidArgument, "master key file " + path + " is not 64 hex digits");
  }
  Key256 key;
  std::ranges::copy(*raw, key.begin());
  OPENSSL_cleanse(raw->data(), raw->size());
  return key;
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
  text += "\nmaster_key_check: " + format.master_key_check + "\n";
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
  if (!store || format.master_key_check.size() != 16 ||
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

Result<std::unique_ptr<DataDirectory>> DataDirectory::Open(const DataDirectoryOptions& options) {
  FileSystem& fs = options.fs;
  const std::string& dir = options.dir;
  const bool existed = CAIRN_TRY(fs.Exists(dir));
  if (!existed && !options.create) {
    return Err(ErrorCode::kNotFound, "no data directory " + dir);
  }
  if (existed && !CAIRN_TRY(ReadFormat(fs, dir))) {
    CAIRN_TRY(CheckMayInitialise(fs, dir));
    if (!options.create) return Err(ErrorCode::kNotFound, dir + " is not initialised");
  }
  CAIRN_TRY(fs.MakeDir(dir));

  std::unique_ptr<DataDirectory> out(new DataDirectory());
  out->dir_ = dir;
  out->lock_ = CAIRN_TRY(Lock(dir));
  std::optional<DataDirectoryFormat> format = CAIRN_TRY(ReadFormat(fs, dir));
  const bool fresh = !format.has_value();
  const std::string key_path =
      options.master_key_file.empty() ? dir + "/master.key" : options.master_key_file;
  if (fresh) {
    CAIRN_TRY(CheckMayInitialise(fs, dir));
    for (const std::string_view folder : kFolders) {
      CAIRN_TRY(fs.MakeDir(dir + "/" + std::string(folder)));
    }
    if (options.master_key_file.empty() && !CAIRN_TRY(fs.Exists(key_path))) {
      Key256 key = RandomKey();
      const std::string hex =
          HexEncode({reinterpret_cast<const char*>(key.data()), key.size()}) + "\n";
      WipeKey(key);
      CAIRN_TRY(WriteFileAtomically(fs, key_path, hex));
    }
    format = DataDirectoryFormat{.version = kVersion,
                                 .min_reader = kVersion,
                                 .store = Id128::Random(),
                                 .master_key_check = {}};
  }
  out->master_key_ = CAIRN_TRY(ReadMasterKey(key_path));
  if (fresh) {
    format->master_key_check = KeyCheck(out->master_key_);
  } else if (format->master_key_check != KeyCheck(out->master_key_)) {
    return Err(ErrorCode::kFailedPrecondition,
               "master key file " + key_path + " is of another data directory than " + dir);
  }
  // The index is made after the catalog, packs and volumes even later.
  for (const std::string_view folder : {"index", "packs", "trash", "volumes"}) {
    const std::string path = dir + "/" + std::string(folder);
    if (CAIRN_TRY(fs.Exists(path)) && !CAIRN_TRY(fs.List(path)).empty()) out->holds_data_ = true;
  }
  CAIRN_TRY(WritePid(out->lock_, dir));
  ++format->open_epoch;
  CAIRN_TRY(WriteFileAtomically(fs, dir + "/cairn.format", EncodeFormat(*format)));
  if (fresh) {
    const size_t slash = dir.rfind('/');
    CAIRN_TRY(fs.SyncDir(slash == std::string::npos ? "."
                         : slash == 0               ? "/"
                                                    : dir.substr(0, slash)));
    LogInfo("data_directory_created", {{"dir", dir}, {"store", format->store.ToHex()}});
  }
  out->store_ = format->store;
  out->open_epoch_ = format->open_epoch;
  return out;
}

}  // namespace cairn
