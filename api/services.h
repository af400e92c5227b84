// What both protocols call. cmd/ fills it in; everything outlives the servers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "admin/backup.h"
#include "admin/master_rotation.h"
#include "admin/organization_removal.h"
#include "api/host.pb.h"
#include "artifacts/publisher.h"
#include "catalog/registry.h"
#include "gc/check.h"
#include "gc/collector.h"
#include "gc/reaper.h"
#include "gc/scrub.h"
#include "snapshot/base_images.h"
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
  BaseImages& base_images;
  Publisher& publisher;
  Reaper& reaper;
  Collector& collector;
  Clock& clock;

  // A new organization's keys go into the key ring.
  std::function<void(const OrganizationKeys&)> add_keys;
  OrganizationRemoval& removal;
  // One more version of an organization's key, in use on return; its number.
  std::function<Result<uint32_t>(const std::string& org)> rotate_key;
  MasterRotation& master_rotation;
  std::function<Result<BackupReport>(const BackupOptions&)> backup;
  std::function<Result<CheckReport>(bool rebuild_index)> check;
  std::function<host::StatsInfo()> stats;  // store and process; the catalog's counts are added here
  std::function<std::vector<LiveMount>()> mounts;
  std::function<CheckProgress()> check_progress = {};
  // The program on disk in place of this one, or of the keeper; how the last time ended, and the
  // keeper's pid.
  std::function<Result<host::UpgradeState>(const host::Upgrade& request)> upgrade = {};
  std::function<void(host::Pong& pong)> describe = {};
  std::string data_dir = {};  // no call may name a path in it, or one that it is in
  // `rate_bytes`: of START. STOP returns when the pass is at rest.
  std::function<Result<ScrubReport>(host::ScrubAction action, uint64_t rate_bytes)> scrub = {};
};

}  // namespace cairn
