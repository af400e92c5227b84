// Lifetimes through the registry: what goes and what stays, races included.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/catalog/registry_fixture.h"

namespace cairn {
namespace {

using Lifetimes = RegistryFixture;

TEST_F(Lifetimes, CreationAllocatesNothing) {
  const auto session = NewSession();
  NewEnvironment();
  ASSERT_TRUE(registry_->StartTurn(org_, session.id()));
  EXPECT_EQ(CountKeys("volume"), 0);
  EXPECT_EQ(CountKeys("point"), 0);
  EXPECT_EQ(Env(session.env()).state(), catalog::ENV_PENDING);
  EXPECT_TRUE(Env(session.env()).volume().empty());
  ExpectSound();
}

TEST_F(Lifetimes, APrivateEnvironmentGoesWithItsSession) {
  const auto session = NewSession();
  EXPECT_EQ(Env(session.env()).lifetime(), catalog::LIFETIME_PRIVATE);
  const auto receipt = registry_->DeleteSession(org_, session.id());
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->session.status(), "deleted");
  ASSERT_TRUE(receipt->deleted_environment);
  EXPECT_EQ(Env(session.env()).state(), catalog::ENV_DELETING);
  EXPECT_FALSE(registry_->GetEnvironment(org_, session.env()));
  EXPECT_FALSE(registry_->GetSession(org_, session.id()));
  EXPECT_EQ(registry_->ListBindings(org_, session.env())->size(), 0u);
  ExpectSound();
}

TEST_F(Lifetimes, AReferenceMakesItSharedForEverAndItOutlivesEverySession) {
  const auto creator = NewSession();
  const auto second = NewSession(creator.env());
  EXPECT_EQ(second.env(), creator.env());
  EXPECT_EQ(Env(creator.env()).lifetime(), catalog::LIFETIME_SHARED);
  ASSERT_TRUE(registry_->DeleteSession(org_, second.id()));
  EXPECT_EQ(Env(creator.env()).lifetime(), catalog::LIFETIME_SHARED);
  ASSERT_TRUE(registry_->DeleteSession(org_, creator.id()));
  EXPECT_EQ(Env(creator.env()).state(), catalog::ENV_PENDING);  // the last Session went; it stays
  EXPECT_TRUE(registry_->DeleteEnvironment(org_, creator.env()));
}

TEST_F(Lifetimes, TheOnlySessionsReferenceToAStandaloneOneMakesItSharedToo) {
  const std::string env = NewEnvironment();
  EXPECT_EQ(Env(env).lifetime(), catalog::LIFETIME_STANDALONE);
  const auto session = NewSession(env);
  EXPECT_EQ(Env(env).lifetime(), catalog::LIFETIME_SHARED);
  ASSERT_TRUE(registry_->DeleteSession(org_, session.id()));
  EXPECT_TRUE(registry_->GetEnvironment(org_, env));
}

TEST_F(Lifetimes, OutputDirectoriesLieOutsideEachOther) {
  const auto creator = NewSession();
  const auto second = NewSession(creator.env());
  const auto third = NewSession(creator.env());
  EXPECT_EQ(creator.output_directory(), "/workspace/outputs");
  EXPECT_EQ(registry_->GetSession(org_, creator.id())->output_directory(), "/workspace/outputs");
  std::vector<std::string> all = {creator.output_directory(), second.output_directory(),
                                  third.output_directory()};
  for (const std::string& a : all) {
    EXPECT_TRUE(a.starts_with("/workspace/")) << a;
    for (const std::string& b : all) {
      if (&a != &b) {
        EXPECT_FALSE((a + "/").starts_with(b + "/")) << a << " in " << b;
      }
    }
  }
}

TEST_F(Lifetimes, DeletingAUsedEnvironmentNamesTheBlockers) {
  const std::string env = NewEnvironment();
  const auto one = NewSession(env);
  const auto two = NewSession(env);
  const auto refused = registry_->DeleteEnvironment(org_, env);
  ASSERT_EQ(CodeOf(refused), "environment_in_use");
  EXPECT_EQ(
      std::set<std::string>(refused.error().blocking().begin(), refused.error().blocking().end()),
      (std::set<std::string>{one.id(), two.id()}));
  ASSERT_TRUE(registry_->DeleteSession(org_, one.id()));
  EXPECT_EQ(registry_->DeleteEnvironment(org_, env).error().blocking(),
            std::vector<std::string>{two.id()});
  ASSERT_TRUE(registry_->DeleteSession(org_, two.id()));
  EXPECT_TRUE(registry_->DeleteEnvironment(org_, env));
}

TEST_F(Lifetimes, RepeatingADeleteGivesTheSameAnswer) {
  const std::string env = NewEnvironment();
  const auto pinned = NewSnapshot(env, true);
  const auto first = registry_->DeleteEnvironment(org_, env);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->held_snapshots, std::vector<std::string>{pinned.id()});
  Advance(1000);
  const auto again = registry_->DeleteEnvironment(org_, env);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->environment.SerializeAsString(), first->environment.SerializeAsString());
  EXPECT_EQ(again->held_snapshots, first->held_snapshots);

  const auto session = NewSession();
  const auto gone = registry_->DeleteSession(org_, session.id());
  Advance(1000);
  EXPECT_EQ(registry_->DeleteSession(org_, session.id())->session.SerializeAsString(),
            gone->session.SerializeAsString());
}

