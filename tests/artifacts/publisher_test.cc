// Publication over real volumes: all or nothing, immutable, with reasons for what is left out, and
// independent of the Environment once settled.
#include "artifacts/publisher.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "store/base/random.h"
#include "tests/support/service_world.h"

namespace cairn {
namespace {

class PublisherTest : public ServiceWorld {
 protected:
  PublisherTest() { MakePublisher({}); }
  void MakePublisher(const PublicationLimits& limits) {
    publisher_ = std::make_unique<Publisher>(catalog_, blocks_, nodes_, keys_, *volumes_,
                                             SystemClock(), limits, epoch_);
  }
  void Restart() {
    EndLife(true);
    StartLife();
    MakePublisher({});
  }
  std::string NewSession(const std::string& env) {
    catalog::Session session;
    session.set_id(NewId(kSessionPrefix));
    session.set_org(kOrg);
    session.set_env(env);
    session.set_output_directory("/workspace/outputs");
    Put(keys::Session(kOrg, session.id()), session);
    return session.id();
  }
  std::string NewTurn(const std::string& session) {
    auto record = Read<catalog::Session>(keys::Session(kOrg, session));
    catalog::Turn turn;
    turn.set_id(NewId(kTurnPrefix));
    turn.set_org(kOrg);
    turn.set_session(session);
    turn.set_env(record.env());
    record.set_active_turn(turn.id());
    record.set_status("running");
    Put(keys::Session(kOrg, session), record);
    Put(keys::Turn(kOrg, turn.id()), turn);
    return turn.id();
  }
  void Output(const std::string& env, const std::string& name, const std::string& data) {
    const auto volume = volumes_->OpenForWrite(kOrg, env);
    ASSERT_TRUE(volume) << volume.error().ToString();
    WriteInto(**volume, "workspace/outputs", name, data);
  }
  std::string Download(const std::string& session, const std::string& artifact) {
    const auto reader = publisher_->Open(kOrg, session, artifact);
    if (!reader) return "(" + reader.error().ToString() + ")";
    std::string data((*reader)->info().record.size_bytes(), '\0');
    const auto got = (*reader)->Read(0, data);
    if (!got) return "(" + got.error().ToString() + ")";
    EXPECT_EQ(*got, data.size());
    return data;
  }
  std::string IdOf(const TurnReport& report, const std::string& path) {
    for (const ArtifactInfo& info : report.published) {
      if (info.path == path) return info.record.id();
    }
    return "";
  }
  static std::map<std::string, std::string> Skipped(const TurnReport& report) {
    std::map<std::string, std::string> skipped;
    for (const SkippedPath& path : report.skipped) skipped[path.path] = path.reason;
    return skipped;
  }

  std::unique_ptr<Publisher> publisher_;
};

TEST_F(PublisherTest, PublishedBytesNeverChange) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  const std::string big = SeededRandom(1).Bytes(300000);
  Output(env, "small.txt", "hello");
  Output(env, "big.bin", big);
  Output(env, "empty", "");
  const std::string turn = NewTurn(session);
  const auto report = publisher_->CompleteTurn(kOrg, turn);
  ASSERT_TRUE(report) << report.error().ToString();
  ASSERT_EQ(report->published.size(), 3u);
  EXPECT_EQ(report->turn.status(), catalog::TURN_COMPLETED);
  const std::string small_id = IdOf(*report, "small.txt");
  const std::string big_id = IdOf(*report, "big.bin");
  Output(env, "small.txt", "changed");
  Output(env, "big.bin", "changed");
  EXPECT_EQ(Download(session, small_id), "hello");
  EXPECT_EQ(Download(session, big_id), big);
  // Once settled they read from a tree of their own and have their digest.
  ASSERT_TRUE(volumes_->WaitSealed(report->turn.point(), 10000));
  ASSERT_TRUE(publisher_->SettleAll(nullptr));
  const auto settled = Read<catalog::Turn>(keys::Turn(kOrg, turn));
  EXPECT_FALSE(settled.has_point());
  EXPECT_FALSE(settled.publication_root().empty());
  EXPECT_EQ(Download(session, small_id), "hello");
  EXPECT_EQ(Download(session, big_id), big);
  const auto info = publisher_->Get(kOrg, session, small_id);
  ASSERT_TRUE(info);
  EXPECT_EQ(HexEncode(info->record.sha256()),
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
  Restart();
  EXPECT_EQ(Download(session, big_id), big);
}

TEST_F(PublisherTest, CompletingAgainGivesTheSameArtifacts) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  Output(env, "a", "1");
  const std::string turn = NewTurn(session);
  const auto first = publisher_->CompleteTurn(kOrg, turn);
  ASSERT_TRUE(first);
  Output(env, "b", "2");
  const auto again = publisher_->CompleteTurn(kOrg, turn);
  ASSERT_TRUE(again);
  ASSERT_EQ(again->published.size(), 1u);
  EXPECT_EQ(again->published[0].record.id(), first->published[0].record.id());
  // Another turn: new ids, also for a path that was published before.
  const auto second = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->published.size(), 2u);
  EXPECT_NE(IdOf(*second, "a"), first->published[0].record.id());
  EXPECT_EQ(publisher_->List(kOrg, session)->size(), 3u);
}

