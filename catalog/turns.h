// Turn and Artifact records within a transaction, for Registry and for publication.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "catalog/catalog.h"
#include "catalog/records.h"
#include "catalog/refusal.h"

namespace cairn {

// NotFound: missing or another organization's. From a Catalog or a CatalogTransaction.
Result<catalog::Turn> FindTurn(Catalog& catalog, std::string_view org, std::string_view id);
Result<catalog::Turn> FindTurn(CatalogTransaction& txn, std::string_view org, std::string_view id);

// Writes `turn` as ended and frees its Session for the next one; `turn` is the record as read in
// this transaction, with what the caller adds. turn_already_ended: in another way (in the same way
// it is left as it is). NotFound: its Session was deleted.
Ruled<void> EndTurnRecord(CatalogTransaction& txn, catalog::Turn& turn, catalog::TurnStatus status,
                          std::string_view failure, int64_t now_ms);

// With its place in its Session's list. One that is there already (the same id) is replaced.
void PutNewArtifact(CatalogTransaction& txn, const catalog::Artifact& artifact);

// Tombstone. Repeating it is fine. NotFound: missing, another organization's, or of a deleted
// Session.
Status DeleteArtifactRecord(CatalogTransaction& txn, std::string_view org, std::string_view session,
                            std::string_view id, int64_t now_ms);

}  // namespace cairn
