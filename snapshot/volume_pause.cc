// The two steps of a pause, and its end.
//
// Steps: barrier -> read-only -> Volume::Freeze -> PointRecord (referred to by nobody yet, but held
// against the reaper) -> the caller captures the memory -> one transaction with the first reference
// to the point -> it is let go. Invariant: a volume is writable only while its Environment is ready
// and no pause of it is in flight.
#include "catalog/keys.h"
#include "catalog/records.h"
#include "snapshot/volume_manager_internal.h"

namespace cairn {

namespace {

class PausedVolume final : public VolumeManager::FrozenVolume {
 public:
  using Committer = std::function<Status(const VolumeManager::CommitPoint&)>;
  PausedVolume(std::shared_ptr<OpenVolume> open, catalog::PointRecord point, FsView view,
               Committer commit, std::function<void()> done)
      : open_(std::move(open)),
        point_(std::move(point)),
        view_(std::move(view)),
        commit_(std::move(commit)),
        done_(std::move(done)) {}
  ~PausedVolume() override {
    if (!committed_) open_->volume->SetReadOnly(false);
    done_();
  }
  const catalog::PointRecord& point() const override { return point_; }
  FsView view() const override { return view_; }
  Status Commit(const VolumeManager::CommitPoint& commit) override {
    CAIRN_TRY(commit_(commit));
    committed_ = true;
    return {};
  }

 private:
  std::shared_ptr<OpenVolume> open_;
  catalog::PointRecord point_;
  FsView view_;
  Committer commit_;
  std::function<void()> done_;
  bool committed_ = false;
};

}  // namespace

Result<std::unique_ptr<VolumeManager::FrozenVolume>> VolumeManager::FreezeForPause(
    const std::string& org, const std::string& env) {
  for (;;) {
    auto target = CAIRN_TRY(state_->Find(org, env));
    if (target.env.state() != catalog::ENV_READY) {
      return Err(ErrorCode::kFailedPrecondition, "environment " + env + " is not running");
    }
    CAIRN_TRY(State::NotImporting(*target.open));
    CAIRN_TRY(state_->WaitForRoom(*target.open));
    MutexLock operation(target.open->operation);
    if (!target.open->closed) return state_->FreezeForPauseLocked(target.open);
  }
}

Result<std::unique_ptr<VolumeManager::FrozenVolume>> VolumeManager::State::FreezeForPauseLocked(
    const std::shared_ptr<OpenVolume>& open) {
  if (!mounts.MountedAt(open->id).empty()) CAIRN_TRY(mounts.Barrier(open->id));
  open->volume->SetReadOnly(true);
  const auto layer = open->volume->Freeze();
  if (!layer) {
    open->volume->SetReadOnly(false);
    return std::unexpected(layer.error());
  }
  const catalog::PointRecord record = MakePoint(*open, **layer);
  const FsView view(*layer, open->volume->hash_seed());
  const std::string point_key = keys::Point(record.point().volume(), record.point().generation());
  {
    MutexLock lock(mutex);
    held.insert(point_key);
  }
  const auto let_go = [this, point_key, id = open->id] {
    {
      MutexLock lock(mutex);
      held.erase(held.find(point_key));
    }
    RequestSeal(id);
  };
  // The PointRecord is durable before the memory is captured, so that a seal that runs meanwhile
  // finds it; nothing refers to it yet.
  const Status recorded = CommitPointRecord(
      record, view,
      [](CatalogTransaction&, const catalog::PointRecord&, const FsView&) -> Status { return {}; });
  open->sealable_through = (*layer)->generation();
  if (!recorded) {
    let_go();
    open->volume->SetReadOnly(false);
    return std::unexpected(recorded.error());
  }
  return std::make_unique<PausedVolume>(
      open, record, view,
      [this, point_key, view](const CommitPoint& commit) -> Status {
        return catalog.Run([&](CatalogTransaction& txn) -> Status {
          const auto now = CAIRN_TRY(GetRecord<catalog::PointRecord>(txn, point_key));
          if (!now) return Err(ErrorCode::kFailedPrecondition, "the frozen state was removed");
          catalog::PointRecord referred = *now;
          referred.set_referrals(referred.referrals() + 1);
          PutRecord(txn, point_key, referred);
          return commit(txn, referred, view);
        });
      },
      let_go);
}

bool VolumeManager::IsHeld(const catalog::Point& point) {
  MutexLock lock(state_->mutex);
  return state_->held.contains(keys::Point(point.volume(), point.generation()));
}

bool VolumeManager::State::IsPausing(const Id128& volume) {
  const keys::Range points = keys::Below("point", volume.ToHex());
  MutexLock lock(mutex);
  const auto found = held.lower_bound(points.begin);
  return found != held.end() && *found < points.end;
}

Status VolumeManager::Thaw(const std::string& org, const std::string& env) {
  for (;;) {
    const auto open = CAIRN_TRY(state_->Find(org, env)).open;
    MutexLock operation(open->operation);
    if (open->closed) continue;
    // The next pause or a deletion may have come since the caller's transaction: theirs counts.
    const catalog::Environment record = CAIRN_TRY(state_->LivingEnvironment(org, env));
    if (record.state() == catalog::ENV_READY && !state_->IsPausing(open->id)) {
      open->volume->SetReadOnly(false);
    }
    return {};
  }
}

}  // namespace cairn
