// Registry: the control operations on organizations, keys, Environments, base images, Sessions and
// turns. Each
// is one catalog transaction that asks the lifetime rules and writes records; it touches no block,
// no volume and no mount (whoever deletes an Environment lets the reaper remove the rest).
//
// Everything but base images is scoped by organization: an id of another one answers exactly as a
// missing one. All changes are durable on return. Errors besides those named: Unavailable,
// Exhausted, DataLoss of the catalog, and Aborted when 20 attempts met others' changes (retry the
// call).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/idempotency.h"
#include "catalog/key_store.h"
#include "catalog/records.h"
#include "catalog/refusal.h"
#include "store/base/aead.h"
#include "store/base/clock.h"
#include "store/base/id128.h"

namespace cairn {

// A create's answer. `replayed`: an earlier request with the same Idempotency-Key made it; this is
// its state now, also when it has been deleted since.
template <typename T>
struct Created {
  T record;
  bool replayed = false;
};

// A page of a list in order of creation. InvalidArgument: nothing with the id `after` is known.
struct ListQuery {
  size_t limit = 20;       // at least 1
  std::string after = {};  // an id; empty: from the start
  bool ascending = false;  // oldest first
};
template <typename T>
struct Listing {
  std::vector<T> items;
  bool has_more = false;
};

// An organization's keys, unwrapped: what the key ring wants.
struct OrganizationKeys : RealmSecrets {
  std::string org;
};

struct NewApiKey {
  catalog::ApiKey record;
  std::string secret;  // "cairn_sk_...": shown once, not stored
};

struct EnvironmentSpec {
  std::string name = {};
  uint32_t workspace_uid = 0;
  uint32_t workspace_gid = 0;
  uint64_t quota_bytes = 0;  // 0: none
  uint64_t quota_inodes = 0;
  int64_t expires_ms = 0;  // 0: never
  std::string base = {};   // name of a base image; empty: from nothing
  std::string network_policy = {};
  std::string sealed_setup = {};  // encrypted by the caller with the organization's key
};

struct SessionSpec {
  std::string attach_to = {};  // an Environment's id; empty: one of its own, from `environment`
  EnvironmentSpec environment = {};
  std::map<std::string, std::string> metadata = {};
};

// What a deletion answers, the first time and every time after.
struct EnvironmentReceipt {
  catalog::Environment environment;         // the tombstone
  std::vector<std::string> held_snapshots;  // outlive it: pinned, or held by forks
};
struct SessionReceipt {
  catalog::Session session;                                 // the tombstone
  std::optional<catalog::Environment> deleted_environment;  // went with it (this time)
};

// What the catalog cannot know by itself.
struct RegistryHooks {
  // Is this Environment served to a kernel now? Called inside transactions: quick, no catalog
  // calls. Null: never.
  std::function<bool(const catalog::Environment&)> is_mounted;
};

// Where an Environment's own Session, and a Session attached to an existing one, put their outputs.
// The second lies outside the first.
inline constexpr std::string_view kPrivateOutputDirectory = "/workspace/outputs";
std::string AttachedOutputDirectory(std::string_view session);  // "/workspace/.outputs/<session>"

// Thread-safe. One per process.
class Registry {
 public:
  // Makes the server's secrets on first use and counts one more life of the store (epoch()).
  static Result<std::unique_ptr<Registry>> Open(Catalog& catalog, Clock& clock, KeyStore& key_store,
                                                RegistryHooks hooks = {});

  // The life of the store that this is: what operations carry as server_epoch.
  uint64_t epoch() const { return epoch_; }
  const IdempotencyKeys& idempotency() const { return idempotency_; }
  Catalog& catalog() { return catalog_; }

  // ---- organizations and keys (registry_organizations.cc) ----
  // A new realm with keys of its own.
  Result<OrganizationKeys> CreateOrganization(const std::string& name);
  // Keys of all live ones. Those whose key file does not open are logged and left out: the others
  // go on.
  Result<std::vector<OrganizationKeys>> LoadOrganizations();
  // One more version of its wrapping key; its address key stays. Errors: KeyStore's RotateRealm.
  Result<OrganizationKeys> RotateOrganizationKey(const std::string& org);
  Result<catalog::Organization> GetOrganization(
      const std::string& org);                                     // NotFound also when deleted
  Result<std::vector<catalog::Organization>> ListOrganizations();  // live ones
  // Its key is destroyed first, then its record is a tombstone and its API keys stop working; what
  // else there is of it is gc/'s. Repeating it answers the same.
  Result<catalog::Organization> DeleteOrganization(const std::string& org);
  // Those whose key is destroyed but whose key file is still there: with or without a tombstone.
  Result<std::vector<catalog::Organization>> UnfinishedDeletions();

  Result<NewApiKey> CreateApiKey(const std::string& org, const std::string& name,
                                 int64_t expires_ms);
  Result<std::vector<catalog::ApiKey>> ListApiKeys(const std::string& org);
  Result<catalog::ApiKey> RevokeApiKey(const std::string& org,
                                       const std::string& key);  // at once; repeatable
  // Whose secret is it? invalid_api_key (PermissionDenied): unknown, revoked, expired, of a deleted
  // organization.
  Ruled<catalog::ApiKey> Authenticate(std::string_view secret);

