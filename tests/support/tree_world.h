// TreeWorld: a MemBlockStore with one realm and a node cache, for tests of trees and of what lies
// in them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/base/check.h"
#include "store/node_cache.h"
#include "store/tree.h"
#include "tests/support/mem_block_store.h"

namespace cairn {

struct TreeWorld {
  explicit TreeWorld(size_t cache_bytes = 0) : store(keys), cache(cache_bytes) {
    realm.bytes[0] = 1;
    keys.Add(realm, TestRealmKeys(1));
    keys.Add(BaseRealm(), TestRealmKeys(2));
    session = *store.BeginWrite(realm);
  }

  TreeReader Reader(const TreeRoot& root) { return TreeReader(store, cache, realm, root); }
  BlockRef PutData(const std::string& bytes) {
    return *session->Put(BlockKind::kData, bytes, Compression::kFast);
  }

  KeyRing keys;
  MemBlockStore store;
  NodeCache cache;  // of no bytes by default: every node is read from the store
  Id128 realm;
  std::unique_ptr<WriteSession> session;
};

using TreeModel = std::map<std::string, Entry>;

// Every entry of a tree, by cursor. CHECKs that reading works.
inline TreeModel ReadAll(const TreeReader& reader) {
  TreeModel all;
  auto cursor = reader.Seek("");
  CAIRN_CHECK(cursor.has_value());
  while ((*cursor)->valid()) {
    const bool fresh = all.emplace(std::string((*cursor)->key()), (*cursor)->entry()).second;
    CAIRN_CHECK(fresh);
    CAIRN_CHECK((*cursor)->Next().has_value());
  }
  return all;
}

}  // namespace cairn
