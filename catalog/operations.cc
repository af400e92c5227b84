// See the header. Invariant: running/ holds exactly the operations with ended_ms = 0.
#include "catalog/operations.h"

#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/transact.h"

namespace cairn {

using catalog::Operation;

namespace {

template <typename Reader>
Result<Operation> FindOperation(Reader& reader, std::string_view org, std::string_view id) {
  if (!IsId(id, kOperationPrefix)) return NoSuch("operation", id);
  auto operation = CAIRN_TRY(GetRecord<Operation>(reader, keys::Operation(org, id)));
  if (!operation) return NoSuch("operation", id);
  return *std::move(operation);
}

Ruled<void> MayOperateOn(CatalogTransaction& txn, std::string_view org, std::string_view env_id,
                         uint64_t server_epoch, int64_t now_ms) {
  const catalog::Environment env = CAIRN_TRY(FindEnvironment(txn, org, env_id));
  if (rules::IsGone(env))
    return Refuse(refusals::kEnvironmentDeleted, "the environment was deleted");
  const rules::EnvironmentUse use = CAIRN_TRY(ReadUse(txn, env, server_epoch, false, now_ms));
  if (!use.running_operations.empty()) {
    return Refuse(refusals::kOperationInProgress, "another operation on the environment is running",
                  use.running_operations);
  }
  TouchEnvironment(txn, env);
  return {};
}

}  // namespace

Ruled<Operation> BeginOperation(Catalog& catalog, std::string_view org, std::string_view kind,
                                std::string_view target, uint64_t server_epoch, int64_t now_ms) {
  Operation operation;
  operation.set_id(NewId(kOperationPrefix));
  operation.set_org(std::string(org));
  operation.set_kind(std::string(kind));
  operation.set_target(std::string(target));
  operation.set_phase("begun");
  operation.set_created_ms(now_ms);
  operation.set_server_epoch(server_epoch);
  return Transact(catalog, [&](CatalogTransaction& txn) -> Ruled<Operation> {
    if (IsId(target, kEnvironmentPrefix)) {
      CAIRN_TRY(MayOperateOn(txn, org, target, server_epoch, now_ms));
    }
    PutRecord(txn, keys::Operation(org, operation.id()), operation);
    catalog::IndexEntry entry;
    entry.set_org(operation.org());
    entry.set_id(operation.id());
    PutRecord(txn, keys::Running(org, target, operation.id()), entry);
    return operation;
  });
}

Status AdvanceOperation(Catalog& catalog, std::string_view org, std::string_view id,
                        std::string_view phase) {
  return catalog.Run([&](CatalogTransaction& txn) -> Status {
    Operation operation = CAIRN_TRY(FindOperation(txn, org, id));
    if (operation.ended_ms() != 0) {
      return Err(ErrorCode::kFailedPrecondition, "operation " + operation.id() + " has ended");
    }
    operation.set_phase(std::string(phase));
    PutRecord(txn, keys::Operation(org, id), operation);
    return {};
  });
}

Ruled<std::optional<std::string>> FindDone(Catalog& catalog, std::string_view org,
                                           const OwnOperation& operation) {
  if (operation.id.empty()) return std::nullopt;
  if (!IsId(operation.id, kOperationPrefix)) {
    return std::unexpected(
        Refusal(ErrorCode::kInvalidArgument, {},
                operation.id + " is no operation's id: op_ and 32 hex digits of your own"));
  }
  const auto found = CAIRN_TRY(GetRecord<Operation>(catalog, keys::Operation(org, operation.id)));
  if (!found) return std::nullopt;
  if (found->kind() != operation.kind || found->target() != operation.target) {
    return Refuse(refusals::kIdempotencyConflict, "that id is of another operation (" +
                                                      found->kind() + " of " + found->target() +
                                                      "): use a new one");
  }
  return found->result();
}

Status RecordDone(CatalogTransaction& txn, std::string_view org, const OwnOperation& operation,
                  std::string_view result, uint64_t server_epoch, int64_t now_ms) {
  if (operation.id.empty()) return {};
  const std::string key = keys::Operation(org, operation.id);
  if (CAIRN_TRY(GetRecord<Operation>(txn, key))) {
    return Err(ErrorCode::kFailedPrecondition, "the same operation runs twice: ask how it ended");
  }
  Operation record;
  record.set_id(operation.id);
  record.set_org(std::string(org));
  record.set_kind(std::string(operation.kind));
  record.set_target(operation.target);
  record.set_phase("done");
  record.set_result(std::string(result));
  record.set_created_ms(now_ms);
  record.set_ended_ms(now_ms);
  record.set_server_epoch(server_epoch);
  PutRecord(txn, key, record);
  return {};
}

Status EndOperation(CatalogTransaction& txn, std::string_view org, std::string_view id,
                    std::string_view result, const Error* error, int64_t now_ms) {
  Operation operation = CAIRN_TRY(FindOperation(txn, org, id));
  if (operation.ended_ms() != 0) return {};
  operation.set_ended_ms(now_ms);
  if (error == nullptr) {
    operation.set_phase("done");
    operation.set_result(std::string(result));
  } else {
    operation.set_phase("failed");
    operation.set_error_code(std::string(ErrorCodeName(error->code())));
    operation.set_error_message(error->message());
  }
  PutRecord(txn, keys::Operation(org, id), operation);
  txn.Delete(keys::Running(org, operation.target(), id));
  return {};
}

Result<Operation> GetOperation(Catalog& catalog, std::string_view org, std::string_view id) {
  return FindOperation(catalog, org, id);
}

Result<std::vector<Operation>> AbandonedOperations(Catalog& catalog, uint64_t server_epoch) {
  const auto txn = catalog.Begin();
  std::vector<catalog::IndexEntry> running;
  CAIRN_TRY(ScanRecords<catalog::IndexEntry>(
      *txn, keys::Below("running"), [&](std::string_view, const catalog::IndexEntry& entry) {
        running.push_back(entry);
        return true;
      }));
  std::vector<Operation> abandoned;
  for (const catalog::IndexEntry& entry : running) {
    Operation operation = CAIRN_TRY(FindOperation(*txn, entry.org(), entry.id()));
    if (operation.server_epoch() != server_epoch) abandoned.push_back(std::move(operation));
  }
  return abandoned;
}

}  // namespace cairn