  // ---- Environments (registry_environments.cc) ----
  // Standalone. Allocates nothing; from a base image its volume has the image's root (O(1)). Of the
  // base: NotFound; InvalidArgument (the quota is smaller than the image).
  Ruled<Created<catalog::Environment>> CreateEnvironment(const std::string& org,
                                                         const EnvironmentSpec& spec,
                                                         const IdempotentRequest& request = {});
  // NotFound when deleted, unless `also_deleted`.
  Result<catalog::Environment> GetEnvironment(const std::string& org, const std::string& env,
                                              bool also_deleted = false);
  Result<Listing<catalog::Environment>> ListEnvironments(const std::string& org,
                                                         const ListQuery& query);
  Result<std::vector<catalog::Binding>> ListBindings(const std::string& org,
                                                     const std::string& env);
  // Refused as rules::MayDelete says. The caller has confirmed the id.
  Ruled<EnvironmentReceipt> DeleteEnvironment(const std::string& org, const std::string& env);
  // A failed one is pending again: its next use initialises it. FailedPrecondition in any other
  // state.
  Ruled<catalog::Environment> RetryInitialization(const std::string& org, const std::string& env);

  // Once at start, before anything is used: initialisations of earlier daemon lives are pending
  // again. Returns how many.
  Result<size_t> ReleaseInitializations();

  // ---- base images (registry_base_images.cc) ----
  // The incomplete record of an import that begins: the name is taken. One import at a time, which
  // is the caller's to see to: what an earlier one left incomplete is removed. InvalidArgument (the
  // name), AlreadyExists.
  Result<catalog::BaseImage> BeginBaseImage(const std::string& name);
  // Root, totals and `complete` of an incomplete one. FailedPrecondition when it is complete or
  // gone.
  Status UpdateBaseImage(const catalog::BaseImage& image);
  // Removes the incomplete ones, of which at most one can be an import's that runs. Returns how
  // many.
  Result<size_t> RemoveIncompleteBaseImages();
  Result<catalog::BaseImage> GetBaseImage(const std::string& name);  // a complete one; NotFound
  // Oldest first, also one that is being imported.
  Result<std::vector<catalog::BaseImage>> ListBaseImages();
  // The records go, and with them the name; Environments that started from it have roots of their
  // own. NotFound (again too), FailedPrecondition while it is being imported.
  Result<catalog::BaseImage> DeleteBaseImage(const std::string& name);

  // ---- Sessions (registry_sessions.cc) ----
  // With an Environment of its own (private), or attached to an existing one, whose lifetime
  // becomes shared for ever. Attaching: NotFound, environment_deleted, initialization_failed,
  // environment_expired.
  Ruled<Created<catalog::Session>> CreateSession(const std::string& org, const SessionSpec& spec,
                                                 const IdempotentRequest& request = {});
  Result<catalog::Session> GetSession(const std::string& org,
                                      const std::string& session);  // NotFound when deleted
  Result<Listing<catalog::Session>> ListSessions(const std::string& org, const ListQuery& query);
  Ruled<catalog::Session> UpdateSessionMetadata(const std::string& org, const std::string& session,
                                                const std::map<std::string, std::string>& metadata);
  // Its Binding, Artifacts and running turn end with it; a private Environment goes too, now or
  // when it is no longer in use.
  Ruled<SessionReceipt> DeleteSession(const std::string& org, const std::string& session);

  // ---- turns (registry_turns.cc) ----
  // turn_in_progress, and what attaching is refused for.
  Ruled<Created<catalog::Turn>> StartTurn(const std::string& org, const std::string& session,
                                          const IdempotentRequest& request = {});
  // Without publication: failed, cancelled, or completed with nothing to publish. Repeating it in
  // the same way is fine.
  Ruled<catalog::Turn> EndTurn(const std::string& org, const std::string& turn,
                               catalog::TurnStatus status, const std::string& failure);
  Result<catalog::Turn> GetTurn(const std::string& org, const std::string& turn);
  Result<Listing<catalog::Turn>> ListTurns(const std::string& org, const std::string& session,
                                           const ListQuery& query);

 private:
  Registry(Catalog& catalog, Clock& clock, KeyStore& key_store, const Key256& hmac_key,
           uint64_t epoch, RegistryHooks hooks);

 public:
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

 private:
  catalog::Environment NewEnvironment(const std::string& org, const EnvironmentSpec& spec) const;
  // Gives a new Environment the volume that `base` names; nothing when it is empty.
  Status StartFromBase(CatalogTransaction& txn, const std::string& base,
                       catalog::Environment& env) const;
  std::string BaseNameKey(const std::string& name) const;
  Result<std::optional<catalog::BaseImage>> FindBaseImage(CatalogTransaction& txn,
                                                          const std::string& name) const;
  bool IsMounted(const catalog::Environment& env) const;

  Catalog& catalog_;
  Clock& clock_;
  KeyStore& key_store_;
  Key256 hmac_key_;
  const IdempotencyKeys idempotency_;
  const uint64_t epoch_;
  const RegistryHooks hooks_;
};

}  // namespace cairn
