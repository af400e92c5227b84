// The calls of the host protocol over real services, without a socket.
#include "api/host_api.h"

#include <gtest/gtest.h>

#include <fstream>

#include "catalog/ids.h"
#include "store/base/random.h"
#include "tests/api/api_world.h"

namespace cairn {
namespace {

class HostApiTest : public ApiWorld {
 protected:
  host::HostResponse Call(const host::HostRequest& request) { return host_->Handle(request); }
  std::string NewEnv(const std::string& org = {}) {
    host::HostRequest request;
    request.set_org(org);
    request.mutable_env_create()->set_name("e");
    const auto response = Call(request);
    EXPECT_FALSE(response.has_error()) << response.error().message();
    return response.environment().id();
  }
  host::HostResponse Mount(const std::string& env, const std::string& dir) {
    host::HostRequest request;
    request.mutable_mount()->set_env(env);
    request.mutable_mount()->set_dir(dir);
    return Call(request);
  }
  Id128 VolumeOf(const std::string& org, const std::string& env) {
    const auto record = registry_->GetEnvironment(org, env);
    EXPECT_TRUE(record && record->volume().size() == 16);
    return Id128::FromView(record->volume());
  }
};

TEST_F(HostApiTest, TheOnlyOrganizationIsTheDefault) {
  host::HostRequest list;
  list.mutable_env_list();
  EXPECT_EQ(Call(list).error().reason(), "no_organization");
  const std::string one = NewOrganization("one");
  EXPECT_EQ(NewEnv().substr(0, 4), "env_");
  const std::string two = NewOrganization("two");
  const auto ambiguous = Call(list).error();
  EXPECT_EQ(ambiguous.reason(), "organization_ambiguous");
  EXPECT_NE(ambiguous.message().find(one + " (one)"), std::string::npos) << ambiguous.message();
  EXPECT_NE(ambiguous.message().find(two + " (two)"), std::string::npos) << ambiguous.message();
  list.set_org(one);
  EXPECT_EQ(Call(list).environments().data_size(), 1);
  list.set_org("org_00000000000000000000000000000099");
  EXPECT_EQ(Call(list).error().code(), "not_found");
}

TEST_F(HostApiTest, DeletionsNameTheIdTwice) {
  const std::string org = NewOrganization("one");
  const std::string env = NewEnv();
  host::HostRequest request;
  request.mutable_env_delete()->set_id(env);
  EXPECT_EQ(Call(request).error().code(), "invalid_argument");
  request.mutable_env_delete()->set_confirm(env);
  EXPECT_EQ(Call(request).done().state(), "deleted");
  EXPECT_EQ(Call(request).done().state(), "deleted");
  request.mutable_org_delete()->set_id(org);
  EXPECT_EQ(Call(request).error().code(), "invalid_argument");
}

TEST_F(HostApiTest, RefusedDeletionListsTheSessions) {
  NewOrganization("one");
  const std::string env = NewEnv();
  host::HostRequest create;
  create.mutable_session_create()->set_env(env);
  const std::string session = Call(create).session().id();
  host::HostRequest request;
  request.mutable_env_delete()->set_id(env);
  request.mutable_env_delete()->set_confirm(env);
  const auto error = Call(request).error();
  EXPECT_EQ(error.code(), "failed_precondition");
  EXPECT_EQ(error.reason(), "environment_in_use");
  ASSERT_EQ(error.blocking_size(), 1);
  EXPECT_EQ(error.blocking(0), session);
}

TEST_F(HostApiTest, MountedEnvironmentIsNotDeletedNorItsOrganization) {
  const std::string org = NewOrganization("one");
  const std::string env = NewEnv();
  ASSERT_FALSE(Mount(env, "/mnt/x").has_error());
  host::HostRequest request;
  request.mutable_env_delete()->set_id(env);
  request.mutable_env_delete()->set_confirm(env);
  EXPECT_EQ(Call(request).error().reason(), "environment_mounted");
  request.mutable_org_delete()->set_id(org);
  request.mutable_org_delete()->set_confirm(org);
  const auto error = Call(request).error();
  EXPECT_EQ(error.reason(), "environment_mounted");
  EXPECT_EQ(error.blocking(0), env);
  request.mutable_umount()->set_target(env);
  EXPECT_EQ(Call(request).mount().dir(), "/mnt/x");
  request.mutable_org_delete()->set_id(org);
  request.mutable_org_delete()->set_confirm(org);
  EXPECT_EQ(Call(request).done().state(), "deleted");
  EXPECT_EQ(Call(request).done().state(), "deleted");
  request.mutable_org_list();
  EXPECT_EQ(Call(request).organizations().data_size(), 0);
}

TEST_F(HostApiTest, UnmountByDirectoryFindsTheEnvironment) {
  const std::string org = NewOrganization("one");
  NewOrganization("two");
  const std::string env = NewEnv(org);
  host::HostRequest mount;
  mount.set_org(org);
  mount.mutable_mount()->set_env(env);
  mount.mutable_mount()->set_dir("/mnt/x");
  ASSERT_FALSE(Call(mount).has_error());
  live_mounts_ = {{.volume = VolumeOf(org, env), .dir = "/mnt/x"}};
  host::HostRequest request;
  request.mutable_umount()->set_target("/mnt/y");
  EXPECT_EQ(Call(request).error().code(), "not_found");
  request.mutable_umount()->set_target("/mnt/x");
  const auto response = Call(request);
  EXPECT_EQ(response.mount().env(), env) << response.error().message();
  EXPECT_FALSE(response.mount().mounted());
}

TEST_F(HostApiTest, ArtifactIsReadInPartsWithoutKnowingItsSession) {
  const std::string org = NewOrganization("one");
  host::HostRequest request;
  request.mutable_session_create();
  Call(request);  // another one, in the way
  const auto session = Call(request).session();
  const std::string data = SeededRandom(5).Bytes(150000);
  Output(org, session.env(), "out.bin", data);
  request.mutable_turn_start()->set_session(session.id());
  const std::string turn = Call(request).turn().id();
  request.mutable_turn_end()->set_turn(turn);
  const auto report = Call(request).turn();
  ASSERT_EQ(report.published_size(), 1);
  std::string got;
  while (true) {
    auto& call = *request.mutable_artifact_read();
    call.set_artifact(report.published(0).id());
    call.set_offset(got.size());
    call.set_length_bytes(40000);
    const auto response = Call(request);
    ASSERT_FALSE(response.has_error()) << response.error().message();
    got += response.chunk().data();
    if (response.chunk().end()) break;
  }
  EXPECT_EQ(got, data);
  request.mutable_artifact_read()->set_offset(data.size() + 1);
  EXPECT_EQ(Call(request).error().code(), "invalid_argument");
  request.mutable_artifact_read()->set_artifact(NewId(kArtifactPrefix));
  EXPECT_EQ(Call(request).error().code(), "not_found");
}

TEST_F(HostApiTest, ImportAndExportGoThroughTheEnvironment) {
  NewOrganization("one");
  const std::string env = NewEnv();
  const std::string source = dir_.path() + "/in";
  ASSERT_TRUE(HostFileSystem().MakeDir(source));
  std::ofstream(source + "/a") << "data";
  host::HostRequest request;
  request.mutable_env_import()->set_env(env);
  request.mutable_env_import()->set_source(source);
  request.mutable_env_import()->set_path("/workspace");
  const auto imported = Call(request);
  ASSERT_FALSE(imported.has_error()) << imported.error().message();
  EXPECT_EQ(imported.transfer().files(), 1u);
  host::HostRequest snapshot;
  snapshot.mutable_snapshot_create()->set_env(env);
  const std::string id = Call(snapshot).snapshot().id();
  for (const std::string& from : {env, id}) {
    const std::string target = dir_.path() + "/out_" + from;
    request.mutable_env_export()->set_env(from);
    request.mutable_env_export()->set_target(target);
    request.mutable_env_export()->set_path("/workspace");
    const auto exported = Call(request);
    ASSERT_FALSE(exported.has_error()) << exported.error().message();
    std::string text;
    std::ifstream(target + "/a") >> text;
    EXPECT_EQ(text, "data");
  }
}

// Without organizations: the calls belong to none.
TEST_F(HostApiTest, BaseImagesAreImportedShownAndDeleted) {
  const std::string source = dir_.path() + "/in";
  ASSERT_TRUE(HostFileSystem().MakeDir(source));
  std::ofstream(source + "/a") << "data";
  keys_.Add(BaseRealm(), TestRealmKeys(9));
  host::HostRequest import;
  import.mutable_base_import()->set_name("tools");
  import.mutable_base_import()->set_source(source);
  const auto imported = Call(import);
  ASSERT_FALSE(imported.has_error()) << imported.error().message();
  const host::BaseImageInfo& image = imported.base_image();
  EXPECT_EQ(image.state(), "ready");
  EXPECT_EQ(image.inodes(), 2u);
  EXPECT_EQ(image.transfer().files(), 1u);
  EXPECT_EQ(Call(import).error().code(), "already_exists");
  import.mutable_base_import()->set_name("");
  EXPECT_EQ(Call(import).error().code(), "invalid_argument");
  import.mutable_base_import()->set_name("relative");
  import.mutable_base_import()->set_source("in");
  EXPECT_EQ(Call(import).error().code(), "invalid_argument");
  import.mutable_base_import()->set_source(source + "/absent");
  EXPECT_EQ(Call(import).error().code(), "not_found");
  host::HostRequest list;
  list.mutable_base_list();
  ASSERT_EQ(Call(list).base_images().data_size(), 1);
  host::HostRequest show;
  show.mutable_base_show()->set_name("tools");
  EXPECT_EQ(Call(show).base_image().id(), image.id());

  NewOrganization("one");
  host::HostRequest create;
  create.mutable_env_create()->set_base("tools");
  const auto env = Call(create);
  ASSERT_FALSE(env.has_error()) << env.error().message();
  EXPECT_EQ(env.environment().base_image(), image.id());
  EXPECT_EQ(env.environment().base_image_name(), "tools");
  create.mutable_env_create()->set_base("others");
  EXPECT_EQ(Call(create).error().code(), "not_found");

  host::HostRequest remove;
  remove.mutable_base_delete()->set_name("tools");
  EXPECT_EQ(Call(remove).done().id(), image.id());
  EXPECT_EQ(Call(remove).error().code(), "not_found");
  EXPECT_EQ(Call(show).error().code(), "not_found");
  EXPECT_EQ(Call(list).base_images().data_size(), 0);
}

TEST_F(HostApiTest, CheckReportsItsDamagesAndOwners) {
  host::HostRequest request;
  request.mutable_check();
  const auto check = Call(request).check();
  ASSERT_EQ(check.damages_size(), 1);
  EXPECT_EQ(check.damages(0).owners(0), "environment env_1");
}

TEST_F(HostApiTest, ReapPlansBeforeItActs) {
  NewOrganization("one");
  const std::string env = NewEnv();
  host::HostRequest request;
  request.mutable_env_delete()->set_id(env);
  request.mutable_env_delete()->set_confirm(env);
  ASSERT_FALSE(Call(request).has_error());
  request.mutable_reap()->set_dry_run(true);
  const auto plan = Call(request).reap();
  bool condemned = false;
  for (const auto& item : plan.items()) condemned |= item.id() == env && item.condemned();
  EXPECT_TRUE(condemned);
  request.mutable_reap()->set_dry_run(false);
  const auto done = Call(request).reap();
  EXPECT_GE(done.removed(), 1u);
  EXPECT_EQ(done.failed(), 0u);
}

TEST_F(HostApiTest, PauseDoesNotTakeRelativePaths) {
  NewOrganization("one");
  host::HostRequest request;
  request.mutable_pause()->set_env(NewEnv());
  request.mutable_pause()->set_memory_path("memory");
  request.mutable_pause()->set_vmstate_path("/tmp/vmstate");
  EXPECT_EQ(Call(request).error().code(), "invalid_argument");
}

}  // namespace
}  // namespace cairn
