// The order is in the header. Why records come after volumes and before packs: bytes go before the
// record that names them, and the packs of a tombstone's realm are the collector's too
// (gc/collector.h), so nothing is lost when they cannot be dropped here.
#include "admin/organization_removal.h"

#include <chrono>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr size_t kDeletesPerTransaction = 500;

// Removes every record of [range.begin, range.end), some at a time.
Status RemoveRange(Catalog& catalog, const keys::Range& range) {
  for (;;) {
    std::vector<std::string> found;
    CAIRN_TRY(catalog.Scan(range.begin, range.end, [&](std::string_view key, std::string_view) {
      found.emplace_back(key);
      return found.size() < kDeletesPerTransaction;
    }));
    if (found.empty()) return {};
    CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
      for (const std::string& key : found) txn.Delete(key);
      return {};
    }));
  }
}

}  // namespace

Result<catalog::Organization> OrganizationRemoval::Delete(const std::string& org) {
  MutexLock lock(mutex_);
  catalog::Organization record = CAIRN_TRY(deps_.registry.DeleteOrganization(org));
  if (const Status removed = RemoveRest(record); !removed) {
    LogWarning("organization_removal_unfinished",
               {{"organization", org}, {"error", removed.error().ToString()}});
  }
  return record;
}

Status OrganizationRemoval::Resume() {
  MutexLock lock(mutex_);
  std::set<Id128> of_organizations;
  for (const catalog::Organization& found : CAIRN_TRY(deps_.registry.UnfinishedDeletions())) {
    of_organizations.insert(Id128::FromView(found.realm()));
    LogInfo("organization_removal_resumed", {{"organization", found.id()}});
    const auto record = deps_.registry.DeleteOrganization(found.id());
    const Status removed = record ? RemoveRest(*record) : Status(std::unexpected(record.error()));
    if (!removed) {
      LogWarning("organization_removal_unfinished",
                 {{"organization", found.id()}, {"error", removed.error().ToString()}});
    }
  }
  // A destroyed key of nobody: a creation that failed.
  for (const auto& [realm, state] : CAIRN_TRY(deps_.keys.ListRealms())) {
    if (state != KeyStore::RealmState::kDestroyed || of_organizations.contains(realm)) continue;
    CAIRN_TRY(deps_.keys.RemoveDestroyed(realm));
  }
  return {};
}

Status OrganizationRemoval::RemoveRest(const catalog::Organization& org) {
  const Id128 realm = Id128::FromView(org.realm());
  deps_.forget_keys(realm);
  CAIRN_TRY(RemoveVolumes(org.id()));
  CAIRN_TRY(RemoveRecords(org.id()));
  CAIRN_TRY(RemovePacks(realm));
  CAIRN_TRY(deps_.keys.RemoveDestroyed(realm));
  LogInfo("organization_removed", {{"organization", org.id()}});
  return {};
}

Status OrganizationRemoval::RemoveVolumes(const std::string& org) {
  Catalog& catalog = deps_.registry.catalog();
  std::vector<catalog::Volume> volumes;
  CAIRN_TRY(ScanRecords<catalog::Volume>(catalog, keys::Below("volume"),
                                         [&](std::string_view, const catalog::Volume& volume) {
                                           if (volume.org() == org) volumes.push_back(volume);
                                           return true;
                                         }));
  for (const catalog::Volume& volume : volumes) {
    CAIRN_TRY(deps_.volumes.DropVolume(volume));
    const Id128 id = Id128::FromView(volume.id());
    CAIRN_TRY(RemoveRange(catalog, keys::Below("point", id.ToHex())));
    CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
      txn.Delete(keys::Volume(volume.id()));
      return {};
    }));
  }
  return {};
}

Status OrganizationRemoval::RemoveRecords(const std::string& org) {
  Catalog& catalog = deps_.registry.catalog();
  std::vector<std::string> secrets;  // of API keys that were made while it was being deleted
  CAIRN_TRY(ScanRecords<catalog::ApiKey>(catalog, keys::Below("key", org),
                                         [&](std::string_view, const catalog::ApiKey& key) {
                                           secrets.push_back(keys::Secret(key.secret_hmac()));
                                           return true;
                                         }));
  if (!secrets.empty()) {
    CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
      for (const std::string& secret : secrets) txn.Delete(secret);
      return {};
    }));
  }
  for (const std::string_view first :
       {"env", "env_at", "binding", "fork", "session", "session_at", "turn", "turn_at", "artifact",
        "artifact_at", "snapshot", "snapshot_at", "operation", "running", "idem", "key"}) {
    CAIRN_TRY(RemoveRange(catalog, keys::Below(first, org)));
  }
  return {};
}

Status OrganizationRemoval::RemovePacks(const Id128& realm) {
  const Collector::Held held = CAIRN_TRY(deps_.collector.Hold());
  // Sessions of the realm end by themselves: a seal that was under way fails now.
  constexpr int kTries = 100;
  constexpr auto kPause = std::chrono::milliseconds(50);
  for (int i = 0;; ++i) {
    Result<uint64_t> freed = deps_.store.DropRealm(realm);
    if (freed) return {};
    if (freed.error().code() != ErrorCode::kFailedPrecondition || i == kTries) {
      return std::unexpected(std::move(freed).error());
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace cairn
