// Operations over several services. The order is always: the catalog's transaction decides -> what
// follows from it is done at once where it is cheap -> the reaper repeats what failed. So a crash
// between two steps leaves work, never a wrong state.
#include "api/control.h"

#include <fmt/format.h>

#include <ranges>

#include "store/base/log.h"

namespace cairn {
namespace {

void RevokeNow(ApiServices& services, const std::string& org, const std::string& env) {
  if (auto revoked = services.volumes.Revoke(org, env); !revoked) {
    LogWarning("revoke_failed", {{"environment", env}, {"error", revoked.error().ToString()}});
  }
}

}  // namespace

Ruled<std::string> ResolveOrganization(ApiServices& services, const std::string& org) {
  if (!org.empty()) {
    CAIRN_TRY(services.registry.GetOrganization(org));
    return org;
  }
  const auto organizations = CAIRN_TRY(services.registry.ListOrganizations());
  if (organizations.size() == 1) return organizations.front().id();
  if (organizations.empty())
    return Refuse("no_organization",
                  "there is no organization yet: make one with cairn org create NAME");
  constexpr size_t kMostNamed = 10;
  std::string named;
  for (const auto& organization : organizations | std::views::take(kMostNamed)) {
    named +=
        fmt::format("{}{} ({})", named.empty() ? "" : ", ", organization.id(), organization.name());
  }
  return Refuse(
      "organization_ambiguous",
      fmt::format("there are {} organizations: name one with --org or CAIRN_ORG: {}{}",
                  organizations.size(), named, organizations.size() > kMostNamed ? ", ..." : ""));
}

Result<catalog::Organization> CreateOrganization(ApiServices& services, const std::string& name) {
  const OrganizationKeys keys = CAIRN_TRY(services.registry.CreateOrganization(name));
  services.add_keys(keys);
  return services.registry.GetOrganization(keys.org);
}

Ruled<catalog::Organization> DeleteOrganization(ApiServices& services, const std::string& org,
                                                bool force) {
  // A deleted one has no list any more: deleting it again only repeats the answer.
  if (!force && services.registry.GetOrganization(org)) {
    std::vector<std::string> mounted;
    for (const auto& env : CAIRN_TRY(AllEnvironments(services, org))) {
      if (!CAIRN_TRY(services.volumes.MountedAt(org, env.id())).empty())
        mounted.push_back(env.id());
    }
    if (!mounted.empty()) {
      return Refuse(refusals::kEnvironmentMounted,
                    "Environments of the organization are mounted: unmount them first, or delete "
                    "it with --force",
                    std::move(mounted));
    }
  }
  return CAIRN_TRY(services.removal.Delete(org));
}

Ruled<EnvironmentReceipt> DeleteEnvironment(ApiServices& services, const std::string& org,
                                            const std::string& env) {
  EnvironmentReceipt receipt = CAIRN_TRY(services.registry.DeleteEnvironment(org, env));
  if (receipt.environment.state() == catalog::ENV_DELETING) RevokeNow(services, org, env);
  return receipt;
}

Ruled<SessionReceipt> DeleteSession(ApiServices& services, const std::string& org,
                                    const std::string& session) {
  SessionReceipt receipt = CAIRN_TRY(services.registry.DeleteSession(org, session));
  if (receipt.deleted_environment) RevokeNow(services, org, receipt.deleted_environment->id());
  return receipt;
}

Result<std::vector<std::string>> ActiveSessions(ApiServices& services, const std::string& org,
                                                const std::string& env) {
  std::vector<std::string> sessions;
  const auto bindings = CAIRN_TRY(services.registry.ListBindings(org, env));
  for (const auto& binding : bindings) {
    if (binding.active()) sessions.push_back(binding.session());
  }
  return sessions;
}

Result<std::vector<catalog::Environment>> AllEnvironments(ApiServices& services,
                                                          const std::string& org) {
  return ListAll<catalog::Environment>(
      [&](const ListQuery& query) { return services.registry.ListEnvironments(org, query); },
      [](const catalog::Environment& env) { return env.id(); });
}

Result<std::vector<catalog::Session>> AllSessions(ApiServices& services, const std::string& org) {
  return ListAll<catalog::Session>(
      [&](const ListQuery& query) { return services.registry.ListSessions(org, query); },
      [](const catalog::Session& session) { return session.id(); });
}

Result<std::string> SessionOfArtifact(ApiServices& services, const std::string& org,
                                      const std::string& artifact) {
  const auto sessions = CAIRN_TRY(AllSessions(services, org));
  for (const auto& session : sessions) {
    auto found = services.publisher.Get(org, session.id(), artifact);
    if (found) return session.id();
    if (found.error().code() != ErrorCode::kNotFound)
      return std::unexpected(std::move(found).error());
  }
  return std::unexpected(NoSuch("Artifact", artifact).error());
}

}  // namespace cairn
