// OpenSSL's SHA-256 (EVP_DigestInit(3)). Ciphertext is not in it, because its tag is: hashing all
// bytes would cost ingest as much again as addresses or encryption do (docs/decisions/
// 0010-what-a-packs-digest-covers.md).
#include "store/pack_digest.h"

#include <openssl/evp.h>

#include "store/base/check.h"

namespace cairn {

PackHasher::PackHasher(const PackHeader& header) : ctx_(EVP_MD_CTX_new()) {
  CAIRN_CHECK(ctx_ != nullptr && EVP_DigestInit_ex(ctx_, EVP_sha256(), nullptr) == 1);
  Update(EncodePackHeader(header));
}

PackHasher::~PackHasher() { EVP_MD_CTX_free(ctx_); }

void PackHasher::Update(std::string_view bytes) {
  CAIRN_CHECK(EVP_DigestUpdate(ctx_, bytes.data(), bytes.size()) == 1);
}

void PackHasher::AddFrame(std::string_view head, std::string_view tag) {
  CAIRN_CHECK(head.size() == kFrameHeaderBytes && tag.size() == kAeadTagBytes);
  Update(head);
  Update(tag);
}

std::string PackHasher::Finish(std::string_view footer) {
  Update(footer);
  std::string digest(32, '\0');
  unsigned int length = 0;
  CAIRN_CHECK(EVP_DigestFinal_ex(ctx_, reinterpret_cast<uint8_t*>(digest.data()), &length) == 1);
  CAIRN_CHECK(length == digest.size());
  return digest;
}

}  // namespace cairn
