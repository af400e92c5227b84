// Organizations, keys, scoping, idempotency, lists, turns, snapshots' and operations' records.
#include "catalog/registry.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "catalog/secret_hash.h"
#include "tests/catalog/registry_fixture.h"

namespace cairn {
namespace {

using RegistryTest = RegistryFixture;

TEST_F(RegistryTest, OrganizationKeysComeBackAfterReopening) {
  const OrganizationKeys made = *registry_->CreateOrganization("three");
  EXPECT_FALSE(made.realm.is_zero());
  Reopen();
  const auto loaded = registry_->LoadOrganizations();
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->size(), 3u);
  bool found = false;
  for (const OrganizationKeys& keys : *loaded) {
    if (keys.org != made.org) continue;
    found = true;
    EXPECT_EQ(keys.realm, made.realm);
    EXPECT_EQ(keys.address_key, made.address_key);
    EXPECT_EQ(keys.wrapping_keys, made.wrapping_keys);
    EXPECT_EQ(keys.current_key_id, 1u);
  }
  EXPECT_TRUE(found);
}

TEST_F(RegistryTest, OrganizationsShareNoKey) {
  const auto loaded = registry_->LoadOrganizations();
  ASSERT_EQ(loaded->size(), 2u);
  EXPECT_NE((*loaded)[0].realm, (*loaded)[1].realm);
  EXPECT_NE((*loaded)[0].address_key, (*loaded)[1].address_key);
  EXPECT_NE((*loaded)[0].wrapping_keys.at(1), (*loaded)[1].wrapping_keys.at(1));
  EXPECT_NE((*loaded)[0].address_key, (*loaded)[0].wrapping_keys.at(1));
}

TEST_F(RegistryTest, AnOrganizationWhoseKeyFileIsLostOrDamagedIsLeftOutAndTheOtherGoesOn) {
  const Id128 realm = Id128::FromView(registry_->GetOrganization(org_)->realm());
  const std::string path = dir_.path() + "/keys/" + realm.ToHex() + ".key";
  std::filesystem::resize_file(path, 4000);
  EXPECT_EQ(key_store_->ReadRealm(realm).error().code(), ErrorCode::kDataLoss);
  auto loaded = registry_->LoadOrganizations();
  ASSERT_EQ(loaded->size(), 1u);
  EXPECT_EQ((*loaded)[0].org, other_);
  std::filesystem::remove(path);
  loaded = registry_->LoadOrganizations();
  ASSERT_EQ(loaded->size(), 1u);
  EXPECT_TRUE(registry_->UnfinishedDeletions()->empty()) << "a lost key file deletes nobody";
}

TEST_F(RegistryTest, ARotatedKeyIsANewVersionAndTheAddressKeyStays) {
  const OrganizationKeys before = *registry_->CreateOrganization("three");
  const auto after = registry_->RotateOrganizationKey(before.org);
  ASSERT_TRUE(after) << after.error().ToString();
  EXPECT_EQ(after->org, before.org);
  EXPECT_EQ(after->address_key, before.address_key);
  EXPECT_EQ(after->current_key_id, 2u);
  EXPECT_EQ(after->wrapping_keys.at(1), before.wrapping_keys.at(1));
  EXPECT_NE(after->wrapping_keys.at(2), before.wrapping_keys.at(1));
  EXPECT_EQ(registry_->RotateOrganizationKey("org_nonsense").error().code(), ErrorCode::kNotFound);
}

TEST_F(RegistryTest, ADeletionThatStoppedAfterTheKeyWasDestroyedIsTakenUp) {
  const Id128 realm = Id128::FromView(registry_->GetOrganization(org_)->realm());
  EXPECT_TRUE(registry_->UnfinishedDeletions()->empty());
  ASSERT_TRUE(key_store_->DestroyRealm(realm));  // and then the power went
  Reopen();
  EXPECT_TRUE(registry_->GetOrganization(org_));
  EXPECT_EQ(registry_->LoadOrganizations()->size(), 1u);
  const auto unfinished = registry_->UnfinishedDeletions();
  ASSERT_EQ(unfinished->size(), 1u);
  EXPECT_EQ((*unfinished)[0].id(), org_);
  ASSERT_TRUE(registry_->DeleteOrganization(org_));
  EXPECT_FALSE(registry_->GetOrganization(org_));
  EXPECT_EQ(registry_->UnfinishedDeletions()->size(), 1u) << "until its key file is gone";
  ASSERT_TRUE(key_store_->RemoveDestroyed(realm));
  EXPECT_TRUE(registry_->UnfinishedDeletions()->empty());
}

TEST_F(RegistryTest, ADeletedOrganizationLosesItsKeysAtOnceAndAnswersTheSameAgain) {
  const auto key = registry_->CreateApiKey(org_, "k", 0);
  const auto deleted = registry_->DeleteOrganization(org_);
  ASSERT_TRUE(deleted);
  ASSERT_EQ(deleted->realm().size(), 16u);  // the collector finds its packs by it
  EXPECT_EQ(key_store_->ReadRealm(Id128::FromView(deleted->realm())).error().code(),
            ErrorCode::kFailedPrecondition);
  Advance(5);
  EXPECT_EQ(registry_->DeleteOrganization(org_)->SerializeAsString(), deleted->SerializeAsString());
  EXPECT_EQ(registry_->LoadOrganizations()->size(), 1u);
  EXPECT_EQ(CodeOf(registry_->Authenticate(key->secret)), "invalid_api_key");
  EXPECT_EQ(CodeOf(registry_->CreateEnvironment(org_, {})), "not_found");
  EXPECT_EQ(CodeOf(registry_->CreateSession(org_, {})), "not_found");
  EXPECT_FALSE(registry_->CreateApiKey(org_, "k", 0));
  EXPECT_EQ(registry_->DeleteOrganization("org_nonsense").error().code(), ErrorCode::kNotFound);
}

TEST_F(RegistryTest, AnApiKeyAuthenticatesUntilItIsRevokedOrExpires) {
  const auto key = registry_->CreateApiKey(org_, "ci", 0);
  const auto brief = registry_->CreateApiKey(org_, "brief", clock_.NowMs() + 100);
  ASSERT_TRUE(key && brief);
  EXPECT_EQ(registry_->Authenticate(key->secret)->org(), org_);
  EXPECT_EQ(registry_->Authenticate(key->secret)->id(), key->record.id());
  EXPECT_TRUE(registry_->Authenticate(brief->secret));
  Reopen();
  EXPECT_TRUE(registry_->Authenticate(key->secret));
  Advance(100);
  EXPECT_EQ(CodeOf(registry_->Authenticate(brief->secret)), "invalid_api_key");
  ASSERT_TRUE(registry_->RevokeApiKey(org_, key->record.id()));
  EXPECT_TRUE(registry_->RevokeApiKey(org_, key->record.id()));
  EXPECT_EQ(CodeOf(registry_->Authenticate(key->secret)), "invalid_api_key");
  EXPECT_EQ(registry_->ListApiKeys(org_)->size(), 2u);
  EXPECT_EQ(registry_->ListApiKeys(other_)->size(), 0u);
}

TEST_F(RegistryTest, WrongSecretsAllGetOneAnswer) {
  const auto key = registry_->CreateApiKey(org_, "ci", 0);
  std::string off_by_one = key->secret;
  off_by_one.back() = off_by_one.back() == 'A' ? 'B' : 'A';
  const std::string expected = registry_->Authenticate("").error().message();
  for (const std::string& wrong : {std::string("Bearer x"), off_by_one, key->secret + "A",
                                   key->record.id(), NewApiSecret(), std::string(100000, 'x')}) {
    const auto refused = registry_->Authenticate(wrong);
    EXPECT_EQ(CodeOf(refused), "invalid_api_key");
    EXPECT_EQ(refused.error().message(), expected);
    EXPECT_EQ(refused.error().error().code(), ErrorCode::kPermissionDenied);
  }
}

TEST_F(RegistryTest, SecretsAreInNoRecordAndNoFile) {
  const auto key = registry_->CreateApiKey(org_, "ci", 0);
  EXPECT_EQ(key->record.SerializeAsString().find(key->secret.substr(9)), std::string::npos);
  ASSERT_TRUE(catalog_->Close());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    EXPECT_EQ(bytes.str().find(key->secret.substr(9)), std::string::npos) << entry.path();
  }
  catalog_.reset();
}

