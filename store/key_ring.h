// KeyRing: the unwrapped keys of the realms that this process may read and write, and authenticated
// encryption with them (SealWithKey and OpenWithKey: store/base/aead.h). Filled by cmd/ from the
// catalog's wrapped keys; a destroyed organization is removed from it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "store/address.h"
#include "store/base/aead.h"
#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"

namespace cairn {

// One realm: the address key never changes; wrapping keys rotate (packs name the key id they were
// wrapped by).
struct RealmKeys {
  Key256 address_key{};
  uint32_t current_key_id = 1;
  std::map<uint32_t, Key256> wrapping_keys;  // key id -> key
};

// Thread-safe. Keys are wiped on removal and destruction.
class KeyRing {
 public:
  KeyRing() = default;
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;
  ~KeyRing();

  void Add(const Id128& realm, const RealmKeys& keys);
  void Remove(const Id128& realm);
  bool Has(const Id128& realm) const;

  // HMAC-SHA-256(address key, kind || plain). NotFound without the realm.
  Result<Address> AddressOf(const Id128& realm, BlockKind kind, std::string_view plain) const;

  struct Wrapped {
    uint32_t key_id = 0;
    std::string bytes;  // 60: nonce 12, key 32, tag 16
  };
  // A data key wrapped by the realm's current key; `aad` binds it to its file.
  Result<Wrapped> Wrap(const Id128& realm, const Key256& data_key, std::string_view aad) const;
  Result<Key256> Unwrap(const Id128& realm, const Wrapped& wrapped, std::string_view aad) const;

  // Small secrets in catalog values (artifact paths, setup): key id u32 || SealWithKey.
  Result<std::string> Seal(const Id128& realm, std::string_view plain, std::string_view aad) const;
  Result<std::string> Open(const Id128& realm, std::string_view sealed, std::string_view aad) const;

 private:
  mutable SharedMutex mutex_;
  std::map<Id128, RealmKeys> realms_ GUARDED_BY(mutex_);
};

}  // namespace cairn
