// State of the VolumeManager, shared by its two halves: volume_manager.cc (what callers ask for)
// and volume_sealer.cc (what the background thread does).
//
// Locks (docs/LOCKING.md): OpenVolume::operation (one freeze, mount, seal step or close of a volume
// at a time; held over I/O, so nothing that serves file operations takes it) -> State::mutex (the
// tables; never held over I/O).
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "snapshot/volume_manager.h"
#include "store/base/mutex.h"

namespace cairn {

struct OpenVolume {
  Id128 id;
  Id128 realm;
  std::string org;
  std::string env;
  Mutex operation;  // held over I/O: orders freeze, mount, unmount, close
  Mutex sealing;    // one seal of this volume at a time; taken after `operation`
  std::unique_ptr<Volume> volume;
  // Not in the table any more: whoever waited for `operation` looks the volume up again. Nothing is
  // frozen or mounted in a closed one, since another may be open over the same journals by then.
  bool closed GUARDED_BY(operation) = false;
  // An import holds `operation` (for long): others are refused instead of waiting.
  std::atomic<bool> importing{false};
  std::atomic<bool> revoked{false};  // the Environment is being deleted: an import ends
  // Generations up to it may be sealed: whoever froze them has committed what refers to them.
  std::atomic<uint64_t> sealable_through{0};
  std::atomic<int64_t> used_ns{0};  // when it was last looked up
  // Of a fork: unsealed when the volume was opened.
  std::optional<catalog::Point> base_point GUARDED_BY(sealing);
};

struct VolumeManager::State {
  State(const VolumeManagerOptions& opts, FileSystem& file_system, KeyRing& key_ring,
        BlockStore& block_store, NodeCache& node_cache, Catalog& records, Clock& time,
        MountService& mount_service)
      : options(opts),
        fs(file_system),
        keys(key_ring),
        store(block_store),
        nodes(node_cache),
        catalog(records),
        clock(time),
        mounts(mount_service) {}

  VolumeManagerOptions options;
  FileSystem& fs;
  KeyRing& keys;
  BlockStore& store;
  NodeCache& nodes;
  Catalog& catalog;
  Clock& clock;
  MountService& mounts;

  // Shared by what makes journals useless or another root their base (the commits of seals, slices
  // of an import and roll-backs, the removal of a volume), exclusive to WithJournalsHeld. Taken
  // after `operation` and `sealing`.
  SharedMutex journals;

  Mutex mutex;
  CondVar changed;  // a seal ended, a request came, or stopping
  std::map<Id128, std::shared_ptr<OpenVolume>> volumes GUARDED_BY(mutex);  // open ones
  std::map<Id128, std::shared_ptr<Mutex>> opening GUARDED_BY(mutex);       // one opener per volume
  std::map<std::string, std::shared_ptr<Mutex>> initializing
      GUARDED_BY(mutex);                     // one initialiser per Environment
  std::set<Id128> wanted GUARDED_BY(mutex);  // volumes with something to seal
  struct FailedSeal {
    int64_t retry_at_ns = 0;
    std::optional<Error> no_space = {};  // it failed for want of space
    uint64_t free_bytes = 0;             // before it
  };
  std::map<Id128, FailedSeal> failed_seals GUARDED_BY(mutex);
  uint64_t seal_rounds GUARDED_BY(mutex) = 0;  // grows whenever a seal ended, well or not
  std::vector<std::function<void(const catalog::PointRecord&)>> callbacks GUARDED_BY(mutex);
  std::multiset<std::string> held GUARDED_BY(mutex);  // PointKeys of pauses in flight
  bool stopping GUARDED_BY(mutex) = false;
  std::thread sealer;
  std::atomic<bool> waits_end{false};  // of imports, and for seals

