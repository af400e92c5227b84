// The digest of a memory image: SHA-256 over the size and each non-zero chunk's index, page mask
// and address. OpenSSL's EVP calls fail only for want of memory or of the algorithm, neither of
// which the program can go on without.
#include <string>

#include "snapshot/memory_digest_internal.h"
#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CAIRN_CHECK(context_ != nullptr);
  CAIRN_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Add(std::string_view bytes) {
  CAIRN_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Digest256 Sha256::Finish() {
  Digest256 digest;
  CAIRN_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  return digest;
}

MemoryDigest::MemoryDigest(uint64_t memory_bytes) {
  std::string head("cairn memory v1", 16);  // its NUL included
  ByteWriter(head).U64(memory_bytes);
  sha_.Add(head);
}

void MemoryDigest::AddChunk(uint64_t index, uint16_t pages, const Address& address) {
  std::string record;
  ByteWriter w(record);
  w.U64(index);
  w.U16(pages);
  w.Bytes(address.view());
  sha_.Add(record);
}

}  // namespace cairn
