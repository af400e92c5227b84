// VolumeManager::Import: fills a volume through a StagedHead.
//
// Steps: under `operation` (so nothing mounts, freezes or closes it): the open volume becomes
// read-only and all of it is sealed -> a second Volume over the same tree, whose head is staged,
// takes the writes -> each slice: SealLayer, one catalog transaction {Volume.root,
// sealed_through_generation, totals} -> at the end the open volume is forgotten: who comes next
// opens it from the record.
//
// Slices take the generation numbers from the open volume's active one on, whose journal holds no
// record: like every journal up to sealed_through_generation it is removed by the next open. A
// crash between two slices leaves the volume as the older one published it.
#include <algorithm>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "snapshot/import_internal.h"
#include "snapshot/volume_manager_internal.h"
#include "store/base/log.h"
#include "volume/sealer.h"
#include "volume/staged_head.h"

namespace cairn {
Status VolumeManager::State::SealForImport(const std::shared_ptr<OpenVolume>& open) {
  Head& head = open->volume->head();
  CAIRN_TRY(SealAll(open));
  if (head.current()->below() != nullptr) {  // a fork that wrote nothing, over an unsealed state
    CAIRN_TRY(FreezeToSeal(*open));
    CAIRN_TRY(SealVolume(open));
  }
  const std::shared_ptr<const Layer> now = head.current();
  if (now->below() != nullptr || now->delta_count() > 0) {
    return Err(ErrorCode::kInternal, "a volume that was sealed whole has unsealed records");
  }
  return {};
}

Result<std::shared_ptr<const TreeReader>> VolumeManager::State::PublishSlice(
    OpenVolume& open, const Layer& slice, WriteSession& session, const HeadState& state) {
  const std::string key = keys::Volume(open.id.view());
  const auto record = CAIRN_TRY(GetRecord<catalog::Volume>(catalog, key));
  if (!record) return Err(ErrorCode::kNotFound, "volume record is gone");
  SealOptions seal;
  seal.volume = open.id;
  seal.realm = open.realm;
  seal.hash_seed = record->hash_seed();
  seal.next_ino = state.next_ino;
  if (!record->root().empty()) seal.parent = CAIRN_TRY(BlockRef::Decode(record->root()));
  seal.epoch = options.epoch;
  seal.compression = Compression::kBackground;
  seal.tree = kImportNodes;
  seal.now = clock.Now();
  const SealResult sealed = CAIRN_TRY(SealLayer(store, nodes, session, slice, seal));
  ReaderLock committing(journals);
  CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
    auto current = CAIRN_TRY(GetRecord<catalog::Volume>(txn, key));
    if (!current) return Err(ErrorCode::kNotFound, "volume record is gone");
    const auto env =
        CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(open.org, open.env)));
    if (!env || env->state() != catalog::ENV_READY) {
      return Err(ErrorCode::kFailedPrecondition,
                 "environment " + open.env + " was deleted during the import");
    }
    current->set_root(sealed.root.Encode());
    current->set_sealed_through_generation(slice.generation());
    current->set_next_ino(std::max<uint64_t>(current->next_ino(), state.next_ino));
    current->set_base_inodes(sealed.record.tree.counters.inodes);
    current->set_base_bytes(sealed.record.tree.counters.logical_bytes);
    current->clear_base_point();
    PutRecord(txn, key, *current);
    return {};
  }));
  LogInfo("imported_slice", {{"env", open.env},
                             {"generation", slice.generation()},
                             {"inodes", sealed.record.tree.counters.inodes}});
  return sealed.tree;
}

Status VolumeManager::State::ImportLocked(OpenVolume& open, const catalog::Environment& env,
                                          const std::function<Status(Volume&)>& fill) {
  const std::shared_ptr<const Layer> base = open.volume->head().current();
  StagedHeadOptions staged;
  staged.realm = open.realm;
  staged.generation = base->generation();
  staged.base = TreeLayer(store, base->base_tree(), base->generation() - 1);
  staged.state = open.volume->head().state();
  staged.slice_records = options.import_slice_records;
  auto head = StagedHead::Create(
      store, staged,
      [&](const Layer& slice, WriteSession& session, const HeadState& state)
          REQUIRES(open.operation) { return PublishSlice(open, slice, session, state); },
      [&]() -> Status {
        if (open.revoked) {
          return Err(ErrorCode::kFailedPrecondition,
                     "environment " + open.env + " was deleted during the import");
        }
        if (waits_end) return Err(ErrorCode::kUnavailable, "the server is stopping");
        return {};
      });
  StagedHead& filled = *head;
  VolumeOptions volume_options;
  volume_options.head.volume = open.id;
  volume_options.hash_seed = open.volume->hash_seed();
  volume_options.rollback_epoch = open.volume->rollback_epoch();
  volume_options.quota_bytes = env.quota_bytes();
  volume_options.quota_inodes = env.quota_inodes();
  InstantClock instant(clock);
  const auto volume = CAIRN_TRY(Volume::OpenOn(std::move(head), instant, volume_options));
  CAIRN_TRY(fill(*volume));
  return filled.Finish();
}

void VolumeManager::EndWaits() {
  state_->waits_end = true;
  state_->changed.NotifyAll();
}

Status VolumeManager::Import(const std::string& org, const std::string& env,
                             const std::function<Status(Volume&)>& fill) {
  CAIRN_TRY(EnsureInitialized(org, env));
  for (;;) {
    const auto open = CAIRN_TRY(state_->Find(org, env)).open;
    CAIRN_TRY(State::NotImporting(*open));
    MutexLock operation(open->operation);
    if (open->closed) continue;
    const catalog::Environment record = CAIRN_TRY(state_->LivingEnvironment(org, env));
    if (record.state() != catalog::ENV_READY) {
      return Err(ErrorCode::kFailedPrecondition,
                 "environment " + env + " is suspended: resume it first");
    }
    const std::string where = state_->mounts.MountedAt(open->id);
    if (!where.empty()) {
      return Err(ErrorCode::kFailedPrecondition,
                 "environment " + env + " is mounted at " + where + ": unmount it first");
    }
    if (open->volume->head().failed()) {
      return Err(ErrorCode::kUnavailable,
                 "the journal of environment " + env + " has failed: restart the daemon first");
    }
    open->importing = true;
    open->volume->SetReadOnly(true);
    Status imported = state_->SealForImport(open);
    if (imported) imported = state_->ImportLocked(*open, record, fill);
    state_->Forget(*open);
    return imported;
  }
}

}  // namespace cairn
