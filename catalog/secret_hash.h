// Hashes of what clients send and we must not keep: HMAC-SHA-256 under the server's secret,
// SHA-256, and their comparison.
#pragma once

#include <string>
#include <string_view>

#include "store/base/aead.h"

namespace cairn {

std::string HmacSha256(const Key256& key, std::string_view message);  // 32 bytes
std::string Sha256(std::string_view message);                         // 32 bytes
// In a time that depends on the lengths alone.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace cairn
