// API secrets have 256 random bits, so a keyed hash is enough: there is nothing to guess that a
// slow hash (Argon2id) would protect, and authentication happens at every request. The key keeps a
// stolen catalog key alone from testing guesses of weaker inputs (idempotency keys are the client's
// choice).
#include "catalog/secret_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "store/base/check.h"

namespace cairn {

std::string HmacSha256(const Key256& key, std::string_view message) {
  std::string out(SHA256_DIGEST_LENGTH, '\0');
  unsigned int length = 0;
  CAIRN_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                   reinterpret_cast<const uint8_t*>(message.data()), message.size(),
                   reinterpret_cast<uint8_t*>(out.data()), &length) != nullptr);
  return out;
}

std::string Sha256(std::string_view message) {
  std::string out(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(message.data()), message.size(),
         reinterpret_cast<uint8_t*>(out.data()));
  return out;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace cairn
