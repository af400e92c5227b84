// Opening: secrets once, then one more life of the store. Both in one transaction, so that two
// daemons that race (on a catalog that allows it) get different epochs.
#include "catalog/registry.h"

#include <algorithm>

namespace cairn {

Result<std::unique_ptr<Registry>> Registry::Open(Catalog& catalog, Clock& clock,
                                                 KeyStore& key_store, RegistryHooks hooks) {
  uint64_t epoch = 0;
  Key256 hmac_key{};
  const Status begun = catalog.Run([&](CatalogTransaction& txn) -> Status {
    auto secrets = CAIRN_TRY(GetRecord<catalog::ServerSecrets>(txn, keys::kSecrets));
    auto meta = CAIRN_TRY(GetRecord<catalog::StoreMeta>(txn, keys::kStoreMeta));
    if (!secrets) {
      if (meta)
        return Err(ErrorCode::kDataLoss, "the server's secrets are missing from the catalog");
      const Key256 fresh = RandomKey();
      secrets.emplace().set_hmac_key(std::string(fresh.begin(), fresh.end()));
      PutRecord(txn, keys::kSecrets, *secrets);
    }
    if (secrets->hmac_key().size() != hmac_key.size()) {
      return Err(ErrorCode::kDataLoss, "the server's secret in the catalog has a wrong length");
    }
    std::ranges::copy(secrets->hmac_key(), hmac_key.begin());
    if (!meta) meta.emplace();
    epoch = meta->open_epoch() + 1;
    meta->set_open_epoch(epoch);
    PutRecord(txn, keys::kStoreMeta, *meta);
    return {};
  });
  if (!begun) return std::unexpected(begun.error());
  return std::unique_ptr<Registry>(
      new Registry(catalog, clock, key_store, hmac_key, epoch, std::move(hooks)));
}

Registry::Registry(Catalog& catalog, Clock& clock, KeyStore& key_store, const Key256& hmac_key,
                   uint64_t epoch, RegistryHooks hooks)
    : catalog_(catalog),
      clock_(clock),
      key_store_(key_store),
      hmac_key_(hmac_key),
      idempotency_(hmac_key),
      epoch_(epoch),
      hooks_(std::move(hooks)) {}

Registry::~Registry() { WipeKey(hmac_key_); }

bool Registry::IsMounted(const catalog::Environment& env) const {
  return hooks_.is_mounted && hooks_.is_mounted(env);
}

}  // namespace cairn
