// VolumeManager: opens the volumes of Environments, freezes them into Points, seals Points in the
// background and finds the view of a Point. It joins the catalog's records with the volume library
// and the block store.
//
// A Point's life:  Freeze() -> unsealed (journals hold it) -> sealer: SealLayer -> catalog
// transaction {PointRecord.root, Volume.root, sealed_through_generation} -> layer swapped ->
// journals unlinked.
//
// Invariants
//   1. A PointRecord exists before anything refers to the Point: both are written by the
//   transaction that Freeze commits.
//   2. Volume.root is always the root of generation sealed_through_generation; journals above it
//   exist on disk.
//   3. A block session is held from the first Put of a seal until its catalog transaction is
//   committed.
//   4. A volume's journals are not deleted while an unsealed Point of it is referenced.
//   5. A generation is sealed only once the record of its Point, if it is to have one, is
//   committed: OpenVolume::sealable_through.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "catalog/catalog.h"
#include "catalog/records.pb.h"
#include "snapshot/mount_service.h"
#include "store/base/clock.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/tree.h"
#include "volume/fs_view.h"
#include "volume/volume.h"

namespace cairn {

struct VolumeManagerOptions {
  std::string volumes_dir;  // <data>/volumes
  uint64_t auto_seal_records =
      100000;  // an active generation past either limit is frozen and sealed
  uint64_t auto_seal_bytes = 256ull << 20;
  uint32_t max_unsealed_generations = 3;   // then Freeze waits for the sealer
  uint64_t import_slice_records = 100000;  // an import publishes after so many
  uint32_t max_idle_volumes = 512;         // open, sealed and unused: three descriptors each
  uint64_t epoch = 0;                      // open epoch of the data directory, stamped into nodes
  SpaceGuard* space = nullptr;             // outlives the manager; null: until the disk says no
};

// Thread-safe. Stop() before destruction.
class VolumeManager {
 public:
  VolumeManager(const VolumeManagerOptions& options, FileSystem& fs, KeyRing& keys,
                BlockStore& store, NodeCache& nodes, Catalog& catalog, Clock& clock,
                MountService& mounts);
  ~VolumeManager();

  // Starts the sealer. Points that an earlier life left unsealed are sealed when their volume is
  // opened or asked for.
  void Start();
  // Unmounts everything, seals what is frozen and what is active, closes all volumes, joins. Errors
  // are logged: unsealed journals stay and the next life takes them up.
  void Stop();

  // First use of an Environment: makes its volume record, /workspace and /workspace/outputs (owned
  // by workspace uid:gid) once, however many callers race; state pending -> initializing -> ready,
  // or failed. Later calls return at once. FailedPrecondition when the state does not allow it
  // (deleting, failed).
  Status EnsureInitialized(const std::string& org, const std::string& env);

  // Mounts (initialising first). FailedPrecondition: mounted already (the message says where),
  // suspended, deleting.
  Status Mount(const std::string& org, const std::string& env, const std::string& dir,
               const MountOptions& options);
  Status Unmount(const std::string& org, const std::string& env, bool force);
  // Where it is mounted; empty if nowhere.
  Result<std::string> MountedAt(const std::string& org, const std::string& env);

  // The open volume of an Environment, for library access (import, export, output directories):
  // opened on demand, stays open while the pointer lives. Library writes to a mounted volume are
  // refused: FailedPrecondition.
  Result<std::shared_ptr<Volume>> OpenForWrite(const std::string& org, const std::string& env);
  // Fills the volume in bulk, past the journal (volume/staged_head.h): `fill` writes to a Volume
  // that only it sees, and what it wrote becomes the Environment's state in slices, the last one
  // before this returns; durable then. The Environment must not be mounted or suspended; meanwhile
  // it reads as the slice before left it and takes no other change (FailedPrecondition). When
  // `fill` fails, its error is returned and what was not published is dropped. Unavailable when the
  // server stops, FailedPrecondition when the Environment is deleted meanwhile.
  Status Import(const std::string& org, const std::string& env,
                const std::function<Status(Volume&)>& fill);
  // Goes on serving the mounts of an earlier server. One whose volume does not open is given up,
  // and logged: nobody may wait for it for ever. Before Start.
  void TakeOverMounts();
  // Instead of Stop: nothing is unmounted, sealed or synced. The volumes are closed as a kill would
  // close them, for the server that takes over.
  void HandOver();
  // From now on an import, also one that runs, ends at its next batch, and whoever waits for a seal
  // waits no longer: Unavailable. Before whoever waits for calls to end on the way to Stop().
  void EndWaits();
  // A view of now; after the barrier when mounted.
  Result<FsView> ViewNow(const std::string& org, const std::string& env);

