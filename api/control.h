// Control: operations that join several services, the same for both protocols.
#pragma once

#include <string>
#include <vector>

#include "api/services.h"
#include "catalog/refusal.h"

namespace cairn {

// `org` when it is a live organization; the only one when empty. NotFound; FailedPrecondition
// (there are none, or several).
Ruled<std::string> ResolveOrganization(ApiServices& services, const std::string& org);

// Makes it and its keys usable.
Result<catalog::Organization> CreateOrganization(ApiServices& services, const std::string& name);
// Refused with environment_mounted (blocking: the Environments) while one of its Environments is
// mounted, unless `force`. Then as OrganizationRemoval says. Repeating it gives the same answer.
Ruled<catalog::Organization> DeleteOrganization(ApiServices& services, const std::string& org,
                                                bool force);

// The tombstone, then its volume is revoked; bytes are the reaper's. A failed revocation is logged:
// the reaper repeats it.
Ruled<EnvironmentReceipt> DeleteEnvironment(ApiServices& services, const std::string& org,
                                            const std::string& env);
// With the revocation of an Environment that went with it.
Ruled<SessionReceipt> DeleteSession(ApiServices& services, const std::string& org,
                                    const std::string& session);

// Sessions with an active Binding.
Result<std::vector<std::string>> ActiveSessions(ApiServices& services, const std::string& org,
                                                const std::string& env);

// The Session that an Artifact belongs to. O(Sessions). NotFound.
Result<std::string> SessionOfArtifact(ApiServices& services, const std::string& org,
                                      const std::string& artifact);

// Walks a list of the registry to its end, oldest first. `fetch(query)` is one page, `id_of(item)`
// an item's id.
template <typename T, typename Fetch, typename IdOf>
Result<std::vector<T>> ListAll(Fetch fetch, IdOf id_of) {
  std::vector<T> all;
  ListQuery query{.limit = 1000, .after = {}, .ascending = true};
  while (true) {
    Listing<T> page = CAIRN_TRY(fetch(query));
    for (T& item : page.items) all.push_back(std::move(item));
    if (!page.has_more || page.items.empty()) return all;
    query.after = id_of(all.back());
  }
}
Result<std::vector<catalog::Environment>> AllEnvironments(ApiServices& services,
                                                          const std::string& org);
Result<std::vector<catalog::Session>> AllSessions(ApiServices& services, const std::string& org);

}  // namespace cairn
