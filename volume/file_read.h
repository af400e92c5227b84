// Reading parts of many files at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/base/error.h"
#include "volume/delta.h"
#include "volume/fs_view.h"

namespace cairn {

// A part of a regular file that is read together with others.
struct FileRead {
  InodeNumber ino = kNoInode;
  uint64_t file_bytes = 0;  // the file's size: [offset, offset + length_bytes) is within it
  uint64_t offset = 0;
  uint64_t length_bytes = 0;
  // Out: where there is data, in file offsets, in order; between them are holes.
  std::vector<FileRange> data;
};

// Reads the parts into `out`, one after another and as long as all of them: with few look-ups,
// neighbours in a pack in one read, and nothing left in the cache. Bytes of holes are left as they
// are. After an error read them one by one: it does not say which it was. Thread-safe as `view` is.
Status ReadTogether(const FsView& view, std::span<FileRead> reads, std::span<char> out);

}  // namespace cairn
