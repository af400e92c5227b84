// SHA-256 as a stream, and the digest of a memory image (docs/formats/memory_image.md).
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "snapshot/memory_image.h"

namespace cairn {

// Thread-compatible.
class Sha256 {
 public:
  Sha256();
  void Add(std::string_view bytes);
  Digest256 Finish();  // once

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

// Chunks in ascending order, non-zero ones only. Thread-compatible.
class MemoryDigest {
 public:
  explicit MemoryDigest(uint64_t memory_bytes);
  void AddChunk(uint64_t index, uint16_t pages, const Address& address);
  Digest256 Finish() { return sha_.Finish(); }

 private:
  Sha256 sha_;
};

}  // namespace cairn
