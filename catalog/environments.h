// Environment records within a transaction: index upkeep, use, tombstones. What the rules allow is
// decided by catalog/lifetime_rules.h; whole operations are Registry's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "catalog/catalog.h"
#include "catalog/lifetime_rules.h"
#include "catalog/records.h"

namespace cairn {

// Also one that is deleting or deleted. NotFound: missing, or another organization's.
Result<catalog::Environment> FindEnvironment(Catalog& catalog, std::string_view org,
                                             std::string_view id);
Result<catalog::Environment> FindEnvironment(CatalogTransaction& txn, std::string_view org,
                                             std::string_view id);

// A new record with its place in the list. AlreadyExists.
Status PutNewEnvironment(CatalogTransaction& txn, const catalog::Environment& env);

// Writes the record as it is. Whoever adds a Binding, an operation or a snapshot below an
// Environment does this, so that a deletion that looked before aborts (catalog.h: ranges are not
// remembered as read).
void TouchEnvironment(CatalogTransaction& txn, const catalog::Environment& env);

// Bindings and operations of the daemon life `server_epoch` (others are dead). `mounted` is the
// caller's knowledge.
Result<rules::EnvironmentUse> ReadUse(CatalogTransaction& txn, const catalog::Environment& env,
                                      uint64_t server_epoch, bool mounted, int64_t now_ms);

// The tombstone: state deleting, no place in lists, its snapshots deleted but for those that
// outlive it
// (`env.held_snapshots` afterwards), its hold on the snapshot it was forked from released. Only
// what the rules allow.
Status TombstoneEnvironment(CatalogTransaction& txn, catalog::Environment& env, int64_t now_ms);

}  // namespace cairn
