// A whole data directory as a daemon opens it, without kernel and sockets: for tests of admin/.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "admin/backup.h"
#include "admin/master_rotation.h"
#include "admin/organization_removal.h"
#include "catalog/keys.h"
#include "catalog/local_catalog.h"
#include "catalog/records.h"
#include "gc/check.h"
#include "snapshot/base_images.h"
#include "store/node_cache.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/service_world.h"
#include "tests/support/store_world.h"
#include "tests/support/temp_dir.h"

namespace cairn {

// Files of the block store, of volumes and of keys lie on a FaultyFileSystem; the databases do not.
class AdminWorld {
 public:
  // `data_dir` empty: one in a temporary directory of its own.
  explicit AdminWorld(const std::string& data_dir = {})
      : dir(data_dir.empty() ? temp / "data" : data_dir), fs(temp / "scratch") {}
  ~AdminWorld() { Kill(); }

  Status Open() {
    ring = std::make_unique<KeyRing>();
    nodes = std::make_unique<NodeCache>(4 << 20);
    directory = CAIRN_TRY(DataDirectory::Open({.fs = fs, .dir = dir}));
    keys = CAIRN_TRY(KeyStore::Open(fs, directory->KeysDir(), directory->master_key()));
    rotation = std::make_unique<MasterRotation>(fs, *directory, *keys);
    CAIRN_TRY(rotation->Resume());
    catalog =
        CAIRN_TRY(LocalCatalog::Open(fs, *keys, {.dir = directory->CatalogDir(), .create = true}));
    registry = CAIRN_TRY(Registry::Open(*catalog, clock, *keys));
    for (const OrganizationKeys& org : CAIRN_TRY(registry->LoadOrganizations())) AddKeys(org);
    auto base = keys->ReadRealm(BaseRealm());
    if (!base && base.error().code() == ErrorCode::kNotFound) base = keys->CreateRealm(BaseRealm());
    AddKeys(CAIRN_TRY(base));
    store = CAIRN_TRY(LocalBlockStore::Open({.fs = fs,
                                             .dir = dir,
                                             .keys = *ring,
                                             .clock = clock,
                                             .store = directory->store(),
                                             .epoch = directory->open_epoch(),
                                             .pack_bytes = 1 << 20,
                                             .cache_bytes = 1 << 20}));
    VolumeManagerOptions options;
    options.volumes_dir = directory->VolumesDir();
    options.epoch = directory->open_epoch();
    volumes = std::make_unique<VolumeManager>(options, fs, *ring, *store, *nodes, *catalog, clock,
                                              mounts);
    volumes->Start();
    base_images = CAIRN_TRY(
        BaseImages::Open({.epoch = directory->open_epoch(), .slice_records = base_slice_records},
                         *registry, *store, *nodes, clock));
    collector = std::make_unique<Collector>(*catalog, *store);
    removal.reset(new OrganizationRemoval({.registry = *registry,
                                           .keys = *keys,
                                           .store = *store,
                                           .volumes = *volumes,
                                           .collector = *collector,
                                           .forget_keys = [this](const Id128& realm) {
                                             ring->Remove(realm);
                                             store->ForgetRealm(realm);
                                             nodes->EraseRealm(realm);
                                           }}));
    backup.reset(new Backup({.fs = fs,
                             .clock = clock,
                             .directory = *directory,
                             .keys = *keys,
                             .catalog = *catalog,
                             .store = *store,
                             .volumes = *volumes,
                             .collector = *collector}));
    CAIRN_TRY(backup->RemoveStaging());
    return removal->Resume();
  }
  void Start() {
    const Status opened = Open();
    ASSERT_TRUE(opened) << opened.error().ToString();
  }
  // Closes without any order of its own; what the power still lets through is sealed.
  void Kill() {
    if (volumes != nullptr) volumes->Stop();
    backup.reset();
    removal.reset();
    collector.reset();
    base_images.reset();
    volumes.reset();
    store.reset();
    registry.reset();
    catalog.reset();
    rotation.reset();
    keys.reset();
    directory.reset();
  }
  void AddKeys(const RealmSecrets& secrets) {
    ring->Add(secrets.realm, {.address_key = secrets.address_key,
                              .current_key_id = secrets.current_key_id,
                              .wrapping_keys = secrets.wrapping_keys});
  }

