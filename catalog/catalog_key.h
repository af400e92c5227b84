// The catalog key's file: a random key, wrapped by the master key (docs/formats/catalog.md).
#pragma once

#include <cstdint>
#include <string>

#include "store/base/aead.h"
#include "store/base/error.h"
#include "store/base/file_system.h"

namespace cairn {

struct CatalogKey {
  Key256 key{};
  uint32_t key_id = 0;
};

// NotFound: no such file. PermissionDenied: another master key (or a changed byte) -
// indistinguishable. DataLoss: not a catalog key file. InvalidArgument: of a newer version.
Result<CatalogKey> ReadCatalogKey(FileSystem& fs, const std::string& path, const Key256& master);

// A fresh key, id 1; durable on return.
Result<CatalogKey> CreateCatalogKey(FileSystem& fs, const std::string& path, const Key256& master);

}  // namespace cairn