TEST_F(RegistryTest, UseOfAKeyIsNotedAtMostHourly) {
  const auto key = registry_->CreateApiKey(org_, "ci", 0);
  ASSERT_TRUE(registry_->Authenticate(key->secret));
  const int64_t first = registry_->ListApiKeys(org_)->at(0).last_used_ms();
  EXPECT_EQ(first, clock_.NowMs());
  Advance(1000);
  ASSERT_TRUE(registry_->Authenticate(key->secret));
  EXPECT_EQ(registry_->ListApiKeys(org_)->at(0).last_used_ms(), first);
  Advance(3600 * 1000);
  ASSERT_TRUE(registry_->Authenticate(key->secret));
  EXPECT_EQ(registry_->ListApiKeys(org_)->at(0).last_used_ms(), clock_.NowMs());
}

TEST_F(RegistryTest, HashesAreTheStandardOnes) {
  EXPECT_EQ(HexEncode(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Key256 key{};
  EXPECT_EQ(HexEncode(HmacSha256(key, "")),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  EXPECT_TRUE(EqualInConstantTime("ab", "ab"));
  EXPECT_FALSE(EqualInConstantTime("ab", "ac"));
  EXPECT_FALSE(EqualInConstantTime("ab", "abc"));
}

TEST_F(RegistryTest, ForeignAndMissingIdsAnswerAlike) {
  const auto session = NewSession();
  const auto turn = registry_->StartTurn(org_, session.id())->record;
  const auto snapshot = NewSnapshot(session.env());
  const auto op = BeginOperation(*catalog_, org_, "x", session.env(), registry_->epoch(), 1);
  const auto key = registry_->CreateApiKey(org_, "k", 0)->record;
  // Each call as the other organization, with a real foreign id, and as its owner with an id that
  // never was. The answers differ in nothing but the id that the caller sent.
  const auto call_all = [&](const std::string& org, const std::string& env, const std::string& sess,
                            const std::string& turn_id, const std::string& snap,
                            const std::string& op_id, const std::string& key_id) {
    SessionSpec spec;
    spec.attach_to = env;
    std::vector<Error> errors;
    const auto add = [&](const auto& answer) {
      ASSERT_FALSE(answer);
      errors.push_back(answer.error());
    };
    add(registry_->GetEnvironment(org, env, true));
    add(registry_->DeleteEnvironment(org, env));
    add(registry_->RetryInitialization(org, env));
    add(registry_->ListBindings(org, env));
    add(registry_->CreateSession(org, spec));
    add(registry_->GetSession(org, sess));
    add(registry_->DeleteSession(org, sess));
    add(registry_->UpdateSessionMetadata(org, sess, {}));
    add(registry_->StartTurn(org, sess));
    add(registry_->ListTurns(org, sess, {}));
    add(registry_->GetTurn(org, turn_id));
    add(registry_->EndTurn(org, turn_id, catalog::TURN_FAILED, ""));
    add(GetSnapshot(*catalog_, org, snap));
    add(DeleteSnapshot(*catalog_, org, snap, 1));
    add(PinSnapshot(*catalog_, org, snap, true));
    add(ListSnapshots(*catalog_, org, env));
    add(GetOperation(*catalog_, org, op_id));
    add(AdvanceOperation(*catalog_, org, op_id, "y"));
    add(registry_->RevokeApiKey(org, key_id));
    return errors;
  };
  const std::string zeros(32, '0');
  const auto foreign =
      call_all(other_, session.env(), session.id(), turn.id(), snapshot.id(), op->id(), key.id());
  const auto missing = call_all(org_, "env_" + zeros, "sess_" + zeros, "turn_" + zeros,
                                "snap_" + zeros, "op_" + zeros, "key_" + zeros);
  const auto malformed =
      call_all(org_, "env_", "../sess", "turn_\n", "", "op_/x", std::string(1 << 16, 'k'));
  ASSERT_EQ(foreign.size(), missing.size());
  for (size_t i = 0; i < foreign.size(); ++i) {
    EXPECT_EQ(foreign[i].code(), ErrorCode::kNotFound) << i;
    EXPECT_EQ(missing[i].code(), ErrorCode::kNotFound) << i;
    EXPECT_EQ(malformed[i].code(), ErrorCode::kNotFound) << i;
    const auto words = [](const std::string& message) {
      return message.substr(0, message.rfind(' '));
    };
    EXPECT_EQ(words(foreign[i].message()), words(missing[i].message())) << i;
    EXPECT_LT(malformed[i].message().size(), 200u);
  }
  EXPECT_TRUE(registry_->ListEnvironments(other_, {})->items.empty());
  EXPECT_TRUE(registry_->ListSessions(other_, {})->items.empty());
  EXPECT_TRUE(ListSnapshots(*catalog_, other_, "")->empty());
}

TEST_F(RegistryTest, AnIdempotencyKeyGivesTheSameObjectInItsStateNow) {
  const IdempotentRequest request{.key = "k1", .operation = "environment.create", .body = "{}"};
  const auto first = registry_->CreateEnvironment(org_, {.name = "a"}, request);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->replayed);
  const auto again = registry_->CreateEnvironment(org_, {.name = "a"}, request);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->replayed);
  EXPECT_EQ(again->record.id(), first->record.id());
  ASSERT_TRUE(registry_->DeleteEnvironment(org_, first->record.id()));
  const auto tombstone = registry_->CreateEnvironment(org_, {.name = "a"}, request);
  ASSERT_TRUE(tombstone);
  EXPECT_EQ(tombstone->record.state(), catalog::ENV_DELETING);
  EXPECT_EQ(registry_->ListEnvironments(org_, {})->items.size(), 0u);
}

TEST_F(RegistryTest, AnIdempotencyKeyWithAnotherBodyOrOperationIsAConflict) {
  ASSERT_TRUE(registry_->CreateEnvironment(
      org_, {}, {.key = "k", .operation = "environment.create", .body = "{}"}));
  const auto body = registry_->CreateEnvironment(
      org_, {}, {.key = "k", .operation = "environment.create", .body = "{ }"});
  EXPECT_EQ(CodeOf(body), "idempotency_conflict");
  const auto operation =
      registry_->CreateSession(org_, {}, {.key = "k", .operation = "session.create", .body = "{}"});
  EXPECT_EQ(CodeOf(operation), "idempotency_conflict");
  // Another organization's key of the same name is another key; without a key each call makes one.
  EXPECT_FALSE(registry_
                   ->CreateEnvironment(other_, {},
                                       {.key = "k", .operation = "environment.create", .body = "x"})
                   ->replayed);
  ASSERT_TRUE(registry_->CreateEnvironment(org_, {}));
  ASSERT_TRUE(registry_->CreateEnvironment(org_, {}));
  EXPECT_EQ(registry_->ListEnvironments(org_, {})->items.size(), 3u);
}

TEST_F(RegistryTest, AnIdempotencyKeyLastsADay) {
  const IdempotentRequest request{.key = "k", .operation = "session.create", .body = "{}"};
  const auto first = registry_->CreateSession(org_, {}, request);
  Advance(kIdempotencyMs - 1);
  EXPECT_TRUE(registry_->CreateSession(org_, {}, request)->replayed);
  Advance(1);
  const auto later = registry_->CreateSession(org_, {}, request);
  EXPECT_FALSE(later->replayed);
  EXPECT_NE(later->record.id(), first->record.id());
}

TEST_F(RegistryTest, RacingRequestsWithOneIdempotencyKeyMakeOneObject) {
  std::vector<std::thread> threads;
  std::vector<std::string> ids(8);
  std::atomic<int> fresh = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto made = registry_->CreateSession(
          org_, {}, {.key = "k", .operation = "session.create", .body = "b"});
      ASSERT_TRUE(made) << made.error().message();
      ids[i] = made->record.id();
      fresh += made->replayed ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fresh, 1);
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 1u);
  EXPECT_EQ(registry_->ListSessions(org_, {})->items.size(), 1u);
}

