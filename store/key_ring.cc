// Realm keys in memory. Addresses (HMAC-SHA-256 by OpenSSL, EVP_MAC(3)) and data keys are computed
// under a shared lock (pure computation, no I/O); keys are wiped when a realm is removed, so that a
// destroyed organization's packs are unreadable from that moment. What is wrapped or sealed is
// bound to its place by associated data; the key id in front of a sealed value lets wrapping keys
// rotate.
#include "store/key_ring.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/base/random.h"

namespace cairn {
namespace {

struct FreeMac {
  void operator()(EVP_MAC_CTX* ctx) const { EVP_MAC_CTX_free(ctx); }
};

// One context a thread, set up anew with the key at each call: creating one costs as much as
// hashing a small block.
EVP_MAC_CTX* ThreadMac() {
  thread_local const std::unique_ptr<EVP_MAC_CTX, FreeMac> ctx([] {
    static EVP_MAC* const mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    CAIRN_CHECK(mac != nullptr);
    return EVP_MAC_CTX_new(mac);
  }());
  CAIRN_CHECK(ctx != nullptr);
  return ctx.get();
}

const uint8_t* Data(std::string_view v) { return reinterpret_cast<const uint8_t*>(v.data()); }

std::array<uint8_t, 32> HmacSha256(const Key256& key, std::string_view first,
                                   std::string_view rest) {
  EVP_MAC_CTX* ctx = ThreadMac();
  static char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  CAIRN_CHECK(EVP_MAC_init(ctx, key.data(), key.size(), params) == 1);
  CAIRN_CHECK(EVP_MAC_update(ctx, Data(first), first.size()) == 1);
  CAIRN_CHECK(EVP_MAC_update(ctx, Data(rest), rest.size()) == 1);
  std::array<uint8_t, 32> mac{};
  size_t length = 0;
  CAIRN_CHECK(EVP_MAC_final(ctx, mac.data(), &length, mac.size()) == 1);
  CAIRN_CHECK(length == mac.size());
  return mac;
}

std::string_view View(const Key256& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

void Wipe(RealmKeys& keys) {
  WipeKey(keys.address_key);
  for (auto& [id, key] : keys.wrapping_keys) WipeKey(key);
}

std::unexpected<Error> NoKeys(const Id128& realm) {
  return Err(ErrorCode::kNotFound, "no keys for realm " + realm.ToHex());
}

const Key256* FindKey(const RealmKeys& keys, uint32_t key_id) {
  const auto it = keys.wrapping_keys.find(key_id);
  return it == keys.wrapping_keys.end() ? nullptr : &it->second;
}

std::unexpected<Error> NoKeyId(const Id128& realm, uint32_t key_id) {
  return Err(ErrorCode::kNotFound,
             "no wrapping key " + std::to_string(key_id) + " for realm " + realm.ToHex());
}

}  // namespace

KeyRing::~KeyRing() {
  for (auto& [realm, keys] : realms_) Wipe(keys);
}

void KeyRing::Add(const Id128& realm, const RealmKeys& keys) {
  CAIRN_CHECK(keys.wrapping_keys.contains(keys.current_key_id));
  WriterLock lock(mutex_);
  const auto [it, inserted] = realms_.try_emplace(realm, keys);
  if (!inserted) {
    Wipe(it->second);
    it->second = keys;
  }
}

void KeyRing::Remove(const Id128& realm) {
  WriterLock lock(mutex_);
  const auto it = realms_.find(realm);
  if (it == realms_.end()) return;
  Wipe(it->second);
  realms_.erase(it);
}

bool KeyRing::Has(const Id128& realm) const {
  ReaderLock lock(mutex_);
  return realms_.contains(realm);
}

Result<Address> KeyRing::AddressOf(const Id128& realm, BlockKind kind,
                                   std::string_view plain) const {
  const char kind_byte = static_cast<char>(kind);
  Key256 key;
  {
    ReaderLock lock(mutex_);
    const auto it = realms_.find(realm);
    if (it == realms_.end()) return NoKeys(realm);
    key = it->second.address_key;
  }
  Address address;
  address.bytes = HmacSha256(key, std::string_view(&kind_byte, 1), plain);
  WipeKey(key);
  return address;
}

Result<KeyRing::Wrapped> KeyRing::Wrap(const Id128& realm, const Key256& data_key,
                                       std::string_view aad) const {
  ReaderLock lock(mutex_);
  const auto it = realms_.find(realm);
  if (it == realms_.end()) return NoKeys(realm);
  const uint32_t key_id = it->second.current_key_id;
  return Wrapped{.key_id = key_id,
                 .bytes = SealWithKey(*FindKey(it->second, key_id), View(data_key), aad)};
}

Result<Key256> KeyRing::Unwrap(const Id128& realm, const Wrapped& wrapped,
                               std::string_view aad) const {
  ReaderLock lock(mutex_);
  const auto it = realms_.find(realm);
  if (it == realms_.end()) return NoKeys(realm);
  const Key256* key = FindKey(it->second, wrapped.key_id);
  if (key == nullptr) return NoKeyId(realm, wrapped.key_id);
  std::string plain = CAIRN_TRY(OpenWithKey(*key, wrapped.bytes, aad));
  if (plain.size() != sizeof(Key256)) {
    return Err(ErrorCode::kDataLoss, "wrapped key has a wrong length");
  }
  Key256 data_key;
  std::memcpy(data_key.data(), plain.data(), plain.size());
  std::fill(plain.begin(), plain.end(), '\0');
  return data_key;
}

Result<std::string> KeyRing::Seal(const Id128& realm, std::string_view plain,
                                  std::string_view aad) const {
  ReaderLock lock(mutex_);
  const auto it = realms_.find(realm);
  if (it == realms_.end()) return NoKeys(realm);
  const uint32_t key_id = it->second.current_key_id;
  std::string out;
  ByteWriter(out).U32(key_id);
  out += SealWithKey(*FindKey(it->second, key_id), plain, aad);
  return out;
}

Result<std::string> KeyRing::Open(const Id128& realm, std::string_view sealed,
                                  std::string_view aad) const {
  ByteReader r(sealed);
  const uint32_t key_id = r.U32();
  if (!r.ok()) return Err(ErrorCode::kDataLoss, "sealed value is shorter than its key id");
  ReaderLock lock(mutex_);
  const auto it = realms_.find(realm);
  if (it == realms_.end()) return NoKeys(realm);
  const Key256* key = FindKey(it->second, key_id);
  if (key == nullptr) return NoKeyId(realm, key_id);
  return OpenWithKey(*key, r.Bytes(r.remaining()), aad);
}

}  // namespace cairn
