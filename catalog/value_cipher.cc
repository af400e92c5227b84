// Envelope = header (8 bytes) || AES-256-GCM with a random nonce. Header and record key are the
// associated data, so a value is bound to the place where it stands and to the key that sealed it.
#include "catalog/value_cipher.h"

#include <fmt/format.h>

#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kHeaderBytes = 8;

std::string Header(uint32_t key_id) {
  std::string header;
  ByteWriter out(header);
  out.U8(kVersion);
  out.Zeros(3);
  out.U32(key_id);
  return header;
}

}  // namespace

std::string ValueCipher::Seal(std::string_view record_key, std::string_view value) const {
  CAIRN_CHECK(value.size() <= kMaxCatalogValueBytes);
  const std::string header = Header(key_id_);
  return header + SealWithKey(key_, value, header + std::string(record_key));
}

Result<std::string> ValueCipher::Open(std::string_view record_key, std::string_view sealed) const {
  const std::string header = Header(key_id_);
  if (sealed.size() < kHeaderBytes + kSealOverheadBytes ||
      sealed.size() > kHeaderBytes + kSealOverheadBytes + kMaxCatalogValueBytes) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("catalog record {}: impossible length {}", record_key, sealed.size()));
  }
  if (sealed.substr(0, kHeaderBytes) != header) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("catalog record {}: unknown version or key id", record_key));
  }
  auto value = OpenWithKey(key_, sealed.substr(kHeaderBytes), header + std::string(record_key));
  if (!value) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("catalog record {}: {}", record_key, value.error().message()));
  }
  return value;
}

}  // namespace cairn
