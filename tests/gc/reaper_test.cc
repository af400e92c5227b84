// The reaper's plan over fabricated records, and its execution with hooks that fail.
#include "gc/reaper.h"

#include <gtest/gtest.h>

#include <map>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "tests/support/mem_catalog.h"

namespace cairn {
namespace {

constexpr uint64_t kThisLife = 7;
constexpr int64_t kNow = 1'000'000'000;
const std::string kOrg = "org_00000000000000000000000000000001";

std::string Id(const std::string& prefix, int n) {
  std::string digits = std::to_string(n);
  return prefix + std::string(32 - digits.size(), '0') + digits;
}
std::string VolumeId(int n) { return std::string(15, '\0') + static_cast<char>(n); }

class ReaperTest : public testing::Test {
 protected:
  template <typename Message>
  void Put(const std::string& key, const Message& message) {
    ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      PutRecord(txn, key, message);
      return {};
    }));
  }

  catalog::Environment Env(int n, catalog::EnvironmentState state) {
    catalog::Environment env;
    env.set_id(Id("env_", n));
    env.set_org(kOrg);
    env.set_state(state);
    env.set_volume(VolumeId(n));
    return env;
  }
  void PutEnv(const catalog::Environment& env) { Put(keys::Environment(kOrg, env.id()), env); }
  void PutVolume(int n) {
    catalog::Volume volume;
    volume.set_id(VolumeId(n));
    volume.set_env(Id("env_", n));
    volume.set_org(kOrg);
    Put(keys::Volume(VolumeId(n)), volume);
  }
  catalog::Point Point(int volume, uint64_t generation) {
    catalog::Point point;
    point.set_volume(VolumeId(volume));
    point.set_generation(generation);
    return point;
  }
  void PutPoint(int volume, uint64_t generation) {
    catalog::PointRecord record;
    *record.mutable_point() = Point(volume, generation);
    record.set_org(kOrg);
    Put(keys::Point(VolumeId(volume), generation), record);
  }

  ReaperHooks Hooks() {
    ReaperHooks hooks;
    hooks.revoke_environment = [this](const catalog::Environment& env) -> Status {
      calls_.push_back("revoke " + env.id());
      if (fail_revoke_) return Err(ErrorCode::kUnavailable, "busy");
      return {};
    };
    hooks.remove_volume = [this](const catalog::Volume& volume) -> Status {
      EXPECT_TRUE(GetRecord<catalog::Volume>(catalog_, keys::Volume(volume.id()))->has_value())
          << "the record must outlive the bytes";
      calls_.push_back("remove volume of " + volume.env());
      return {};
    };
    hooks.is_mounted = [this](const catalog::Environment& env) { return env.id() == mounted_; };
    hooks.point_is_held = [this](const catalog::Point& point) {
      return held_ == keys::Point(point.volume(), point.generation());
    };
    return hooks;
  }
  ReapPlan Plan() {
    auto plan = Reaper(catalog_, Hooks(), kThisLife).Plan(kNow);
    EXPECT_TRUE(plan) << plan.error().ToString();
    return *plan;
  }
  ReapReport Execute(const ReapPlan& plan) {
    auto report = Reaper(catalog_, Hooks(), kThisLife).Execute(plan, kNow);
    EXPECT_TRUE(report);
    return *report;
  }
  // "condemned: rule" or "kept: rule".
  std::string Decision(const ReapPlan& plan, const std::string& id) {
    for (const PlanItem& item : plan.items) {
      if (item.id == id) return (item.condemned ? "condemned: " : "kept: ") + item.rule;
    }
    return "not in the plan";
  }
  template <typename Message>
  std::optional<Message> Read(const std::string& key) {
    auto record = GetRecord<Message>(catalog_, key);
    EXPECT_TRUE(record);
    return *record;
  }

  MemCatalog catalog_;
  std::vector<std::string> calls_;
  std::string held_;
  std::string mounted_;
  bool fail_revoke_ = false;
};

TEST_F(ReaperTest, EnvironmentWithoutSessionsIsNeverCondemned) {
  PutEnv(Env(1, catalog::ENV_READY));
  PutEnv(Env(2, catalog::ENV_PENDING));
  PutEnv(Env(3, catalog::ENV_SUSPENDED));
  PutEnv(Env(4, catalog::ENV_FAILED));
  const ReapPlan plan = Plan();
  for (int n = 1; n <= 4; ++n) EXPECT_EQ(Decision(plan, Id("env_", n)), "kept: owner_keeps_it");
}

