// The daemon in order. Start: data directory (locks, format, master key) -> space guard -> key
// store (an interrupted rotation goes on) -> catalog -> registry -> key ring -> block store ->
// volume manager -> services -> abandoned operations are ended -> sockets. Stop is the reverse: no
// new calls -> running ones end -> unmount, seal, close volumes -> store -> catalog -> unlock. A
// kill at any moment is the same as a power cut to all of them.
#include "cmd/daemon.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <future>
#include <utility>

#include "api/host_views.h"
#include "catalog/operations.h"
#include "store/base/log.h"

namespace cairn {
namespace {

// What the keeper knows the listening sockets by.
constexpr const char* kHostSocket = "listen:host";
constexpr const char* kHttpSocket = "listen:http";
constexpr const char* kGivenHostSocket = "systemd:host";
constexpr const char* kGivenHttpSocket = "systemd:http";
constexpr int64_t kDrainMs = 10'000;  // calls that take longer are broken off by a hand-over

// Bytes of the blocks that the files below a directory have. Files come and go meanwhile: a number
// for people, not for decisions.
uint64_t AllocatedBelow(const std::string& dir) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    struct stat st{};
    if (::lstat(it->path().c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
      bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    }
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options, KeeperClient& keeper) {
  std::unique_ptr<Daemon> daemon(new Daemon(options, keeper));
  daemon->started_ms_ = SystemClock().NowMs();
  const auto start = [&]() -> Status {
    CAIRN_TRY(daemon->OpenStore());
    CAIRN_TRY(daemon->StartServices());
    return daemon->StartServers();
  };
  if (const Status started = start(); !started) {
    daemon->HandOver();  // of mounts there are only such as were there before
    return std::unexpected(started.error());
  }
  daemon->ready_ = true;
  return daemon;
}

Daemon::~Daemon() { Stop(); }

Status Daemon::OpenStore() {
  FileSystem& fs = HostFileSystem();
  directory_ = CAIRN_TRY(DataDirectory::Open({.fs = fs,
                                              .dir = options_.data_dir,
                                              .master_key_file = options_.master_key_file,
                                              .master_key_command = options_.master_key_command,
                                              .create = true,
                                              .adopt = options_.adopt}));
  space_ = CAIRN_TRY(SpaceGuard::Open(
      {.fs = fs, .dir = directory_->dir(), .clock = SystemClock(), .limits = options_.space}));
  mounts_.LimitSpace(*space_);
  constexpr uint64_t kDatabasesBytes = 4 << 20;  // manifests, and tables of what is in their logs
  IgnoreError(space_->MakeRoom(kDatabasesBytes, "opening"), "the databases say what they lack");
  key_store_ = CAIRN_TRY(KeyStore::Open(fs, directory_->KeysDir(), directory_->master_key()));
  directory_->ForgetMasterKey();
  master_rotation_ = std::make_unique<MasterRotation>(fs, *directory_, *key_store_);
  CAIRN_TRY(master_rotation_->Resume());
  // Two databases, at once: whoever calls on a mount waits for both. The index needs no key.
  auto opening = std::async(std::launch::async, [&] {
    return LocalBlockStore::Open({.fs = fs,
                                  .dir = directory_->dir(),
                                  .keys = keys_,
                                  .clock = SystemClock(),
                                  .store = directory_->store(),
                                  .epoch = directory_->open_epoch(),
                                  .space = space_.get()});
  });
  auto catalog = LocalCatalog::Open(
      fs, *key_store_,
      {.dir = directory_->CatalogDir(),
       .create = !directory_->holds_data(),
       .make_room = [this](uint64_t bytes) { return space_->MakeRoom(bytes, "the catalog"); }});
  if (!catalog && catalog.error().code() == ErrorCode::kNotFound) {
    return Err(ErrorCode::kDataLoss, fmt::format("{} has data, but there is no catalog in {}",
                                                 directory_->dir(), directory_->CatalogDir()));
  }
  catalog_ = CAIRN_TRY(std::move(catalog));
  RegistryHooks hooks;
  hooks.is_mounted = [this](const catalog::Environment& env) { return IsMounted(env); };
  registry_ = CAIRN_TRY(Registry::Open(*catalog_, SystemClock(), *key_store_, std::move(hooks)));
  CAIRN_TRY(registry_->ReleaseInitializations());
  CAIRN_TRY(LoadKeys());
  store_ = CAIRN_TRY(opening.get());
  return {};
}

void Daemon::AddKeys(const RealmSecrets& keys) {
  keys_.Add(keys.realm, {.address_key = keys.address_key,
                         .current_key_id = keys.current_key_id,
                         .wrapping_keys = keys.wrapping_keys});
}

// Durable first, used then. Packs begin anew, so that what is written from now on is under the new
// version; a journal goes on to the end of its generation.
Result<uint32_t> Daemon::RotateKey(const std::string& org) {
  const OrganizationKeys keys = CAIRN_TRY(registry_->RotateOrganizationKey(org));
  AddKeys(keys);
  if (const Status sealed = store_->SealOpenPacks(); !sealed) {
    LogWarning("open_packs_not_sealed", {{"error", sealed.error().ToString()}});
  }
  LogInfo("organization_key_rotated", {{"organization", org}, {"key_id", keys.current_key_id}});
  return keys.current_key_id;
}

Status Daemon::LoadKeys() {
  const auto organizations = CAIRN_TRY(registry_->LoadOrganizations());
  for (const OrganizationKeys& keys : organizations) AddKeys(keys);
  // The base realm, which every organization reads. A lost key is not replaced where it wrapped
  // something.
  auto base = key_store_->ReadRealm(BaseRealm());
  if (!base && base.error().code() == ErrorCode::kNotFound &&
      !CAIRN_TRY(HostFileSystem().Exists(directory_->dir() + "/packs/" + BaseRealm().ToHex()))) {
    base = key_store_->CreateRealm(BaseRealm());
  }
  if (base) {
    AddKeys(*base);
  } else {
    LogError("base_realm_unreadable", {{"error", base.error().ToString()}});
  }
  return {};
}

Status Daemon::StartServices() {
  FileSystem& fs = HostFileSystem();
  Clock& clock = SystemClock();
  const uint64_t epoch = registry_->epoch();
  const VolumeManagerOptions volume_options{.volumes_dir = directory_->VolumesDir(),
                                            .epoch = directory_->open_epoch(),
                                            .space = space_.get()};
  volumes_ = std::make_unique<VolumeManager>(volume_options, fs, keys_, *store_, nodes_, *catalog_,
                                             clock, mounts_);
  CAIRN_TRY(mounts_.FindLiveMounts());
  volumes_->TakeOverMounts();  // the kernel's requests wait for it
  CAIRN_TRY(mounts_.AllTaken());
  snapshots_ =
      std::make_unique<SnapshotService>(*catalog_, *store_, keys_, fs, *volumes_, clock, epoch);
  base_images_ = CAIRN_TRY(
      BaseImages::Open({.epoch = directory_->open_epoch()}, *registry_, *store_, nodes_, clock));
  publisher_ = std::make_unique<Publisher>(*catalog_, *store_, nodes_, keys_, *volumes_, clock,
                                           PublicationLimits{}, epoch);
  ReaperHooks hooks;
  hooks.revoke_environment = [this](const catalog::Environment& env) {
    return volumes_->Revoke(env.org(), env.id());
  };
  hooks.remove_volume = [this](const catalog::Volume& volume) {
    return volumes_->RemoveVolume(volume);
  };
  hooks.is_mounted = [this](const catalog::Environment& env) { return IsMounted(env); };
  hooks.point_is_held = [this](const catalog::Point& point) { return volumes_->IsHeld(point); };
  reaper_ = std::make_unique<Reaper>(*catalog_, std::move(hooks), epoch);
  collector_ = std::make_unique<Collector>(*catalog_, *store_);
  removal_.reset(new OrganizationRemoval({.registry = *registry_,
                                          .keys = *key_store_,
                                          .store = *store_,
                                          .volumes = *volumes_,
                                          .collector = *collector_,
                                          .forget_keys = [this](const Id128& realm) {
                                            keys_.Remove(realm);
                                            store_->ForgetRealm(realm);
                                            nodes_.EraseRealm(realm);
                                          }}));
  CAIRN_TRY(removal_->Resume());
  backup_.reset(new Backup({.fs = fs,
                            .clock = clock,
                            .directory = *directory_,
                            .keys = *key_store_,
                            .catalog = *catalog_,
                            .store = *store_,
                            .volumes = *volumes_,
                            .collector = *collector_}));
  CAIRN_TRY(backup_->RemoveStaging());
  CAIRN_TRY(EndAbandonedOperations());
  volumes_->OnSealed([this](const catalog::PointRecord& record) {
    if (auto settled = publisher_->SettleAll(&record.point()); !settled) {
      LogWarning("settle_failed", {{"error", settled.error().ToString()}});
      MutexLock lock(background_mutex_);
      unsettled_ = true;
    }
  });
  volumes_->Start();
  ScrubOptions scrub;
  // A decoded tree node outlives the block that it was read from.
  scrub.distrusted = [this](const Id128& realm) { nodes_.EraseRealm(realm); };
  scrubber_ = Scrubber::Start(*catalog_, *store_, clock, std::move(scrub));
  settle_thread_ = std::thread([this] { SettleInBackground(); });
  space_thread_ = std::thread([this] { WatchSpace(); });
  return {};
}

// What an earlier life published and did not move any more, and what failed since (a full disk).
void Daemon::SettleInBackground() {
  constexpr int64_t kRetryMs = 5000;
  for (;;) {
    bool settle;
    {
      MutexLock lock(background_mutex_);
      if (background_ends_) return;
      settle = std::exchange(unsettled_, false);
    }
    const Status settled = settle ? publisher_->SettleAll(nullptr) : Status();
    if (!settled) LogWarning("settle_failed", {{"error", settled.error().ToString()}});
    MutexLock lock(background_mutex_);
    if (!settled) unsettled_ = true;
    if (!background_ends_) background_changed_.WaitFor(background_mutex_, kRetryMs);
  }
}

void Daemon::WatchSpace() {
  constexpr int64_t kTickMs = 200;
  for (;;) {
    space_->Maintain();
    if (space_->HasRoom(SpaceUse::kGrowing, DataDirectory::kOpeningRoomBytes)) {
      directory_->KeepOpeningRoom();
    }
    MutexLock lock(background_mutex_);
    if (background_ends_) return;
    background_changed_.WaitFor(background_mutex_, kTickMs);
    if (background_ends_) return;
  }
}

bool Daemon::IsMounted(const catalog::Environment& env) {
  return env.volume().size() == 16 && !mounts_.MountedAt(Id128::FromView(env.volume())).empty();
}

Status Daemon::EndAbandonedOperations() {
  const auto abandoned = CAIRN_TRY(AbandonedOperations(*catalog_, registry_->epoch()));
  for (const catalog::Operation& operation : abandoned) {
    const Error interrupted(ErrorCode::kAborted, "interrupted: the daemon ended while it ran");
    CAIRN_TRY(catalog_->Run([&](CatalogTransaction& txn) {
      return EndOperation(txn, operation.org(), operation.id(), {}, &interrupted,
                          SystemClock().NowMs());
    }));
    LogWarning("operation_interrupted", {{"operation", operation.id()},
                                         {"kind", operation.kind()},
                                         {"target", operation.target()},
                                         {"phase", operation.phase()}});
  }
  return {};
}

Status Daemon::StartServers() {
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
  services_->add_keys = [this](const OrganizationKeys& keys) { AddKeys(keys); };
  services_->data_dir = options_.data_dir;
  services_->backup = [this](const BackupOptions& options) { return backup_->Run(options); };
  services_->rotate_key = [this](const std::string& org) { return RotateKey(org); };
  services_->check = [this](bool rebuild_index) {
    const auto tell = [this](const CheckProgress& progress) {
      MutexLock lock(check_mutex_);
      check_progress_ = progress;
    };
    auto report = CheckStore(*catalog_, *store_, keys_, HostFileSystem(),
                             {.rebuild_index = rebuild_index,
                              .volumes_dir = directory_->VolumesDir(),
                              .progress = tell});
    tell({});
    return report;
  };
  services_->check_progress = [this] {
    MutexLock lock(check_mutex_);
    return check_progress_;
  };
  services_->scrub = [this](host::ScrubAction action, uint64_t rate_bytes) -> Result<ScrubReport> {
    if (action == host::START) CAIRN_TRY(scrubber_->Begin(rate_bytes));
    if (action == host::STOP) scrubber_->StopPass();
    return scrubber_->Report();
  };
  services_->stats = [this] { return Stats(); };
  services_->upgrade = [this](const host::Upgrade& request) -> Result<host::UpgradeState> {
    if (!request.keeper()) return upgrade_.Begin(request.ready_timeout_ms());
    CAIRN_TRY(upgrade_.ReplaceKeeper());
    host::UpgradeState state;
    state.set_state("done");
    return state;
  };
  services_->describe = [this](host::Pong& pong) {
    pong.set_keeper_pid(keeper_.keeper_pid());
    const host::UpgradeState last = upgrade_.Last();
    if (!last.id().empty()) *pong.mutable_last_upgrade() = last;
  };
  services_->mounts = [this] {
    std::vector<LiveMount> mounts;
    for (auto& [volume, dir] : mounts_.List())
      mounts.push_back({.volume = volume, .dir = std::move(dir)});
    return mounts;
  };
  host_api_ = std::make_unique<HostApi>(*services_);
  http_api_ = std::make_unique<HttpApi>(*services_, [this] { return ready_.load(); });
  CAIRN_TRY(StartHostServer());
  CAIRN_TRY(StartHttpServer());
  const auto keep = [&](const char* given, const char* name, int listener) -> Status {
    if (keeper_.KeptFile(given) || keeper_.KeptFile(name)) return {};
    return keeper_.KeepFile(name, listener);
  };
  for (const Status& kept : {keep(kGivenHostSocket, kHostSocket, host_server_->listener()),
                             keep(kGivenHttpSocket, kHttpSocket, http_server_->listener())}) {
    if (kept) continue;
    sockets_kept_ = false;
    LogWarning("sockets_not_kept", {{"error", kept.error().ToString()}});
    return {};
  }
  sockets_kept_ = true;
  return {};
}

// Sockets outlive servers: the one before this one has left them with the keeper, or the service
// manager has made them. Else they are made here, and left with the keeper.
Status Daemon::StartHostServer() {
  HostServerOptions host_options;
  host_options.socket_path = options_.socket_path;
  if (auto given = keeper_.KeptFile(kGivenHostSocket)) {
    host_options.listener = given->Release();
    host_options.removes_socket = false;
  } else if (auto kept = keeper_.KeptFile(kHostSocket)) {
    host_options.listener = kept->Release();
  } else if (options_.socket_path == kDefaultHostSocket) {
    // /run is empty after each boot. When this fails bind(2) says what is missing.
    const std::filesystem::path dir = std::filesystem::path(options_.socket_path).parent_path();
    ::mkdir(dir.c_str(), 0700);
  }
  host_server_ =
      CAIRN_TRY(HostServer::Start(host_options, [this](const host::HostRequest& request) {
        return host_api_->Handle(request);
      }));
  sockets_kept_ = host_options.listener >= 0;
  return {};
}

Status Daemon::StartHttpServer() {
  HttpServerOptions http_options;
  http_options.address = options_.listen.address;
  http_options.port = options_.listen.port;
  if (auto given = keeper_.KeptFile(kGivenHttpSocket)) {
    http_options.listener = given->Release();
  } else if (auto kept = keeper_.KeptFile(kHttpSocket)) {
    http_options.listener = kept->Release();
  }
  http_server_ = CAIRN_TRY(HttpServer::Start(
      http_options, [this](const HttpRequest& request) { return http_api_->Handle(request); },
      [](int status, const std::string&) { return ErrorResponse(StatusError(status)); }));
  return {};
}

host::StatsInfo Daemon::Stats() {
  host::StatsInfo info;
  const BlockStoreStats stats = store_->Stats();
  info.set_pack_count(stats.pack_count);
  info.set_pack_bytes(stats.pack_bytes);
  info.set_trash_bytes(stats.trash_bytes);
  info.set_block_count(stats.block_count);
  info.set_stored_bytes(stats.stored_bytes);
  info.set_raw_bytes(stats.raw_bytes);
  info.set_cache_bytes(stats.cache_bytes);
  if (const auto scrub = scrubber_->Report()) {
    info.set_scrub_state(ScrubStateName(scrub->state));
    info.set_scrub_last_ended_ms(scrub->last.ended_ms());
    info.set_scrub_last_bytes(scrub->last.bytes());
    info.set_scrub_last_damaged_blocks(scrub->last.damaged_blocks());
    info.set_quarantined_blocks(scrub->quarantine.blocks);
    info.set_quarantined_packs(scrub->quarantine.packs);
  }
  const uint64_t journal_bytes = AllocatedBelow(directory_->VolumesDir());
  info.set_journal_bytes(journal_bytes);
  const SpaceStatus space = space_->GetStatus();
  host::SpaceInfo& view = *info.mutable_space();
  view.set_total_bytes(space.total_bytes);
  view.set_free_bytes(space.free_bytes);
  (*view.mutable_limits())["reserve"] = space.limits.reserve_bytes;
  (*view.mutable_limits())["floor"] = space.limits.floor_bytes;
  (*view.mutable_limits())["headroom"] = space.limits.headroom_bytes;
  (*view.mutable_limits())["dirty_per_mount"] = space.limits.dirty_bytes_per_mount;
  for (size_t i = 0; i < kSpaceUses; ++i) {
    const auto use = static_cast<SpaceUse>(i);
    const std::string name(SpaceUseName(use));
    (*view.mutable_set_aside())[name] = space.set_aside_bytes[i];
    if (use > SpaceUse::kRetaining) continue;
    (*view.mutable_available())[name] = space.available_bytes[i];
    (*view.mutable_written())[name] = space.written_bytes[i];
    (*view.mutable_refusals())[name] = space.refusals[i];
  }
  (*view.mutable_used())["journals"] = journal_bytes;
  (*view.mutable_used())["packs"] = stats.pack_bytes - stats.trash_bytes;
  (*view.mutable_used())["trash"] = stats.trash_bytes;
  (*view.mutable_used())["catalog"] = AllocatedBelow(directory_->CatalogDir());
  (*view.mutable_used())["index"] = AllocatedBelow(directory_->dir() + "/index");
  (*view.mutable_used())["reserve"] = space.reserve_file_bytes;
  info.set_started_ms(started_ms_);
  info.set_version(CAIRN_VERSION);
  return info;
}

void Daemon::End(bool hand_over) {
  if (stopped_) return;
  stopped_ = true;
  ready_ = false;
  if (hand_over) {  // the mounts are served meanwhile, and who connects waits for the next server
    if (host_server_ != nullptr) host_server_->Drain(kDrainMs);
    if (http_server_ != nullptr) http_server_->Drain(kDrainMs);
  }
  if (volumes_ != nullptr)
    volumes_->EndWaits();  // an import, or a seal on a slow disk, takes minutes
  if (base_images_ != nullptr) base_images_->EndImports();
  if (http_server_ != nullptr) http_server_->Stop();
  if (host_server_ != nullptr) {
    if (hand_over && sockets_kept_) host_server_->HandOver();
    host_server_->Stop();  // nothing is left to do after a hand-over
  }
  if (scrubber_ != nullptr) scrubber_->Stop();
  {
    MutexLock lock(background_mutex_);
    background_ends_ = true;
  }
  background_changed_.NotifyAll();
  if (settle_thread_.joinable()) settle_thread_.join();
  if (space_thread_.joinable()) space_thread_.join();
  if (volumes_ != nullptr) hand_over ? volumes_->HandOver() : volumes_->Stop();
  const auto close = [](const char* what, const Status& closed) {
    if (!closed) LogError("close_failed", {{"part", what}, {"error", closed.error().ToString()}});
  };
  if (store_ != nullptr) close("block store", store_->Close());
  // The registry holds no transaction between calls.
  if (catalog_ != nullptr) close("catalog", catalog_->Close());
}

}  // namespace cairn
