// See the header. Invariant: env_at/ holds exactly the Environments that are neither deleting nor
// deleted.
#include "catalog/environments.h"

#include "catalog/ids.h"
#include "catalog/snapshots.h"

namespace cairn {

using catalog::Environment;

namespace {

template <typename Reader>
Result<Environment> Find(Reader& reader, std::string_view org, std::string_view id) {
  if (!IsId(id, kEnvironmentPrefix)) return NoSuch("environment", id);
  auto env = CAIRN_TRY(GetRecord<Environment>(reader, keys::Environment(org, id)));
  if (!env) return NoSuch("environment", id);
  return *std::move(env);
}

}  // namespace

Result<Environment> FindEnvironment(Catalog& catalog, std::string_view org, std::string_view id) {
  return Find(catalog, org, id);
}
Result<Environment> FindEnvironment(CatalogTransaction& txn, std::string_view org,
                                    std::string_view id) {
  return Find(txn, org, id);
}

Status PutNewEnvironment(CatalogTransaction& txn, const Environment& env) {
  const std::string key = keys::Environment(env.org(), env.id());
  if (CAIRN_TRY(txn.Get(key))) return Err(ErrorCode::kAlreadyExists, "environment " + env.id());
  PutRecord(txn, key, env);
  catalog::IndexEntry entry;
  entry.set_org(env.org());
  entry.set_id(env.id());
  PutRecord(txn, keys::EnvironmentAt(env.org(), env.created_ms(), env.id()), entry);
  return {};
}

void TouchEnvironment(CatalogTransaction& txn, const Environment& env) {
  PutRecord(txn, keys::Environment(env.org(), env.id()), env);
}

Result<rules::EnvironmentUse> ReadUse(CatalogTransaction& txn, const Environment& env,
                                      uint64_t server_epoch, bool mounted, int64_t now_ms) {
  rules::EnvironmentUse use;
  use.mounted = mounted;
  use.now_ms = now_ms;
  CAIRN_TRY(ScanRecords<catalog::Binding>(txn, keys::Below("binding", env.org(), env.id()),
                                          [&](std::string_view, const catalog::Binding& binding) {
                                            if (binding.active()) {
                                              use.active_sessions.push_back(binding.session());
                                            }
                                            return true;
                                          }));
  std::vector<std::string> operations;
  CAIRN_TRY(
      ScanRecords<catalog::IndexEntry>(txn, keys::Below("running", env.org(), env.id()),
                                       [&](std::string_view, const catalog::IndexEntry& entry) {
                                         operations.push_back(entry.id());
                                         return true;
                                       }));
  for (const std::string& id : operations) {
    const auto operation =
        CAIRN_TRY(GetRecord<catalog::Operation>(txn, keys::Operation(env.org(), id)));
    if (operation && operation->server_epoch() == server_epoch)
      use.running_operations.push_back(id);
  }
  if (!env.creator_session().empty()) {
    const auto creator = CAIRN_TRY(
        GetRecord<catalog::Session>(txn, keys::Session(env.org(), env.creator_session())));
    use.creator_deleted = !creator || creator->deleted_ms() != 0;
  }
  return use;
}

Status TombstoneEnvironment(CatalogTransaction& txn, Environment& env, int64_t now_ms) {
  std::vector<std::string> snapshots;
  CAIRN_TRY(
      ScanRecords<catalog::IndexEntry>(txn, keys::Below("snapshot_at", env.org(), env.id()),
                                       [&](std::string_view, const catalog::IndexEntry& entry) {
                                         snapshots.push_back(entry.id());
                                         return true;
                                       }));
  env.clear_held_snapshots();
  for (const std::string& id : snapshots) {
    auto snapshot = CAIRN_TRY(GetRecord<catalog::Snapshot>(txn, keys::Snapshot(env.org(), id)));
    if (!snapshot)
      return Err(ErrorCode::kDataLoss, "snapshot " + id + " is listed but has no record");
    const bool has_fork = CAIRN_TRY(HasFork(txn, env.org(), id));
    if (rules::OutlivesEnvironment(*snapshot, has_fork)) {
      env.add_held_snapshots(id);
    } else {
      TombstoneSnapshot(txn, *snapshot, now_ms);
    }
  }
  if (!env.forked_from_snapshot().empty()) {
    txn.Delete(keys::Fork(env.org(), env.forked_from_snapshot(), env.id()));
  }
  env.set_state(catalog::ENV_DELETING);
  env.set_deleted_ms(now_ms);
  env.set_updated_ms(now_ms);
  txn.Delete(keys::EnvironmentAt(env.org(), env.created_ms(), env.id()));
  PutRecord(txn, keys::Environment(env.org(), env.id()), env);
  return {};
}

}  // namespace cairn
