// Idempotency keys: within 24 hours the same key and body of one operation give the same object
// again, in its current state; a different body is refused. The record is written in the
// transaction that makes the object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "catalog/catalog.h"
#include "catalog/refusal.h"
#include "store/base/aead.h"

namespace cairn {

inline constexpr int64_t kIdempotencyMs = 24ll * 3600 * 1000;

// What a client sent. `key` empty: none.
struct IdempotentRequest {
  std::string key;
  std::string_view operation;  // "environment.create", ...: a key is not shared by two operations
  std::string body;            // the request's bytes; must outlive nothing (they are hashed)
};

// Immutable, thread-safe.
class IdempotencyKeys {
 public:
  explicit IdempotencyKeys(const Key256& secret) : secret_(secret) {}
  ~IdempotencyKeys() { WipeKey(secret_); }
  IdempotencyKeys(const IdempotencyKeys&) = delete;
  IdempotencyKeys& operator=(const IdempotencyKeys&) = delete;

  // The id of what this request made before; nothing: go on and make it. idempotency_conflict: the
  // key was used with another body or operation.
  Ruled<std::optional<std::string>> Find(CatalogTransaction& txn, std::string_view org,
                                         const IdempotentRequest& request, int64_t now_ms) const;
  void Remember(CatalogTransaction& txn, std::string_view org, const IdempotentRequest& request,
                std::string_view result, int64_t now_ms) const;

 private:
  std::string KeyOf(std::string_view org, const IdempotentRequest& request) const;
  Key256 secret_;
};

}  // namespace cairn
