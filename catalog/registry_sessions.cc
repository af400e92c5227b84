// Sessions: creation with an Environment of their own or attached to one, deletion with all that
// goes with them.
//
// Invariant: a Session without deleted_ms has exactly one Binding, active, and its Environment's
// record exists.
#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/lifetime_rules.h"
#include "catalog/listing_internal.h"
#include "catalog/registry.h"
#include "catalog/registry_internal.h"
#include "catalog/transact.h"
#include "catalog/turns.h"

namespace cairn {

using catalog::Environment;
using catalog::Session;

std::string AttachedOutputDirectory(std::string_view session) {
  return "/workspace/.outputs/" + std::string(session);
}

namespace {

Result<Session> FindSession(CatalogTransaction& txn, const std::string& org,
                            const std::string& id) {
  if (!IsId(id, kSessionPrefix)) return NoSuch("session", id);
  auto session = CAIRN_TRY(GetRecord<Session>(txn, keys::Session(org, id)));
  if (!session) return NoSuch("session", id);
  return *std::move(session);
}

// Every Artifact and turn of a Session: nothing of it reads from a root any more.
Status EndWhatASessionHas(CatalogTransaction& txn, const Session& session, int64_t now_ms) {
  std::vector<std::string> artifacts;
  CAIRN_TRY(
      ScanRecords<catalog::Artifact>(txn, keys::Below("artifact", session.org(), session.id()),
                                     [&](std::string_view, const catalog::Artifact& artifact) {
                                       if (artifact.deleted_ms() == 0) {
                                         artifacts.push_back(artifact.id());
                                       }
                                       return true;
                                     }));
  for (const std::string& id : artifacts) {
    CAIRN_TRY(DeleteArtifactRecord(txn, session.org(), session.id(), id, now_ms));
  }
  std::vector<std::string> turns;
  CAIRN_TRY(
      ScanRecords<catalog::IndexEntry>(txn, keys::Below("turn_at", session.org(), session.id()),
                                       [&](std::string_view, const catalog::IndexEntry& entry) {
                                         turns.push_back(entry.id());
                                         return true;
                                       }));
  for (const std::string& id : turns) {
    catalog::Turn turn = CAIRN_TRY(FindTurn(txn, session.org(), id));
    if (turn.status() == catalog::TURN_RUNNING) {
      turn.set_status(catalog::TURN_CANCELLED);
      turn.set_failure("session_deleted");
      turn.set_ended_ms(now_ms);
    }
    turn.clear_point();
    turn.clear_publication_root();
    PutRecord(txn, keys::Turn(session.org(), id), turn);
  }
  return {};
}

}  // namespace

Ruled<Created<Session>> Registry::CreateSession(const std::string& org, const SessionSpec& spec,
                                                const IdempotentRequest& request) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<Created<Session>> {
    CAIRN_TRY(RequireOrganization(txn, org));
    const int64_t now_ms = clock_.NowMs();
    if (const auto earlier = CAIRN_TRY(idempotency_.Find(txn, org, request, now_ms))) {
      return Created<Session>{CAIRN_TRY(FindSession(txn, org, *earlier)), true};
    }
    Session session;
    session.set_id(NewId(kSessionPrefix));
    session.set_org(org);
    session.set_status("idle");
    session.set_created_ms(now_ms);
    session.set_updated_ms(now_ms);
    session.mutable_metadata()->insert(spec.metadata.begin(), spec.metadata.end());

    if (spec.attach_to.empty()) {
      Environment env = NewEnvironment(org, spec.environment);
      CAIRN_TRY(StartFromBase(txn, spec.environment.base, env));
      env.set_lifetime(catalog::LIFETIME_PRIVATE);
      env.set_creator_session(session.id());
      CAIRN_TRY(PutNewEnvironment(txn, env));
      session.set_env(env.id());
      session.set_inline_environment(true);
      session.set_output_directory(std::string(kPrivateOutputDirectory));
    } else {
      Environment env = CAIRN_TRY(FindEnvironment(txn, org, spec.attach_to));
      CAIRN_TRY(rules::MayAttach(env, now_ms));
      env.set_lifetime(rules::LifetimeAfterAttach(env.lifetime()));
      env.set_updated_ms(now_ms);
      TouchEnvironment(txn, env);
      session.set_env(env.id());
      session.set_output_directory(AttachedOutputDirectory(session.id()));
    }
    catalog::Binding binding;
    binding.set_env(session.env());
    binding.set_session(session.id());
    binding.set_created_ms(now_ms);
    binding.set_active(true);
    binding.set_by_reference(!spec.attach_to.empty());
    PutRecord(txn, keys::Binding(org, session.env(), session.id()), binding);
    PutRecord(txn, keys::Session(org, session.id()), session);
    catalog::IndexEntry entry;
    entry.set_org(org);
    entry.set_id(session.id());
    PutRecord(txn, keys::SessionAt(org, now_ms, session.id()), entry);
    idempotency_.Remember(txn, org, request, session.id(), now_ms);
    return Created<Session>{session, false};
  });
}

