// PackSet: which pack files there are, their places, and a bounded cache of open readers.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/key_ring.h"
#include "store/pack_reader.h"

namespace cairn {

// Thread-safe. Knows packs/ and trash/ of one data directory; file names are in
// docs/formats/data_directory.md.
class PackSet {
 public:
  PackSet(FileSystem& fs, const KeyRing& keys, std::string dir, size_t open_readers)
      : fs_(fs), keys_(keys), dir_(std::move(dir)), open_readers_(open_readers) {}

  // Creates packs/ and trash/ durably.
  Status Prepare();

  struct PackFile {
    Id128 pack;
    Id128 realm;
    std::string path;
    uint64_t file_bytes = 0;
  };
  // What lies under packs/. Files whose names are not a pack's are logged and left alone.
  Result<std::vector<PackFile>> ListFiles();
  struct TrashFile {
    Id128 pack;
    Id128 realm;
    int64_t deleted_ms = 0;
    std::string path;
    uint64_t file_bytes = 0;
  };
  Result<std::vector<TrashFile>> ListTrash();

  std::string RealmDir(const Id128& realm) const;
  std::string PathOf(const Id128& realm, const Id128& pack) const;
  // Creates the realm's folder durably if it is not there.
  Status EnsureRealmDir(const Id128& realm);

  // The registry. An `open` pack is being written; Settle says it no longer is.
  void AddOpen(const Id128& pack, const Id128& realm);
  void Settle(const PackSummary& summary);
  void AddDamaged(const PackFile& file);
  void Remove(const Id128& pack);

  struct Known {
    PackSummary summary;
    bool open = false;
    bool damaged = false;  // neither header nor its copy is readable
  };
  std::optional<Known> Find(const Id128& pack);
  std::vector<Known> List(std::optional<Id128> realm);

  // An unlocked reader, from the cache if it is there. NotFound: no such pack (any more) or no keys
  // for its realm.
  Result<std::shared_ptr<const PackReader>> Reader(const Id128& pack);
  // Drops cached readers (and with them unwrapped data keys) of a realm.
  void ForgetReaders(const Id128& realm);

  // Renames the file into trash/ (durable), or unlinks it. An absent file is fine.
  Status MoveToTrash(const Id128& realm, const Id128& pack, int64_t now_ms);
  Status Unlink(const Id128& realm, const Id128& pack);

 private:
  struct CachedReader {
    Id128 pack;
    std::shared_ptr<const PackReader> reader;
  };
  void DropReaderLocked(const Id128& pack) REQUIRES(mutex_);

  FileSystem& fs_;
  const KeyRing& keys_;
  const std::string dir_;
  const size_t open_readers_;
  Mutex mutex_;
  std::map<Id128, Known> packs_ GUARDED_BY(mutex_);
  std::list<CachedReader> readers_ GUARDED_BY(mutex_);  // most recently used first
  std::unordered_map<Id128, std::list<CachedReader>::iterator, Id128Hash> reader_map_
      GUARDED_BY(mutex_);
};

// The entries of a pack: from its footer, or by a scan.
struct PackListing {
  bool sealed = false;
  std::vector<PackEntry> entries;
  std::vector<PackScan::Hole> holes;  // of a scan: damage between frames
  uint64_t torn_bytes = 0;
};
Result<PackListing> ListPack(const PackReader& reader);

}  // namespace cairn
