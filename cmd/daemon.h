// Daemon: everything that serves one data directory, wired together. The only place that names
// implementations.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "admin/backup.h"
#include "admin/master_rotation.h"
#include "admin/organization_removal.h"
#include "api/host_api.h"
#include "api/host_frame.h"
#include "api/host_server.h"
#include "api/http_api.h"
#include "api/http_server.h"
#include "api/services.h"
#include "catalog/key_store.h"
#include "catalog/local_catalog.h"
#include "catalog/registry.h"
#include "cmd/fuse_mount_service.h"
#include "cmd/server_upgrade.h"
#include "fuse/keeper_client.h"
#include "store/base/error.h"
#include "store/base/mutex.h"
#include "store/data_directory.h"
#include "store/key_ring.h"
#include "store/local_block_store.h"
#include "store/node_cache.h"
#include "store/space_guard.h"

namespace cairn {

struct DaemonOptions {
  std::string data_dir;
  std::string socket_path = std::string(kDefaultHostSocket);
  std::string master_key_file;     // neither: master.key in the data directory
  std::string master_key_command;  // prints the key
  bool adopt = false;              // DataDirectoryOptions::adopt
  ListenAddress listen;
  SpaceLimits space;                        // 0: by the size of the disk
  std::vector<std::string> server_command;  // argv, for upgrades
};

// Thread-compatible: one owner starts and stops it.
class Daemon {
 public:
  // Takes over what an earlier server of this keeper mounted. On an error nothing is left running
  // or behind, but for such mounts and what a data directory keeps. Errors: as of the parts; the
  // messages say what to do. `keeper` outlives it.
  static Result<std::unique_ptr<Daemon>> Start(const DaemonOptions& options, KeeperClient& keeper);
  ~Daemon();

  // No new calls; running ones end; everything is unmounted, sealed and closed. Idempotent.
  void Stop() { End(/*hand_over=*/false); }
  // As Stop, but the mounts stay, for the server that comes next, and nothing is sealed.
  void HandOver() { End(/*hand_over=*/true); }

  const std::string& socket_path() const { return host_server_->socket_path(); }
  uint16_t http_port() const { return http_server_->port(); }

 private:
  Daemon(const DaemonOptions& options, KeeperClient& keeper)
      : options_(options),
        keeper_(keeper),
        upgrade_(keeper, options.server_command),
        mounts_(keeper, options.data_dir) {}
  void End(bool hand_over);
  Status OpenStore();
  Status LoadKeys();
  void AddKeys(const RealmSecrets& keys);
  Result<uint32_t> RotateKey(const std::string& org);
  Status StartServices();
  Status StartServers();
  Status StartHostServer();
  Status StartHttpServer();
  bool IsMounted(const catalog::Environment& env);
  Status EndAbandonedOperations();
  void SettleInBackground();
  void WatchSpace();
  host::StatsInfo Stats();

  const DaemonOptions options_;
  KeeperClient& keeper_;
  ServerUpgrade upgrade_;
  std::atomic<bool> ready_ = false;
  bool stopped_ = false;
  bool sockets_kept_ = false;  // by the keeper, for the next server
  int64_t started_ms_ = 0;

  // In the order in which they start; they stop in the other.
  std::unique_ptr<DataDirectory> directory_;
  std::unique_ptr<SpaceGuard> space_;
  std::unique_ptr<KeyStore> key_store_;
  std::unique_ptr<MasterRotation> master_rotation_;
  std::unique_ptr<LocalCatalog> catalog_;
  KeyRing keys_;
  FuseMountService mounts_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<LocalBlockStore> store_;
  NodeCache nodes_;
  std::unique_ptr<VolumeManager> volumes_;
  std::unique_ptr<SnapshotService> snapshots_;
  std::unique_ptr<BaseImages> base_images_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Reaper> reaper_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<Scrubber> scrubber_;
  Mutex check_mutex_;
  CheckProgress check_progress_ GUARDED_BY(check_mutex_);  // of the check that runs
  Mutex background_mutex_;
  CondVar background_changed_;
  bool background_ends_ GUARDED_BY(background_mutex_) = false;
  bool unsettled_ GUARDED_BY(background_mutex_) = true;
  std::unique_ptr<OrganizationRemoval> removal_;
  std::unique_ptr<Backup> backup_;
  std::thread settle_thread_;
  std::thread space_thread_;
  std::unique_ptr<ApiServices> services_;
  std::unique_ptr<HostApi> host_api_;
  std::unique_ptr<HttpApi> http_api_;
  std::unique_ptr<HostServer> host_server_;
  std::unique_ptr<HttpServer> http_server_;
};

}  // namespace cairn
