// KeyStore: the wrapped keys of realms and of the catalog, in files of their own that are
// overwritten in place, so that a destroyed key is nowhere on the disk any more
// (docs/formats/keys.md). What is wrapped is what it holds: who may use a realm's keys is the key
// ring's business (store/key_ring.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catalog/key_file.h"
#include "store/base/aead.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"

namespace cairn {

// A realm's keys, unwrapped. Wiped on destruction.
struct RealmSecrets {
  Id128 realm;
  Key256 address_key{};  // never changes
  uint32_t current_key_id = 0;
  std::map<uint32_t, Key256> wrapping_keys;  // every version, by key id

  RealmSecrets() = default;
  RealmSecrets(const RealmSecrets&) = default;
  RealmSecrets& operator=(const RealmSecrets&) = default;
  ~RealmSecrets();
};

struct CatalogKey {
  Key256 key{};
  uint32_t key_id = 0;
};

// Thread-safe. What returned is durable. Errors everywhere: PermissionDenied (the file is wrapped
// by another master key), DataLoss (damaged), FailedPrecondition (the key is destroyed), each
// naming the file; NotFound (no such file); those of the file system.
//
// Master key, as this store sees it:
//
//   one --PrepareMaster--> two (every file opens with either) --AdoptMaster--> one, the new
//   two, of which the other is unknown (opened so: SetOtherMasterPending) --PrepareMaster, or
//   ForgetOtherMasters--> ...
class KeyStore {
 public:
  // `dir` exists. Ends destructions that a crash cut off; changes nothing else. Does not open any
  // key: a wrong master key shows at the first.
  static Result<std::unique_ptr<KeyStore>> Open(FileSystem& fs, std::string dir,
                                                const Key256& master);
  ~KeyStore();
  KeyStore(const KeyStore&) = delete;
  KeyStore& operator=(const KeyStore&) = delete;

  bool HasCatalogKey();
  Result<CatalogKey> ReadCatalogKey();
  // AlreadyExists when there is one.
  Result<CatalogKey> CreateCatalogKey();

  // Fresh keys, version 1. AlreadyExists. FailedPrecondition while another master key is pending
  // that this process does not know.
  Result<RealmSecrets> CreateRealm(const Id128& realm);
  Result<RealmSecrets> ReadRealm(const Id128& realm);
  // One more version of the wrapping key, current from now on; the address key stays.
  // FailedPrecondition while the master key is being rotated; Exhausted after kMaxKeyVersions.
  Result<RealmSecrets> RotateRealm(const Id128& realm);
  // Overwritten in place: on return no wrapped key of the realm is in the file. Once it has begun,
  // a crash does not undo it. Repeatable; an absent file is fine.
  Status DestroyRealm(const Id128& realm);
  // Unlinks the file of a destroyed realm. FailedPrecondition: not destroyed. Repeatable.
  Status RemoveDestroyed(const Id128& realm);

  enum class RealmState { kOpens, kDestroyed, kUnreadable };
  Result<std::vector<std::pair<Id128, RealmState>>> ListRealms();

  // ---- master key ----
  // Wraps everything by `next`, too. Refused when a file does not open with the master key in use.
  Status PrepareMaster(const Key256& next);
  // FailedPrecondition, naming a file that another master key opens and this one does not.
  Status OpensWith(const Key256& master);
  // `next`, which opens everything, is the master key, and what others wrapped is erased.
  Status AdoptMaster(const Key256& next);
  // Nothing is pending: erases what other master keys wrapped, wherever the one in use opens the
  // file.
  Status ForgetOtherMasters();
  // Another master key may become the one in use, and this process does not know it: nothing that
  // only the present one would open is made.
  void SetOtherMasterPending();
  bool other_master_pending();

  // The master key in use, as bytes for a backup that was asked to hold it.
  Key256 CopyMaster();

  // Runs `body` while no key file changes. It gets the names and contents of all of them.
  using Files = std::vector<std::pair<std::string, std::string>>;
  Status WithFilesHeld(const std::function<Status(const Files&)>& body);

 private:
  struct Slots {
    std::optional<KeySlot> slot[2];
    bool blank[2] = {true, true};  // all zeros
    // Which one counts under `master_check`; -1: none.
    int Best(const std::string& master_check) const;
    bool destroyed() const;
    uint64_t generation() const;
  };
  KeyStore(FileSystem& fs, std::string dir, const Key256& master);

  std::string PathOf(const Id128& realm) const { return dir_ + "/" + realm.ToHex() + ".key"; }
  std::string CatalogPath() const { return dir_ + "/catalog.key"; }
  Result<std::vector<std::string>> ListPaths() REQUIRES(mutex_);
  Result<Slots> ReadSlots(const std::string& path) REQUIRES(mutex_);
  Result<KeySlot> ReadBest(const std::string& path, KeySlotKind kind, const Id128& realm)
      REQUIRES(mutex_);
  Status WriteSlot(const std::string& path, int index, const std::string& bytes) REQUIRES(mutex_);
  Status DestroyFile(const std::string& path, const Id128& realm) REQUIRES(mutex_);
  Status CreateFile(const std::string& path, KeySlotKind kind, const RealmSecrets& keys)
      REQUIRES(mutex_);
  Status EraseOthers(const Key256& keep) REQUIRES(mutex_);

  FileSystem& fs_;
  const std::string dir_;
  Mutex mutex_;  // held over the I/O of a few small files
  Key256 master_ GUARDED_BY(mutex_);
  std::optional<Key256> next_master_ GUARDED_BY(mutex_);
  bool other_pending_ GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
