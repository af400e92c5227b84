// Reaper. The plan reads every class of record once and decides by the rules below; the execution
// does the condemned items in an order in which each step leaves a state that the next run can take
// up:
//
//   operations left by earlier lives -> Environments (revoke; snapshots' references; tombstone) ->
//   sessions' turns and Artifacts -> snapshots -> turns -> points -> volumes (journals before the
//   record) -> idempotency keys.
//
// Rules, the first that applies:
//
// - operation: ended: kept "ended"; of this life: kept "running"; else condemned "interrupted".
// - environment: rules::MayReap (catalog/lifetime_rules.h).
// - snapshot: tombstone with references: condemned "tombstone"; of a deleted Environment:
//   condemned "environment_deleted" unless pinned or held by a live fork; else kept.
// - turn: its Session is deleted: condemned "session_deleted"; no Artifact left but blocks held:
//   condemned "no_artifacts"; else kept.
// - artifact: its Session is deleted: condemned "session_deleted"; else kept.
// - point: referred to by a live record, or held: kept with the referrer; else condemned
//   "unreferenced".
// - volume: its Environment is deleted: condemned "environment_deleted"; else kept.
// - base image: kept: its deletion is the operator's, and an import cleans up after itself.
// - idempotency key: older than 24 h: condemned "expired"; else kept.
#include "gc/reaper.h"

#include <map>
#include <set>

#include "catalog/environments.h"
#include "catalog/idempotency.h"
#include "catalog/keys.h"
#include "catalog/lifetime_rules.h"
#include "catalog/records.h"
#include "catalog/snapshots.h"
#include "store/base/log.h"

namespace cairn {

namespace {

// All records that the rules look at, read in one pass.
struct Records {
  std::map<std::string, catalog::Environment> environments;  // by id
  std::map<std::string, catalog::Session> sessions;
  std::map<std::string, catalog::Snapshot> snapshots;
  std::map<std::string, catalog::Turn> turns;            // by key
  std::map<std::string, catalog::Artifact> artifacts;    // by key
  std::map<std::string, catalog::PointRecord> points;    // by key
  std::map<std::string, catalog::Volume> volumes;        // by key
  std::map<std::string, catalog::Operation> operations;  // by key
  std::map<std::string, catalog::IdempotencyKey> idempotency;
  std::map<std::string, catalog::BaseImage> base_images;     // by key
  std::map<std::string, std::vector<std::string>> bindings;  // Environment -> active Sessions
  std::set<std::string> forked;                              // snapshots with a live fork
};

template <typename Message, typename Add>
Status Read(CatalogTransaction& catalog, std::string_view first, Add&& add) {
  return ScanRecords<Message>(catalog, keys::Below(first),
                              [&](std::string_view key, const Message& message) {
                                add(std::string(key), message);
                                return true;
                              });
}

// At one instant: a transaction reads at the snapshot it began with.
Result<Records> ReadAll(Catalog& all) {
  const std::unique_ptr<CatalogTransaction> instant = all.Begin();
  CatalogTransaction& catalog = *instant;
  Records r;
  CAIRN_TRY(Read<catalog::Environment>(
      catalog, "env",
      [&](const std::string&, const catalog::Environment& m) { r.environments[m.id()] = m; }));
  CAIRN_TRY(Read<catalog::Session>(
      catalog, "session",
      [&](const std::string&, const catalog::Session& m) { r.sessions[m.id()] = m; }));
  CAIRN_TRY(Read<catalog::Binding>(catalog, "binding",
                                   [&](const std::string&, const catalog::Binding& m) {
                                     if (m.active()) r.bindings[m.env()].push_back(m.session());
                                   }));
  CAIRN_TRY(Read<catalog::Snapshot>(
      catalog, "snapshot",
      [&](const std::string&, const catalog::Snapshot& m) { r.snapshots[m.id()] = m; }));
  CAIRN_TRY(Read<catalog::Turn>(
      catalog, "turn", [&](const std::string& key, const catalog::Turn& m) { r.turns[key] = m; }));
  CAIRN_TRY(Read<catalog::Artifact>(
      catalog, "artifact",
      [&](const std::string& key, const catalog::Artifact& m) { r.artifacts[key] = m; }));
  CAIRN_TRY(Read<catalog::PointRecord>(
      catalog, "point",
      [&](const std::string& key, const catalog::PointRecord& m) { r.points[key] = m; }));
  CAIRN_TRY(Read<catalog::Volume>(
      catalog, "volume",
      [&](const std::string& key, const catalog::Volume& m) { r.volumes[key] = m; }));
  CAIRN_TRY(Read<catalog::Operation>(
      catalog, "operation",
      [&](const std::string& key, const catalog::Operation& m) { r.operations[key] = m; }));
  CAIRN_TRY(Read<catalog::IdempotencyKey>(
      catalog, "idem",
      [&](const std::string& key, const catalog::IdempotencyKey& m) { r.idempotency[key] = m; }));
  CAIRN_TRY(Read<catalog::BaseImage>(
      catalog, "base",
      [&](const std::string& key, const catalog::BaseImage& m) { r.base_images[key] = m; }));
  CAIRN_TRY(Read<catalog::IndexEntry>(
      catalog, "fork", [&](const std::string& key, const catalog::IndexEntry&) {
        r.forked.emplace(keys::LastPart(key.substr(0, key.rfind('/'))));  // fork/org/snapshot/env
      }));
  return r;
}

bool Gone(const Records& r, const std::string& env) {
  const auto found = r.environments.find(env);
  return found == r.environments.end() || found->second.state() == catalog::ENV_DELETED ||
         found->second.state() == catalog::ENV_DELETING;
}

bool SessionGone(const Records& r, const std::string& session) {
  const auto found = r.sessions.find(session);
  return found == r.sessions.end() || found->second.deleted_ms() != 0;
}

std::string PointKeyOf(const catalog::Point& point) {
  return keys::Point(point.volume(), point.generation());
}

class Planner {
 public:
  Planner(const Records& records, const ReaperHooks& hooks, uint64_t server_epoch, int64_t now_ms)
      : r_(records), hooks_(hooks), server_epoch_(server_epoch), now_ms_(now_ms) {}

