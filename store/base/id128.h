// 128-bit identifiers: store UUIDs, realms, volumes, packs, connections.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

// Immutable value; all zero means "none".
struct Id128 {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const Id128&) const = default;
  bool is_zero() const { return *this == Id128{}; }

  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), 16}; }
  std::string ToHex() const;  // 32 lower-case digits

  static Id128 FromView(std::string_view sixteen_bytes);  // CHECKs the length
  static Result<Id128> FromHex(std::string_view hex);     // InvalidArgument
  static Id128 Random();                                  // from getrandom(2)
};

struct Id128Hash {
  size_t operator()(const Id128& id) const {
    uint64_t h;
    std::memcpy(&h, id.bytes.data(), sizeof h);
    return h;
  }
};

}  // namespace cairn
