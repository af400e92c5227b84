// The lifetime rules as an exhaustive table: every combination of the facts that a rule may look
// at, against an oracle that is written from the rules' sentences (and against counts worked out by
// hand), not from the code.
#include "catalog/lifetime_rules.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace cairn::rules {
namespace {

using catalog::Environment;

constexpr int64_t kNow = 1'000'000;
const std::string kCreator = "sess_creator";

enum class When { kNever, kPast, kThisInstant, kFuture };
int64_t TimeOf(When when) {
  return when == When::kNever         ? 0
         : when == When::kPast        ? kNow - 1
         : when == When::kThisInstant ? kNow
                                      : kNow + 1;
}

struct Facts {
  catalog::Lifetime lifetime;
  catalog::EnvironmentState state;
  int bindings;
  bool creator_deleted;
  bool mounted;
  When lease;  // runs until
  bool operation;
  When expires;

  Environment env() const {
    Environment env;
    env.set_id("env_x");
    env.set_lifetime(lifetime);
    env.set_state(state);
    if (lifetime != catalog::LIFETIME_STANDALONE) env.set_creator_session(kCreator);
    if (lease != When::kNever) {
      env.mutable_lease()->set_host("host");
      env.mutable_lease()->set_until_ms(TimeOf(lease));
    }
    env.set_expires_ms(TimeOf(expires));
    return env;
  }
  EnvironmentUse use() const {
    EnvironmentUse use;
    for (int i = 0; i < bindings; ++i) use.active_sessions.push_back("sess_" + std::to_string(i));
    if (operation) use.running_operations.push_back("op_1");
    use.mounted = mounted;
    use.creator_deleted = creator_deleted;
    use.now_ms = kNow;
    return use;
  }
  // The words of the rules.
  bool gone() const { return state >= catalog::ENV_DELETING; }
  bool claimed() const { return lease == When::kFuture; }
  bool expired() const { return expires == When::kPast || expires == When::kThisInstant; }
  std::string ToString() const {
    return "lifetime " + std::to_string(lifetime) + " state " + std::to_string(state) +
           " bindings " + std::to_string(bindings) + " creator_deleted " +
           std::to_string(creator_deleted) + " mounted " + std::to_string(mounted) + " lease " +
           std::to_string(static_cast<int>(lease)) + " operation " + std::to_string(operation) +
           " expires " + std::to_string(static_cast<int>(expires));
  }
};

// 3 lifetimes x 7 states x 3 x 2 x 2 x 4 x 2 x 4.
template <typename Visit>
void ForAll(Visit visit) {
  const When whens[] = {When::kNever, When::kPast, When::kThisInstant, When::kFuture};
  for (int lifetime = 0; lifetime < 3; ++lifetime)
    for (int state = 0; state < 7; ++state)
      for (int bindings = 0; bindings < 3; ++bindings)
        for (bool creator_deleted : {false, true})
          for (bool mounted : {false, true})
            for (When lease : whens)
              for (bool operation : {false, true})
                for (When expires : whens)
                  visit(Facts{static_cast<catalog::Lifetime>(lifetime),
                              static_cast<catalog::EnvironmentState>(state), bindings,
                              creator_deleted, mounted, lease, operation, expires});
}
constexpr int kCombinations = 3 * 7 * 3 * 2 * 2 * 4 * 2 * 4;

std::string CodeOf(const auto& answer) { return answer ? "" : answer.error().code(); }

TEST(LifetimeRules, DeletionByTheOwnerIsRefusedExactlyWhenSomethingUsesIt) {
  std::map<std::string, int> counted;
  ForAll([&](const Facts& f) {
    const auto answer = MayDelete(f.env(), f.use());
    // A second delete answers as the first. Otherwise the first obstacle of this list is named.
    std::string expected = "tombstone";
    if (f.mounted || f.claimed()) expected = "environment_mounted";
    if (f.operation) expected = "operation_in_progress";
    if (f.state == catalog::ENV_INITIALIZING) expected = "initialization_in_progress";
    if (f.bindings > 0) expected = "environment_in_use";
    if (f.gone()) expected = "again";
    std::string got = CodeOf(answer);
    if (answer) got = *answer == DeleteStep::kTombstone ? "tombstone" : "again";
    ASSERT_EQ(got, expected) << f.ToString();
    ++counted[got];
    if (got == "environment_in_use") {
      ASSERT_EQ(answer.error().blocking(), f.use().active_sessions);
      ASSERT_EQ(answer.error().error().code(), ErrorCode::kFailedPrecondition);
    }
    if (got == "operation_in_progress") {
      ASSERT_EQ(answer.error().blocking(), std::vector<std::string>{"op_1"});
    }
  });
  EXPECT_EQ(counted["again"], kCombinations * 2 / 7);
  EXPECT_EQ(counted["environment_in_use"], kCombinations * 5 / 7 * 2 / 3);
  EXPECT_EQ(counted["initialization_in_progress"], kCombinations / 7 / 3);
  EXPECT_EQ(counted["operation_in_progress"], kCombinations * 4 / 7 / 3 / 2);
  EXPECT_EQ(counted["tombstone"], 3 * 4 * 1 * 2 * 1 * 3 * 1 * 4);
}

TEST(LifetimeRules, ADeletedSessionTakesOnlyItsOwnPrivateEnvironment) {
  std::map<SessionDeletion, int> counted;
  ForAll([&](const Facts& f) {
    for (const std::string& session : {kCreator, std::string("sess_other")}) {
      const SessionDeletion got = OnSessionDeleted(f.env(), session, f.use());
      const bool its_own = f.lifetime == catalog::LIFETIME_PRIVATE && session == kCreator;
      const bool in_use = f.bindings > 0 || f.mounted || f.claimed() || f.operation ||
                          f.state == catalog::ENV_INITIALIZING;
      const SessionDeletion expected = !its_own || f.gone() ? SessionDeletion::kKeepEnvironment
                                       : in_use             ? SessionDeletion::kLeaveToReaper
                                                : SessionDeletion::kTombstoneEnvironment;
      ASSERT_EQ(got, expected) << f.ToString() << " " << session;
      ++counted[got];
    }
  });
  EXPECT_EQ(counted[SessionDeletion::kTombstoneEnvironment], 1 * 4 * 1 * 2 * 1 * 3 * 1 * 4);
}

TEST(LifetimeRules, TheReaperCondemnsOnlyWhatItsOwnerLeftAndNobodyUses) {
  std::map<std::string, int> counted;
  ForAll([&](const Facts& f) {
    const ReapVerdict verdict = MayReap(f.env(), f.use());
    const bool in_use = f.bindings > 0 || f.mounted || f.claimed() || f.operation ||
                        f.state == catalog::ENV_INITIALIZING;
    const bool owner_gone = f.lifetime == catalog::LIFETIME_PRIVATE && f.creator_deleted;
    const bool expected =
        f.state == catalog::ENV_DELETING ||
        (f.state != catalog::ENV_DELETED && !in_use && (owner_gone || f.expired()));
    ASSERT_EQ(verdict.condemned, expected) << f.ToString();
    ASSERT_FALSE(verdict.rule.empty());
    ++counted[std::string(verdict.rule)];
    // Never for lacking Sessions: what has no Binding and an owner stays.
    if (!f.gone() && f.bindings == 0 && !owner_gone && !f.expired()) {
      ASSERT_FALSE(verdict.condemned) << f.ToString();
    }
    // Whoever is refused a deletion for use is safe from the reaper as well.
    if (!f.gone() && !MayDelete(f.env(), f.use())) {
      ASSERT_FALSE(verdict.condemned) << f.ToString();
    }
  });
  EXPECT_EQ(counted["owner_deleted"], 1 * 4 * 1 * 1 * 1 * 3 * 1 * 4);
  // Expired: unused ones whose owner is not gone (5 of 6 pairs of lifetime and creator), 2 of 4
  // expiries.
  EXPECT_EQ(counted["expired"], 4 * 5 * 3 * 2);
  EXPECT_EQ(counted["deleting"], kCombinations / 7);
  EXPECT_EQ(counted["tombstone"], kCombinations / 7);
}

TEST(LifetimeRules, AttachingIsRefusedByDeathFailureAndExpiryAlone) {
  ForAll([&](const Facts& f) {
    std::string expected;
    if (f.expired()) expected = "environment_expired";
    if (f.state == catalog::ENV_FAILED) expected = "initialization_failed";
    if (f.gone()) expected = "environment_deleted";
    ASSERT_EQ(CodeOf(MayAttach(f.env(), kNow)), expected) << f.ToString();
    catalog::Session session;
    session.set_id("sess_1");
    ASSERT_EQ(CodeOf(MayStartTurn(session, f.env(), kNow)), expected) << f.ToString();
    session.set_active_turn("turn_1");
    const auto busy = MayStartTurn(session, f.env(), kNow);
    ASSERT_EQ(CodeOf(busy), "turn_in_progress");
    ASSERT_EQ(busy.error().blocking(), std::vector<std::string>{"turn_1"});
    session.set_deleted_ms(1);
    ASSERT_EQ(CodeOf(MayStartTurn(session, f.env(), kNow)), "not_found");
  });
}

TEST(LifetimeRules, TheFirstReferenceMakesEveryLifetimeSharedForEver) {
  for (const auto before :
       {catalog::LIFETIME_PRIVATE, catalog::LIFETIME_STANDALONE, catalog::LIFETIME_SHARED}) {
    EXPECT_EQ(LifetimeAfterAttach(before), catalog::LIFETIME_SHARED);
  }
}

TEST(LifetimeRules, StatusesOnTheWireFollowOneTable) {
  // state x lease {never, past, now, future}; expiry overrides every row.
  const char* table[7][4] = {
      {"pending", "pending", "pending", "pending"},
      {"pending", "pending", "pending", "pending"},
      {"ready", "disconnected", "disconnected", "connected"},
      {"suspended", "suspended", "suspended", "suspended"},
      {"failed", "failed", "failed", "failed"},
      {"expired", "expired", "expired", "expired"},
      {"expired", "expired", "expired", "expired"},
  };
  ForAll([&](const Facts& f) {
    const std::string_view expected =
        f.expired() ? "expired" : table[f.state][static_cast<int>(f.lease)];
    ASSERT_EQ(WireStatus(f.env(), kNow), expected) << f.ToString();
  });
}

TEST(LifetimeRules, OnlyTheDrawnTransitionsAreAllowed) {
  using namespace catalog;
  const std::set<std::pair<int, int>> allowed = {
      {ENV_PENDING, ENV_INITIALIZING},  {ENV_INITIALIZING, ENV_READY},
      {ENV_INITIALIZING, ENV_FAILED},   {ENV_INITIALIZING, ENV_PENDING},
      {ENV_READY, ENV_SUSPENDED},       {ENV_READY, ENV_FAILED},
      {ENV_SUSPENDED, ENV_READY},       {ENV_FAILED, ENV_PENDING},
      {ENV_DELETING, ENV_DELETED},      {ENV_PENDING, ENV_DELETING},
      {ENV_READY, ENV_DELETING},        {ENV_SUSPENDED, ENV_DELETING},
      {ENV_INITIALIZING, ENV_DELETING}, {ENV_FAILED, ENV_DELETING},
  };
  for (int from = 0; from < 7; ++from) {
    for (int to = 0; to < 7; ++to) {
      EXPECT_EQ(IsAllowedTransition(static_cast<EnvironmentState>(from),
                                    static_cast<EnvironmentState>(to)),
                allowed.contains({from, to}))
          << from << " -> " << to;
    }
  }
}

TEST(LifetimeRules, ATurnEndsOnceAndTheSameEndIsRepeatable) {
  for (int current = 0; current < 4; ++current) {
    for (int wanted = 0; wanted < 4; ++wanted) {
      const auto answer = MayEndTurn(static_cast<catalog::TurnStatus>(current),
                                     static_cast<catalog::TurnStatus>(wanted));
      if (current == catalog::TURN_RUNNING && wanted == catalog::TURN_RUNNING) {
        EXPECT_EQ(CodeOf(answer), "invalid_argument");
      } else if (current == catalog::TURN_RUNNING) {
        EXPECT_EQ(*answer, TurnStep::kEnd);
      } else if (current == wanted) {
        EXPECT_EQ(*answer, TurnStep::kAlreadyEndedSo);
      } else {
        EXPECT_EQ(CodeOf(answer), "turn_already_ended") << current << " " << wanted;
      }
    }
  }
}

TEST(LifetimeRules, SnapshotsAreHeldByPinsResumesAndForks) {
  for (const bool pinned : {false, true}) {
    catalog::Snapshot snapshot;
    snapshot.set_pinned(pinned);
    EXPECT_EQ(CodeOf(MayDeleteSnapshot(snapshot, {})), pinned ? "snapshot_pinned" : "");
    const auto in_use = MayDeleteSnapshot(snapshot, {"env_1"});
    EXPECT_EQ(CodeOf(in_use), "snapshot_in_use");
    EXPECT_EQ(in_use.error().blocking(), std::vector<std::string>{"env_1"});
    EXPECT_EQ(OutlivesEnvironment(snapshot, false), pinned);
    EXPECT_TRUE(OutlivesEnvironment(snapshot, true));
  }
}

}  // namespace
}  // namespace cairn::rules