TEST_F(ReaperTest, ExpiredEnvironmentGoesUnlessInUse) {
  for (int n = 1; n <= 3; ++n) {
    catalog::Environment env = Env(n, catalog::ENV_READY);
    env.set_expires_ms(n == 3 ? kNow + 1 : kNow);
    PutEnv(env);
  }
  catalog::Binding binding;
  binding.set_env(Id("env_", 2));
  binding.set_session(Id("sess_", 1));
  binding.set_active(true);
  Put(keys::Binding(kOrg, binding.env(), binding.session()), binding);
  const ReapPlan plan = Plan();
  EXPECT_EQ(Decision(plan, Id("env_", 1)), "condemned: expired");
  EXPECT_EQ(Decision(plan, Id("env_", 2)), "kept: in_use:" + Id("sess_", 1));
  EXPECT_EQ(Decision(plan, Id("env_", 3)), "kept: not_expired");
}

TEST_F(ReaperTest, ExpiredEnvironmentThatCameIntoUseSinceThePlanStays) {
  catalog::Environment env = Env(1, catalog::ENV_READY);
  env.set_expires_ms(kNow);
  PutEnv(env);
  const ReapPlan plan = Plan();
  catalog::Binding binding;
  binding.set_env(env.id());
  binding.set_session(Id("sess_", 1));
  binding.set_active(true);
  Put(keys::Binding(kOrg, binding.env(), binding.session()), binding);
  const ReapReport report = Execute(plan);
  EXPECT_EQ(report.failed, 1u);
  EXPECT_EQ(Read<catalog::Environment>(keys::Environment(kOrg, env.id()))->state(),
            catalog::ENV_READY);
  EXPECT_TRUE(calls_.empty());
}

TEST_F(ReaperTest, PrivateEnvironmentOfADeletedSessionGoesOnceNothingUsesIt) {
  catalog::Session session;
  session.set_id(Id("sess_", 1));
  session.set_org(kOrg);
  session.set_deleted_ms(5);
  Put(keys::Session(kOrg, session.id()), session);
  catalog::Environment env = Env(1, catalog::ENV_READY);
  env.set_lifetime(catalog::LIFETIME_PRIVATE);
  env.set_creator_session(session.id());
  PutEnv(env);
  catalog::Environment shared = Env(2, catalog::ENV_READY);
  shared.set_lifetime(catalog::LIFETIME_SHARED);
  shared.set_creator_session(session.id());
  PutEnv(shared);
  mounted_ = env.id();
  EXPECT_EQ(Decision(Plan(), env.id()), "kept: in_use:mount");
  mounted_.clear();
  catalog::Operation op;
  op.set_id(Id("op_", 1));
  op.set_org(kOrg);
  op.set_target(env.id());
  op.set_server_epoch(kThisLife);
  Put(keys::Operation(kOrg, op.id()), op);
  EXPECT_EQ(Decision(Plan(), env.id()), "kept: in_use:" + op.id());
  op.set_ended_ms(6);
  Put(keys::Operation(kOrg, op.id()), op);
  const ReapPlan plan = Plan();
  EXPECT_EQ(Decision(plan, env.id()), "condemned: owner_deleted");
  EXPECT_EQ(Decision(plan, shared.id()), "kept: owner_keeps_it");
  mounted_ = env.id();  // since the plan
  EXPECT_EQ(Execute(plan).failed, 1u);
  mounted_.clear();
  EXPECT_EQ(Execute(Plan()).failed, 0u);
  EXPECT_EQ(Read<catalog::Environment>(keys::Environment(kOrg, env.id()))->state(),
            catalog::ENV_DELETED);
}

TEST_F(ReaperTest, DeletingEnvironmentIsRevokedThenItsVolumeGoesBeforeItsRecord) {
  PutEnv(Env(1, catalog::ENV_DELETING));
  PutVolume(1);
  const ReapReport report = Execute(Plan());
  EXPECT_EQ(report.failed, 0u);
  EXPECT_EQ(calls_, (std::vector<std::string>{"revoke " + Id("env_", 1),
                                              "remove volume of " + Id("env_", 1)}));
  EXPECT_EQ(Read<catalog::Environment>(keys::Environment(kOrg, Id("env_", 1)))->state(),
            catalog::ENV_DELETED);
  EXPECT_FALSE(Read<catalog::Volume>(keys::Volume(VolumeId(1))));
  // Again: nothing to do, the tombstone stays.
  calls_.clear();
  EXPECT_EQ(Execute(Plan()).removed, 0u);
  EXPECT_TRUE(calls_.empty());
}

