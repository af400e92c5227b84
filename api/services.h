// What both protocols call. cmd/ fills it in; everything outlives the servers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/host.pb.h"
#include "artifacts/publisher.h"
#include "catalog/registry.h"
#include "gc/check.h"
#include "gc/collector.h"
#include "gc/reaper.h"
#include "gc/scrub.h"
#include "snapshot/snapshot_service.h"
#include "snapshot/volume_manager.h"
#include "store/base/clock.h"
#include "store/base/id128.h"

namespace cairn {

struct LiveMount {
  Id128 volume;
  std::string dir;
};

// All members are thread-safe.
struct ApiServices {
  Registry& registry;
  VolumeManager& volumes;
  SnapshotService& snapshots;
  Publisher& publisher;
  Reaper& reaper;
  Collector& collector;
  Clock& clock;

  // The realm's keys go into, or leave, the key ring and the caches.
  std::function<void(const OrganizationKeys&)> add_keys;
  std::function<void(const Id128& realm)> remove_keys;
  std::function<Result<CheckReport>(bool rebuild_index)> check;
  std::function<host::StatsInfo()> stats;  // store and process; the catalog's counts are added here
  std::function<std::vector<LiveMount>()> mounts;
  std::function<CheckProgress()> check_progress = {};
  // `rate_bytes`: of START. STOP returns when the pass is at rest.
  std::function<Result<ScrubReport>(host::ScrubAction action, uint64_t rate_bytes)> scrub = {};
};

}  // namespace cairn
