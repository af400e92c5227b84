// A MAC under the key itself: whoever has the key can recompute it, nobody else learns more than
// that two uses had the same key (docs/formats/keys.md, docs/formats/data_directory.md).
#include "store/base/key_check.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string_view>

#include "store/base/check.h"

namespace cairn {

std::string KeyCheck(const Key256& key) {
  static constexpr std::string_view kText = "cairn master key";
  constexpr size_t kCheckBytes = 8;
  uint8_t mac[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CAIRN_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                   reinterpret_cast<const uint8_t*>(kText.data()), kText.size(), mac,
                   &length) != nullptr);
  CAIRN_CHECK(length >= kCheckBytes);
  return {reinterpret_cast<const char*>(mac), kCheckBytes};
}

}  // namespace cairn
