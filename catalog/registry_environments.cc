// Environments: standalone creation, reading, deletion by the owner.
#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/lifetime_rules.h"
#include "catalog/listing_internal.h"
#include "catalog/registry.h"
#include "catalog/registry_internal.h"
#include "catalog/transact.h"

namespace cairn {

using catalog::Environment;

Environment Registry::NewEnvironment(const std::string& org, const EnvironmentSpec& spec) const {
  Environment env;
  env.set_id(NewId(kEnvironmentPrefix));
  env.set_org(org);
  env.set_name(spec.name);
  env.set_state(catalog::ENV_PENDING);
  env.set_lifetime(catalog::LIFETIME_STANDALONE);
  env.set_created_ms(clock_.NowMs());
  env.set_updated_ms(env.created_ms());
  env.set_expires_ms(spec.expires_ms);
  env.set_workspace_uid(spec.workspace_uid);
  env.set_workspace_gid(spec.workspace_gid);
  env.set_quota_bytes(spec.quota_bytes);
  env.set_quota_inodes(spec.quota_inodes);
  env.set_network_policy(spec.network_policy);
  env.set_sealed_setup(spec.sealed_setup);
  return env;
}

Ruled<Created<Environment>> Registry::CreateEnvironment(const std::string& org,
                                                        const EnvironmentSpec& spec,
                                                        const IdempotentRequest& request) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<Created<Environment>> {
    CAIRN_TRY(RequireOrganization(txn, org));
    const int64_t now_ms = clock_.NowMs();
    if (const auto earlier = CAIRN_TRY(idempotency_.Find(txn, org, request, now_ms))) {
      return Created<Environment>{CAIRN_TRY(FindEnvironment(txn, org, *earlier)), true};
    }
    Environment env = NewEnvironment(org, spec);
    CAIRN_TRY(StartFromBase(txn, spec.base, env));
    CAIRN_TRY(PutNewEnvironment(txn, env));
    idempotency_.Remember(txn, org, request, env.id(), now_ms);
    return Created<Environment>{env, false};
  });
}

Result<Environment> Registry::GetEnvironment(const std::string& org, const std::string& env,
                                             bool also_deleted) {
  Environment record = CAIRN_TRY(FindEnvironment(catalog_, org, env));
  if (rules::IsGone(record) && !also_deleted) return NoSuch("environment", env);
  return record;
}

Result<Listing<Environment>> Registry::ListEnvironments(const std::string& org,
                                                        const ListQuery& query) {
  std::string after;
  if (!query.after.empty()) {
    const auto record = FindEnvironment(catalog_, org, query.after);
    if (!record && record.error().code() == ErrorCode::kNotFound) return UnknownCursor();
    after = keys::EnvironmentAt(org, CAIRN_TRY(record).created_ms(), query.after);
  }
  return ListByTime<Environment>(catalog_, keys::Below("env_at", org), query, after,
                                 [&](const std::string& id) { return keys::Environment(org, id); });
}

Result<std::vector<catalog::Binding>> Registry::ListBindings(const std::string& org,
                                                             const std::string& env) {
  CAIRN_TRY(FindEnvironment(catalog_, org, env));
  std::vector<catalog::Binding> all;
  CAIRN_TRY(ScanRecords<catalog::Binding>(catalog_, keys::Below("binding", org, env),
                                          [&](std::string_view, const catalog::Binding& binding) {
                                            all.push_back(binding);
                                            return true;
                                          }));
  return all;
}

Ruled<EnvironmentReceipt> Registry::DeleteEnvironment(const std::string& org,
                                                      const std::string& id) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<EnvironmentReceipt> {
    Environment env = CAIRN_TRY(FindEnvironment(txn, org, id));
    const int64_t now_ms = clock_.NowMs();
    const auto use = CAIRN_TRY(ReadUse(txn, env, epoch_, IsMounted(env), now_ms));
    if (CAIRN_TRY(rules::MayDelete(env, use)) == rules::DeleteStep::kTombstone) {
      CAIRN_TRY(TombstoneEnvironment(txn, env, now_ms));
    }
    return EnvironmentReceipt{
        .environment = env,
        .held_snapshots = {env.held_snapshots().begin(), env.held_snapshots().end()}};
  });
}

Ruled<Environment> Registry::RetryInitialization(const std::string& org, const std::string& id) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<Environment> {
    Environment env = CAIRN_TRY(FindEnvironment(txn, org, id));
    if (rules::IsGone(env)) return NoSuch("environment", id);
    if (env.state() != catalog::ENV_FAILED) {
      return Err(ErrorCode::kFailedPrecondition, "the environment has not failed to initialise");
    }
    env.set_state(catalog::ENV_PENDING);
    env.clear_failure();
    env.set_updated_ms(clock_.NowMs());
    TouchEnvironment(txn, env);
    return env;
  });
}

Result<size_t> Registry::ReleaseInitializations() {
  std::vector<Environment> abandoned;
  CAIRN_TRY(ScanRecords<Environment>(catalog_, keys::Below("env"),
                                     [&](std::string_view, const Environment& env) {
                                       if (env.state() == catalog::ENV_INITIALIZING)
                                         abandoned.push_back(env);
                                       return true;
                                     }));
  for (const Environment& before : abandoned) {
    const auto release = [&](CatalogTransaction& txn) -> Status {
      Environment env = CAIRN_TRY(FindEnvironment(txn, before.org(), before.id()));
      if (env.state() != catalog::ENV_INITIALIZING) return {};
      env.set_state(catalog::ENV_PENDING);
      env.set_updated_ms(clock_.NowMs());
      TouchEnvironment(txn, env);
      return {};
    };
    CAIRN_TRY(catalog_.Run(release));
  }
  return abandoned.size();
}

}  // namespace cairn
