// The background half of the VolumeManager: seals frozen generations, oldest first, one at a time.
//
// Steps of one seal: the generation below is a tree (for a fork's first one: the source's point is
// sealed first) -> block session -> SealLayer (puts, syncs) -> one synced catalog transaction
// {Volume.root, sealed_through_generation, PointRecord.root} -> session ends -> layers swap,
// journals unlinked -> callbacks. A crash before the transaction leaves unreachable blocks for the
// collector and the journals as they were; after it, stale journals that the next open removes.
//
// A seal that fails (disk full, damaged block) is tried again after a pause, or as soon as there is
// more space; its volume goes on meanwhile. On a disk that is getting full, generations are frozen
// early, and those up to the next Point are sealed as one: what a later one deleted is not written.
#include <algorithm>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "snapshot/volume_manager_internal.h"
#include "store/base/log.h"
#include "volume/sealer.h"

namespace cairn {

namespace {
constexpr int64_t kRetryNs = 5'000'000'000;
constexpr int64_t kTickMs =
    500;  // how often active generations are measured against the seal limits
// On a full disk an active generation is worth a seal from here on: a seal writes a few nodes
// itself.
constexpr uint64_t kWorthSealingBytes = 256 << 10;
constexpr uint32_t kMoreGenerationsForSpace = 3;  // beyond max_unsealed_generations
}  // namespace

void VolumeManager::State::RequestSeal(const Id128& volume) {
  {
    MutexLock lock(mutex);
    wanted.insert(volume);
  }
  changed.NotifyAll();
}

// Points that an earlier life left unsealed: opening their volume puts it on the list.
void VolumeManager::State::OpenUnsealed() {
  std::set<Id128> unsealed;
  const Status scanned = ScanRecords<catalog::PointRecord>(
      catalog, keys::Below("point"), [&](std::string_view, const catalog::PointRecord& point) {
        if (point.root().empty()) unsealed.insert(Id128::FromView(point.point().volume()));
        return true;
      });
  if (!scanned) LogError("points_unreadable", {{"error", scanned.error().ToString()}});
  for (const Id128& volume : unsealed) {
    const auto opened = OpenById(volume);
    if (!opened) {
      LogError("volume_unreadable",
               {{"volume", volume.ToHex()}, {"error", opened.error().ToString()}});
    }
  }
}

void VolumeManager::State::RunSealer() {
  OpenUnsealed();
  for (;;) {
    std::vector<std::shared_ptr<OpenVolume>> work;
    std::vector<std::shared_ptr<OpenVolume>> all;
    const uint64_t free_bytes = FreeBytes();
    {
      MutexLock lock(mutex);
      const int64_t now_ns = clock.MonotonicNs();
      auto ready = [&](const Id128& id) REQUIRES(mutex) {
        const auto failed = failed_seals.find(id);
        if (failed == failed_seals.end() || failed->second.retry_at_ns <= now_ns) return true;
        return failed->second.no_space &&
               free_bytes > failed->second.free_bytes + kWorthSealingBytes;
      };
      bool any = false;
      for (const Id128& id : wanted) any = any || ready(id);
      if (!stopping && !any) changed.WaitFor(mutex, kTickMs);
      if (stopping) return;
      for (auto it = wanted.begin(); it != wanted.end();) {
        const auto found = volumes.find(*it);
        if (found == volumes.end()) {
          it = wanted.erase(it);
        } else if (ready(*it)) {
          work.push_back(found->second);
          it = wanted.erase(it);
        } else {
          ++it;
        }
      }
      for (const auto& [id, volume] : volumes) all.push_back(volume);
    }
    for (const auto& volume : work) {
      const Status sealed = SealVolume(volume);
      if (sealed) continue;
      LogError("seal_failed", {{"env", volume->env}, {"error", sealed.error().ToString()}});
      MutexLock lock(mutex);
      wanted.insert(volume->id);
    }
    const bool for_space = ForSpace();
    for (const auto& volume : all) Tend(*volume, for_space);
    work.clear();
    all.clear();
    CloseIdle();
  }
}

bool VolumeManager::State::IsIdle(OpenVolume& volume) {
  const Head& head = volume.volume->head();
  return !head.failed() && head.active_records() == 0 && head.unsealed().empty() &&
         mounts.MountedAt(volume.id).empty();
}

// A volume that nobody uses costs three descriptors, and its next use opens it again: the longest
// unused ones go. Whoever has a pointer to one keeps it open.
void VolumeManager::State::CloseIdle() {
  std::vector<std::shared_ptr<OpenVolume>> idle;
  {
    MutexLock lock(mutex);
    if (volumes.size() <= options.max_idle_volumes) return;
    for (const auto& [id, volume] : volumes) {
      if (volume.use_count() == 1) idle.push_back(volume);
    }
  }
  std::erase_if(idle, [this](const auto& volume) { return !IsIdle(*volume); });
  if (idle.size() <= options.max_idle_volumes) return;
  std::ranges::sort(idle, {}, [](const auto& volume) { return volume->used_ns.load(); });
  idle.resize(idle.size() - options.max_idle_volumes);
  for (const auto& volume : idle) {
    if (!volume->operation.TryLock()) continue;
    if (!volume->closed && mounts.MountedAt(volume->id).empty()) {
      IgnoreError(mounts.Unmount(volume->id, false), "what umount(8) has left of a mount, if any");
      MutexLock lock(mutex);
      // The table's and this one: nobody has used it meanwhile, or can now.
      if (volume.use_count() == 2 && IsIdle(*volume)) {
        volume->closed = true;
        volumes.erase(volume->id);
      }
    }
    volume->operation.Unlock();
  }
}

void VolumeManager::State::Tend(OpenVolume& volume, bool for_space) {
  Head& head = volume.volume->head();
  if (head.failed()) return;
  const size_t unsealed = head.unsealed().size();
  const bool large = head.active_records() >= options.auto_seal_records ||
                     head.active_payload_bytes() >= options.auto_seal_bytes;
  const bool helps =
      for_space && head.active_records() > 0 && head.unsealed_bytes() >= kWorthSealingBytes;
  const size_t most = options.max_unsealed_generations + (helps ? kMoreGenerationsForSpace : 0);
  if ((large || helps) && unsealed < most && volume.operation.TryLock()) {
    const Status frozen = volume.closed ? Status() : FreezeToSeal(volume);
    volume.operation.Unlock();
    if (!frozen) {
      LogError("automatic_freeze_failed",
               {{"env", volume.env}, {"error", frozen.error().ToString()}});
    }
  }
  if (head.active_records() == 0) return;
  const Status prepared = head.PrepareNext();
  if (!prepared && prepared.error().code() != ErrorCode::kExhausted) {
    LogError("journal_not_prepared", {{"env", volume.env}, {"error", prepared.error().ToString()}});
  }
}

Status VolumeManager::State::FreezeToSeal(OpenVolume& volume) {
  const auto frozen = CAIRN_TRY(volume.volume->Freeze());
  volume.sealable_through = frozen->generation();
  RequestSeal(volume.id);
  return {};
}

uint64_t VolumeManager::State::FreeBytes() const {
  return options.space != nullptr ? options.space->GetStatus().free_bytes : 0;
}

void VolumeManager::State::NoteFailedSeal(const Id128& volume, const Error& error,
                                          uint64_t free_bytes) {
  FailedSeal failed{.retry_at_ns = clock.MonotonicNs() + kRetryNs};
  if (error.code() == ErrorCode::kExhausted) {
    failed.no_space = error;
    failed.free_bytes = free_bytes;
  }
  MutexLock lock(mutex);
  failed_seals[volume] = std::move(failed);
}

Status VolumeManager::SealEverything() {
  std::vector<std::shared_ptr<OpenVolume>> open;
  {
    MutexLock lock(state_->mutex);
    for (const auto& [id, volume] : state_->volumes) open.push_back(volume);
  }
  Status first;
  for (const auto& volume : open) {
    if (volume->importing) continue;  // it is sealed, and its lock is taken for long
    Status sealed;
    {
      MutexLock operation(volume->operation);
      Head& head = volume->volume->head();
      if (volume->closed || head.failed()) continue;
      if (head.active_records() > 0) sealed = state_->FreezeToSeal(*volume);
    }
    if (sealed) sealed = state_->SealVolume(volume);
    if (sealed) continue;
    LogWarning("seal_failed", {{"env", volume->env}, {"error", sealed.error().ToString()}});
    if (first) first = sealed;
  }
  return first;
}

Status VolumeManager::State::SealVolume(const std::shared_ptr<OpenVolume>& open_volume) {
  OpenVolume& volume = *open_volume;
  if (!keys.Has(volume.realm))
    return {};  // its organization was destroyed: nobody can read it, and it goes whole
  // A fork over a state that its source has not sealed yet: that one first. (Sources are older than
  // their forks: no cycle.)
  std::optional<catalog::Point> base_point;
  {
    MutexLock sealing(volume.sealing);
    base_point = volume.base_point;
  }
  if (base_point) {
    const Id128 source_id = Id128::FromView(base_point->volume());
    const auto point = CAIRN_TRY(GetRecord<catalog::PointRecord>(
        catalog, keys::Point(source_id.view(), base_point->generation())));
    if (point && point->root().empty()) {
      const auto source = CAIRN_TRY(OpenById(source_id));
      CAIRN_TRY(SealVolume(source));
    }
  }
  Status result;
  // Before the seal: what comes free while it fails lets it be tried again.
  const uint64_t free_bytes = FreeBytes();
  {
    MutexLock sealing(volume.sealing);
    std::vector<std::shared_ptr<const Layer>> layers;
    for (auto& layer : volume.volume->head().unsealed()) {
      if (layer->generation() <= volume.sealable_through) layers.push_back(std::move(layer));
    }
    while (result && !layers.empty()) {
      const auto count = CountTogether(volume, layers);
      if (!count) {
        result = std::unexpected(count.error());
        break;
      }
      const auto rest = layers.begin() + static_cast<std::ptrdiff_t>(*count);
      result = SealTogether(volume, {layers.begin(), rest});
      layers.erase(layers.begin(), rest);
    }
  }
  if (!result) NoteFailedSeal(volume.id, result.error(), free_bytes);
  {
    MutexLock lock(mutex);
    ++seal_rounds;
    if (result) failed_seals.erase(volume.id);
  }
  changed.NotifyAll();
  return result;
}

// One, while there is room: merging costs a copy of the entries in memory.
Result<size_t> VolumeManager::State::CountTogether(
    OpenVolume& volume, const std::vector<std::shared_ptr<const Layer>>& layers) {
  bool failed;
  {
    MutexLock lock(mutex);
    const auto seal = failed_seals.find(volume.id);
    failed = seal != failed_seals.end() && seal->second.no_space.has_value();
  }
  if (!failed && !ForSpace()) return 1;
  size_t count = 0;
  while (count < layers.size()) {
    const std::string point = keys::Point(volume.id.view(), layers[count++]->generation());
    if (CAIRN_TRY(GetRecord<catalog::PointRecord>(catalog, point))) break;
  }
  return count;
}

Status VolumeManager::State::SealTogether(OpenVolume& volume,
                                          const std::vector<std::shared_ptr<const Layer>>& layers) {
  const std::shared_ptr<const Layer> layer =
      layers.size() == 1 ? layers.front() : CAIRN_TRY(MergeLayers(store, layers));
  const std::string volume_key = keys::Volume(volume.id.view());
  const std::string point_key = keys::Point(volume.id.view(), layer->generation());
  const auto record = CAIRN_TRY(GetRecord<catalog::Volume>(catalog, volume_key));
  if (!record) return Err(ErrorCode::kNotFound, "volume record is gone");

  SealOptions seal;
  seal.volume = volume.id;
  seal.realm = volume.realm;
  seal.hash_seed = record->hash_seed();
  seal.next_ino = volume.volume->head().state().next_ino;
  if (!record->root().empty()) seal.parent = CAIRN_TRY(BlockRef::Decode(record->root()));
  seal.epoch = options.epoch;
  seal.now = clock.Now();
  std::unique_ptr<WriteSession> session = CAIRN_TRY(store.BeginWrite(volume.realm));
  const SealResult sealed = CAIRN_TRY(SealLayer(store, nodes, *session, *layer, seal));

  std::optional<catalog::PointRecord> point;
  {
    ReaderLock committing(journals);
    CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
      auto current = CAIRN_TRY(GetRecord<catalog::Volume>(txn, volume_key));
      if (!current) return Err(ErrorCode::kNotFound, "volume record is gone");
      current->set_root(sealed.root.Encode());
      current->set_sealed_through_generation(layer->generation());
      current->set_next_ino(std::max<uint64_t>(current->next_ino(), seal.next_ino));
      current->set_base_inodes(sealed.record.tree.counters.inodes);
      current->set_base_bytes(sealed.record.tree.counters.logical_bytes);
      current->clear_base_point();
      PutRecord(txn, volume_key, *current);
      point = CAIRN_TRY(GetRecord<catalog::PointRecord>(txn, point_key));
      if (point) {
        point->set_root(sealed.root.Encode());
        point->set_sealed_ms(clock.NowMs());
        PutRecord(txn, point_key, *point);
      }
      return {};
    }));
    CAIRN_TRY(volume.volume->head().FinishSeal(layer->generation(), sealed.tree));
  }
  volume.base_point.reset();
  LogInfo("sealed", {{"env", volume.env},
                     {"generation", layer->generation()},
                     {"generations", layers.size()},
                     {"inodes", sealed.record.tree.counters.inodes},
                     {"data_bytes", sealed.data_bytes}});
  if (!point) return {};
  // A callback may begin one of its own, and a collector that waits for this one to end holds new
  // ones off meanwhile.
  session.reset();
  std::vector<std::function<void(const catalog::PointRecord&)>> call;
  {
    MutexLock lock(mutex);
    call = callbacks;
  }
  for (const auto& callback : call) callback(*point);
  return {};
}

