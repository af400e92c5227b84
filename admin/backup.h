// Backup: an online copy of a data directory (docs/formats/backup.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catalog/key_store.h"
#include "catalog/local_catalog.h"
#include "gc/collector.h"
#include "snapshot/volume_manager.h"
#include "store/base/clock.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/data_directory.h"
#include "store/local_block_store.h"
#include "store/manifest/backup_manifest.h"

namespace cairn {

struct BackupOptions {
  std::string destination;  // absolute; made when it is absent. It holds sets, and nothing else
  bool with_master_key = false;  // put the master key into the set, too
};

struct BackupReport {
  std::string path;  // of the new set
  uint64_t files = 0;
  uint64_t bytes = 0;         // of the whole set
  uint64_t packs_copied = 0;  // read and written
  uint64_t packs_linked = 0;  // share the source's bytes: same file system
  uint64_t packs_kept = 0;    // were in the newest set, or in an unfinished one
  uint64_t copied_bytes = 0;  // written to the destination
};

// Thread-safe. What it names outlives it. Readers and writers go on meanwhile; a collection is held
// off, and so are seals, creation and deletion of organizations, and commits of the catalog for the
// moment in which the catalog is copied and the journals are linked.
class Backup {
 public:
  struct Deps {
    FileSystem& fs;
    Clock& clock;
    DataDirectory& directory;
    KeyStore& keys;
    LocalCatalog& catalog;
    LocalBlockStore& store;
    VolumeManager& volumes;
    Collector& collector;
  };
  explicit Backup(Deps deps) : deps_(deps) {}

  // Everything that was durable when it was called is in the set, which is durable and whole on
  // return. Errors: InvalidArgument (the destination), Unavailable (another backup or a collection
  // is running), Exhausted (no space there: what was copied is taken up by the next one), those of
  // files.
  Result<BackupReport> Run(const BackupOptions& options);

  // Removes what an interrupted backup left in the data directory. At start.
  Status RemoveStaging();

 private:
  struct Journal {
    VolumeManager::JournalFile file;
    std::string staged;
  };
  // What was copied or linked at one instant.
  struct Instant {
    KeyStore::Files keys;
    std::string format;
    std::vector<Journal> journals;
    int64_t at_ms = 0;
  };
  // One run: the set that is being made.
  struct Set {
    std::string dir;  // DEST/<name>.partial
    std::map<std::string, ManifestEntry> files;
    std::optional<std::pair<std::string, std::map<std::string, ManifestEntry>>> before;
    BackupReport report;
  };

  std::string StagingDir() const { return deps_.directory.dir() + "/backup.tmp"; }
  Status CheckDestination(const std::string& destination);
  Result<Set> BeginSet(const std::string& destination);
  Result<Instant> TakeInstant();
  Status SealPacksOf(const std::vector<LocalBlockStore::PackFile>& at_instant);
  Status CopyControl(Set& set, const Instant& instant, const BackupOptions& options);
  Status CopyPacks(Set& set);
  Status CopyPack(Set& set, const LocalBlockStore::PackFile& pack);
  Status Finish(Set& set, const Instant& instant, const std::string& destination);
  Status WriteFile(Set& set, const std::string& path, std::string_view contents);
  Status CopyFile(Set& set, const std::string& from, const std::string& path, uint64_t limit_bytes);

  const Deps deps_;
  std::atomic<bool> running_ = false;
};

}  // namespace cairn
