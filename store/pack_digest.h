// The SHA-256 that a pack's footer ends with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/file_system.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;  // openssl/types.h

namespace cairn {

// Takes a pack's bytes piece by piece, in order. Thread-compatible.
class PackHasher {
 public:
  PackHasher();
  ~PackHasher();
  PackHasher(const PackHasher&) = delete;
  PackHasher& operator=(const PackHasher&) = delete;
  void Update(std::string_view bytes);
  std::string Finish();  // 32 bytes; once

 private:
  EVP_MD_CTX* const ctx_;
};

// SHA-256 of the first `end` bytes of `file`, then of `rest`: 32 bytes. DataLoss when the file is
// shorter.
Result<std::string> PackDigest(File& file, uint64_t end, std::string_view rest);

}  // namespace cairn
