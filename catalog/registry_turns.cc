// Turns: start, end without publication (artifacts/ ends those that publish, by catalog/turns.h),
// reading.
#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/lifetime_rules.h"
#include "catalog/listing_internal.h"
#include "catalog/registry.h"
#include "catalog/transact.h"
#include "catalog/turns.h"

namespace cairn {

using catalog::Turn;

Ruled<Created<Turn>> Registry::StartTurn(const std::string& org, const std::string& session_id,
                                         const IdempotentRequest& request) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<Created<Turn>> {
    const int64_t now_ms = clock_.NowMs();
    if (const auto earlier = CAIRN_TRY(idempotency_.Find(txn, org, request, now_ms))) {
      return Created<Turn>{CAIRN_TRY(FindTurn(txn, org, *earlier)), true};
    }
    if (!IsId(session_id, kSessionPrefix)) return NoSuch("session", session_id);
    auto session = CAIRN_TRY(GetRecord<catalog::Session>(txn, keys::Session(org, session_id)));
    if (!session) return NoSuch("session", session_id);
    const catalog::Environment env = CAIRN_TRY(FindEnvironment(txn, org, session->env()));
    CAIRN_TRY(rules::MayStartTurn(*session, env, now_ms));
    Turn turn;
    turn.set_id(NewId(kTurnPrefix));
    turn.set_org(org);
    turn.set_session(session_id);
    turn.set_env(session->env());
    turn.set_status(catalog::TURN_RUNNING);
    turn.set_created_ms(now_ms);
    PutRecord(txn, keys::Turn(org, turn.id()), turn);
    catalog::IndexEntry entry;
    entry.set_org(org);
    entry.set_id(turn.id());
    PutRecord(txn, keys::TurnAt(org, session_id, now_ms, turn.id()), entry);
    session->set_active_turn(turn.id());
    session->set_status("running");
    session->set_updated_ms(now_ms);
    PutRecord(txn, keys::Session(org, session_id), *session);
    idempotency_.Remember(txn, org, request, turn.id(), now_ms);
    return Created<Turn>{turn, false};
  });
}

Ruled<Turn> Registry::EndTurn(const std::string& org, const std::string& id,
                              catalog::TurnStatus status, const std::string& failure) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<Turn> {
    Turn turn = CAIRN_TRY(FindTurn(txn, org, id));
    CAIRN_TRY(EndTurnRecord(txn, turn, status, failure, clock_.NowMs()));
    return turn;
  });
}

Result<Turn> Registry::GetTurn(const std::string& org, const std::string& id) {
  const auto txn = catalog_.Begin();
  const Turn turn = CAIRN_TRY(FindTurn(*txn, org, id));
  const auto session =
      CAIRN_TRY(GetRecord<catalog::Session>(*txn, keys::Session(org, turn.session())));
  if (!session || session->deleted_ms() != 0) return NoSuch("turn", id);
  return turn;
}

Result<Listing<Turn>> Registry::ListTurns(const std::string& org, const std::string& session,
                                          const ListQuery& query) {
  CAIRN_TRY(GetSession(org, session));
  std::string after;
  if (!query.after.empty()) {
    const auto record = FindTurn(catalog_, org, query.after);
    if (!record && record.error().code() == ErrorCode::kNotFound) return UnknownCursor();
    const Turn turn = CAIRN_TRY(record);
    if (turn.session() != session) return UnknownCursor();
    after = keys::TurnAt(org, session, turn.created_ms(), query.after);
  }
  return ListByTime<Turn>(catalog_, keys::Below("turn_at", org, session), query, after,
                          [&](const std::string& id) { return keys::Turn(org, id); });
}

}  // namespace cairn
