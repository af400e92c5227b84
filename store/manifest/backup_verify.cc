// Verification: BACKUP (complete, checksum) -> MANIFEST (digest in BACKUP) -> every file it names
// (length, SHA-256) -> no file that it does not name. A set is looked for by its BACKUP file alone;
// names only give the order.
#include "store/manifest/backup_verify.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <set>

#include "store/base/check.h"

namespace cairn {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr size_t kMaxListedBad = 100;

// Relative paths of all files below dir/prefix.
Status ListFiles(FileSystem& fs, const std::string& dir, const std::string& prefix, int depth,
                 std::set<std::string>& found) {
  constexpr int kMaxDepth = 8;
  if (depth > kMaxDepth) return Err(ErrorCode::kDataLoss, dir + "/" + prefix + " is too deep");
  for (const std::string& name : CAIRN_TRY(fs.List(dir + "/" + prefix))) {
    const std::string path = prefix.empty() ? name : prefix + "/" + name;
    const auto below = fs.List(dir + "/" + path);
    if (below) {
      CAIRN_TRY(ListFiles(fs, dir, path, depth + 1, found));
    } else {
      found.insert(path);
    }
  }
  return {};
}

}  // namespace

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  CAIRN_CHECK(context_ != nullptr);
  CAIRN_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1);
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256Stream::Update(std::string_view bytes) {
  CAIRN_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size()) ==
              1);
}

std::string Sha256Stream::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  auto* context = static_cast<EVP_MD_CTX*>(context_);
  CAIRN_CHECK(EVP_DigestFinal_ex(context, digest.data(), &length) == 1);
  CAIRN_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  return {reinterpret_cast<const char*>(digest.data()), length};
}

Result<ManifestEntry> DigestFile(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {.read_only = true}));
  Sha256Stream digest;
  std::string chunk(kChunkBytes, '\0');
  ManifestEntry entry;
  while (true) {
    const size_t got = CAIRN_TRY(file->ReadAt(entry.size_bytes, chunk));
    digest.Update(std::string_view(chunk).substr(0, got));
    entry.size_bytes += got;
    if (got < chunk.size()) break;
  }
  entry.sha256 = digest.Finish();
  return entry;
}

Result<BackupMarker> ReadBackupMarker(FileSystem& fs, const std::string& dir) {
  const std::string path = dir + "/" + std::string(kBackupMarkerName);
  const auto text = ReadWholeFile(fs, path, kMaxBackupMarkerBytes);
  if (!text && text.error().sys_errno() == ENOTDIR) return Err(ErrorCode::kNotFound, path);
  if (!text) return std::unexpected(text.error());
  auto marker = DecodeBackupMarker(*text);
  if (!marker) return std::unexpected(std::move(marker).error().WithContext(dir));
  return marker;
}

Result<std::vector<ManifestEntry>> ReadManifest(FileSystem& fs, const std::string& dir,
                                                const BackupMarker& marker) {
  const std::string path = dir + "/" + std::string(kManifestName);
  const std::string text = CAIRN_TRY(ReadWholeFile(fs, path, kMaxManifestBytes));
  Sha256Stream digest;
  digest.Update(text);
  if (digest.Finish() != marker.manifest_sha256) {
    return Err(ErrorCode::kDataLoss, path + " is not the one that BACKUP names");
  }
  auto entries = DecodeManifest(text);
  if (!entries) return std::unexpected(std::move(entries).error().WithContext(path));
  return entries;
}

Status CheckBackupLengths(FileSystem& fs, const std::string& dir, const BackupMarker& marker) {
  for (const ManifestEntry& entry : CAIRN_TRY(ReadManifest(fs, dir, marker))) {
    const auto file = fs.Open(dir + "/" + entry.path, {.read_only = true});
    if (!file && file.error().code() != ErrorCode::kNotFound) {
      return std::unexpected(file.error());
    }
    if (!file || CAIRN_TRY((*file)->SizeBytes()) != entry.size_bytes) {
      return Err(ErrorCode::kDataLoss, fmt::format("{}/{} is missing or has another length than "
                                                   "when it was backed up: copy the backup again",
                                                   dir, entry.path));
    }
  }
  return {};
}

Result<std::string> NewestBackupSet(FileSystem& fs, const std::string& destination,
                                    const Id128& store) {
  std::vector<std::string> names = CAIRN_TRY(fs.List(destination));
  std::string newest;
  int64_t newest_ms = 0;
  for (const std::string& name : names) {
    const std::string dir = destination + "/" + name;
    const auto marker = ReadBackupMarker(fs, dir);
    if (!marker || !marker->complete) continue;
    if (!store.is_zero() && marker->store != store) continue;
    if (!newest.empty() && marker->created_ms < newest_ms) continue;
    newest = dir;
    newest_ms = marker->created_ms;
  }
  return newest;
}

Result<BackupVerification> VerifyBackup(FileSystem& fs, const std::string& dir) {
  BackupVerification result;
  result.marker = CAIRN_TRY(ReadBackupMarker(fs, dir));
  if (!result.marker.complete) {
    return Err(ErrorCode::kFailedPrecondition,
               dir + " is an unfinished backup: run the backup again");
  }
  const auto bad = [&](const std::string& path, std::string_view what) {
    ++result.bad_files;
    if (result.bad.size() < kMaxListedBad) result.bad.push_back(path + ": " + std::string(what));
  };
  std::set<std::string> there;
  CAIRN_TRY(ListFiles(fs, dir, "", 0, there));
  there.erase(std::string(kBackupMarkerName));
  there.erase(std::string(kManifestName));
  for (const ManifestEntry& entry : CAIRN_TRY(ReadManifest(fs, dir, result.marker))) {
    ++result.files;
    result.bytes += entry.size_bytes;
    if (there.erase(entry.path) == 0) {
      bad(entry.path, "is missing");
      continue;
    }
    const auto digest = DigestFile(fs, dir + "/" + entry.path);
    if (!digest) {
      bad(entry.path, digest.error().ToString());
    } else if (digest->size_bytes != entry.size_bytes) {
      bad(entry.path, fmt::format("has {} bytes, not {}", digest->size_bytes, entry.size_bytes));
    } else if (digest->sha256 != entry.sha256) {
      bad(entry.path, "has another SHA-256");
    }
  }
  for (const std::string& path : there) bad(path, "is not named by MANIFEST");
  return result;
}

}  // namespace cairn
