// The SHA-256 that a pack's footer ends with: docs/formats/pack.md, "Digest".
#pragma once

#include <string>
#include <string_view>

#include "store/pack_format.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;  // openssl/types.h

namespace cairn {

// Thread-compatible. Header, then the frames in file order, then Finish.
class PackHasher {
 public:
  explicit PackHasher(const PackHeader& header);
  ~PackHasher();
  PackHasher(const PackHasher&) = delete;
  PackHasher& operator=(const PackHasher&) = delete;
  // The first kFrameHeaderBytes of the frame, and its tag.
  void AddFrame(std::string_view head, std::string_view tag);
  // `footer`: up to the digest, which is returned (32 bytes). Once.
  std::string Finish(std::string_view footer);

 private:
  void Update(std::string_view bytes);
  EVP_MD_CTX* const ctx_;
};

}  // namespace cairn
