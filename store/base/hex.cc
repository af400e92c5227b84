// Hexadecimal text of identifiers and addresses, and the identifiers themselves (from
// getrandom(2)).
#include "store/base/hex.h"

#include "store/base/check.h"
#include "store/base/id128.h"
#include "store/base/random.h"

namespace cairn {

std::string HexEncode(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

Result<std::string> HexDecode(std::string_view hex) {
  if (hex.size() % 2 != 0) return Err(ErrorCode::kInvalidArgument, "odd number of hex digits");
  std::string out;
  out.reserve(hex.size() / 2);
  auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]);
    const int low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return Err(ErrorCode::kInvalidArgument, "not a hex digit");
    out.push_back(static_cast<char>(high << 4 | low));
  }
  return out;
}

std::string Id128::ToHex() const { return HexEncode(view()); }

Id128 Id128::FromView(std::string_view sixteen_bytes) {
  CAIRN_CHECK(sixteen_bytes.size() == 16);
  Id128 id;
  std::memcpy(id.bytes.data(), sixteen_bytes.data(), 16);
  return id;
}

Result<Id128> Id128::FromHex(std::string_view hex) {
  const std::string raw = CAIRN_TRY(HexDecode(hex));
  if (raw.size() != 16) return Err(ErrorCode::kInvalidArgument, "an id has 32 hex digits");
  return FromView(raw);
}

Id128 Id128::Random() {
  Id128 id;
  FillRandom(id.bytes.data(), id.bytes.size());
  return id;
}

}  // namespace cairn