Result<Session> Registry::GetSession(const std::string& org, const std::string& id) {
  const auto txn = catalog_.Begin();
  Session session = CAIRN_TRY(FindSession(*txn, org, id));
  if (session.deleted_ms() != 0) return NoSuch("session", id);
  return session;
}

Result<Listing<Session>> Registry::ListSessions(const std::string& org, const ListQuery& query) {
  std::string after;
  if (!query.after.empty()) {
    const auto txn = catalog_.Begin();
    const auto record = FindSession(*txn, org, query.after);
    if (!record && record.error().code() == ErrorCode::kNotFound) return UnknownCursor();
    after = keys::SessionAt(org, CAIRN_TRY(record).created_ms(), query.after);
  }
  return ListByTime<Session>(catalog_, keys::Below("session_at", org), query, after,
                             [&](const std::string& id) { return keys::Session(org, id); });
}

Ruled<Session> Registry::UpdateSessionMetadata(const std::string& org, const std::string& id,
                                               const std::map<std::string, std::string>& metadata) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<Session> {
    Session session = CAIRN_TRY(FindSession(txn, org, id));
    if (session.deleted_ms() != 0) return NoSuch("session", id);
    session.clear_metadata();
    session.mutable_metadata()->insert(metadata.begin(), metadata.end());
    session.set_updated_ms(clock_.NowMs());
    PutRecord(txn, keys::Session(org, id), session);
    return session;
  });
}

Ruled<SessionReceipt> Registry::DeleteSession(const std::string& org, const std::string& id) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<SessionReceipt> {
    SessionReceipt receipt{.session = CAIRN_TRY(FindSession(txn, org, id)),
                           .deleted_environment = {}};
    Session& session = receipt.session;
    if (session.deleted_ms() != 0) return receipt;
    const int64_t now_ms = clock_.NowMs();
    CAIRN_TRY(EndWhatASessionHas(txn, session, now_ms));
    session.set_status("deleted");
    session.set_deleted_ms(now_ms);
    session.set_updated_ms(now_ms);
    session.clear_active_turn();
    PutRecord(txn, keys::Session(org, id), session);
    txn.Delete(keys::SessionAt(org, session.created_ms(), id));
    txn.Delete(keys::Binding(org, session.env(), id));

    Environment env = CAIRN_TRY(FindEnvironment(txn, org, session.env()));
    const auto use = CAIRN_TRY(ReadUse(txn, env, epoch_, IsMounted(env), now_ms));
    switch (rules::OnSessionDeleted(env, id, use)) {
      case rules::SessionDeletion::kTombstoneEnvironment:
        CAIRN_TRY(TombstoneEnvironment(txn, env, now_ms));
        receipt.deleted_environment = env;
        break;
      case rules::SessionDeletion::kLeaveToReaper:
      case rules::SessionDeletion::kKeepEnvironment:
        break;
    }
    return receipt;
  });
}

}  // namespace cairn