TEST_F(ReaperTest, FailedRevocationIsTriedAgainAndBlocksNothingElse) {
  PutEnv(Env(1, catalog::ENV_DELETING));
  catalog::IdempotencyKey old;
  old.set_created_ms(kNow - 25 * 3600 * 1000);
  Put(keys::Idempotency(kOrg, std::string(32, 'x')), old);
  fail_revoke_ = true;
  ReapReport report = Execute(Plan());
  EXPECT_EQ(report.failed, 1u);
  EXPECT_EQ(report.removed, 1u);
  EXPECT_EQ(Read<catalog::Environment>(keys::Environment(kOrg, Id("env_", 1)))->state(),
            catalog::ENV_DELETING);
  fail_revoke_ = false;
  report = Execute(Plan());
  EXPECT_EQ(report.failed, 0u);
  EXPECT_EQ(Read<catalog::Environment>(keys::Environment(kOrg, Id("env_", 1)))->state(),
            catalog::ENV_DELETED);
}

TEST_F(ReaperTest, PointStaysWhileAnythingRefersToIt) {
  PutEnv(Env(1, catalog::ENV_READY));
  PutEnv(Env(2, catalog::ENV_READY));
  PutVolume(1);
  for (uint64_t g = 1; g <= 5; ++g) PutPoint(1, g);
  catalog::Snapshot snapshot;
  snapshot.set_id(Id("snap_", 1));
  snapshot.set_org(kOrg);
  snapshot.set_env(Id("env_", 1));
  *snapshot.mutable_point() = Point(1, 1);
  Put(keys::Snapshot(kOrg, snapshot.id()), snapshot);
  catalog::Session session;
  session.set_id(Id("sess_", 1));
  session.set_org(kOrg);
  Put(keys::Session(kOrg, session.id()), session);
  catalog::Turn turn;
  turn.set_id(Id("turn_", 1));
  turn.set_org(kOrg);
  turn.set_session(session.id());
  *turn.mutable_point() = Point(1, 2);
  Put(keys::Turn(kOrg, turn.id()), turn);
  catalog::Artifact artifact;
  artifact.set_id(Id("art_", 1));
  artifact.set_org(kOrg);
  artifact.set_session(session.id());
  artifact.set_turn(turn.id());
  Put(keys::Artifact(kOrg, session.id(), artifact.id()), artifact);
  catalog::Volume fork;
  fork.set_id(VolumeId(2));
  fork.set_env(Id("env_", 2));
  fork.set_org(kOrg);
  *fork.mutable_base_point() = Point(1, 3);
  Put(keys::Volume(VolumeId(2)), fork);
  held_ = keys::Point(VolumeId(1), 4);

  const ReapPlan plan = Plan();
  EXPECT_EQ(Decision(plan, keys::Point(VolumeId(1), 1)), "kept: referenced_by:" + snapshot.id());
  EXPECT_EQ(Decision(plan, keys::Point(VolumeId(1), 2)), "kept: referenced_by:" + turn.id());
  EXPECT_EQ(Decision(plan, keys::Point(VolumeId(1), 3)), "kept: referenced_by:" + Id("env_", 2));
  EXPECT_EQ(Decision(plan, keys::Point(VolumeId(1), 4)), "kept: operation_in_flight");
  EXPECT_EQ(Decision(plan, keys::Point(VolumeId(1), 5)), "condemned: unreferenced");
}

TEST_F(ReaperTest, PointThatWasTakenUpSinceThePlanStays) {
  PutPoint(1, 1);
  const ReapPlan plan = Plan();
  auto record = *Read<catalog::PointRecord>(keys::Point(VolumeId(1), 1));
  record.set_referrals(1);
  Put(keys::Point(VolumeId(1), 1), record);
  Execute(plan);
  EXPECT_TRUE(Read<catalog::PointRecord>(keys::Point(VolumeId(1), 1)));
}

