// The lifetime rules as pure functions over records and time: what may happen to an Environment, a
// Session, a turn and a snapshot. They read nothing and write nothing; the callers run them inside
// the transaction that acts on the answer.
//
//   pending -> initializing -> ready <-> suspended      initializing -> failed -> pending (explicit
//   retry)
//                                |                      initializing -> pending (its daemon died)
//                                +-> failed (its fault server died)
//   every state but the last two -> deleting -> deleted
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/records.pb.h"
#include "catalog/refusal.h"

namespace cairn::rules {

// What else holds of an Environment at the moment of a decision.
struct EnvironmentUse {
  std::vector<std::string> active_sessions;  // with an active Binding
  std::vector<std::string> running_operations;
  bool mounted = false;          // served to a kernel now
  bool creator_deleted = false;  // of a private one: its Session is gone
  int64_t now_ms = 0;
};

bool IsGone(const catalog::Environment& env);  // deleting or deleted
bool HasLiveLease(const catalog::Environment& env, int64_t now_ms);
bool IsExpired(const catalog::Environment& env, int64_t now_ms);
bool IsAllowedTransition(catalog::EnvironmentState from, catalog::EnvironmentState to);

// The status that the SDK knows: pending, ready, connected, disconnected, suspended, expired,
// failed.
std::string_view WireStatus(const catalog::Environment& env, int64_t now_ms);

// A Session attaches to an existing Environment by id. environment_deleted, initialization_failed,
// environment_expired.
Ruled<void> MayAttach(const catalog::Environment& env, int64_t now_ms);
// What the first reference makes of the lifetime, for ever.
catalog::Lifetime LifetimeAfterAttach(catalog::Lifetime before);

// A deletion asked for by the owner.
enum class DeleteStep {
  kTombstone,    // begin: write the tombstone
  kAlreadyGone,  // answer as the first time
};
// environment_in_use (blocking Sessions), initialization_in_progress, operation_in_progress
// (blocking operations), environment_mounted; checked in this order.
Ruled<DeleteStep> MayDelete(const catalog::Environment& env, const EnvironmentUse& use);

// What becomes of a Session's Environment when that Session is deleted. `use` is without that
// Session's Binding.
enum class SessionDeletion {
  kKeepEnvironment,       // shared, standalone, or not this Session's
  kTombstoneEnvironment,  // private: goes with it
  kLeaveToReaper,         // private, but still in use: the reaper takes it when it no longer is
};
SessionDeletion OnSessionDeleted(const catalog::Environment& env, std::string_view session,
                                 const EnvironmentUse& use);

// May the reaper begin or go on to remove it? Never for lacking Sessions.
struct ReapVerdict {
  bool condemned = false;
  std::string_view rule;  // why it goes or stays; stable text for reports
};
ReapVerdict MayReap(const catalog::Environment& env, const EnvironmentUse& use);

// A Session starts a turn. NotFound (deleted Session), turn_in_progress, environment_deleted,
// initialization_failed, environment_expired.
Ruled<void> MayStartTurn(const catalog::Session& session, const catalog::Environment& env,
                         int64_t now_ms);
enum class TurnStep { kEnd, kAlreadyEndedSo };
// turn_already_ended, in another way.
Ruled<TurnStep> MayEndTurn(catalog::TurnStatus current, catalog::TurnStatus wanted);

// A snapshot deleted by its owner; `suspended_on_it`: live Environments that resume from it.
// snapshot_pinned, snapshot_in_use.
Ruled<void> MayDeleteSnapshot(const catalog::Snapshot& snapshot,
                              const std::vector<std::string>& suspended_on_it);
// Does it outlive its deleted Environment?
bool OutlivesEnvironment(const catalog::Snapshot& snapshot, bool has_live_fork);

}  // namespace cairn::rules