  // An organization with an Environment that holds a sealed file and an unsealed one.
  struct Made {
    std::string name;
    std::string org;
    std::string env;
    Id128 realm;
    Id128 volume;
  };
  Made Make(const std::string& name) {
    Made made;
    made.name = name;
    const auto secrets = registry->CreateOrganization(name);
    EXPECT_TRUE(secrets);
    AddKeys(*secrets);
    made.org = secrets->org;
    made.realm = secrets->realm;
    EXPECT_TRUE(registry->CreateApiKey(made.org, "key", 0));
    EXPECT_TRUE(registry->CreateSession(made.org, {}));
    made.env = registry->CreateEnvironment(made.org, {.name = "e"})->record.id();
    Write(made, "sealed", name + " sealed");
    const auto point = Freeze(made);
    EXPECT_TRUE(point) << point.error().ToString();
    EXPECT_TRUE(volumes->WaitSealed(point->point(), 60000));
    Write(made, "unsealed", name + " unsealed");
    made.volume = Id128::FromView(registry->GetEnvironment(made.org, made.env)->volume());
    return made;
  }
  Result<catalog::PointRecord> Freeze(const Made& made) {
    return volumes->Freeze(made.org, made.env,
                           [](CatalogTransaction&, const catalog::PointRecord&,
                              const FsView&) -> Status { return {}; });
  }
  // Durable on return.
  void Write(const Made& made, const std::string& file, const std::string& data) {
    const auto volume = volumes->OpenForWrite(made.org, made.env);
    ASSERT_TRUE(volume) << volume.error().ToString();
    const OpContext root;
    const auto parent = (*volume)->View().Resolve("workspace");
    ASSERT_TRUE(parent);
    const auto node = (*volume)->MakeNode(root, *parent, file, S_IFREG | 0644, 0);
    ASSERT_TRUE(node) << node.error().ToString();
    ASSERT_TRUE((*volume)->Write(root, node->ino, 0, data, false));
    ASSERT_TRUE((*volume)->Sync());
  }
  std::string Read(const Made& made, const std::string& file) {
    const auto view = volumes->ViewNow(made.org, made.env);
    return view ? ReadFrom(*view, file) : "(" + view.error().ToString() + ")";
  }
  static std::string ReadFrom(const FsView& view, const std::string& file) {
    const auto ino = view.Resolve("workspace/" + file);
    if (!ino) return "(" + ino.error().ToString() + ")";
    std::string data(view.GetInode(*ino)->size_bytes, '\0');
    const auto got = view.Read(*ino, 0, data);
    return got ? data : "(" + got.error().ToString() + ")";
  }
  void ExpectWhole(const Made& made) {
    EXPECT_EQ(Read(made, "sealed"), made.name + " sealed");
    EXPECT_EQ(Read(made, "unsealed"), made.name + " unsealed");
  }
  void ExpectNothingLeft(const Made& made) {
    EXPECT_FALSE(std::filesystem::exists(dir + "/keys/" + made.realm.ToHex() + ".key"));
    EXPECT_FALSE(std::filesystem::exists(dir + "/packs/" + made.realm.ToHex()));
    EXPECT_FALSE(std::filesystem::exists(dir + "/volumes/" + made.volume.ToHex()));
    EXPECT_FALSE(ring->Has(made.realm));
    EXPECT_TRUE(catalog->Scan("", "\x7f", [&](std::string_view key, std::string_view value) {
      if (key == keys::Organization(made.org)) return true;
      EXPECT_EQ(key.find(made.org), std::string_view::npos) << key;
      EXPECT_EQ(value.find(made.org), std::string_view::npos) << key;
      return true;
    }));
  }
  // Every wrapped key in a realm's key file, as it lies there.
  std::vector<std::string> WrappedKeys(const Id128& realm) {
    std::vector<std::string> all;
    const std::string bytes = ReadHostFile(dir + "/keys/" + realm.ToHex() + ".key");
    for (size_t at = 0; at + kKeySlotBytes <= bytes.size(); at += kKeySlotBytes) {
      const auto slot = DecodeKeySlot(std::string_view(bytes).substr(at, kKeySlotBytes));
      if (!slot || slot->kind != KeySlotKind::kRealm) continue;
      all.push_back(slot->wrapped_address_key);
      for (const auto& [id, wrapped] : slot->wrapped) all.push_back(wrapped);
    }
    return all;
  }
  // Whether half of one of them is in any file of the data directory, RocksDB's included.
  bool AnyFileHolds(const std::vector<std::string>& wrapped) {
    for (const auto& item : std::filesystem::recursive_directory_iterator(dir)) {
      if (!item.is_regular_file()) continue;
      // RocksDB may have removed it since.
      const std::string bytes =
          ReadWholeFile(HostFileSystem(), item.path(), 1ull << 32).value_or("");
      for (const std::string& key : wrapped) {
        if (bytes.find(key.substr(0, 30)) != std::string::npos) return true;
        if (bytes.find(key.substr(30)) != std::string::npos) return true;
      }
    }
    return false;
  }
  // Names of its packs and of what its volume keeps beside its journals. Those come and go by
  // themselves: one is made ahead, one goes when a seal that is under way ends.
  std::set<std::string> DataFilesOf(const Made& made) {
    std::set<std::string> names;
    for (const std::string& of :
         {dir + "/packs/" + made.realm.ToHex(), dir + "/volumes/" + made.volume.ToHex()}) {
      std::error_code absent;
      for (const auto& item : std::filesystem::directory_iterator(of, absent)) {
        const std::string name = item.path().filename();
        if (!name.contains(".journal") && !name.contains(".side")) names.insert(item.path());
      }
    }
    return names;
  }
  void ExpectCheckIsClean() {
    CheckOptions options;
    options.volumes_dir = directory->VolumesDir();
    const auto report = CheckStore(*catalog, *store, *ring, fs, options);
    ASSERT_TRUE(report) << report.error().ToString();
    for (const Damage& damage : report->damages) {
      ADD_FAILURE() << damage.structure << " " << damage.where << ": " << damage.what;
    }
  }

  TempDir temp;
  const std::string dir;
  FaultyFileSystem fs;
  FakeClock clock;
  FakeMounts mounts;
  std::unique_ptr<KeyRing> ring;
  std::unique_ptr<NodeCache> nodes;
  std::unique_ptr<DataDirectory> directory;
  std::unique_ptr<KeyStore> keys;
  std::unique_ptr<MasterRotation> rotation;
  std::unique_ptr<LocalCatalog> catalog;
  std::unique_ptr<Registry> registry;
  std::unique_ptr<LocalBlockStore> store;
  std::unique_ptr<VolumeManager> volumes;
  uint64_t base_slice_records = 100000;
  std::unique_ptr<BaseImages> base_images;
  std::unique_ptr<Collector> collector;
  std::unique_ptr<OrganizationRemoval> removal;
  std::unique_ptr<Backup> backup;
};

}  // namespace cairn
