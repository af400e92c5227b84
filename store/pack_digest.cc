// Reads the file in 1 MiB pieces through OpenSSL's SHA-256 (EVP_DigestInit(3)). The writer reads
// back what it wrote instead of hashing on the way: the digest is then of what the file says, and
// appends stay short.
#include "store/pack_digest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

}  // namespace

PackHasher::PackHasher() : ctx_(EVP_MD_CTX_new()) {
  CAIRN_CHECK(ctx_ != nullptr && EVP_DigestInit_ex(ctx_, EVP_sha256(), nullptr) == 1);
}

PackHasher::~PackHasher() { EVP_MD_CTX_free(ctx_); }

void PackHasher::Update(std::string_view bytes) {
  CAIRN_CHECK(EVP_DigestUpdate(ctx_, bytes.data(), bytes.size()) == 1);
}

std::string PackHasher::Finish() {
  std::string digest(32, '\0');
  unsigned int length = 0;
  CAIRN_CHECK(EVP_DigestFinal_ex(ctx_, reinterpret_cast<uint8_t*>(digest.data()), &length) == 1);
  CAIRN_CHECK(length == digest.size());
  return digest;
}

Result<std::string> PackDigest(File& file, uint64_t end, std::string_view rest) {
  PackHasher hasher;
  std::string chunk;
  for (uint64_t at = 0; at < end; at += chunk.size()) {
    chunk.resize(std::min(kChunkBytes, end - at));
    if (CAIRN_TRY(file.ReadAt(at, chunk)) != chunk.size()) {
      return Err(ErrorCode::kDataLoss, "pack " + file.path() + " ends too early");
    }
    hasher.Update(chunk);
  }
  hasher.Update(rest);
  return hasher.Finish();
}

}  // namespace cairn
