// Organizations and API keys.
//
// Keys of an organization: address key (wrapped by its wrapping key) and wrapping keys (wrapped by
// the master key); each wrapping is bound to the realm and to what it wraps by its associated data.
// Deleting an organization drops the wrapped keys from the record: what was encrypted with them
// cannot be read any more.
//
// An API key's secret is looked up by its HMAC, so the look-up itself tells nothing about near
// misses.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "catalog/ids.h"
#include "catalog/registry.h"
#include "catalog/secret_hash.h"
#include "catalog/transact.h"

namespace cairn {
namespace {

constexpr int64_t kLastUsedStepMs =
    3600 * 1000;  // a write per request would cost a sync per request

std::string AddressKeyAad(std::string_view realm) {
  return "cairn address key " + HexEncode(realm);
}
std::string WrappingKeyAad(std::string_view realm, uint32_t key_id) {
  return fmt::format("cairn wrapping key {} {}", HexEncode(realm), key_id);
}
std::string_view ViewOf(const Key256& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

Result<Key256> Unwrap(const Key256& by, std::string_view wrapped, std::string_view aad) {
  const std::string plain = CAIRN_TRY(OpenWithKey(by, wrapped, aad));
  if (plain.size() != sizeof(Key256))
    return Err(ErrorCode::kDataLoss, "a wrapped key has a wrong length");
  Key256 key;
  std::ranges::copy(plain, key.begin());
  return key;
}

Result<OrganizationKeys> UnwrapAll(const catalog::Organization& record, const Key256& master) {
  if (record.realm().size() != sizeof(Id128)) {
    return Err(ErrorCode::kDataLoss, "organization " + record.id() + " has no realm");
  }
  OrganizationKeys keys;
  keys.org = record.id();
  keys.realm = Id128::FromView(record.realm());
  keys.current_key_id = record.current_key_id();
  for (const catalog::WrappedKey& wrapped : record.wrapping_keys()) {
    auto key = Unwrap(master, wrapped.wrapped(), WrappingKeyAad(record.realm(), wrapped.key_id()));
    if (!key) {
      return Err(ErrorCode::kPermissionDenied,
                 "the keys of organization " + record.id() + " do not open with this master key");
    }
    keys.wrapping_keys[wrapped.key_id()] = *key;
  }
  const auto current = keys.wrapping_keys.find(keys.current_key_id);
  if (current == keys.wrapping_keys.end()) {
    return Err(ErrorCode::kDataLoss, "organization " + record.id() + " lacks its current key");
  }
  keys.address_key = CAIRN_TRY(
      Unwrap(current->second, record.wrapped_address_key(), AddressKeyAad(record.realm())));
  return keys;
}

std::unexpected<Refusal> InvalidKey() {
  return std::unexpected(Refusal(ErrorCode::kPermissionDenied, refusals::kInvalidApiKey,
                                 "the API key is unknown, revoked or expired"));
}

Result<catalog::Organization> FindOrganization(CatalogTransaction& txn, const std::string& org) {
  if (!IsId(org, kOrganizationPrefix)) return NoSuch("organization", org);
  auto record = CAIRN_TRY(GetRecord<catalog::Organization>(txn, keys::Organization(org)));
  if (!record) return NoSuch("organization", org);
  return *std::move(record);
}

}  // namespace

Result<OrganizationKeys> Registry::CreateOrganization(const std::string& name) {
  const Id128 realm = Id128::Random();
  const Key256 address_key = RandomKey();
  const Key256 wrapping_key = RandomKey();
  catalog::Organization record;
  record.set_id(NewId(kOrganizationPrefix));
  record.set_name(name);
  record.set_realm(std::string(realm.view()));
  record.set_wrapped_address_key(
      SealWithKey(wrapping_key, ViewOf(address_key), AddressKeyAad(realm.view())));
  catalog::WrappedKey* wrapped = record.add_wrapping_keys();
  wrapped->set_key_id(1);
  wrapped->set_wrapped(SealWithKey(master_, ViewOf(wrapping_key), WrappingKeyAad(realm.view(), 1)));
  record.set_current_key_id(1);
  record.set_created_ms(clock_.NowMs());
  OrganizationKeys unwrapped =
      CAIRN_TRY(UnwrapAll(record, master_));  // reads back before it is kept
  CAIRN_TRY(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    PutRecord(txn, keys::Organization(record.id()), record);
    return {};
  }));
  return unwrapped;
}

Result<std::vector<OrganizationKeys>> Registry::LoadOrganizations() {
  std::vector<OrganizationKeys> all;
  const std::vector<catalog::Organization> records = CAIRN_TRY(ListOrganizations());
  for (const catalog::Organization& record : records) {
    all.push_back(CAIRN_TRY(UnwrapAll(record, master_)));
  }
  return all;
}

Result<catalog::Organization> Registry::GetOrganization(const std::string& org) {
  const auto txn = catalog_.Begin();
  catalog::Organization record = CAIRN_TRY(FindOrganization(*txn, org));
  if (record.deleted_ms() != 0) return NoSuch("organization", org);
  return record;
}