TEST_F(RegistryTest, ListsPageInOrderOfCreationBothWays) {
  std::vector<std::string> made;
  for (int i = 0; i < 7; ++i) made.push_back(NewEnvironment());
  const auto all_pages = [&](bool ascending) {
    std::vector<std::string> ids;
    ListQuery query{.limit = 3, .after = "", .ascending = ascending};
    for (;;) {
      const auto page = registry_->ListEnvironments(org_, query);
      EXPECT_TRUE(page);
      EXPECT_LE(page->items.size(), 3u);
      for (const auto& env : page->items) ids.push_back(env.id());
      if (!page->has_more) return ids;
      query.after = ids.back();
    }
  };
  EXPECT_EQ(all_pages(true), made);
  std::vector<std::string> backward(made.rbegin(), made.rend());
  EXPECT_EQ(all_pages(false), backward);
  // A cursor that was deleted meanwhile still marks its place.
  ASSERT_TRUE(registry_->DeleteEnvironment(org_, made[2]));
  const auto page =
      registry_->ListEnvironments(org_, {.limit = 2, .after = made[2], .ascending = true});
  ASSERT_EQ(page->items.size(), 2u);
  EXPECT_EQ(page->items[0].id(), made[3]);
  EXPECT_EQ(registry_->ListEnvironments(org_, {.limit = 2, .after = "env_x"}).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(RegistryTest, TurnsRunOneAtATimeAndAnEndedOneMakesRoom) {
  const auto session = NewSession();
  const auto first = registry_->StartTurn(org_, session.id());
  ASSERT_TRUE(first);
  EXPECT_EQ(registry_->GetSession(org_, session.id())->status(), "running");
  const auto busy = registry_->StartTurn(org_, session.id());
  EXPECT_EQ(CodeOf(busy), "turn_in_progress");
  EXPECT_EQ(busy.error().blocking(), std::vector<std::string>{first->record.id()});
  const auto failed = registry_->EndTurn(org_, first->record.id(), catalog::TURN_FAILED, "why");
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->failure(), "why");
  EXPECT_EQ(registry_->GetSession(org_, session.id())->status(), "idle");
  EXPECT_TRUE(registry_->EndTurn(org_, first->record.id(), catalog::TURN_FAILED, "again"));
  EXPECT_EQ(registry_->GetTurn(org_, first->record.id())->failure(), "why");
  EXPECT_EQ(CodeOf(registry_->EndTurn(org_, first->record.id(), catalog::TURN_COMPLETED, "")),
            "turn_already_ended");
  Advance(1);
  const auto second = registry_->StartTurn(org_, session.id());
  ASSERT_TRUE(second);
  ASSERT_TRUE(registry_->EndTurn(org_, second->record.id(), catalog::TURN_COMPLETED, ""));
  const auto listed =
      registry_->ListTurns(org_, session.id(), {.limit = 10, .after = "", .ascending = true});
  ASSERT_EQ(listed->items.size(), 2u);
  EXPECT_EQ(listed->items[0].id(), first->record.id());
  EXPECT_TRUE(registry_->GetEnvironment(org_, session.env()));  // ending a turn deletes nothing
}

TEST_F(RegistryTest, ASnapshotThatAnEnvironmentIsSuspendedOnCannotBeDeleted) {
  const std::string env = NewEnvironment();
  const auto snapshot = NewSnapshot(env);
  Alter(env, [&](catalog::Environment& e) {
    e.set_state(catalog::ENV_SUSPENDED);
    e.set_suspended_snapshot(snapshot.id());
  });
  const auto refused = DeleteSnapshot(*catalog_, org_, snapshot.id(), clock_.NowMs());
  EXPECT_EQ(CodeOf(refused), "snapshot_in_use");
  EXPECT_EQ(refused.error().blocking(), std::vector<std::string>{env});
  Alter(env, [](catalog::Environment& e) {
    e.set_state(catalog::ENV_READY);
    e.clear_suspended_snapshot();
  });
  ASSERT_TRUE(PinSnapshot(*catalog_, org_, snapshot.id(), true));
  EXPECT_EQ(CodeOf(DeleteSnapshot(*catalog_, org_, snapshot.id(), 1)), "snapshot_pinned");
  ASSERT_TRUE(PinSnapshot(*catalog_, org_, snapshot.id(), false));
  EXPECT_TRUE(DeleteSnapshot(*catalog_, org_, snapshot.id(), 1));
  EXPECT_TRUE(DeleteSnapshot(*catalog_, org_, snapshot.id(), 2));
  EXPECT_FALSE(GetSnapshot(*catalog_, org_, snapshot.id()));
  EXPECT_TRUE(ListSnapshots(*catalog_, org_, env)->empty());
}

TEST_F(RegistryTest, OperationsAreFoundByTheNextLifeAndBlockOnlyTheirOwn) {
  const std::string env = NewEnvironment();
  const auto op = BeginOperation(*catalog_, org_, "pause", env, registry_->epoch(), clock_.NowMs());
  ASSERT_TRUE(op);
  const auto second =
      BeginOperation(*catalog_, org_, "resume", env, registry_->epoch(), clock_.NowMs());
  EXPECT_EQ(CodeOf(second), "operation_in_progress");
  ASSERT_TRUE(AdvanceOperation(*catalog_, org_, op->id(), "capturing"));
  EXPECT_EQ(GetOperation(*catalog_, org_, op->id())->phase(), "capturing");
  EXPECT_TRUE(AbandonedOperations(*catalog_, registry_->epoch())->empty());

  const uint64_t before = registry_->epoch();
  Reopen();
  EXPECT_EQ(registry_->epoch(), before + 1);
  const auto abandoned = AbandonedOperations(*catalog_, registry_->epoch());
  ASSERT_EQ(abandoned->size(), 1u);
  EXPECT_EQ(abandoned->at(0).phase(), "capturing");
  // A dead operation blocks neither a new one nor, once that has ended, a deletion.
  const auto next =
      BeginOperation(*catalog_, org_, "pause", env, registry_->epoch(), clock_.NowMs());
  ASSERT_TRUE(next);
  const Error error(ErrorCode::kExhausted, "full");
  ASSERT_TRUE(catalog_->Run([&](CatalogTransaction& txn) {
    return EndOperation(txn, org_, next->id(), "", &error, clock_.NowMs());
  }));
  EXPECT_EQ(GetOperation(*catalog_, org_, next->id())->error_code(), "exhausted");
  EXPECT_EQ(AdvanceOperation(*catalog_, org_, next->id(), "x").error().code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(registry_->DeleteEnvironment(org_, env));
  EXPECT_EQ(CodeOf(BeginOperation(*catalog_, org_, "pause", env, registry_->epoch(), 1)),
            "environment_deleted");
}

TEST_F(RegistryTest, MetadataIsReplacedWhole) {
  const auto session = NewSession();
  ASSERT_TRUE(registry_->UpdateSessionMetadata(org_, session.id(), {{"a", "1"}, {"b", "2"}}));
  ASSERT_TRUE(registry_->UpdateSessionMetadata(org_, session.id(), {{"c", "3"}}));
  const auto now = registry_->GetSession(org_, session.id());
  EXPECT_EQ(now->metadata().size(), 1u);
  EXPECT_EQ(now->metadata().at("c"), "3");
}

TEST_F(RegistryTest, ALostSecretsRecordIsDataLossNotANewSecret) {
  ASSERT_TRUE(catalog_->Run([](CatalogTransaction& txn) {
    txn.Delete(keys::kSecrets);
    return Status();
  }));
  EXPECT_EQ(Registry::Open(*catalog_, clock_, *key_store_).error().code(), ErrorCode::kDataLoss);
}

TEST(Refusal, BecomesAnErrorThatSaysItsCodeAndBlockers) {
  const Refusal refusal(ErrorCode::kFailedPrecondition, refusals::kEnvironmentInUse, "in use",
                        {"sess_1", "sess_2"});
  const Error error = refusal;
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(error.message(), "environment_in_use: in use sess_1 sess_2");
  const Refusal plain(Error(ErrorCode::kNotFound, "no x"));
  EXPECT_EQ(plain.code(), "not_found");
  EXPECT_EQ(static_cast<Error>(plain).message(), "no x");
}

}  // namespace
}  // namespace cairn