  ReapPlan Run() {
    Operations();
    Environments();
    Artifacts();
    Snapshots();
    Turns();
    Points();
    Volumes();
    BaseImages();
    IdempotencyKeys();
    return std::move(plan_);
  }

 private:
  void Add(std::string object_class, std::string id, bool condemned, std::string rule,
           std::string key) {
    plan_.items.push_back(
        {std::move(object_class), std::move(id), condemned, std::move(rule), std::move(key), {}});
  }
  void Scanned(std::string object_class, size_t count) {
    plan_.scanned.emplace_back(std::move(object_class), count);
  }

  void Operations() {
    Scanned("operation", r_.operations.size());
    for (const auto& [key, op] : r_.operations) {
      const bool ended = op.ended_ms() != 0;
      const bool ours = op.server_epoch() == server_epoch_;
      Add("operation", op.id(), !ended && !ours,
          ended  ? "ended"
          : ours ? "running"
                 : "interrupted",
          key);
    }
  }

  void Environments() {
    Scanned("environment", r_.environments.size());
    for (const auto& [id, env] : r_.environments) {
      const std::string key = keys::Environment(env.org(), id);
      const rules::EnvironmentUse use = UseOf(env);
      const rules::ReapVerdict verdict = rules::MayReap(env, use);
      std::string rule(verdict.rule);
      if (rule == "in_use:session") rule = "in_use:" + use.active_sessions.front();
      if (rule == "in_use:operation") rule = "in_use:" + use.running_operations.front();
      if (rule == "in_use:lease") rule = "in_use:" + env.lease().host();
      if (rule == "owner_keeps_it" && env.expires_ms() != 0) rule = "not_expired";
      Add("environment", id, verdict.condemned, std::move(rule), key);
    }
  }

  rules::EnvironmentUse UseOf(const catalog::Environment& env) const {
    rules::EnvironmentUse use;
    if (const auto bound = r_.bindings.find(env.id()); bound != r_.bindings.end()) {
      use.active_sessions = bound->second;
    }
    for (const auto& [key, op] : r_.operations) {
      if (op.target() == env.id() && op.ended_ms() == 0 && op.server_epoch() == server_epoch_) {
        use.running_operations.push_back(op.id());
      }
    }
    use.mounted = hooks_.is_mounted && hooks_.is_mounted(env);
    use.creator_deleted = !env.creator_session().empty() && SessionGone(r_, env.creator_session());
    use.now_ms = now_ms_;
    return use;
  }

  void Artifacts() {
    Scanned("artifact", r_.artifacts.size());
    for (const auto& [key, artifact] : r_.artifacts) {
      const bool session_gone = SessionGone(r_, artifact.session());
      if (artifact.deleted_ms() == 0 && !session_gone)
        live_artifacts_[keys::Turn(artifact.org(), artifact.turn())]++;
      Add("artifact", artifact.id(), session_gone,
          session_gone                 ? "session_deleted"
          : artifact.deleted_ms() != 0 ? "tombstone"
                                       : "published",
          key);
    }
  }