  // Barrier (if mounted), freeze, then one catalog transaction: the PointRecord and whatever
  // `commit` adds. Durable and O(1) on return; the seal follows in the background. `commit` may be
  // called several times (aborted transactions); an error from it leaves the point as an
  // unreferenced, harmless generation. The view is the frozen state.
  using CommitPoint =
      std::function<Status(CatalogTransaction&, const catalog::PointRecord&, const FsView&)>;
  Result<catalog::PointRecord> Freeze(const std::string& org, const std::string& env,
                                      const CommitPoint& commit);

  // As Freeze, in two steps for a pause: the guest's memory is captured between them. The volume is
  // read-only from the first on; if it is destroyed without Commit it is writable again.
  class FrozenVolume {
   public:
    virtual ~FrozenVolume() = default;
    virtual const catalog::PointRecord& point() const = 0;
    virtual FsView view() const = 0;
    virtual Status Commit(
        const CommitPoint& commit) = 0;  // stays read-only after success (suspended)
  };
  Result<std::unique_ptr<FrozenVolume>> FreezeForPause(const std::string& org,
                                                       const std::string& env);
  // Ends the read-only state of a suspended volume that is open (resume).
  Status Thaw(const std::string& org, const std::string& env);

  // Makes `point` the content of the Environment's volume, which must not be mounted: everything
  // frozen is sealed first, then one transaction sets Volume.root and bumps rollback_epoch.
  // next_ino stays. `commit` adds to that transaction.
  Status RollBack(const std::string& org, const std::string& env, const catalog::Point& point,
                  const std::function<Status(CatalogTransaction&)>& commit);

  // The view of a Point, sealed or not. NotFound without its record.
  Result<FsView> ViewOf(const catalog::Point& point);
  // Blocks until sealed (or the deadline: Unavailable).
  Result<catalog::PointRecord> WaitSealed(const catalog::Point& point, int64_t timeout_ms);

  // A new volume record whose base is `point` (sealed or not): what a fork starts from. Only adds
  // to the transaction.
  Result<catalog::Volume> ForkVolume(CatalogTransaction& txn, const catalog::PointRecord& point,
                                     const std::string& org, const std::string& new_env);

  // Revokes an Environment that is being deleted: unmounts (forced), closes. Idempotent.
  Status Revoke(const std::string& org, const std::string& env);
  // Deletes a revoked volume's journals and directory, sealing first what a referenced Point still
  // needs. Idempotent. For the reaper.
  Status RemoveVolume(const catalog::Volume& volume);
  // The same of a volume that nobody needs any more, mounted or not: detaches it, seals nothing.
  // For the removal of a whole organization, whose key is gone. Idempotent.
  Status DropVolume(const catalog::Volume& volume);

  // Exhausted, with the numbers, when the budget of what is kept does not have so much for `what`.
  Status RoomToRetain(std::string_view what, uint64_t bytes);
  // Freezes what open volumes have written (without a barrier) and seals everything, so that what
  // was deleted in them is garbage to a collection. The first error; the others are logged.
  Status SealEverything();

  // Called with each newly sealed point, from the sealer's thread, after the commit (artifacts/
  // uses it).
  void OnSealed(std::function<void(const catalog::PointRecord&)> callback);

  // For a backup. Between `instant` (which copies the catalog) and the last `take`, no volume gets
  // another root (by a seal, an import, a roll-back) and no journal is removed; so the journals
  // that `take` gets, one after the other, are all that the catalog of that instant needs, and more
  // at most. Of each, the first `limit_bytes` never change. An error of either ends it. Reads and
  // writes go on.
  struct JournalFile {
    Id128 volume;
    std::string name;
    std::string path;
    uint64_t limit_bytes = UINT64_MAX;  // the whole file
  };
  Status WithJournalsHeld(const std::function<Status()>& instant,
                          const std::function<Status(const JournalFile&)>& take);

  // Whether a pause in flight still needs this point (no record refers to it yet). For the reaper.
  bool IsHeld(const catalog::Point& point);

  Result<VolumeStatus> StatusOf(const std::string& org, const std::string& env);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn
