// OrganizationRemoval: deletes an organization, its key first, and ends deletions that a crash or
// an error left in the middle.
#pragma once

#include <functional>
#include <string>

#include "catalog/key_store.h"
#include "catalog/registry.h"
#include "gc/collector.h"
#include "snapshot/volume_manager.h"
#include "store/base/error.h"
#include "store/base/mutex.h"
#include "store/local_block_store.h"

namespace cairn {

// Thread-safe. Everything outlives it. What is left of an organization, in this order:
//
//   key --destroyed in its file--> record a tombstone --> keys in memory --> mounts, volumes,
//   journals --> records --> packs --> key file
//
// Each step is durable before the next and may be repeated; the key file stays, destroyed, until
// all the rest is gone: it is the note that a deletion is not done.
class OrganizationRemoval {
 public:
  struct Deps {
    Registry& registry;
    KeyStore& keys;
    LocalBlockStore& store;
    VolumeManager& volumes;
    Collector& collector;
    // The realm's keys leave the key ring, its blocks the caches.
    std::function<void(const Id128& realm)> forget_keys;
  };
  explicit OrganizationRemoval(Deps deps) : deps_(std::move(deps)) {}

  // The key is destroyed and the record a tombstone on return; mounts are detached by force. What
  // cannot be removed now is logged, and Resume ends it. Repeating it gives the same answer.
  // Errors: NotFound; others: not deleted, or its key is destroyed and Resume ends it.
  Result<catalog::Organization> Delete(const std::string& org);

  // Ends all unfinished deletions, at start and whenever the reaper runs. An error is one of the
  // catalog; a deletion that cannot be ended now is logged.
  Status Resume();

 private:
  Status RemoveRest(const catalog::Organization& org) REQUIRES(mutex_);
  Status RemoveVolumes(const std::string& org) REQUIRES(mutex_);
  Status RemoveRecords(const std::string& org) REQUIRES(mutex_);
  Status RemovePacks(const Id128& realm) REQUIRES(mutex_);

  const Deps deps_;
  Mutex mutex_;  // one removal at a time; held over its I/O
};

}  // namespace cairn
