// Ids and secrets from getrandom(2), and the syntax check that keeps foreign text out of catalog
// keys.
#include "catalog/ids.h"

#include <algorithm>
#include <cstdint>

#include "store/base/hex.h"
#include "store/base/random.h"

namespace cairn {
namespace {

constexpr std::string_view kSecretPrefix = "cairn_sk_";
constexpr size_t kSecretChars = 43;
constexpr std::string_view kBase64Url =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

std::string NewId(std::string_view prefix) {
  return std::string(prefix) + HexEncode(RandomBytes(16));
}

bool IsId(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return text.size() == 32 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string NewApiSecret() {
  const std::string bytes = RandomBytes(32);
  std::string secret(kSecretPrefix);
  uint32_t bits = 0;
  int count = 0;
  for (const char byte : bytes) {
    bits = bits << 8 | static_cast<uint8_t>(byte);
    for (count += 8; count >= 6; count -= 6) secret += kBase64Url[bits >> (count - 6) & 63];
  }
  secret += kBase64Url[bits << (6 - count) & 63];  // 256 = 42 * 6 + 4
  return secret;
}

bool LooksLikeApiSecret(std::string_view text) {
  return text.size() == kSecretPrefix.size() + kSecretChars && text.starts_with(kSecretPrefix) &&
         text.find_first_not_of(kBase64Url, kSecretPrefix.size()) == std::string_view::npos;
}

}  // namespace cairn