TEST_F(Lifetimes, InitialisationOperationsAndMountsBlockADeletion) {
  const std::string env = NewEnvironment();
  Alter(env, [](catalog::Environment& e) { e.set_state(catalog::ENV_INITIALIZING); });
  EXPECT_EQ(CodeOf(registry_->DeleteEnvironment(org_, env)), "initialization_in_progress");
  Alter(env, [](catalog::Environment& e) { e.set_state(catalog::ENV_READY); });

  const auto op = BeginOperation(*catalog_, org_, "pause", env, registry_->epoch(), clock_.NowMs());
  ASSERT_TRUE(op);
  const auto refused = registry_->DeleteEnvironment(org_, env);
  EXPECT_EQ(CodeOf(refused), "operation_in_progress");
  EXPECT_EQ(refused.error().blocking(), std::vector<std::string>{op->id()});
  ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
    return EndOperation(txn, org_, op->id(), "snap_x", nullptr, clock_.NowMs());
  }));

  mounted_.insert(env);
  EXPECT_EQ(CodeOf(registry_->DeleteEnvironment(org_, env)), "environment_mounted");
  mounted_.clear();
  Alter(env, [&](catalog::Environment& e) {
    e.mutable_lease()->set_host("h");
    e.mutable_lease()->set_until_ms(clock_.NowMs() + 10);
  });
  EXPECT_EQ(CodeOf(registry_->DeleteEnvironment(org_, env)), "environment_mounted");
  Advance(10);  // a dead host's lease runs out
  EXPECT_TRUE(registry_->DeleteEnvironment(org_, env));
}

TEST_F(Lifetimes, APrivateEnvironmentInUseIsLeftToTheReaper) {
  const auto session = NewSession();
  mounted_.insert(session.env());
  const auto receipt = registry_->DeleteSession(org_, session.id());
  ASSERT_TRUE(receipt);
  EXPECT_FALSE(receipt->deleted_environment);
  const auto verdict = [&] {
    const auto txn = catalog_->Begin();
    const auto env = FindEnvironment(*txn, org_, session.env());
    return rules::MayReap(*env, *ReadUse(*txn, *env, registry_->epoch(),
                                         mounted_.contains(env->id()), clock_.NowMs()));
  };
  EXPECT_FALSE(verdict().condemned);
  mounted_.clear();
  EXPECT_TRUE(verdict().condemned);
  EXPECT_EQ(verdict().rule, "owner_deleted");
}

