// The background half of the VolumeManager: seals frozen generations, oldest first, one at a time.
//
// Steps of one seal: the generation below is a tree (for a fork's first one: the source's point is
// sealed first) -> block session -> SealLayer (puts, syncs) -> one synced catalog transaction
// {Volume.root, sealed_through_generation, PointRecord.root} -> session ends -> layers swap,
// journals unlinked -> callbacks. A crash before the transaction leaves unreachable blocks for the
// collector and the journals as they were; after it, stale journals that the next open removes.
//
// A seal that fails (disk full, damaged block) is tried again after a pause; its volume goes on
// meanwhile.
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
    {
      MutexLock lock(mutex);
      const int64_t now_ns = clock.MonotonicNs();
      auto ready = [&](const Id128& id) REQUIRES(mutex) {
        const auto retry = retry_at_ns.find(id);
        return retry == retry_at_ns.end() || retry->second <= now_ns;
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
      retry_at_ns[volume->id] = clock.MonotonicNs() + kRetryNs;
    }
    for (const auto& volume : all) {
      const Head& head = volume->volume->head();
      if (head.failed() || (head.active_records() < options.auto_seal_records &&
                            head.active_payload_bytes() < options.auto_seal_bytes)) {
        continue;
      }
      if (head.unsealed().size() >= options.max_unsealed_generations) continue;
      if (!volume->operation.TryLock()) continue;
      if (volume->closed) {
        volume->operation.Unlock();
        continue;
      }
      const auto frozen = volume->volume->Freeze();  // no barrier: publishes nothing
      volume->operation.Unlock();
      if (frozen) {
        RequestSeal(volume->id);
      } else {
        LogError("automatic_freeze_failed",
                 {{"env", volume->env}, {"error", frozen.error().ToString()}});
      }
    }
  }
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
  {
    MutexLock sealing(volume.sealing);
    for (const auto& layer : volume.volume->head().unsealed()) {
      result = SealOldest(volume, layer);
      if (!result) break;
    }
  }
  {
    MutexLock lock(mutex);
    ++seal_rounds;
    if (result) retry_at_ns.erase(volume.id);
  }
  changed.NotifyAll();
  return result;
}

Status VolumeManager::State::SealOldest(OpenVolume& volume,
                                        const std::shared_ptr<const Layer>& layer) {
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
  volume.base_point.reset();
  LogInfo("sealed", {{"env", volume.env},
                     {"generation", layer->generation()},
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
    if (stopping) return Err(ErrorCode::kUnavailable, "the server is stopping");
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
    if (s.stopping) return Err(ErrorCode::kUnavailable, "the server is stopping");
    s.changed.WaitFor(s.mutex, 100);
  }
}

}  // namespace cairn
