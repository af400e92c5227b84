// Life: one life of the storage side over a data directory: what the daemon builds, without kernel
// and sockets.
#pragma once

#include <rocksdb/env.h>

#include <memory>
#include <string>

#include "artifacts/publisher.h"
#include "catalog/key_store.h"
#include "catalog/local_catalog.h"
#include "catalog/registry.h"
#include "gc/check.h"
#include "gc/collector.h"
#include "gc/reaper.h"
#include "snapshot/snapshot_service.h"
#include "snapshot/volume_manager.h"
#include "store/data_directory.h"
#include "store/key_ring.h"
#include "store/local_block_store.h"
#include "store/node_cache.h"
#include "tests/support/service_world.h"

namespace cairn {

// Thread-compatible, its parts are what they are in the daemon. Stop it before it is destroyed.
class Life {
 public:
  // `env` is for the two databases; null: the host's files. Small limits, so that packs fill and
  // journals are sealed within a short history.
  static Result<std::unique_ptr<Life>> Begin(FileSystem& fs, const std::string& dir,
                                             rocksdb::Env* env);
  Status Stop();

  Result<CheckReport> Check();
  Result<ReapReport> Reap();
  // Whatever was frozen has its tree, whatever was published its own: nothing is left to do in the
  // background.
  Status Settle();
  // Files of the data directory that nothing knows, and bytes of known ones that nothing needs.
  Result<std::vector<std::string>> Leaks();

  FileSystem& fs;
  std::unique_ptr<DataDirectory> directory;
  std::unique_ptr<KeyStore> key_store;
  std::unique_ptr<LocalCatalog> catalog;
  std::unique_ptr<Registry> registry;
  KeyRing keys;
  std::unique_ptr<LocalBlockStore> store;
  NodeCache nodes{4 << 20};
  FakeMounts mounts;
  std::unique_ptr<VolumeManager> volumes;
  std::unique_ptr<SnapshotService> snapshots;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<Reaper> reaper;
  std::unique_ptr<Collector> collector;

 private:
  explicit Life(FileSystem& files) : fs(files) {}
};

}  // namespace cairn
