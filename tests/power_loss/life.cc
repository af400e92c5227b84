// The order of cmd/daemon.cc. A life that is not stopped but destroyed has still stopped its
// threads: what it did after the moment that a test is about is not looked at.
#include "tests/power_loss/life.h"

#include <fmt/format.h>

#include <set>

#include "catalog/keys.h"
#include "catalog/operations.h"

namespace cairn {

Result<std::unique_ptr<Life>> Life::Begin(FileSystem& fs, const std::string& dir,
                                          rocksdb::Env* env) {
  std::unique_ptr<Life> life(new Life(fs));
  Clock& clock = SystemClock();
  // What a recorded disk is played back to is a copy.
  life->directory =
      CAIRN_TRY(DataDirectory::Open({.fs = fs, .dir = dir, .create = true, .adopt = true}));
  life->key_store =
      CAIRN_TRY(KeyStore::Open(fs, life->directory->KeysDir(), life->directory->master_key()));
  life->catalog = CAIRN_TRY(LocalCatalog::Open(
      fs, *life->key_store, {.dir = life->directory->CatalogDir(), .create = true, .env = env}));
  life->registry = CAIRN_TRY(Registry::Open(*life->catalog, clock, *life->key_store, {}));
  CAIRN_TRY(life->registry->ReleaseInitializations());
  for (const OrganizationKeys& org : CAIRN_TRY(life->registry->LoadOrganizations())) {
    life->keys.Add(org.realm, {.address_key = org.address_key,
                               .current_key_id = org.current_key_id,
                               .wrapping_keys = org.wrapping_keys});
  }
  life->store = CAIRN_TRY(LocalBlockStore::Open({.fs = fs,
                                                 .dir = dir,
                                                 .keys = life->keys,
                                                 .clock = clock,
                                                 .store = life->directory->store(),
                                                 .epoch = life->directory->open_epoch(),
                                                 .pack_bytes = 256 << 10,
                                                 .cache_bytes = 4 << 20,
                                                 .index_env = env}));
  const VolumeManagerOptions options{.volumes_dir = life->directory->VolumesDir(),
                                     .auto_seal_records = 60,
                                     .epoch = life->directory->open_epoch()};
  life->volumes = std::make_unique<VolumeManager>(options, fs, life->keys, *life->store,
                                                  life->nodes, *life->catalog, clock, life->mounts);
  const uint64_t epoch = life->registry->epoch();
  life->snapshots = std::make_unique<SnapshotService>(*life->catalog, *life->store, life->keys, fs,
                                                      *life->volumes, clock, epoch);
  life->publisher =
      std::make_unique<Publisher>(*life->catalog, *life->store, life->nodes, life->keys,
                                  *life->volumes, clock, PublicationLimits{}, epoch);
  ReaperHooks hooks;
  hooks.revoke_environment = [l = life.get()](const catalog::Environment& environment) {
    return l->volumes->Revoke(environment.org(), environment.id());
  };
  hooks.remove_volume = [l = life.get()](const catalog::Volume& volume) {
    return l->volumes->RemoveVolume(volume);
  };
  hooks.point_is_held = [l = life.get()](const catalog::Point& point) {
    return l->volumes->IsHeld(point);
  };
  life->reaper = std::make_unique<Reaper>(*life->catalog, std::move(hooks), epoch);
  life->collector = std::make_unique<Collector>(*life->catalog, *life->store);
  const Error interrupted(ErrorCode::kAborted, "interrupted");
  for (const auto& operation : CAIRN_TRY(AbandonedOperations(*life->catalog, epoch))) {
    CAIRN_TRY(life->catalog->Run([&](CatalogTransaction& txn) {
      return EndOperation(txn, operation.org(), operation.id(), {}, &interrupted, clock.NowMs());
    }));
  }
  life->volumes->OnSealed([l = life.get()](const catalog::PointRecord& record) {
    IgnoreError(l->publisher->SettleAll(&record.point()), "the next life settles it");
  });
  life->volumes->Start();
  CAIRN_TRY(life->publisher->SettleAll(nullptr));
  return life;
}

Status Life::Stop() {
  volumes->Stop();
  CAIRN_TRY(store->Close());
  return catalog->Close();
}

Result<CheckReport> Life::Check() {
  return CheckStore(*catalog, *store, keys, fs,
                    {.rebuild_index = false, .volumes_dir = directory->VolumesDir()});
}

Result<ReapReport> Life::Reap() {
  const int64_t now_ms = SystemClock().NowMs();
  const ReapPlan plan = CAIRN_TRY(reaper->Plan(now_ms));
  return reaper->Execute(plan, now_ms);
}

Status Life::Settle() {
  std::vector<catalog::Point> unsealed;
  CAIRN_TRY(ScanRecords<catalog::PointRecord>(
      *catalog, keys::Below("point"), [&](std::string_view, const catalog::PointRecord& point) {
        if (point.root().empty()) unsealed.push_back(point.point());
        return true;
      }));
  for (const catalog::Point& point : unsealed) CAIRN_TRY(volumes->WaitSealed(point, 60000));
  return publisher->SettleAll(nullptr);
}

Result<std::vector<std::string>> Life::Leaks() {
  std::vector<std::string> leaks;
  const CheckReport report = CAIRN_TRY(Check());
  if (report.garbage_bytes != 0) {
    leaks.push_back(fmt::format("{} bytes of garbage blocks", report.garbage_bytes));
  }
  const std::string packs = directory->dir() + "/packs";
  std::set<std::string> known;
  for (const Id128& pack : store->ListAllPacks()) known.insert(pack.ToHex() + ".pack");
  for (const std::string& realm : CAIRN_TRY(fs.List(packs))) {
    for (const std::string& file : CAIRN_TRY(fs.List(packs + "/" + realm))) {
      if (!known.contains(file)) leaks.push_back("packs/" + realm + "/" + file);
    }
  }
  for (const std::string& file : CAIRN_TRY(fs.List(directory->dir() + "/trash"))) {
    leaks.push_back("trash/" + file);
  }
  std::map<std::string, catalog::Volume> volumes_known;
  CAIRN_TRY(ScanRecords<catalog::Volume>(
      *catalog, keys::Below("volume"), [&](std::string_view, const catalog::Volume& volume) {
        volumes_known[Id128::FromView(volume.id()).ToHex()] = volume;
        return true;
      }));
  for (const std::string& volume : CAIRN_TRY(fs.List(directory->VolumesDir()))) {
    if (!volumes_known.contains(volume)) leaks.push_back("volumes/" + volume);
  }
  for (const std::string& file : CAIRN_TRY(fs.List(directory->dir()))) {
    if (file.ends_with(".tmp")) leaks.push_back(file);
  }
  return leaks;
}

}  // namespace cairn