TEST_F(PublisherTest, OnlyRegularFilesWithAllTheirNamesInside) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  Output(env, "plain", "1");
  WriteFile(env, "secret", "outside");
  {
    const auto volume = *volumes_->OpenForWrite(kOrg, env);
    const OpContext root;
    const InodeNumber out = *volume->View().Resolve("workspace/outputs");
    const InodeNumber workspace = *volume->View().Resolve("workspace");
    ASSERT_TRUE(volume->Symlink(root, out, "link", "/workspace/secret"));
    ASSERT_TRUE(volume->Symlink(root, out, "linkdir", "/workspace"));
    ASSERT_TRUE(volume->Link(root, volume->Lookup(workspace, "secret")->ino, out, "hard"));
    ASSERT_TRUE(volume->MakeNode(root, out, "fifo", S_IFIFO | 0644, 0));
    ASSERT_TRUE(volume->MakeNode(root, out, "sock", S_IFSOCK | 0644, 0));
    ASSERT_TRUE(volume->MakeNode(root, out, "dev", S_IFCHR | 0644, 0x103));
    const auto dir = volume->MakeDir(root, out, "sub", 0755);
    ASSERT_TRUE(dir);
    WriteInto(*volume, "workspace/outputs/sub", "twice", "both names inside");
    ASSERT_TRUE(volume->Link(root, volume->Lookup(dir->ino, "twice")->ino, out, "twice again"));
  }
  const auto report = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(report) << report.error().ToString();
  std::vector<std::string> paths;
  for (const ArtifactInfo& info : report->published) paths.push_back(info.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"plain", "sub/twice", "twice again"}));
  EXPECT_EQ(Skipped(*report), (std::map<std::string, std::string>{{"link", "symlink"},
                                                                  {"linkdir", "symlink"},
                                                                  {"hard", "hard_link_outside"},
                                                                  {"fifo", "fifo"},
                                                                  {"sock", "socket"},
                                                                  {"dev", "device"}}));
}

TEST_F(PublisherTest, OutputDirectoryThatIsALinkPublishesNothing) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  WriteFile(env, "secret", "outside");
  {
    const auto volume = *volumes_->OpenForWrite(kOrg, env);
    const OpContext root;
    const InodeNumber workspace = *volume->View().Resolve("workspace");
    ASSERT_TRUE(volume->RemoveDir(root, workspace, "outputs"));
    ASSERT_TRUE(volume->Symlink(root, workspace, "outputs", "/workspace"));
  }
  const auto report = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(report->published.empty());
  ASSERT_EQ(report->skipped.size(), 1u);
  EXPECT_EQ(report->skipped[0].reason, "output_directory_is_not_a_directory");
}

TEST_F(PublisherTest, LimitsLeaveOutWithAReason) {
  MakePublisher({.max_file_bytes = 100, .max_turn_bytes = 150, .max_files = 3});
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  Output(env, "a", std::string(90, 'a'));
  Output(env, "b", std::string(101, 'b'));
  Output(env, "c", std::string(70, 'c'));
  Output(env, "d", std::string(60, 'd'));
  Output(env, "e", "");
  Output(env, "f", "");
  const auto report = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(report);
  EXPECT_EQ(Skipped(*report),
            (std::map<std::string, std::string>{
                {"b", "too_large"}, {"c", "turn_too_large"}, {"f", "too_many_files"}}));
  EXPECT_EQ(report->published.size(), 3u);
}

TEST_F(PublisherTest, UnusedEnvironmentPublishesNothingAndAllocatesNothing) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  const auto report = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(report->published.empty());
  EXPECT_EQ(Env(env).state(), catalog::ENV_PENDING);
  EXPECT_TRUE(Env(env).volume().empty());
}

TEST_F(PublisherTest, FailedTurnPublishesNothingAndCannotBeCompleted) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  Output(env, "a", "1");
  const std::string turn = NewTurn(session);
  ASSERT_TRUE(publisher_->EndTurn(kOrg, turn, catalog::TURN_FAILED, "tool crashed"));
  EXPECT_TRUE(publisher_->List(kOrg, session)->empty());
  const auto completed = publisher_->CompleteTurn(kOrg, turn);
  ASSERT_FALSE(completed);
  EXPECT_EQ(completed.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(ReadNow(env, "/workspace/outputs/a"), "1") << "its outputs stay in the Environment";
}

TEST_F(PublisherTest, DeletingEnvironmentWinsOverPublication) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  Output(env, "a", "1");
  const std::string turn = NewTurn(session);
  auto record = Env(env);
  record.set_state(catalog::ENV_DELETING);
  Put(keys::Environment(kOrg, env), record);
  EXPECT_FALSE(publisher_->CompleteTurn(kOrg, turn));
  EXPECT_EQ(Read<catalog::Turn>(keys::Turn(kOrg, turn)).status(), catalog::TURN_RUNNING);
}

TEST_F(PublisherTest, DeletedArtifactIsGoneButADownloadInFlightEndsWhole) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  const std::string data = SeededRandom(9).Bytes(200000);
  Output(env, "a", data);
  const auto report = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(report);
  const std::string id = report->published[0].record.id();
  const auto reader = publisher_->Open(kOrg, session, id);
  ASSERT_TRUE(reader);
  ASSERT_TRUE(publisher_->Delete(kOrg, session, id));
  EXPECT_FALSE(publisher_->Get(kOrg, session, id));
  std::string got(data.size(), '\0');
  ASSERT_EQ(*(*reader)->Read(0, got), data.size());
  EXPECT_EQ(got, data);
  EXPECT_EQ(ReadNow(env, "/workspace/outputs/a"), data) << "the live file stays";
}

TEST_F(PublisherTest, ForeignAndMissingAnswerTheSame) {
  const std::string env = NewEnvironment();
  const std::string session = NewSession(env);
  Output(env, "a", "1");
  const auto report = publisher_->CompleteTurn(kOrg, NewTurn(session));
  ASSERT_TRUE(report);
  const std::string other = "org_00000000000000000000000000000002";
  const auto foreign = publisher_->Get(other, session, report->published[0].record.id());
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(publisher_->List(other, session).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(publisher_->CompleteTurn(other, report->turn.id()).error().code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn
