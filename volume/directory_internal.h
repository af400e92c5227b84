// Search for names among the dirents of one directory: the rank range of a name's hash.
//
// Invariant: a name is stored at cookie (NameHash << 8 | rank), at most once; ranks are never
// renumbered, so a cookie stays the position of its entry for as long as the entry lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "store/base/error.h"
#include "volume/inode.h"
#include "volume/layer.h"

namespace cairn {

struct FoundDirent {
  uint64_t cookie = 0;
  InodeNumber child = 0;
  uint8_t type = 0;
};

struct DirentSearch {
  std::optional<FoundDirent> found;
  uint64_t free_cookie = 0;  // the lowest free rank of the hash; 0: all 256 are taken
};

// One atomic scan of the hash's ranks.
Result<DirentSearch> SearchDirent(const Layer& layer, uint64_t hash_seed, InodeNumber dir,
                                  std::string_view name);

// The same without free ranks: one point read when the name has rank 0, which nearly all have.
Result<std::optional<FoundDirent>> FindDirent(const Layer& layer, uint64_t hash_seed,
                                              InodeNumber dir, std::string_view name);

Result<bool> DirectoryIsEmpty(const Layer& layer, InodeNumber dir);

// ENAMETOOLONG, EINVAL: empty, ".", "..", or with '/' or NUL.
Status CheckName(std::string_view name);

// DT_* of a mode.
uint8_t DirentType(uint32_t mode);

// One dirent as the key space holds it. DataLoss when it is none.
struct StoredDirent {
  uint64_t cookie = 0;
  Dirent dirent;
};
Result<StoredDirent> DecodeStoredDirent(std::string_view key, const Entry& entry);

}  // namespace cairn
