// Each rule is one function that can be read against the sentence it comes from. Order of checks is
// part of the contract: a caller that removes the first obstacle learns the next.
#include "catalog/lifetime_rules.h"

#include <fmt/format.h>

namespace cairn::rules {

using catalog::Environment;

bool IsGone(const Environment& env) {
  return env.state() == catalog::ENV_DELETING || env.state() == catalog::ENV_DELETED;
}

bool HasLiveLease(const Environment& env, int64_t now_ms) {
  return !env.lease().host().empty() && env.lease().until_ms() > now_ms;
}

bool IsExpired(const Environment& env, int64_t now_ms) {
  return env.expires_ms() != 0 && env.expires_ms() <= now_ms;
}

bool IsAllowedTransition(catalog::EnvironmentState from, catalog::EnvironmentState to) {
  using namespace catalog;
  if (to == ENV_DELETING) return from != ENV_DELETING && from != ENV_DELETED;
  switch (from) {
    case ENV_PENDING:
      return to == ENV_INITIALIZING;
    case ENV_INITIALIZING:
      return to == ENV_READY || to == ENV_FAILED || to == ENV_PENDING;
    case ENV_READY:
      return to == ENV_SUSPENDED || to == ENV_FAILED;
    case ENV_SUSPENDED:
      return to == ENV_READY;
    case ENV_FAILED:
      return to == ENV_PENDING;
    case ENV_DELETING:
      return to == ENV_DELETED;
    default:
      return false;
  }
}

std::string_view WireStatus(const Environment& env, int64_t now_ms) {
  if (IsGone(env) || IsExpired(env, now_ms)) return "expired";
  switch (env.state()) {
    case catalog::ENV_PENDING:
    case catalog::ENV_INITIALIZING:
      return "pending";
    case catalog::ENV_READY:
      if (env.lease().host().empty()) return "ready";
      return HasLiveLease(env, now_ms) ? "connected" : "disconnected";
    case catalog::ENV_SUSPENDED:
      return "suspended";
    default:
      return "failed";
  }
}

Ruled<void> MayAttach(const Environment& env, int64_t now_ms) {
  if (IsGone(env)) return Refuse(refusals::kEnvironmentDeleted, "the environment was deleted");
  if (env.state() == catalog::ENV_FAILED) {
    return Refuse(refusals::kInitializationFailed,
                  "the environment failed to initialise: retry its initialisation first");
  }
  if (IsExpired(env, now_ms))
    return Refuse(refusals::kEnvironmentExpired, "the environment has expired");
  return {};
}

catalog::Lifetime LifetimeAfterAttach(catalog::Lifetime /*before*/) {
  return catalog::LIFETIME_SHARED;
}

Ruled<DeleteStep> MayDelete(const Environment& env, const EnvironmentUse& use) {
  if (IsGone(env)) return DeleteStep::kAlreadyGone;
  if (!use.active_sessions.empty()) {
    return Refuse(refusals::kEnvironmentInUse,
                  fmt::format("{} session(s) use the environment: delete them first",
                              use.active_sessions.size()),
                  use.active_sessions);
  }
  if (env.state() == catalog::ENV_INITIALIZING) {
    return Refuse(refusals::kInitializationInProgress,
                  "the environment is being initialised: wait for it");
  }
  if (!use.running_operations.empty()) {
    return Refuse(refusals::kOperationInProgress,
                  "an operation on the environment is running: wait for it",
                  use.running_operations);
  }
  if (use.mounted || HasLiveLease(env, use.now_ms)) {
    return Refuse(refusals::kEnvironmentMounted, "a host uses the environment: unmount it first");
  }
  return DeleteStep::kTombstone;
}

SessionDeletion OnSessionDeleted(const Environment& env, std::string_view session,
                                 const EnvironmentUse& use) {
  if (IsGone(env) || env.lifetime() != catalog::LIFETIME_PRIVATE ||
      env.creator_session() != session) {
    return SessionDeletion::kKeepEnvironment;
  }
  return MayDelete(env, use) ? SessionDeletion::kTombstoneEnvironment
                             : SessionDeletion::kLeaveToReaper;
}

ReapVerdict MayReap(const Environment& env, const EnvironmentUse& use) {
  if (env.state() == catalog::ENV_DELETED) return {false, "tombstone"};
  if (env.state() == catalog::ENV_DELETING) return {true, "deleting"};
  if (!use.active_sessions.empty()) return {false, "in_use:session"};
  if (env.state() == catalog::ENV_INITIALIZING) return {false, "in_use:initialization"};
  if (!use.running_operations.empty()) return {false, "in_use:operation"};
  if (use.mounted) return {false, "in_use:mount"};
  if (HasLiveLease(env, use.now_ms)) return {false, "in_use:lease"};
  if (env.lifetime() == catalog::LIFETIME_PRIVATE && use.creator_deleted)
    return {true, "owner_deleted"};
  if (IsExpired(env, use.now_ms)) return {true, "expired"};
  return {false, "owner_keeps_it"};
}

Ruled<void> MayStartTurn(const catalog::Session& session, const Environment& env, int64_t now_ms) {
  if (session.deleted_ms() != 0) return NoSuch("session", session.id());
  if (!session.active_turn().empty()) {
    return Refuse(refusals::kTurnInProgress, "a turn of this session is running: end it first",
                  {session.active_turn()});
  }
  return MayAttach(env, now_ms);
}

Ruled<TurnStep> MayEndTurn(catalog::TurnStatus current, catalog::TurnStatus wanted) {
  if (current == catalog::TURN_RUNNING) {
    if (wanted == catalog::TURN_RUNNING) {
      return Err(ErrorCode::kInvalidArgument, "a turn ends completed, failed or cancelled");
    }
    return TurnStep::kEnd;
  }
  if (current == wanted) return TurnStep::kAlreadyEndedSo;
  const char* const ended = current == catalog::TURN_COMPLETED ? "completed"
                            : current == catalog::TURN_FAILED  ? "failed"
                                                               : "cancelled";
  return Refuse(refusals::kTurnEnded, std::string("the turn has already ended: ") + ended);
}

Ruled<void> MayDeleteSnapshot(const catalog::Snapshot& snapshot,
                              const std::vector<std::string>& suspended_on_it) {
  if (!suspended_on_it.empty()) {
    return Refuse(refusals::kSnapshotInUse, "a suspended environment resumes from this snapshot",
                  suspended_on_it);
  }
  if (snapshot.pinned())
    return Refuse(refusals::kSnapshotPinned, "the snapshot is pinned: unpin it first");
  return {};
}

bool OutlivesEnvironment(const catalog::Snapshot& snapshot, bool has_live_fork) {
  return snapshot.pinned() || has_live_fork;
}

}  // namespace cairn::rules
