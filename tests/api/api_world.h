// Both protocols over real services: memory catalog and blocks, real volumes, mounts that are only
// remembered.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/control.h"
#include "api/host_api.h"
#include "api/http_api.h"
#include "store/local_block_store.h"
#include "tests/support/service_world.h"

namespace cairn {

class ApiWorld : public ServiceWorld {
 protected:
  void SetUp() override {
    Key256 master{};
    master[0] = 7;
    RegistryHooks hooks;
    hooks.is_mounted = [this](const catalog::Environment& env) {
      return env.volume().size() == 16 && !mounts_.MountedAt(Id128::FromView(env.volume())).empty();
    };
    ASSERT_TRUE(HostFileSystem().MakeDir(dir_.path() + "/keys"));
    auto key_store = KeyStore::Open(HostFileSystem(), dir_.path() + "/keys", master);
    ASSERT_TRUE(key_store) << key_store.error().ToString();
    key_store_ = std::move(*key_store);
    auto registry = Registry::Open(catalog_, SystemClock(), *key_store_, hooks);
    ASSERT_TRUE(registry) << registry.error().ToString();
    registry_ = std::move(*registry);
    // Only a collector wants packs; none of these tests fills them.
    auto packs = LocalBlockStore::Open({.fs = HostFileSystem(),
                                        .dir = dir_.path(),
                                        .keys = keys_,
                                        .clock = SystemClock(),
                                        .store = Id128::Random()});
    ASSERT_TRUE(packs) << packs.error().ToString();
    packs_ = std::move(*packs);
    auto base_images = BaseImages::Open({}, *registry_, *packs_, nodes_, SystemClock());
    ASSERT_TRUE(base_images) << base_images.error().ToString();
    base_images_ = std::move(*base_images);
    publisher_ =
        std::make_unique<Publisher>(catalog_, blocks_, nodes_, keys_, *volumes_, SystemClock(),
                                    PublicationLimits{}, registry_->epoch());
    ReaperHooks reaper_hooks;
    reaper_hooks.revoke_environment = [this](const catalog::Environment& env) {
      return volumes_->Revoke(env.org(), env.id());
    };
    reaper_hooks.remove_volume = [this](const catalog::Volume& volume) {
      return volumes_->RemoveVolume(volume);
    };
    reaper_hooks.point_is_held = [this](const catalog::Point& point) {
      return volumes_->IsHeld(point);
    };
    reaper_ = std::make_unique<Reaper>(catalog_, std::move(reaper_hooks), registry_->epoch());
    collector_ = std::make_unique<Collector>(catalog_, *packs_);
    removal_.reset(new OrganizationRemoval(
        {.registry = *registry_,
         .keys = *key_store_,
         .store = *packs_,
         .volumes = *volumes_,
         .collector = *collector_,
         .forget_keys = [this](const Id128& realm) { keys_.Remove(realm); }}));
    auto directory =
        DataDirectory::Open({.fs = HostFileSystem(), .dir = dir_.path() + "/directory"});
    ASSERT_TRUE(directory) << directory.error().ToString();
    directory_ = std::move(*directory);
    master_rotation_ = std::make_unique<MasterRotation>(HostFileSystem(), *directory_, *key_store_);
    services_.reset(new ApiServices{.registry = *registry_,
                                    .volumes = *volumes_,
                                    .snapshots = *snapshots_,
                                    .base_images = *base_images_,
                                    .publisher = *publisher_,
                                    .reaper = *reaper_,
                                    .collector = *collector_,
                                    .clock = SystemClock(),
                                    .add_keys = {},
                                    .removal = *removal_,
                                    .rotate_key = {},
                                    .master_rotation = *master_rotation_,
                                    .backup = {},
                                    .check = {},
                                    .stats = {},
                                    .mounts = {}});
    services_->add_keys = [this](const OrganizationKeys& keys) {
      keys_.Add(keys.realm, {.address_key = keys.address_key,
                             .current_key_id = keys.current_key_id,
                             .wrapping_keys = keys.wrapping_keys});
    };
    services_->rotate_key = [this](const std::string& org) -> Result<uint32_t> {
      return CAIRN_TRY(registry_->RotateOrganizationKey(org)).current_key_id;
    };
    services_->check = [](bool) {
      return Result<CheckReport>(CheckReport{.damages = {{.structure = "frame",
                                                          .where = "pack",
                                                          .what = "bad",
                                                          .owners = {"environment env_1"}}},
                                             .index = {}});
    };
    services_->stats = [] { return host::StatsInfo(); };
    services_->mounts = [this] { return live_mounts_; };
    host_ = std::make_unique<HostApi>(*services_);
    http_ = std::make_unique<HttpApi>(*services_, [this] { return ready_; });
    // The world's own organization is in the way of "the only one".
    ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      txn.Delete(keys::Organization(kOrg));
      return {};
    }));
  }

  std::string NewOrganization(const std::string& name) {
    const auto made = CreateOrganization(*services_, name);
    EXPECT_TRUE(made) << (made ? "" : made.error().ToString());
    return made ? made->id() : "";
  }
  std::string NewKey(const std::string& org) {
    const auto key = registry_->CreateApiKey(org, "test", 0);
    EXPECT_TRUE(key);
    return key ? key->secret : "";
  }
  // A file in a Session's output directory.
  void Output(const std::string& org, const std::string& env, const std::string& name,
              const std::string& data) {
    const auto initialized = volumes_->EnsureInitialized(org, env);
    ASSERT_TRUE(initialized) << initialized.error().ToString();
    const auto volume = volumes_->OpenForWrite(org, env);
    ASSERT_TRUE(volume) << volume.error().ToString();
    WriteInto(**volume, "workspace/outputs", name, data);
  }

  HttpResponse Http(const std::string& method, const std::string& target,
                    const std::string& body = {}, HttpHeaders headers = {}) {
    HttpRequest request{.method = method,
                        .target = target,
                        .headers = std::move(headers),
                        .body = body,
                        .request_id = "req_1"};
    if (!key_.empty()) request.headers.emplace_back("authorization", "Bearer " + key_);
    return http_->Handle(request);
  }
  Json Ok(const HttpResponse& response) {
    EXPECT_LT(response.status, 300) << response.body;
    return Json::parse(response.body, nullptr, false);
  }
  static std::string CodeOf(const HttpResponse& response) {
    const Json body = Json::parse(response.body, nullptr, false);
    return body.is_discarded() || !body.contains("error")
               ? ""
               : body["error"]["code"].get<std::string>();
  }
  static std::string HeaderOf(const HttpResponse& response, std::string_view name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return "";
  }
  static std::string ContentOf(HttpResponse& response) {
    if (response.content == nullptr) return response.body;
    std::string data(response.content_length, '\0');
    const auto read = response.content->Read(response.content_offset, data);
    return read ? data : "(" + read.error().ToString() + ")";
  }

  std::string key_;  // of requests
  bool ready_ = true;
  std::vector<LiveMount> live_mounts_;
  std::unique_ptr<KeyStore> key_store_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<LocalBlockStore> packs_;
  std::unique_ptr<BaseImages> base_images_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Reaper> reaper_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<DataDirectory> directory_;
  std::unique_ptr<OrganizationRemoval> removal_;
  std::unique_ptr<MasterRotation> master_rotation_;
  std::unique_ptr<ApiServices> services_;
  std::unique_ptr<HostApi> host_;
  std::unique_ptr<HttpApi> http_;
};

}  // namespace cairn