  void Snapshots() {
    Scanned("snapshot", r_.snapshots.size());
    for (const auto& [id, snapshot] : r_.snapshots) {
      const std::string key = keys::Snapshot(snapshot.org(), id);
      const bool holds = snapshot.has_point() || !snapshot.memory_image().empty();
      if (snapshot.deleted_ms() != 0) {
        Add("snapshot", id, holds, "tombstone", key);
        continue;
      }
      const bool env_gone = Gone(r_, snapshot.env());
      const bool held = rules::OutlivesEnvironment(snapshot, r_.forked.contains(id));
      if (env_gone && !held) {
        Add("snapshot", id, true, "environment_deleted", key);
        continue;
      }
      Add("snapshot", id, false,
          snapshot.pinned() ? "pinned"
          : env_gone        ? "held_by_fork"
                            : "owner_keeps_it",
          key);
      if (snapshot.has_point()) Refer(snapshot.point(), id);
    }
  }

  void Turns() {
    Scanned("turn", r_.turns.size());
    for (const auto& [key, turn] : r_.turns) {
      const bool holds = turn.has_point() || !turn.publication_root().empty();
      if (SessionGone(r_, turn.session())) {
        Add("turn", turn.id(), true, "session_deleted", key);
      } else if (holds && live_artifacts_[key] == 0) {
        Add("turn", turn.id(), true, "no_artifacts", key);
      } else {
        Add("turn", turn.id(), false, "session_exists", key);
        if (turn.has_point()) Refer(turn.point(), turn.id());
      }
    }
  }

  void Points() {
    for (const auto& [key, volume] : r_.volumes) {
      if (volume.has_base_point() && !Gone(r_, volume.env()))
        Refer(volume.base_point(), volume.env());
    }
    Scanned("point", r_.points.size());
    for (const auto& [key, point] : r_.points) {
      const auto referrer = referrers_.find(key);
      if (referrer != referrers_.end()) {
        Add("point", key, false, "referenced_by:" + referrer->second, key);
      } else if (hooks_.point_is_held && hooks_.point_is_held(point.point())) {
        Add("point", key, false, "operation_in_flight", key);
      } else {
        Add("point", key, true, "unreferenced", key);
        plan_.items.back().seen = point.SerializeAsString();
      }
    }
  }

  void Volumes() {
    Scanned("volume", r_.volumes.size());
    for (const auto& [key, volume] : r_.volumes) {
      const bool gone = Gone(r_, volume.env());
      Add("volume", key, gone, gone ? "environment_deleted" : "referenced_by:" + volume.env(), key);
    }
  }

  void BaseImages() {
    Scanned("base_image", r_.base_images.size());
    for (const auto& [key, image] : r_.base_images) {
      Add("base_image", image.id(), false, image.complete() ? "operator_keeps_it" : "imported_now",
          key);
    }
  }

  void IdempotencyKeys() {
    Scanned("idempotency_key", r_.idempotency.size());
    for (const auto& [key, idem] : r_.idempotency) {
      const bool expired = idem.created_ms() + kIdempotencyMs <= now_ms_;
      Add("idempotency_key", key, expired, expired ? "expired" : "within_24_hours", key);
    }
  }

  void Refer(const catalog::Point& point, const std::string& referrer) {
    referrers_.emplace(PointKeyOf(point), referrer);
  }

