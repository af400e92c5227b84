// Organizations and API keys.
//
// An organization's keys are in a file of their own (catalog/key_store.h). Creating one: key file,
// then the record; a crash between leaves a key file that nobody uses. Deleting one: the key is
// destroyed in its file, and only then the record becomes a tombstone; a crash between leaves an
// organization without a key, whose deletion the next start takes up (UnfinishedDeletions).
//
// An API key's secret is looked up by its HMAC, so the look-up itself tells nothing about near
// misses.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "catalog/ids.h"
#include "catalog/registry.h"
#include "catalog/secret_hash.h"
#include "catalog/transact.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr int64_t kLastUsedStepMs =
    3600 * 1000;  // a write per request would cost a sync per request

Result<Id128> RealmOf(const catalog::Organization& record) {
  if (record.realm().size() != sizeof(Id128)) {
    return Err(ErrorCode::kDataLoss, "organization " + record.id() + " has no realm");
  }
  return Id128::FromView(record.realm());
}

OrganizationKeys KeysOf(const std::string& org, const RealmSecrets& secrets) {
  OrganizationKeys keys;
  static_cast<RealmSecrets&>(keys) = secrets;
  keys.org = org;
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
  const RealmSecrets secrets = CAIRN_TRY(key_store_.CreateRealm(realm));
  catalog::Organization record;
  record.set_id(NewId(kOrganizationPrefix));
  record.set_name(name);
  record.set_realm(std::string(realm.view()));
  record.set_created_ms(clock_.NowMs());
  const Status committed = catalog_.Run([&](CatalogTransaction& txn) -> Status {
    PutRecord(txn, keys::Organization(record.id()), record);
    return {};
  });
  if (!committed) {
    // Whether it took is not known after some errors: the key stays with its record.
    const auto made = GetRecord<catalog::Organization>(catalog_, keys::Organization(record.id()));
    if (made && !*made && key_store_.DestroyRealm(realm)) {
      IgnoreError(key_store_.RemoveDestroyed(realm), "a destroyed key in a file is of no harm");
    }
    return std::unexpected(committed.error());
  }
  return KeysOf(record.id(), secrets);
}

Result<std::vector<OrganizationKeys>> Registry::LoadOrganizations() {
  std::vector<OrganizationKeys> all;
  const std::vector<catalog::Organization> records = CAIRN_TRY(ListOrganizations());
  for (const catalog::Organization& record : records) {
    const Id128 realm = CAIRN_TRY(RealmOf(record));
    const auto secrets = key_store_.ReadRealm(realm);
    if (secrets) {
      all.push_back(KeysOf(record.id(), *secrets));
    } else {
      LogError("organization_keys_unreadable",
               {{"organization", record.id()}, {"error", secrets.error().ToString()}});
    }
  }
  return all;
}

Result<OrganizationKeys> Registry::RotateOrganizationKey(const std::string& org) {
  const catalog::Organization record = CAIRN_TRY(GetOrganization(org));
  return KeysOf(org, CAIRN_TRY(key_store_.RotateRealm(CAIRN_TRY(RealmOf(record)))));
}

Result<std::vector<catalog::Organization>> Registry::UnfinishedDeletions() {
  std::set<Id128> destroyed;
  for (const auto& [realm, state] : CAIRN_TRY(key_store_.ListRealms())) {
    if (state == KeyStore::RealmState::kDestroyed) destroyed.insert(realm);
  }
  std::vector<catalog::Organization> unfinished;
  if (destroyed.empty()) return unfinished;
  CAIRN_TRY(ScanRecords<catalog::Organization>(
      catalog_, keys::Below("org"), [&](std::string_view, const catalog::Organization& org) {
        const auto realm = RealmOf(org);
        if (realm && destroyed.contains(*realm)) unfinished.push_back(org);
        return true;
      }));
  return unfinished;
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
  {
    const auto txn = catalog_.Begin();
    const catalog::Organization record = CAIRN_TRY(FindOrganization(*txn, org));
    if (record.deleted_ms() == 0) CAIRN_TRY(key_store_.DestroyRealm(CAIRN_TRY(RealmOf(record))));
  }
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<catalog::Organization> {
    catalog::Organization record = CAIRN_TRY(FindOrganization(txn, org));
    if (record.deleted_ms() != 0) return record;
    record.set_deleted_ms(clock_.NowMs());
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
