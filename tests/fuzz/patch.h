// Little-endian fields of a byte string, read and overwritten where they stand: how the repairs of
// the fuzz targets set lengths and checksums. The caller sees to it that the field is there.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "store/base/check.h"

namespace cairn {

template <typename T>
T Peek(std::string_view bytes, size_t at) {
  CAIRN_CHECK(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename T>
void Patch(std::string& bytes, size_t at, T value) {
  CAIRN_CHECK(at + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

inline uint64_t Xxh3(std::string_view bytes, uint64_t seed = 0) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace cairn
