// ValueCipher: the envelope of every catalog value (docs/formats/catalog.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/aead.h"
#include "store/base/error.h"

namespace cairn {

inline constexpr size_t kMaxCatalogValueBytes = 16u << 20;

// Immutable, thread-safe. Wipes its copy of the key.
class ValueCipher {
 public:
  ValueCipher(const Key256& key, uint32_t key_id) : key_(key), key_id_(key_id) {}
  ~ValueCipher() { WipeKey(key_); }
  ValueCipher(const ValueCipher&) = delete;
  ValueCipher& operator=(const ValueCipher&) = delete;

  // `value` is at most kMaxCatalogValueBytes (CHECKed).
  std::string Seal(std::string_view record_key, std::string_view value) const;
  // DataLoss naming `record_key`: short, unknown version, reserved bits, another key id, or it does
  // not authenticate under this record key.
  Result<std::string> Open(std::string_view record_key, std::string_view sealed) const;

 private:
  Key256 key_;
  uint32_t key_id_;
};

}  // namespace cairn