  const Records& r_;
  const ReaperHooks& hooks_;
  uint64_t server_epoch_;
  int64_t now_ms_;
  ReapPlan plan_;
  std::map<std::string, std::string> referrers_;    // point key -> who
  std::map<std::string, uint64_t> live_artifacts_;  // turn key -> count
};

}  // namespace

Result<ReapPlan> Reaper::Plan(int64_t now_ms) {
  const Records records = CAIRN_TRY(ReadAll(catalog_));
  return Planner(records, hooks_, server_epoch_, now_ms).Run();
}

Status Reaper::ExecuteItem(const PlanItem& item, int64_t now_ms) {
  if (item.object_class == "operation") {
    return catalog_.Run([&](CatalogTransaction& txn) -> Status {
      auto op = CAIRN_TRY(GetRecord<catalog::Operation>(txn, item.key));
      if (!op || op->ended_ms() != 0 || op->server_epoch() == server_epoch_) return {};
      op->set_ended_ms(now_ms);
      op->set_error_code("interrupted");
      op->set_error_message(
          "the server stopped before it ended: nothing of it took effect, ask again");
      PutRecord(txn, item.key, *op);
      txn.Delete(keys::Running(op->org(), op->target(), op->id()));
      return {};
    });
  }
  if (item.object_class == "environment") {
    const auto env = CAIRN_TRY(GetRecord<catalog::Environment>(catalog_, item.key));
    if (!env || env->state() == catalog::ENV_DELETED) return {};
    if (env->state() != catalog::ENV_DELETING) {
      // The tombstone first, and only if nobody came meanwhile.
      CAIRN_TRY(catalog_.Run([&](CatalogTransaction& txn) -> Status {
        auto current = CAIRN_TRY(GetRecord<catalog::Environment>(txn, item.key));
        if (!current || rules::IsGone(*current)) return {};
        const bool mounted = hooks_.is_mounted && hooks_.is_mounted(*current);
        const auto use = CAIRN_TRY(ReadUse(txn, *current, server_epoch_, mounted, now_ms));
        if (!rules::MayReap(*current, use).condemned) {
          return Err(ErrorCode::kFailedPrecondition,
                     "environment " + current->id() + " came into use");
        }
        return TombstoneEnvironment(txn, *current, now_ms);
      }));
    }
    const auto deleting = CAIRN_TRY(GetRecord<catalog::Environment>(catalog_, item.key));
    if (!deleting) return {};
    CAIRN_TRY(hooks_.revoke_environment(*deleting));
    return catalog_.Run([&](CatalogTransaction& txn) -> Status {
      auto current = CAIRN_TRY(GetRecord<catalog::Environment>(txn, item.key));
      if (!current || current->state() != catalog::ENV_DELETING) return {};
      current->set_state(catalog::ENV_DELETED);
      current->clear_sealed_setup();
      PutRecord(txn, item.key, *current);
      return {};
    });
  }
  if (item.object_class == "snapshot") {
    return catalog_.Run([&](CatalogTransaction& txn) -> Status {
      auto snapshot = CAIRN_TRY(GetRecord<catalog::Snapshot>(txn, item.key));
      if (!snapshot || (item.rule == "tombstone" && snapshot->deleted_ms() == 0)) return {};
      if (snapshot->deleted_ms() == 0) {
        const bool forked = CAIRN_TRY(HasFork(txn, snapshot->org(), snapshot->id()));
        if (rules::OutlivesEnvironment(*snapshot, forked)) return {};
        snapshot->set_deleted_ms(now_ms);
        txn.Delete(keys::SnapshotAt(snapshot->org(), snapshot->env(), snapshot->created_ms(),
                                    snapshot->id()));
      }
      snapshot->clear_point();
      snapshot->clear_memory_image();
      PutRecord(txn, item.key, *snapshot);
      return {};
    });
  }
  if (item.object_class == "turn") {
    return catalog_.Run([&](CatalogTransaction& txn) -> Status {
      auto turn = CAIRN_TRY(GetRecord<catalog::Turn>(txn, item.key));
      if (!turn) return {};
      if (item.rule == "session_deleted") {
        txn.Delete(item.key);
        txn.Delete(keys::TurnAt(turn->org(), turn->session(), turn->created_ms(), turn->id()));
        return {};
      }
      turn->clear_point();
      turn->clear_publication_root();
      PutRecord(txn, item.key, *turn);
      return {};
    });
  }
  if (item.object_class == "artifact") {
    return catalog_.Run([&](CatalogTransaction& txn) -> Status {
      const auto artifact = CAIRN_TRY(GetRecord<catalog::Artifact>(txn, item.key));
      if (!artifact) return {};
      txn.Delete(item.key);
      txn.Delete(keys::ArtifactAt(artifact->org(), artifact->session(), artifact->created_ms(),
                                  artifact->id()));
      return {};
    });
  }
  if (item.object_class == "volume") {
    const auto volume = CAIRN_TRY(GetRecord<catalog::Volume>(catalog_, item.key));
    if (!volume) return {};
    CAIRN_TRY(hooks_.remove_volume(*volume));
  }
  // Points, volumes and idempotency keys: the record goes. A point that a fork or a pause took up
  // since the plan has changed.
  return catalog_.Run([&](CatalogTransaction& txn) -> Status {
    const auto now = CAIRN_TRY(txn.Get(item.key));
    if (!now || (item.object_class == "point" && *now != item.seen)) return {};
    txn.Delete(item.key);
    return {};
  });
}

Result<ReapReport> Reaper::Execute(const ReapPlan& plan, int64_t now_ms) {
  ReapReport report;
  for (const PlanItem& item : plan.items) {
    if (!item.condemned) {
      ++report.kept;
      continue;
    }
    const Status done = ExecuteItem(item, now_ms);
    if (done) {
      ++report.removed;
      continue;
    }
    // A failed deletion of one thing blocks no other; the next run finds it again.
    ++report.failed;
    report.failures.push_back(item.object_class + " " + item.id + ": " + done.error().ToString());
    LogWarning("reap_failed",
               {{"class", item.object_class}, {"id", item.id}, {"error", done.error().ToString()}});
  }
  return report;
}

}  // namespace cairn