TEST_F(ReaperTest, DeletedSessionTakesItsTurnsAndArtifacts) {
  catalog::Session session;
  session.set_id(Id("sess_", 1));
  session.set_org(kOrg);
  session.set_deleted_ms(5);
  Put(keys::Session(kOrg, session.id()), session);
  catalog::Turn turn;
  turn.set_id(Id("turn_", 1));
  turn.set_org(kOrg);
  turn.set_session(session.id());
  turn.set_publication_root(std::string(40, 'r'));
  Put(keys::Turn(kOrg, turn.id()), turn);
  catalog::Artifact artifact;
  artifact.set_id(Id("art_", 1));
  artifact.set_org(kOrg);
  artifact.set_session(session.id());
  artifact.set_turn(turn.id());
  Put(keys::Artifact(kOrg, session.id(), artifact.id()), artifact);
  Execute(Plan());
  EXPECT_FALSE(Read<catalog::Turn>(keys::Turn(kOrg, turn.id())));
  EXPECT_FALSE(Read<catalog::Artifact>(keys::Artifact(kOrg, session.id(), artifact.id())));
  EXPECT_TRUE(Read<catalog::Session>(keys::Session(kOrg, session.id()))) << "the tombstone stays";
}

TEST_F(ReaperTest, SnapshotsGoWithTheirEnvironmentUnlessPinnedOrHeld) {
  catalog::Environment env = Env(1, catalog::ENV_DELETED);
  env.add_held_snapshots(Id("snap_", 3));
  PutEnv(env);
  catalog::IndexEntry fork;
  fork.set_org(kOrg);
  fork.set_id(Id("env_", 9));
  const std::string fork_key = keys::Fork(kOrg, Id("snap_", 3), fork.id());
  Put(fork_key, fork);
  for (int n = 1; n <= 3; ++n) {
    catalog::Snapshot snapshot;
    snapshot.set_id(Id("snap_", n));
    snapshot.set_org(kOrg);
    snapshot.set_env(env.id());
    snapshot.set_pinned(n == 2);
    snapshot.set_memory_image(std::string(40, 'm'));
    Put(keys::Snapshot(kOrg, snapshot.id()), snapshot);
  }
  const ReapPlan plan = Plan();
  EXPECT_EQ(Decision(plan, Id("snap_", 1)), "condemned: environment_deleted");
  EXPECT_EQ(Decision(plan, Id("snap_", 2)), "kept: pinned");
  EXPECT_EQ(Decision(plan, Id("snap_", 3)), "kept: held_by_fork");
  Execute(plan);
  const auto gone = Read<catalog::Snapshot>(keys::Snapshot(kOrg, Id("snap_", 1)));
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->deleted_ms(), kNow);
  EXPECT_TRUE(gone->memory_image().empty());
  EXPECT_FALSE(
      Read<catalog::Snapshot>(keys::Snapshot(kOrg, Id("snap_", 2)))->memory_image().empty());
  // When the fork goes, so does what it held.
  ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    txn.Delete(fork_key);
    return {};
  }));
  EXPECT_EQ(Decision(Plan(), Id("snap_", 3)), "condemned: environment_deleted");
}

TEST_F(ReaperTest, OperationsOfEarlierLivesEndAsInterrupted) {
  for (int n = 1; n <= 3; ++n) {
    catalog::Operation op;
    op.set_id(Id("op_", n));
    op.set_org(kOrg);
    op.set_target("t");
    op.set_server_epoch(n == 2 ? kThisLife : kThisLife - 1);
    if (n == 3) op.set_ended_ms(3);
    Put(keys::Operation(kOrg, op.id()), op);
    Put(keys::Running(kOrg, "t", op.id()), op);
  }
  Execute(Plan());
  EXPECT_EQ(Read<catalog::Operation>(keys::Operation(kOrg, Id("op_", 1)))->error_code(),
            "interrupted");
  EXPECT_EQ(Read<catalog::Operation>(keys::Operation(kOrg, Id("op_", 2)))->ended_ms(), 0);
  EXPECT_EQ(Read<catalog::Operation>(keys::Operation(kOrg, Id("op_", 3)))->error_code(), "");
  EXPECT_FALSE(Read<catalog::Operation>(keys::Running(kOrg, "t", Id("op_", 1))));
  EXPECT_TRUE(Read<catalog::Operation>(keys::Running(kOrg, "t", Id("op_", 2))));
}

TEST_F(ReaperTest, UnreadableListingRemovesNothing) {
  PutEnv(Env(1, catalog::ENV_DELETING));
  ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    txn.Put(keys::Volume(VolumeId(9)), "\xff\xff not a record");
    return {};
  }));
  const auto plan = Reaper(catalog_, Hooks(), kThisLife).Plan(kNow);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code(), ErrorCode::kDataLoss);
  EXPECT_TRUE(calls_.empty());
}

}  // namespace
}  // namespace cairn
