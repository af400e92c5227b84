// Strings as buffers that are about to be overwritten whole: without the memset of resize().
#pragma once

#include <cstddef>
#include <string>

namespace cairn {

// Resizes to `size_bytes`; the contents are anything. (GCC 12 hands the operation of
// resize_and_overwrite a larger count than was asked for when it rounded the allocation up.)
inline void ResizeUninitialized(std::string& bytes, size_t size_bytes) {
  bytes.resize_and_overwrite(size_bytes, [size_bytes](char*, size_t) { return size_bytes; });
}

}  // namespace cairn
