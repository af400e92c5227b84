// What callers ask of the volumes of Environments: first use, mount, freeze, fork, rollback,
// removal.
//
// Steps of a freeze: wait for room (at most max_unsealed_generations) -> barrier of the mount ->
// Volume::Freeze (gate, rotate, fdatasync) -> one synced catalog transaction with the PointRecord
// and the caller's records. A crash before the transaction leaves a generation that nobody refers
// to: it is replayed and sealed like any other.
#include "snapshot/volume_manager.h"

#include <sys/stat.h>

#include <algorithm>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "catalog/refusal.h"
#include "snapshot/volume_manager_internal.h"
#include "store/base/check.h"
#include "store/base/log.h"
#include "store/base/random.h"
#include "volume/fs_root.h"

namespace cairn {

namespace {

Result<Id128> RealmOf(Catalog& catalog, const std::string& org) {
  const auto record = CAIRN_TRY(GetRecord<catalog::Organization>(catalog, keys::Organization(org)));
  if (!record || record->deleted_ms() != 0) {
    return Err(ErrorCode::kNotFound, "no organization " + org);
  }
  return Id128::FromView(record->realm());
}

}  // namespace

catalog::Point MakePointId(const Id128& volume, uint64_t generation) {
  catalog::Point point;
  point.set_volume(std::string(volume.view()));
  point.set_generation(generation);
  return point;
}

VolumeManager::VolumeManager(const VolumeManagerOptions& options, FileSystem& fs, KeyRing& keys,
                             BlockStore& store, NodeCache& nodes, Catalog& catalog, Clock& clock,
                             MountService& mounts)
    : state_(std::make_unique<State>(options, fs, keys, store, nodes, catalog, clock, mounts)) {}

VolumeManager::~VolumeManager() { CAIRN_CHECK(!state_->sealer.joinable()); }

void VolumeManager::Start() {
  state_->sealer = std::thread([this] { state_->RunSealer(); });
}

std::vector<std::shared_ptr<OpenVolume>> VolumeManager::State::StopSealer() {
  std::vector<std::shared_ptr<OpenVolume>> open;
  {
    MutexLock lock(mutex);
    stopping = true;
    for (const auto& [id, volume] : volumes) open.push_back(volume);
  }
  changed.NotifyAll();
  if (sealer.joinable()) sealer.join();
  return open;
}

void VolumeManager::TakeOverMounts() {
  for (const Id128& id : state_->mounts.VolumesToTakeOver()) {
    const auto take_over = [&]() -> Status {
      const auto open = CAIRN_TRY(state_->OpenById(id));
      MutexLock operation(open->operation);
      return state_->mounts.TakeOver(*open->volume);
    };
    const Status taken = take_over();
    if (taken) continue;
    LogError("mount_not_taken_over", {{"volume", id.ToHex()}, {"error", taken.error().ToString()}});
    state_->mounts.Abandon(id);
  }
}

void VolumeManager::HandOver() {
  EndWaits();
  const auto open = state_->StopSealer();
  state_->mounts.HandOver();
  for (const auto& volume : open) {
    MutexLock operation(volume->operation);
    state_->Forget(*volume);
  }
}

void VolumeManager::Stop() {
  EndWaits();
  const auto open = state_->StopSealer();
  for (const auto& volume : open) {
    const Status unmounted = state_->mounts.Unmount(volume->id, /*force=*/true);
    if (!unmounted && unmounted.error().code() != ErrorCode::kNotFound) {
      LogWarning("unmount_failed", {{"env", volume->env}, {"error", unmounted.error().ToString()}});
    }
  }
  for (const auto& volume : open) {
    const Status closed = state_->Close(volume);
    if (!closed) {
      LogWarning("close_failed", {{"env", volume->env}, {"error", closed.error().ToString()}});
    }
  }
}

// ---- opening ----

Result<std::shared_ptr<const Layer>> VolumeManager::State::RootLayer(const Id128& realm,
                                                                     std::string_view root,
                                                                     uint64_t generation) {
  TreeRoot tree;
  if (!root.empty()) {
    const BlockRef ref = CAIRN_TRY(BlockRef::Decode(root));
    tree = CAIRN_TRY(LoadFsRoot(store, realm, ref)).tree;
  }
  return TreeLayer(store, std::make_shared<TreeReader>(store, nodes, realm, tree), generation);
}

Result<std::shared_ptr<const Layer>> VolumeManager::State::PointLayer(
    const catalog::PointRecord& record) {
  const uint64_t generation = record.point().generation();
  if (!record.root().empty()) {
    return RootLayer(CAIRN_TRY(RealmOf(catalog, record.org())), record.root(), generation);
  }
  const Id128 volume = Id128::FromView(record.point().volume());
  const auto open = CAIRN_TRY(OpenById(volume));
  for (const auto& layer : open->volume->head().unsealed()) {
    if (layer->generation() == generation) return layer;
  }
  // It was sealed while we looked.
  const auto again =
      CAIRN_TRY(GetRecord<catalog::PointRecord>(catalog, keys::Point(volume.view(), generation)));
  if (again && !again->root().empty()) {
    return RootLayer(CAIRN_TRY(RealmOf(catalog, record.org())), again->root(), generation);
  }
  return Err(ErrorCode::kDataLoss, "generation " + std::to_string(generation) + " of volume " +
                                       volume.ToHex() + " is neither sealed nor in its journals");
}

Result<std::shared_ptr<OpenVolume>> VolumeManager::State::OpenById(const Id128& volume) {
  {
    MutexLock lock(mutex);
    const auto found = volumes.find(volume);
    if (found != volumes.end()) {
      found->second->used_ns = clock.MonotonicNs();
      return found->second;
    }
  }
  const auto record = CAIRN_TRY(GetRecord<catalog::Volume>(catalog, keys::Volume(volume.view())));
  if (!record) return Err(ErrorCode::kNotFound, "no volume " + volume.ToHex());
  bool read_only = false;
  const auto env = CAIRN_TRY(
      GetRecord<catalog::Environment>(catalog, keys::Environment(record->org(), record->env())));
  if (!env || env->state() != catalog::ENV_READY) {
    read_only = !env || env->state() != catalog::ENV_INITIALIZING;
  }
  return Open(*record, read_only);
}

Result<std::shared_ptr<OpenVolume>> VolumeManager::State::Open(const catalog::Volume& record,
                                                               bool read_only) {
  const Id128 id = Id128::FromView(record.id());
  std::shared_ptr<Mutex> opener;
  {
    MutexLock lock(mutex);
    const auto found = volumes.find(id);
    if (found != volumes.end()) return found->second;
    auto& slot = opening[id];
    if (!slot) slot = std::make_shared<Mutex>();
    opener = slot;
  }
  MutexLock one_opener(*opener);
  {
    MutexLock lock(mutex);
    const auto found = volumes.find(id);
    if (found != volumes.end()) return found->second;
    if (stopping) return Err(ErrorCode::kUnavailable, "the server is stopping");
  }
  // The record may have moved on (a seal, a rollback) since the caller read it.
  const auto now = CAIRN_TRY(GetRecord<catalog::Volume>(catalog, keys::Volume(id.view())));
  if (!now) return Err(ErrorCode::kNotFound, "no volume " + id.ToHex());

  auto opened = std::make_shared<OpenVolume>();
  opened->id = id;
  opened->realm = CAIRN_TRY(RealmOf(catalog, now->org()));
  opened->org = now->org();
  opened->env = now->env();
  opened->used_ns = clock.MonotonicNs();

  VolumeOptions volume_options;
  volume_options.hash_seed = now->hash_seed();
  volume_options.rollback_epoch = now->rollback_epoch();
  volume_options.read_only = read_only;
  HeadOptions& head = volume_options.head;
  head.volume = id;
  head.realm = opened->realm;
  head.dir = options.volumes_dir + "/" + id.ToHex();
  head.sealed_through_generation = now->sealed_through_generation();
  head.next_ino = std::max<uint64_t>(now->next_ino(), kFirstFreeInode);
  head.base_inodes = now->base_inodes();
  head.base_bytes = now->base_bytes();
  head.space = options.space;
  if (auto live = mounts.LiveConnectionOf(id)) {
    head.live_connection = live->connection;
    volume_options.opens = std::move(live->opens);
  }
  if (now->has_base_point() && now->root().empty()) {
    const catalog::Point& base = now->base_point();
    const auto point = CAIRN_TRY(
        GetRecord<catalog::PointRecord>(catalog, keys::Point(base.volume(), base.generation())));
    if (!point)
      return Err(ErrorCode::kDataLoss,
                 "the point that volume " + id.ToHex() + " was forked from has no record");
    head.base = CAIRN_TRY(PointLayer(*point));
    if (point->root().empty()) {
      MutexLock sealing(opened->sealing);
      opened->base_point = base;
    }
  } else {
    head.base = CAIRN_TRY(RootLayer(opened->realm, now->root(), now->sealed_through_generation()));
  }
  const auto env = CAIRN_TRY(
      GetRecord<catalog::Environment>(catalog, keys::Environment(now->org(), now->env())));
  if (env) {
    volume_options.quota_bytes = env->quota_bytes();
    volume_options.quota_inodes = env->quota_inodes();
  }
  opened->volume = CAIRN_TRY(Volume::Open(fs, keys, store, clock, volume_options));
  const auto recovered = opened->volume->head().unsealed();
  if (!recovered.empty()) opened->sealable_through = recovered.back()->generation();
  {
    MutexLock lock(mutex);
    volumes[id] = opened;
    opening.erase(id);
  }
  if (!recovered.empty()) RequestSeal(id);
  return opened;
}

Result<catalog::Environment> VolumeManager::State::LivingEnvironment(const std::string& org,
                                                                     const std::string& env) {
  auto record = CAIRN_TRY(GetRecord<catalog::Environment>(catalog, keys::Environment(org, env)));
  if (!record || record->state() == catalog::ENV_DELETED) return NoSuch("environment", env);
  if (record->state() == catalog::ENV_DELETING) {
    return Err(ErrorCode::kFailedPrecondition, "environment " + env + " is being deleted");
  }
  return *std::move(record);
}

Result<VolumeManager::State::Target> VolumeManager::State::Find(const std::string& org,
                                                                const std::string& env) {
  auto record = CAIRN_TRY(LivingEnvironment(org, env));
  if (record.volume().empty()) {
    return Err(ErrorCode::kFailedPrecondition,
               "environment " + env + " was never used: it has no files yet");
  }
  if (record.state() == catalog::ENV_PENDING) {
    CAIRN_TRY(EnsureInitialized(org, env));
    record = CAIRN_TRY(LivingEnvironment(org, env));
  }
  auto opened = CAIRN_TRY(OpenById(Id128::FromView(record.volume())));
  return Target{std::move(record), std::move(opened)};
}

std::shared_ptr<OpenVolume> VolumeManager::State::FindOpen(const Id128& volume) {
  MutexLock lock(mutex);
  const auto found = volumes.find(volume);
  return found == volumes.end() ? nullptr : found->second;
}

Status VolumeManager::State::NotImporting(const OpenVolume& volume) {
  if (!volume.importing) return {};
  return Err(
      ErrorCode::kFailedPrecondition,
      "environment " + volume.env + " is being imported into: try again when that has ended");
}

Status VolumeManager::State::SealAll(const std::shared_ptr<OpenVolume>& volume) {
  if (volume->volume->head().failed()) return {};
  if (volume->volume->head().active_records() > 0) CAIRN_TRY(FreezeToSeal(*volume));
  return SealVolume(volume);
}

void VolumeManager::State::Forget(OpenVolume& volume) {
  volume.closed = true;
  MutexLock lock(mutex);
  volumes.erase(volume.id);
  wanted.erase(volume.id);
}

Status VolumeManager::State::Close(const std::shared_ptr<OpenVolume>& volume) {
  MutexLock operation(volume->operation);
  if (volume->closed) return {};
  Status result = SealAll(volume);
  Forget(*volume);
  return result;
}

// ---- mount ----

Status VolumeManager::Mount(const std::string& org, const std::string& env, const std::string& dir,
                            const MountOptions& options) {
  CAIRN_TRY(EnsureInitialized(org, env));
  for (;;) {
    const auto open = CAIRN_TRY(state_->Find(org, env)).open;
    CAIRN_TRY(State::NotImporting(*open));
    MutexLock operation(open->operation);
    if (open->closed) continue;
    // Read only now: a deletion that comes later waits for the lock and detaches the mount.
    const catalog::Environment record = CAIRN_TRY(state_->LivingEnvironment(org, env));
    if (record.state() == catalog::ENV_SUSPENDED && !options.read_only) {
      return Err(ErrorCode::kFailedPrecondition,
                 "environment " + env + " is suspended: resume it first, or mount it read-only");
    }
    const std::string where = state_->mounts.MountedAt(open->id);
    if (!where.empty()) {
      return Err(ErrorCode::kFailedPrecondition,
                 "environment " + env + " is mounted at " + where + ": unmount it first");
    }
    if (record.state() == catalog::ENV_READY && !options.read_only) {
      const Status made = state_->MakeOutputDirectories(*open, record);
      // A full disk is a reason to mount: to delete something.
      if (!made && made.error().code() != ErrorCode::kExhausted) return made;
      if (!made) {
        LogWarning("no_output_directories", {{"env", env}, {"error", made.error().ToString()}});
      }
    }
    return state_->mounts.Mount(*open->volume, dir, options);
  }
}

Status VolumeManager::Unmount(const std::string& org, const std::string& env, bool force) {
  for (;;) {
    const auto open = CAIRN_TRY(state_->Find(org, env)).open;
    CAIRN_TRY(State::NotImporting(*open));
    MutexLock operation(open->operation);
    if (open->closed) continue;
    CAIRN_TRY(state_->mounts.Unmount(open->id, force));
    CAIRN_TRY(open->volume->Sync());
    if (open->volume->head().active_records() == 0) return {};
    // All is durable already; sealing it now only saves work later. A full disk must not make an
    // unmount that was done look undone.
    const Status frozen = state_->FreezeToSeal(*open);
    if (!frozen) {
      LogWarning("freeze_after_unmount_failed",
                 {{"env", env}, {"error", frozen.error().ToString()}});
    }
    return {};
  }
}

Result<std::string> VolumeManager::MountedAt(const std::string& org, const std::string& env) {
  const auto record =
      CAIRN_TRY(GetRecord<catalog::Environment>(state_->catalog, keys::Environment(org, env)));
  if (!record || record->volume().empty()) return std::string();
  return state_->mounts.MountedAt(Id128::FromView(record->volume()));
}

Result<std::shared_ptr<Volume>> VolumeManager::OpenForWrite(const std::string& org,
                                                            const std::string& env) {
  CAIRN_TRY(EnsureInitialized(org, env));
  auto target = CAIRN_TRY(state_->Find(org, env));
  if (target.env.state() != catalog::ENV_READY) {
    return Err(ErrorCode::kFailedPrecondition,
               "environment " + env + " is suspended: resume it first");
  }
  CAIRN_TRY(State::NotImporting(*target.open));
  const std::string where = state_->mounts.MountedAt(target.open->id);
  if (!where.empty()) {
    return Err(ErrorCode::kFailedPrecondition,
               "environment " + env + " is mounted at " + where + ": write there, or unmount it");
  }
  return std::shared_ptr<Volume>(target.open, target.open->volume.get());
}

Result<FsView> VolumeManager::ViewNow(const std::string& org, const std::string& env) {
  auto target = CAIRN_TRY(state_->Find(org, env));
  if (!state_->mounts.MountedAt(target.open->id).empty()) {
    CAIRN_TRY(state_->mounts.Barrier(target.open->id));
  }
  return target.open->volume->View();
}

Result<VolumeStatus> VolumeManager::StatusOf(const std::string& org, const std::string& env) {
  auto target = CAIRN_TRY(state_->Find(org, env));
  return target.open->volume->GetStatus();
}

// ---- freeze ----

Result<std::shared_ptr<const Layer>> VolumeManager::State::FreezeLocked(OpenVolume& volume) {
  if (!mounts.MountedAt(volume.id).empty()) CAIRN_TRY(mounts.Barrier(volume.id));
  return volume.volume->Freeze();
}

catalog::PointRecord VolumeManager::State::MakePoint(OpenVolume& volume, const Layer& layer) {
  const HeadState head = volume.volume->head().state();
  catalog::PointRecord record;
  *record.mutable_point() = MakePointId(volume.id, layer.generation());
  record.set_org(volume.org);
  record.set_frozen_ms(clock.NowMs());
  record.set_hash_seed(volume.volume->hash_seed());
  record.set_next_ino(head.next_ino);
  record.set_inodes(head.total_inodes);
  record.set_bytes(head.total_bytes);
  return record;
}

Status VolumeManager::State::CommitPointRecord(const catalog::PointRecord& record,
                                               const FsView& view, const CommitPoint& commit) {
  const std::string key = keys::Point(record.point().volume(), record.point().generation());
  return catalog.Run([&](CatalogTransaction& txn) -> Status {
    PutRecord(txn, key, record);
    return commit(txn, record, view);
  });
}

Result<catalog::PointRecord> VolumeManager::Freeze(const std::string& org, const std::string& env,
                                                   const CommitPoint& commit) {
  for (;;) {
    const auto target = CAIRN_TRY(state_->Find(org, env));
    OpenVolume& open = *target.open;
    CAIRN_TRY(State::NotImporting(open));
    CAIRN_TRY(state_->WaitForRoom(open));
    MutexLock operation(open.operation);
    if (open.closed) continue;
    const auto layer = CAIRN_TRY(state_->FreezeLocked(open));
    const catalog::PointRecord record = state_->MakePoint(open, *layer);
    const Status committed =
        state_->CommitPointRecord(record, FsView(layer, open.volume->hash_seed()), commit);
    open.sealable_through = layer->generation();  // only now: the sealer must find the PointRecord
    state_->RequestSeal(open.id);
    if (!committed) return std::unexpected(committed.error());
    return record;
  }
}

Status VolumeManager::RoomToRetain(std::string_view what, uint64_t bytes) {
  SpaceGuard* const space = state_->options.space;
  if (space == nullptr) return {};
  CAIRN_TRY(space->Reserve(SpaceUse::kRetaining, bytes, what));
  return {};
}

// ---- views, forks, rollback ----

Result<FsView> VolumeManager::ViewOf(const catalog::Point& point) {
  const Id128 volume = Id128::FromView(point.volume());
  const auto record = CAIRN_TRY(GetRecord<catalog::PointRecord>(
      state_->catalog, keys::Point(volume.view(), point.generation())));
  if (!record) return Err(ErrorCode::kNotFound, "no such frozen state");
  return FsView(CAIRN_TRY(state_->PointLayer(*record)), record->hash_seed());
}

Result<catalog::Volume> VolumeManager::ForkVolume(CatalogTransaction& txn,
                                                  const catalog::PointRecord& point,
                                                  const std::string& org,
                                                  const std::string& new_env) {
  const Id128 source = Id128::FromView(point.point().volume());
  const std::string point_key = keys::Point(source.view(), point.point().generation());
  auto now = CAIRN_TRY(GetRecord<catalog::PointRecord>(txn, point_key));
  if (!now) return Err(ErrorCode::kNotFound, "no such frozen state");
  now->set_referrals(now->referrals() + 1);
  PutRecord(txn, point_key, *now);
  const Id128 id = Id128::Random();
  catalog::Volume volume;
  volume.set_id(std::string(id.view()));
  volume.set_env(new_env);
  volume.set_org(org);
  if (now->root().empty()) {
    *volume.mutable_base_point() = now->point();
  } else {
    volume.set_root(now->root());
  }
  volume.set_next_ino(now->next_ino());
  volume.set_hash_seed(now->hash_seed());
  volume.set_base_inodes(now->inodes());
  volume.set_base_bytes(now->bytes());
  volume.set_initialized(true);
  PutRecord(txn, keys::Volume(id.view()), volume);
  return volume;
}

Status VolumeManager::RollBack(const std::string& org, const std::string& env,
                               const catalog::Point& point,
                               const std::function<Status(CatalogTransaction&)>& commit) {
  for (;;) {
    const auto open = CAIRN_TRY(state_->Find(org, env)).open;
    // Held, with the volume in the table, until the record has the new root: nobody opens the old
    // state meanwhile, and who waits for the lock finds the volume closed.
    MutexLock operation(open->operation);
    if (open->closed) continue;
    const std::string where = state_->mounts.MountedAt(open->id);
    if (!where.empty()) {
      return Err(ErrorCode::kFailedPrecondition, "environment " + env + " is mounted at " + where +
                                                     ": unmount it before it is rolled back");
    }
    if (open->volume->head().failed()) {
      return Err(ErrorCode::kUnavailable,
                 "the journal of environment " + env + " has failed: restart the daemon first");
    }
    open->volume->SetReadOnly(true);
    const InodeNumber next_ino = open->volume->head().state().next_ino;
    CAIRN_TRY(state_->SealAll(open));  // points of later generations keep their roots
    const auto sealed = CAIRN_TRY(WaitSealed(point, 600000));
    {
      ReaderLock committing(state_->journals);
      CAIRN_TRY(state_->catalog.Run([&](CatalogTransaction& txn) -> Status {
        auto volume = CAIRN_TRY(GetRecord<catalog::Volume>(txn, keys::Volume(open->id.view())));
        if (!volume) return Err(ErrorCode::kNotFound, "no volume");
        volume->set_root(sealed.root());
        volume->set_base_inodes(sealed.inodes());
        volume->set_base_bytes(sealed.bytes());
        volume->set_next_ino(std::max<uint64_t>(volume->next_ino(), next_ino));
        volume->set_rollback_epoch(volume->rollback_epoch() + 1);
        PutRecord(txn, keys::Volume(open->id.view()), *volume);
        return commit(txn);
      }));
    }
    state_->Forget(*open);
    return {};
  }
}

// ---- removal ----

Status VolumeManager::Revoke(const std::string& org, const std::string& env) {
  const auto record =
      CAIRN_TRY(GetRecord<catalog::Environment>(state_->catalog, keys::Environment(org, env)));
  if (!record || record->volume().empty()) return {};
  const Id128 id = Id128::FromView(record->volume());
  while (const auto open = state_->FindOpen(id)) {
    open->volume->SetReadOnly(true);  // at once, whoever holds the lock
    open->revoked = true;
    MutexLock operation(open->operation);
    if (open->closed) continue;
    open->volume->SetReadOnly(true);  // whoever held it may have made it writable
    if (!state_->mounts.MountedAt(id).empty()) return state_->mounts.Unmount(id, /*force=*/true);
    return {};
  }
  return {};
}

Status VolumeManager::RemoveVolume(const catalog::Volume& volume) {
  const Id128 id = Id128::FromView(volume.id());
  // Whatever froze here and may be referenced gets its root first; afterwards the journals hold
  // nothing that anybody needs.
  std::vector<catalog::Point> unsealed;
  CAIRN_TRY(
      ScanRecords<catalog::PointRecord>(state_->catalog, keys::Below("point", id.ToHex()),
                                        [&](std::string_view, const catalog::PointRecord& point) {
                                          if (point.root().empty())
                                            unsealed.push_back(point.point());
                                          return true;
                                        }));
  for (const catalog::Point& point : unsealed) CAIRN_TRY(WaitSealed(point, 600000));
  return DropVolume(volume);
}

Status VolumeManager::DropVolume(const catalog::Volume& volume) {
  const Id128 id = Id128::FromView(volume.id());
  while (const auto open = state_->FindOpen(id)) {
    open->volume->SetReadOnly(true);
    MutexLock operation(open->operation);
    MutexLock sealing(open->sealing);
    if (open->closed) continue;
    if (!state_->mounts.MountedAt(id).empty()) CAIRN_TRY(state_->mounts.Unmount(id, true));
    state_->Forget(*open);
  }
  ReaderLock removing(state_->journals);
  CAIRN_TRY(RemoveTree(state_->fs, state_->options.volumes_dir + "/" + id.ToHex()));
  // Durably gone before the caller deletes the record: without it nobody would look for them again.
  return state_->fs.SyncDir(state_->options.volumes_dir);
}

// ---- backup ----

Status VolumeManager::WithJournalsHeld(const std::function<Status()>& instant,
                                       const std::function<Status(const JournalFile&)>& take) {
  State& s = *state_;
  WriterLock held(s.journals);
  CAIRN_TRY(instant());
  for (const std::string& volume_name : CAIRN_TRY(s.fs.List(s.options.volumes_dir))) {
    const auto id = Id128::FromHex(volume_name);
    if (!id) continue;
    // As an opener, so that no generation begins in a volume that nobody has open.
    std::shared_ptr<Mutex> opener;
    {
      MutexLock lock(s.mutex);
      auto& slot = s.opening[*id];
      if (!slot) slot = std::make_shared<Mutex>();
      opener = slot;
    }
    MutexLock one_opener(*opener);
    std::shared_ptr<OpenVolume> open;
    {
      MutexLock lock(s.mutex);
      const auto found = s.volumes.find(*id);
      if (found != s.volumes.end()) open = found->second;
    }
    const std::string dir = s.options.volumes_dir + "/" + volume_name;
    // Names first: what begins after them is not among them, and what is among them is frozen, or
    // the active one of now.
    const std::vector<std::string> names = CAIRN_TRY(s.fs.List(dir));
    Head::ActiveExtent active{.generation = UINT64_MAX};
    if (open != nullptr) active = open->volume->head().active_extent();
    for (const std::string& name : names) {
      const auto log = ParseLogFileName(name);
      if (!log || log->generation > active.generation) continue;
      JournalFile file{.volume = *id, .name = name, .path = dir + "/" + name};
      if (log->generation == active.generation) {
        file.limit_bytes = log->is_journal ? active.journal_bytes : active.side_bytes;
      }
      CAIRN_TRY(take(file));
    }
    MutexLock lock(s.mutex);
    const auto slot = s.opening.find(*id);
    const bool nobody_waits =
        slot != s.opening.end() && slot->second == opener && opener.use_count() == 2;
    if (nobody_waits) s.opening.erase(slot);
  }
  return {};
}

void VolumeManager::OnSealed(std::function<void(const catalog::PointRecord&)> callback) {
  MutexLock lock(state_->mutex);
  state_->callbacks.push_back(std::move(callback));
}

}  // namespace cairn