  // ---- volume_manager.cc ----
  Result<std::shared_ptr<OpenVolume>> Open(const catalog::Volume& record, bool read_only);
  Result<std::shared_ptr<OpenVolume>> OpenById(const Id128& volume);
  // The Environment's record and its open volume. FailedPrecondition while it is being deleted or
  // has no volume yet. One that has, and was never used (it starts from a base image, or its first
  // use was cut off), is initialised first: no open volume is without /workspace.
  struct Target {
    catalog::Environment env;
    std::shared_ptr<OpenVolume> open;
  };
  Result<Target> Find(const std::string& org, const std::string& env);
  // The record alone, with the same errors but for the volume's.
  Result<catalog::Environment> LivingEnvironment(const std::string& org, const std::string& env);
  // Null when it is not open.
  std::shared_ptr<OpenVolume> FindOpen(const Id128& volume);
  Result<std::shared_ptr<const Layer>> RootLayer(const Id128& realm, std::string_view root,
                                                 uint64_t generation);
  Result<std::shared_ptr<const Layer>> PointLayer(const catalog::PointRecord& record);
  Status Close(const std::shared_ptr<OpenVolume>& volume);
  // Ends the sealer. What is open then.
  std::vector<std::shared_ptr<OpenVolume>> StopSealer() EXCLUDES(mutex);
  // Freezes what is active and seals everything. Nothing after a failure of the journal.
  Status SealAll(const std::shared_ptr<OpenVolume>& volume) REQUIRES(volume->operation);
  // Takes it out of the table.
  void Forget(OpenVolume& volume) REQUIRES(volume.operation);
  Result<std::shared_ptr<const Layer>> FreezeLocked(OpenVolume& volume) REQUIRES(volume.operation);
  Result<std::unique_ptr<FrozenVolume>> FreezeForPauseLocked(
      const std::shared_ptr<OpenVolume>& open) REQUIRES(open->operation);
  // A pause of the volume is in flight.
  bool IsPausing(const Id128& volume);
  catalog::PointRecord MakePoint(OpenVolume& volume, const Layer& layer);
  Status CommitPointRecord(const catalog::PointRecord& record, const FsView& view,
                           const CommitPoint& commit);

  // FailedPrecondition while an import runs.
  static Status NotImporting(const OpenVolume& volume);

  // ---- volume_import.cc ----
  // Seals until the volume is one tree under an empty delta.
  Status SealForImport(const std::shared_ptr<OpenVolume>& open) REQUIRES(open->operation);
  Status ImportLocked(OpenVolume& open, const catalog::Environment& env,
                      const std::function<Status(Volume&)>& fill) REQUIRES(open.operation);
  Result<std::shared_ptr<const TreeReader>> PublishSlice(OpenVolume& open, const Layer& slice,
                                                         WriteSession& session,
                                                         const HeadState& state)
      REQUIRES(open.operation);

  // ---- first_use.cc ----
  Status EnsureInitialized(const std::string& org, const std::string& env);
  // The output directories of the Sessions that are attached, in a volume that is not mounted. A
  // Session that attaches to a mounted Environment makes its own.
  Status MakeOutputDirectories(OpenVolume& open, const catalog::Environment& env);

  // ---- volume_sealer.cc ----
  void RunSealer();
  void OpenUnsealed();
  void RequestSeal(const Id128& volume);
  // Seals all that is frozen now, oldest first. Any thread.
  Status SealVolume(const std::shared_ptr<OpenVolume>& volume);
  // `layers` are the oldest unsealed ones; only the newest of them may have a Point.
  Status SealTogether(OpenVolume& volume, const std::vector<std::shared_ptr<const Layer>>& layers)
      REQUIRES(volume.sealing);
  // How many of `layers`, oldest first, are sealed as one.
  Result<size_t> CountTogether(OpenVolume& volume,
                               const std::vector<std::shared_ptr<const Layer>>& layers);
  uint64_t FreeBytes() const;
  void NoteFailedSeal(const Id128& volume, const Error& error, uint64_t free_bytes);
  bool ForSpace() { return options.space != nullptr && options.space->Tight(); }
  // Freezes without a barrier or a Point, and asks for the seal.
  Status FreezeToSeal(OpenVolume& volume) REQUIRES(volume.operation);
  // What a tick does for an open volume.
  void Tend(OpenVolume& volume, bool for_space);
  // Nothing of it is unsealed, and nobody has it mounted.
  bool IsIdle(OpenVolume& volume);
  void CloseIdle() EXCLUDES(mutex);
  Status WaitForRoom(OpenVolume& volume);
};

catalog::Point MakePointId(const Id128& volume, uint64_t generation);

}  // namespace cairn
