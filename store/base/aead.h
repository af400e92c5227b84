// AES-256-GCM: the one authenticated encryption of everything we store (packs, journals, catalog
// values, wrapped keys). What the formats bind with it (nonces, associated data) is said in
// docs/formats/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

using Key256 = std::array<uint8_t, 32>;
using Nonce96 = std::array<uint8_t, 12>;

inline constexpr size_t kAeadNonceBytes = 12;
inline constexpr size_t kAeadTagBytes = 16;
inline constexpr size_t kSealOverheadBytes = kAeadNonceBytes + kAeadTagBytes;

// All functions are thread-safe. `aad` is authenticated, not stored. Opening gives DataLoss when
// the tag does not match: wrong key, wrong nonce, wrong aad or changed bytes; nothing tells which.

// Random nonce: nonce || ciphertext || tag. For at most 2^32 messages under one key.
std::string SealWithKey(const Key256& key, std::string_view plain, std::string_view aad);
Result<std::string> OpenWithKey(const Key256& key, std::string_view sealed, std::string_view aad);

// Nonce of the caller's, who never uses it twice under one key with different plaintexts: appends
// ciphertext || tag to `out`.
void AppendSealed(const Key256& key, const Nonce96& nonce, std::string_view plain,
                  std::string_view aad, std::string& out);
Result<std::string> OpenSealed(const Key256& key, const Nonce96& nonce, std::string_view sealed,
                               std::string_view aad);

// AppendSealed for several messages under one key: the key is set up once. Thread-compatible; the
// key's schedule is wiped with it.
class AeadSealer {
 public:
  explicit AeadSealer(const Key256& key);
  AeadSealer(const AeadSealer&) = delete;
  AeadSealer& operator=(const AeadSealer&) = delete;
  ~AeadSealer();
  // Writes ciphertext || tag, plain.size() + kAeadTagBytes bytes, to `out`, which does not overlap
  // `plain`.
  void Seal(const Nonce96& nonce, std::string_view plain, std::string_view aad, char* out);

 private:
  void* const context_;  // EVP_CIPHER_CTX
};

Key256 RandomKey();
void WipeKey(Key256& key);  // not optimised away

}  // namespace cairn
