// Snapshot records: index upkeep, forks' holds, deletion.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/records.h"
#include "catalog/refusal.h"

namespace cairn {

// A new record with its place in its Environment's list. FailedPrecondition: the Environment is
// being deleted. The Environment's record need not be there yet (a fork's is written later in the
// same transaction). AlreadyExists.
Status PutNewSnapshot(CatalogTransaction& txn, const catalog::Snapshot& snapshot);

// NotFound: missing, another organization's, or deleted. From a Catalog or a CatalogTransaction.
Result<catalog::Snapshot> GetSnapshot(Catalog& catalog, std::string_view org, std::string_view id);
Result<catalog::Snapshot> GetSnapshot(CatalogTransaction& txn, std::string_view org,
                                      std::string_view id);

// Live snapshots of an Environment in order of creation; `env` empty: of the whole organization, in
// no order.
Result<std::vector<catalog::Snapshot>> ListSnapshots(Catalog& catalog, std::string_view org,
                                                     std::string_view env);

// Deletion by the owner. Repeating it is fine. snapshot_pinned, snapshot_in_use, NotFound.
Ruled<void> DeleteSnapshot(Catalog& catalog, std::string_view org, std::string_view id,
                           int64_t now_ms);
// Pinned snapshots outlive their Environment and retention. NotFound.
Result<catalog::Snapshot> PinSnapshot(Catalog& catalog, std::string_view org, std::string_view id,
                                      bool pinned);

// A live fork of a snapshot. Writes the snapshot's record too, so that its deletion at the same
// time aborts.
Status PutForkHold(CatalogTransaction& txn, std::string_view org, std::string_view snapshot,
                   std::string_view env);
Result<bool> HasFork(CatalogTransaction& txn, std::string_view org, std::string_view snapshot);

// The tombstone; references to what it holds stay for the reaper to clear. Only what the rules
// allow.
void TombstoneSnapshot(CatalogTransaction& txn, catalog::Snapshot& snapshot, int64_t now_ms);

}  // namespace cairn
