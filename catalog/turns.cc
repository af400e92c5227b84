// See the header. Invariant: Session.active_turn names the one running turn of a Session, or is
// empty.
#include "catalog/turns.h"

#include "catalog/ids.h"
#include "catalog/lifetime_rules.h"

namespace cairn {

using catalog::Turn;

namespace {

template <typename Reader>
Result<Turn> Find(Reader& reader, std::string_view org, std::string_view id) {
  if (!IsId(id, kTurnPrefix)) return NoSuch("turn", id);
  auto turn = CAIRN_TRY(GetRecord<Turn>(reader, keys::Turn(org, id)));
  if (!turn) return NoSuch("turn", id);
  return *std::move(turn);
}

}  // namespace

Result<Turn> FindTurn(Catalog& catalog, std::string_view org, std::string_view id) {
  return Find(catalog, org, id);
}
Result<Turn> FindTurn(CatalogTransaction& txn, std::string_view org, std::string_view id) {
  return Find(txn, org, id);
}

Ruled<void> EndTurnRecord(CatalogTransaction& txn, Turn& turn, catalog::TurnStatus status,
                          std::string_view failure, int64_t now_ms) {
  if (CAIRN_TRY(rules::MayEndTurn(turn.status(), status)) == rules::TurnStep::kAlreadyEndedSo)
    return {};
  auto session =
      CAIRN_TRY(GetRecord<catalog::Session>(txn, keys::Session(turn.org(), turn.session())));
  if (!session || session->deleted_ms() != 0) return NoSuch("turn", turn.id());
  turn.set_status(status);
  turn.set_failure(std::string(failure));
  turn.set_ended_ms(now_ms);
  PutRecord(txn, keys::Turn(turn.org(), turn.id()), turn);
  if (session->active_turn() == turn.id()) {
    session->clear_active_turn();
    session->set_status("idle");
    session->set_updated_ms(now_ms);
  }
  PutRecord(txn, keys::Session(turn.org(), turn.session()), *session);
  return {};
}

void PutNewArtifact(CatalogTransaction& txn, const catalog::Artifact& artifact) {
  PutRecord(txn, keys::Artifact(artifact.org(), artifact.session(), artifact.id()), artifact);
  catalog::IndexEntry entry;
  entry.set_org(artifact.org());
  entry.set_id(artifact.id());
  PutRecord(
      txn,
      keys::ArtifactAt(artifact.org(), artifact.session(), artifact.created_ms(), artifact.id()),
      entry);
}

Status DeleteArtifactRecord(CatalogTransaction& txn, std::string_view org, std::string_view session,
                            std::string_view id, int64_t now_ms) {
  if (!IsId(session, kSessionPrefix) || !IsId(id, kArtifactPrefix)) return NoSuch("artifact", id);
  const auto owner = CAIRN_TRY(GetRecord<catalog::Session>(txn, keys::Session(org, session)));
  const std::string key = keys::Artifact(org, session, id);
  auto artifact = CAIRN_TRY(GetRecord<catalog::Artifact>(txn, key));
  if (!owner || owner->deleted_ms() != 0 || !artifact) return NoSuch("artifact", id);
  if (artifact->deleted_ms() != 0) return {};
  artifact->set_deleted_ms(now_ms);
  PutRecord(txn, key, *artifact);
  txn.Delete(keys::ArtifactAt(org, session, artifact->created_ms(), id));
  return {};
}

}  // namespace cairn