TEST_F(Lifetimes, AttachingToADeadOrFailedEnvironmentIsRefusedByCode) {
  const std::string env = NewEnvironment();
  SessionSpec spec;
  spec.attach_to = env;
  Alter(env, [](catalog::Environment& e) { e.set_state(catalog::ENV_FAILED); });
  EXPECT_EQ(CodeOf(registry_->CreateSession(org_, spec)), "initialization_failed");
  ASSERT_TRUE(registry_->RetryInitialization(org_, env));
  EXPECT_TRUE(registry_->CreateSession(org_, spec));
  EXPECT_EQ(CodeOf(registry_->RetryInitialization(org_, env)), "failed_precondition");

  const std::string dead = NewEnvironment();
  ASSERT_TRUE(registry_->DeleteEnvironment(org_, dead));
  spec.attach_to = dead;
  EXPECT_EQ(CodeOf(registry_->CreateSession(org_, spec)), "environment_deleted");

  const std::string old = NewEnvironment();
  Alter(old, [&](catalog::Environment& e) { e.set_expires_ms(clock_.NowMs()); });
  spec.attach_to = old;
  EXPECT_EQ(CodeOf(registry_->CreateSession(org_, spec)), "environment_expired");
  EXPECT_EQ(Env(old).lifetime(),
            catalog::LIFETIME_STANDALONE);  // a refused reference changes nothing
}

TEST_F(Lifetimes, FiftyRacingReferencesAllAttachOnce) {
  const auto creator = NewSession();
  std::vector<std::thread> threads;
  std::atomic<int> attached = 0;
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&] {
      SessionSpec spec;
      spec.attach_to = creator.env();
      for (;;) {
        const auto made = registry_->CreateSession(org_, spec);
        if (made) break;
        ASSERT_EQ(made.error().error().code(), ErrorCode::kAborted) << made.error().message();
      }
      ++attached;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(attached, 50);
  EXPECT_EQ(registry_->ListBindings(org_, creator.env())->size(), 51u);
  EXPECT_EQ(Env(creator.env()).lifetime(), catalog::LIFETIME_SHARED);
}

// Attach and delete at once, many times: never a Session on a deleted Environment, never a deletion
// over a Session.
TEST_F(Lifetimes, AttachAndDeleteNeverBothWin) {
  int deleted = 0, attached = 0;
  for (int round = 0; round < 60; ++round) {
    const std::string env = NewEnvironment();
    if (round % 2 == 0) {  // already shared: the reference would otherwise not change the record
      const auto earlier = NewSession(env);
      ASSERT_TRUE(registry_->DeleteSession(org_, earlier.id()));
    }
    Ruled<Created<catalog::Session>> session =
        std::unexpected(Refusal(Error(ErrorCode::kInternal)));
    Ruled<EnvironmentReceipt> receipt = std::unexpected(Refusal(Error(ErrorCode::kInternal)));
    std::thread attacher([&] {
      SessionSpec spec;
      spec.attach_to = env;
      session = registry_->CreateSession(org_, spec);
    });
    std::thread deleter([&] { receipt = registry_->DeleteEnvironment(org_, env); });
    attacher.join();
    deleter.join();
    ASSERT_NE(session.has_value(), receipt.has_value()) << round;
    if (receipt) {
      ++deleted;
      EXPECT_EQ(CodeOf(session), "environment_deleted");
    } else {
      ++attached;
      EXPECT_EQ(CodeOf(receipt), "environment_in_use");
    }
  }
  RecordProperty("deleted", deleted);
  RecordProperty("attached", attached);
}

TEST_F(Lifetimes, SnapshotsGoWithTheirEnvironmentButForPinnedAndForked) {
  const std::string env = NewEnvironment();
  const auto plain = NewSnapshot(env);
  const auto pinned = NewSnapshot(env, true);
  const auto forked = NewSnapshot(env);
  catalog::Environment fork;
  fork.set_id(NewId(kEnvironmentPrefix));
  fork.set_org(org_);
  fork.set_lifetime(catalog::LIFETIME_STANDALONE);
  fork.set_forked_from_snapshot(forked.id());
  ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) -> Status {
    CAIRN_TRY(PutNewEnvironment(txn, fork));
    return PutForkHold(txn, org_, forked.id(), fork.id());
  }));
  const auto receipt = registry_->DeleteEnvironment(org_, env);
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->held_snapshots, (std::vector<std::string>{pinned.id(), forked.id()}));
  EXPECT_FALSE(GetSnapshot(*catalog_, org_, plain.id()));
  EXPECT_TRUE(GetSnapshot(*catalog_, org_, pinned.id()));
  EXPECT_EQ(ListSnapshots(*catalog_, org_, env)->size(), 2u);
  EXPECT_EQ(ListSnapshots(*catalog_, org_, "")->size(), 2u);
  // The fork's own end releases the hold.
  ASSERT_TRUE(registry_->DeleteEnvironment(org_, fork.id()));
  EXPECT_FALSE(*HasFork(*catalog_->Begin(), org_, forked.id()));
  ExpectSound();
}

