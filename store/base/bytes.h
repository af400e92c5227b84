// Little-endian layouts: a writer that appends and a reader that never reads past its end.
// Byte strings are std::string, views of them std::string_view (what RocksDB and Protocol Buffers
// use).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

// Appends fixed-width little-endian integers and raw bytes to a string. Thread-compatible.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& out) : out_(out) {}
  void U8(uint8_t v) { out_.push_back(static_cast<char>(v)); }
  void U16(uint16_t v) { Raw(&v, sizeof v); }
  void U32(uint32_t v) { Raw(&v, sizeof v); }
  void U64(uint64_t v) { Raw(&v, sizeof v); }
  void I64(int64_t v) { Raw(&v, sizeof v); }
  void Bytes(std::string_view v) { out_.append(v); }
  void Zeros(size_t n) { out_.append(n, '\0'); }
  size_t size() const { return out_.size(); }

 private:
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  void Raw(const void* v, size_t n) { out_.append(static_cast<const char*>(v), n); }
  std::string& out_;
};

// Reads what ByteWriter wrote. A read past the end gives zeros and makes ok() false for good:
// decode a whole structure, then look at ok() once. Does not own the bytes. Thread-compatible.
class ByteReader {
 public:
  explicit ByteReader(std::string_view in) : in_(in) {}
  uint8_t U8() { return Get<uint8_t>(); }
  uint16_t U16() { return Get<uint16_t>(); }
  uint32_t U32() { return Get<uint32_t>(); }
  uint64_t U64() { return Get<uint64_t>(); }
  int64_t I64() { return Get<int64_t>(); }
  std::string_view Bytes(size_t n) {
    if (!ok_ || n > in_.size() - pos_) {
      ok_ = false;
      return {};
    }
    std::string_view v = in_.substr(pos_, n);
    pos_ += n;
    return v;
  }
  size_t remaining() const { return in_.size() - pos_; }
  size_t position() const { return pos_; }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && pos_ == in_.size(); }

 private:
  template <typename T>
  T Get() {
    T v{};
    std::string_view raw = Bytes(sizeof(T));
    if (ok_) std::memcpy(&v, raw.data(), sizeof(T));
    return v;
  }
  std::string_view in_;
  size_t pos_ = 0;
  bool ok_ = true;
};

// Big-endian integers for keys whose byte order must be their numeric order.
inline void AppendBigEndian64(std::string& out, uint64_t v) {
  v = __builtin_bswap64(v);
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
inline uint64_t BigEndian64(std::string_view eight_bytes) {
  uint64_t v = 0;
  std::memcpy(&v, eight_bytes.data(), eight_bytes.size() < 8 ? eight_bytes.size() : 8);
  return __builtin_bswap64(v);
}

}  // namespace cairn
