// Reading backups: which sets there are, and whether one is whole, by the digest of every file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/manifest/backup_manifest.h"

namespace cairn {

// Feeds a file to SHA-256. Reusable after Finish.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Update(std::string_view bytes);
  std::string Finish();  // 32 bytes

 private:
  void* context_;
};

// SHA-256 and length of a file.
Result<ManifestEntry> DigestFile(FileSystem& fs, const std::string& path);

// What BACKUP of a directory says. NotFound: there is none. DataLoss, FailedPrecondition.
Result<BackupMarker> ReadBackupMarker(FileSystem& fs, const std::string& dir);
// MANIFEST, checked against the marker's digest. DataLoss.
Result<std::vector<ManifestEntry>> ReadManifest(FileSystem& fs, const std::string& dir,
                                                const BackupMarker& marker);
// Every file is there and has its length. DataLoss naming the first that is not.
Status CheckBackupLengths(FileSystem& fs, const std::string& dir, const BackupMarker& marker);

// The newest complete set of `store` in a destination (of any store when it is zero); empty: none.
Result<std::string> NewestBackupSet(FileSystem& fs, const std::string& destination,
                                    const Id128& store);

struct BackupVerification {
  BackupMarker marker;
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t bad_files = 0;
  std::vector<std::string> bad;  // the first hundred: path and what is wrong
};
// Reads every file of a set. FailedPrecondition: not complete. DataLoss: its own two files are
// damaged. Files that the manifest does not name are bad, too.
Result<BackupVerification> VerifyBackup(FileSystem& fs, const std::string& dir);

}  // namespace cairn