Status VolumeManager::State::WaitForRoom(OpenVolume& volume) {
  constexpr int64_t kDeadlineNs = 120'000'000'000;
  const int64_t deadline_ns = clock.MonotonicNs() + kDeadlineNs;
  while (volume.volume->head().unsealed().size() >= options.max_unsealed_generations) {
    RequestSeal(volume.id);
    MutexLock lock(mutex);
    const auto failed = failed_seals.find(volume.id);
    if (failed != failed_seals.end() && failed->second.no_space) {
      return std::unexpected(*failed->second.no_space);
    }
    if (stopping || waits_end) return Err(ErrorCode::kUnavailable, "the server is stopping");
    if (clock.MonotonicNs() > deadline_ns) {
      return Err(ErrorCode::kUnavailable,
                 "seals of environment " + volume.env +
                     " lag behind: try again, and look for seal_failed in the log");
    }
    changed.WaitFor(mutex, 100);
  }
  return {};
}

Result<catalog::PointRecord> VolumeManager::WaitSealed(const catalog::Point& point,
                                                       int64_t timeout_ms) {
  State& s = *state_;
  const Id128 volume = Id128::FromView(point.volume());
  const std::string key = keys::Point(volume.view(), point.generation());
  const int64_t deadline_ns = s.clock.MonotonicNs() + timeout_ms * 1'000'000;
  for (;;) {
    const auto record = CAIRN_TRY(GetRecord<catalog::PointRecord>(s.catalog, key));
    if (!record) return Err(ErrorCode::kNotFound, "no such frozen state");
    if (!record->root().empty()) return *record;
    const auto open = CAIRN_TRY(s.OpenById(volume));
    CAIRN_TRY(s.SealVolume(open));
    const auto again = CAIRN_TRY(GetRecord<catalog::PointRecord>(s.catalog, key));
    if (again && !again->root().empty()) return *again;
    if (s.clock.MonotonicNs() > deadline_ns) {
      return Err(ErrorCode::kUnavailable, "not sealed yet: try again");
    }
    MutexLock lock(s.mutex);
    if (s.stopping || s.waits_end) return Err(ErrorCode::kUnavailable, "the server is stopping");
    s.changed.WaitFor(s.mutex, 100);
  }
}

}  // namespace cairn