TEST_F(Lifetimes, ASnapshotOfADyingEnvironmentIsRefused) {
  const std::string env = NewEnvironment();
  ASSERT_TRUE(registry_->DeleteEnvironment(org_, env));
  catalog::Snapshot late;
  late.set_id(NewId(kSnapshotPrefix));
  late.set_org(org_);
  late.set_env(env);
  const Status put =
      catalog_->Run([&](CatalogTransaction& txn) { return PutNewSnapshot(txn, late); });
  EXPECT_EQ(put.error().code(), ErrorCode::kFailedPrecondition);
}

// Interleaved by hand: each of these is written between the other transaction's reads and its
// commit.
TEST_F(Lifetimes, WhatIsAddedBelowAnEnvironmentAbortsADeletionThatLookedBefore) {
  for (int what = 0; what < 3; ++what) {
    const std::string env_id = NewEnvironment();
    Alter(env_id, [](catalog::Environment& e) { e.set_lifetime(catalog::LIFETIME_SHARED); });
    const auto deletion = catalog_->Begin();
    catalog::Environment env = *FindEnvironment(*deletion, org_, env_id);
    const auto use = ReadUse(*deletion, env, registry_->epoch(), false, clock_.NowMs());
    ASSERT_TRUE(rules::MayDelete(env, *use));
    if (what == 0) NewSession(env_id);
    if (what == 1) NewSnapshot(env_id);
    if (what == 2) {
      ASSERT_TRUE(
          BeginOperation(*catalog_, org_, "pause", env_id, registry_->epoch(), clock_.NowMs()));
    }
    ASSERT_TRUE(TombstoneEnvironment(*deletion, env, clock_.NowMs()));
    const Status committed = deletion->Commit();
    ASSERT_FALSE(committed) << what;
    EXPECT_EQ(committed.error().code(), ErrorCode::kAborted);
  }
}

TEST_F(Lifetimes, DeletingASessionEndsItsTurnsAndArtifacts) {
  const auto session = NewSession();
  NewSession(session.env());  // so that the Environment stays
  const auto turn = registry_->StartTurn(org_, session.id());
  ASSERT_TRUE(turn);
  catalog::Artifact artifact;
  artifact.set_id(NewId(kArtifactPrefix));
  artifact.set_org(org_);
  artifact.set_session(session.id());
  ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
    PutNewArtifact(txn, artifact);
    return Status();
  }));
  EXPECT_EQ(CountKeys("artifact_at"), 1);
  ASSERT_TRUE(registry_->DeleteSession(org_, session.id()));
  EXPECT_EQ(CountKeys("artifact_at"), 0);
  EXPECT_EQ(FindTurn(*catalog_, org_, turn->record.id())->status(), catalog::TURN_CANCELLED);
  EXPECT_FALSE(registry_->GetTurn(org_, turn->record.id()));
  // A publication in flight loses against the tombstone.
  const Status late = catalog_->Run([&](CatalogTransaction& txn) -> Status {
    catalog::Turn again = turn->record;  // as the publication read it before
    CAIRN_TRY(EndTurnRecord(txn, again, catalog::TURN_COMPLETED, "", clock_.NowMs()));
    return {};
  });
  EXPECT_FALSE(late);
  const Status artifact_again = catalog_->Run([&](CatalogTransaction& txn) {
    return DeleteArtifactRecord(txn, org_, session.id(), artifact.id(), clock_.NowMs());
  });
  EXPECT_EQ(artifact_again.error().code(), ErrorCode::kNotFound);
}

TEST_F(Lifetimes, InitialisationsOfAnEarlierLifeArePendingAgain) {
  const std::string env = NewEnvironment();
  Alter(env, [](catalog::Environment& e) { e.set_state(catalog::ENV_INITIALIZING); });
  Reopen();
  EXPECT_EQ(*registry_->ReleaseInitializations(), 1u);
  EXPECT_EQ(Env(env).state(), catalog::ENV_PENDING);
  EXPECT_EQ(*registry_->ReleaseInitializations(), 0u);
}

}  // namespace
}  // namespace cairn
