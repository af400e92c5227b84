// A LocalCatalog with its key file, in one directory.
#pragma once

#include <memory>
#include <string>

#include "catalog/key_store.h"
#include "catalog/local_catalog.h"

namespace cairn {

// Key files in `root`/keys, the rest as `options` says (the directory is `root`/catalog).
inline Result<std::unique_ptr<LocalCatalog>> OpenCatalogIn(const std::string& root,
                                                           const Key256& master,
                                                           LocalCatalogOptions options) {
  CAIRN_TRY(HostFileSystem().MakeDir(root + "/keys"));
  const auto keys = CAIRN_TRY(KeyStore::Open(HostFileSystem(), root + "/keys", master));
  options.dir = root + "/catalog";
  return LocalCatalog::Open(HostFileSystem(), *keys, options);
}

}  // namespace cairn
