// See the header. Invariants: snapshot_at/ holds exactly the snapshots without deleted_ms;
// fork/<snapshot>/ exactly the live Environments that were made from it.
#include "catalog/snapshots.h"

#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/lifetime_rules.h"
#include "catalog/transact.h"

namespace cairn {

using catalog::Snapshot;

Status PutNewSnapshot(CatalogTransaction& txn, const Snapshot& snapshot) {
  const auto env = CAIRN_TRY(
      GetRecord<catalog::Environment>(txn, keys::Environment(snapshot.org(), snapshot.env())));
  if (env) {
    if (rules::IsGone(*env)) {
      return Err(ErrorCode::kFailedPrecondition, "environment " + env->id() + " is being deleted");
    }
    TouchEnvironment(txn, *env);
  }
  const std::string key = keys::Snapshot(snapshot.org(), snapshot.id());
  if (CAIRN_TRY(txn.Get(key))) return Err(ErrorCode::kAlreadyExists, "snapshot " + snapshot.id());
  PutRecord(txn, key, snapshot);
  catalog::IndexEntry entry;
  entry.set_org(snapshot.org());
  entry.set_id(snapshot.id());
  PutRecord(txn,
            keys::SnapshotAt(snapshot.org(), snapshot.env(), snapshot.created_ms(), snapshot.id()),
            entry);
  return {};
}

namespace {

// Also a deleted one.
template <typename Reader>
Result<Snapshot> FindSnapshot(Reader& reader, std::string_view org, std::string_view id) {
  if (!IsId(id, kSnapshotPrefix)) return NoSuch("snapshot", id);
  auto snapshot = CAIRN_TRY(GetRecord<Snapshot>(reader, keys::Snapshot(org, id)));
  if (!snapshot) return NoSuch("snapshot", id);
  return *std::move(snapshot);
}

template <typename Reader>
Result<Snapshot> GetLive(Reader& reader, std::string_view org, std::string_view id) {
  Snapshot snapshot = CAIRN_TRY(FindSnapshot(reader, org, id));
  if (snapshot.deleted_ms() != 0) return NoSuch("snapshot", id);
  return snapshot;
}

}  // namespace

Result<Snapshot> GetSnapshot(Catalog& catalog, std::string_view org, std::string_view id) {
  return GetLive(catalog, org, id);
}
Result<Snapshot> GetSnapshot(CatalogTransaction& txn, std::string_view org, std::string_view id) {
  return GetLive(txn, org, id);
}

Result<std::vector<Snapshot>> ListSnapshots(Catalog& catalog, std::string_view org,
                                            std::string_view env) {
  std::vector<Snapshot> found;
  if (env.empty()) {
    CAIRN_TRY(ScanRecords<Snapshot>(catalog, keys::Below("snapshot", org),
                                    [&](std::string_view, const Snapshot& snapshot) {
                                      if (snapshot.deleted_ms() == 0) found.push_back(snapshot);
                                      return true;
                                    }));
    return found;
  }
  const auto txn = catalog.Begin();  // index and records at one instant
  CAIRN_TRY(FindEnvironment(*txn, org, env));
  std::vector<std::string> ids;
  CAIRN_TRY(
      ScanRecords<catalog::IndexEntry>(*txn, keys::Below("snapshot_at", org, env),
                                       [&](std::string_view, const catalog::IndexEntry& entry) {
                                         ids.push_back(entry.id());
                                         return true;
                                       }));
  for (const std::string& id : ids) found.push_back(CAIRN_TRY(GetSnapshot(*txn, org, id)));
  return found;
}

Ruled<void> DeleteSnapshot(Catalog& catalog, std::string_view org, std::string_view id,
                           int64_t now_ms) {
  return Transact(catalog, [&](CatalogTransaction& txn) -> Ruled<void> {
    Snapshot snapshot = CAIRN_TRY(FindSnapshot(txn, org, id));
    if (snapshot.deleted_ms() != 0) return {};
    std::vector<std::string> suspended;
    const auto env =
        CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, snapshot.env())));
    if (env && !rules::IsGone(*env) && env->suspended_snapshot() == id) {
      suspended.push_back(env->id());
    }
    CAIRN_TRY(rules::MayDeleteSnapshot(snapshot, suspended));
    TombstoneSnapshot(txn, snapshot, now_ms);
    return {};
  });
}

Result<Snapshot> PinSnapshot(Catalog& catalog, std::string_view org, std::string_view id,
                             bool pinned) {
  return Transact(catalog, [&](CatalogTransaction& txn) -> Ruled<Snapshot> {
    Snapshot snapshot = CAIRN_TRY(GetSnapshot(txn, org, id));
    snapshot.set_pinned(pinned);
    PutRecord(txn, keys::Snapshot(org, id), snapshot);
    return snapshot;
  });
}

Status PutForkHold(CatalogTransaction& txn, std::string_view org, std::string_view snapshot_id,
                   std::string_view env) {
  const Snapshot snapshot = CAIRN_TRY(GetSnapshot(txn, org, snapshot_id));
  PutRecord(txn, keys::Snapshot(org, snapshot_id), snapshot);
  catalog::IndexEntry entry;
  entry.set_org(std::string(org));
  entry.set_id(std::string(env));
  PutRecord(txn, keys::Fork(org, snapshot_id, env), entry);
  return {};
}

Result<bool> HasFork(CatalogTransaction& txn, std::string_view org, std::string_view snapshot) {
  bool found = false;
  const keys::Range range = keys::Below("fork", org, snapshot);
  CAIRN_TRY(txn.Scan(range.begin, range.end, [&](std::string_view, std::string_view) {
    found = true;
    return false;
  }));
  return found;
}

void TombstoneSnapshot(CatalogTransaction& txn, Snapshot& snapshot, int64_t now_ms) {
  snapshot.set_deleted_ms(now_ms);
  PutRecord(txn, keys::Snapshot(snapshot.org(), snapshot.id()), snapshot);
  txn.Delete(
      keys::SnapshotAt(snapshot.org(), snapshot.env(), snapshot.created_ms(), snapshot.id()));
}

}  // namespace cairn
