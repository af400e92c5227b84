// Operation records: a long operation leaves its intent before it begins, so that it can be asked
// about, blocks a deletion while it runs, and is found when its daemon died.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/records.h"
#include "catalog/refusal.h"

namespace cairn {

// Durable on return, in phase "begun". When `target` is an Environment: NotFound,
// environment_deleted, or operation_in_progress while another operation of this daemon life runs on
// it.
Ruled<catalog::Operation> BeginOperation(Catalog& catalog, std::string_view org,
                                         std::string_view kind, std::string_view target,
                                         uint64_t server_epoch, int64_t now_ms);

// NotFound: missing or another organization's. FailedPrecondition: it has ended.
Status AdvanceOperation(Catalog& catalog, std::string_view org, std::string_view id,
                        std::string_view phase);

// Ends it in the caller's transaction: with `result` (the id of what it made), or with `error`. One
// that has ended stays as it is.
Status EndOperation(CatalogTransaction& txn, std::string_view org, std::string_view id,
                    std::string_view result, const Error* error, int64_t now_ms);

// ---- what one transaction does: the record comes with it, under the caller's own id ----
// Whoever lost the answer asks by that id whether it was done, or does it again under it.
struct OwnOperation {
  std::string id = {};  // op_ and 32 hex digits; empty: nothing is recorded
  std::string_view kind = {};
  std::string target = {};
};
// The id of what it made, when it has been done. InvalidArgument: no such id; idempotency_conflict:
// an operation of another kind or on another target has it.
Ruled<std::optional<std::string>> FindDone(Catalog& catalog, std::string_view org,
                                           const OwnOperation& operation);
// In the transaction that makes `result`. FailedPrecondition: another one was faster.
Status RecordDone(CatalogTransaction& txn, std::string_view org, const OwnOperation& operation,
                  std::string_view result, uint64_t server_epoch, int64_t now_ms);

Result<catalog::Operation> GetOperation(Catalog& catalog, std::string_view org,
                                        std::string_view id);

// Those that have not ended and are not of the daemon life `server_epoch`: nobody runs them any
// more.
Result<std::vector<catalog::Operation>> AbandonedOperations(Catalog& catalog,
                                                            uint64_t server_epoch);

}  // namespace cairn