Result<std::vector<catalog::Organization>> Registry::ListOrganizations() {
  std::vector<catalog::Organization> all;
  CAIRN_TRY(ScanRecords<catalog::Organization>(
      catalog_, keys::Below("org"), [&](std::string_view, const catalog::Organization& org) {
        if (org.deleted_ms() == 0) all.push_back(org);
        return true;
      }));
  std::ranges::sort(all, {}, [](const catalog::Organization& organization) {
    return std::pair(organization.created_ms(), organization.id());
  });
  return all;
}

Result<catalog::Organization> Registry::DeleteOrganization(const std::string& org) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<catalog::Organization> {
    catalog::Organization record = CAIRN_TRY(FindOrganization(txn, org));
    if (record.deleted_ms() != 0) return record;
    record.set_deleted_ms(clock_.NowMs());
    record.clear_wrapped_address_key();
    record.clear_wrapping_keys();
    PutRecord(txn, keys::Organization(org), record);
    std::vector<std::string> secrets;
    CAIRN_TRY(ScanRecords<catalog::ApiKey>(txn, keys::Below("key", org),
                                           [&](std::string_view, const catalog::ApiKey& key) {
                                             secrets.push_back(key.secret_hmac());
                                             return true;
                                           }));
    for (const std::string& hmac : secrets) txn.Delete(keys::Secret(hmac));
    return record;
  });
}

Result<NewApiKey> Registry::CreateApiKey(const std::string& org, const std::string& name,
                                         int64_t expires_ms) {
  NewApiKey made{.record = {}, .secret = NewApiSecret()};
  made.record.set_id(NewId(kApiKeyPrefix));
  made.record.set_org(org);
  made.record.set_name(name);
  made.record.set_secret_hmac(HmacSha256(hmac_key_, made.secret));
  made.record.set_created_ms(clock_.NowMs());
  made.record.set_expires_ms(expires_ms);
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<NewApiKey> {
    const catalog::Organization owner = CAIRN_TRY(FindOrganization(txn, org));
    if (owner.deleted_ms() != 0) return NoSuch("organization", org);
    PutRecord(txn, keys::Organization(org), owner);  // a deletion at the same time aborts
    PutRecord(txn, keys::ApiKey(org, made.record.id()), made.record);
    catalog::IndexEntry entry;
    entry.set_org(org);
    entry.set_id(made.record.id());
    PutRecord(txn, keys::Secret(made.record.secret_hmac()), entry);
    return made;
  });
}

Result<std::vector<catalog::ApiKey>> Registry::ListApiKeys(const std::string& org) {
  CAIRN_TRY(GetOrganization(org));
  std::vector<catalog::ApiKey> all;
  CAIRN_TRY(ScanRecords<catalog::ApiKey>(catalog_, keys::Below("key", org),
                                         [&](std::string_view, const catalog::ApiKey& key) {
                                           all.push_back(key);
                                           return true;
                                         }));
  std::ranges::sort(
      all, {}, [](const catalog::ApiKey& key) { return std::pair(key.created_ms(), key.id()); });
  return all;
}

Result<catalog::ApiKey> Registry::RevokeApiKey(const std::string& org, const std::string& key) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<catalog::ApiKey> {
    if (!IsId(key, kApiKeyPrefix)) return NoSuch("API key", key);
    auto record = CAIRN_TRY(GetRecord<catalog::ApiKey>(txn, keys::ApiKey(org, key)));
    if (!record) return NoSuch("API key", key);
    record->set_revoked(true);
    PutRecord(txn, keys::ApiKey(org, key), *record);
    return *std::move(record);
  });
}

Ruled<catalog::ApiKey> Registry::Authenticate(std::string_view secret) {
  if (!LooksLikeApiSecret(secret)) return InvalidKey();
  const std::string hmac = HmacSha256(hmac_key_, secret);
  const auto entry = CAIRN_TRY(GetRecord<catalog::IndexEntry>(catalog_, keys::Secret(hmac)));
  if (!entry) return InvalidKey();
  const std::string record_key = keys::ApiKey(entry->org(), entry->id());
  auto key = CAIRN_TRY(GetRecord<catalog::ApiKey>(catalog_, record_key));
  const int64_t now_ms = clock_.NowMs();
  if (!key || !EqualInConstantTime(key->secret_hmac(), hmac) || key->revoked() ||
      (key->expires_ms() != 0 && key->expires_ms() <= now_ms)) {
    return InvalidKey();
  }
  if (now_ms - key->last_used_ms() >= kLastUsedStepMs) {
    IgnoreError(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      auto used = CAIRN_TRY(GetRecord<catalog::ApiKey>(txn, record_key));
      if (!used) return {};
      used->set_last_used_ms(now_ms);
      PutRecord(txn, record_key, *used);
      return {};
    }),
                "when a key was last used is not worth refusing a request");
  }
  return *std::move(key);
}

}  // namespace cairn
