// The record's key is an HMAC of the client's key (keys of the catalog hold nothing that a user
// chose); its body hash covers the operation's name, so that one key cannot answer two kinds of
// requests.
#include "catalog/idempotency.h"

#include "catalog/records.h"
#include "catalog/secret_hash.h"

namespace cairn {
namespace {

std::string BodyHash(const IdempotentRequest& request) {
  std::string message(request.operation);
  message += '\0';
  return Sha256(message + request.body);
}

}  // namespace

std::string IdempotencyKeys::KeyOf(std::string_view org, const IdempotentRequest& request) const {
  return keys::Idempotency(org, HmacSha256(secret_, request.key));
}

Ruled<std::optional<std::string>> IdempotencyKeys::Find(CatalogTransaction& txn,
                                                        std::string_view org,
                                                        const IdempotentRequest& request,
                                                        int64_t now_ms) const {
  if (request.key.empty()) return std::optional<std::string>();
  const auto record = CAIRN_TRY(GetRecord<catalog::IdempotencyKey>(txn, KeyOf(org, request)));
  if (!record || record->created_ms() + kIdempotencyMs <= now_ms)
    return std::optional<std::string>();
  if (record->body_hash() != BodyHash(request)) {
    return Refuse(refusals::kIdempotencyConflict,
                  "this Idempotency-Key was used for a different request: use a new key");
  }
  return std::optional<std::string>(record->result());
}

void IdempotencyKeys::Remember(CatalogTransaction& txn, std::string_view org,
                               const IdempotentRequest& request, std::string_view result,
                               int64_t now_ms) const {
  if (request.key.empty()) return;
  catalog::IdempotencyKey record;
  record.set_body_hash(BodyHash(request));
  record.set_result(std::string(result));
  record.set_created_ms(now_ms);
  PutRecord(txn, KeyOf(org, request), record);
}

}  // namespace cairn
