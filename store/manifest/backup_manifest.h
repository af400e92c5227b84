// The two files that make a directory a backup: BACKUP (its state) and MANIFEST (its files), as
// docs/formats/backup.md says. Pure encoding and decoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/id128.h"

namespace cairn {

inline constexpr std::string_view kBackupMarkerName = "BACKUP";
inline constexpr std::string_view kManifestName = "MANIFEST";
// Of the name that a set has while it is made.
inline constexpr std::string_view kPartialBackupSuffix = ".partial";
inline constexpr uint64_t kMaxBackupMarkerBytes = 4096;
inline constexpr uint64_t kMaxManifestBytes = 1ull << 30;

struct BackupMarker {
  bool complete = false;
  Id128 store;
  Id128 source;  // the instance that it is a backup of
  int64_t created_ms = 0;
  uint64_t files = 0;
  uint64_t bytes = 0;
  std::string manifest_sha256 = std::string(32, '\0');
};
std::string EncodeBackupMarker(const BackupMarker& marker);
// FailedPrecondition: of a newer version. DataLoss.
Result<BackupMarker> DecodeBackupMarker(std::string_view text);

struct ManifestEntry {
  std::string path;    // relative to the set
  std::string sha256;  // 32 bytes
  uint64_t size_bytes = 0;
  bool operator==(const ManifestEntry&) const = default;
};
// `entries` ascending by path.
std::string EncodeManifest(const std::vector<ManifestEntry>& entries);
// DataLoss: a malformed line, a path that leaves the set, lines out of order.
Result<std::vector<ManifestEntry>> DecodeManifest(std::string_view text);

}  // namespace cairn
