// Snapshots, forks, pause and resume.
//
// Each ends in exactly one catalog transaction that makes everything visible together: the Point's
// record, the snapshot with its disk and memory, the Environment's new state and the end of the
// operation record. Before it, nothing refers to what was written (blocks without a root are the
// collector's); after it, nothing needs to be undone.
//
// Pause: operation record -> barrier, read-only, freeze (journals durable) -> capture memory and
// device state through one block session -> Sync -> read back the image's head -> commit. An error
// or a crash before the commit leaves the Environment running on its disk. Resume: operation record
// -> files restored under temporary names, verified, renamed -> commit. A crash before the commit
// leaves it suspended.
#include "snapshot/snapshot_service.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "catalog/environments.h"
#include "catalog/ids.h"
#include "catalog/keys.h"
#include "catalog/operations.h"
#include "catalog/records.h"
#include "catalog/snapshots.h"
#include "snapshot/memory_image.h"
#include "store/base/log.h"
#include "store/base/unique_fd.h"

namespace cairn {

namespace {

Result<UniqueFd> OpenRegularFile(const std::string& path, const char* what) {
  // Not blocking: the open of a fifo would wait for a writer.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrErrno(errno, std::string(what) + " file " + path);
  struct stat st{};
  if (fstat(fd.get(), &st) != 0) return ErrErrno(errno, std::string(what) + " file " + path);
  if (!S_ISREG(st.st_mode)) {
    return Err(ErrorCode::kInvalidArgument,
               std::string(what) + " file " + path + " is not a regular file");
  }
  return fd;
}

Result<Id128> RealmOf(Catalog& catalog, const std::string& org) {
  const auto record = CAIRN_TRY(GetRecord<catalog::Organization>(catalog, keys::Organization(org)));
  if (!record) return Err(ErrorCode::kNotFound, "no organization " + org);
  return Id128::FromView(record->realm());
}

// A generation of journals and the records; what the volume holds has its space already.
constexpr uint64_t kRecordBytes = 1 << 20;

// What a file has on its disk: its pages that are not holes.
Result<uint64_t> AllocatedBytes(const UniqueFd& fd) {
  if (!fd.valid()) return 0;
  struct stat st{};
  if (fstat(fd.get(), &st) != 0) return ErrErrno(errno, "stat");
  return std::min(static_cast<uint64_t>(st.st_size), static_cast<uint64_t>(st.st_blocks) * 512);
}

std::string View(const Digest256& digest) {
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

}  // namespace

SnapshotService::SnapshotService(Catalog& catalog, BlockStore& store, KeyRing& keys, FileSystem& fs,
                                 VolumeManager& volumes, Clock& clock, uint64_t server_epoch)
    : catalog_(catalog),
      store_(store),
      keys_(keys),
      fs_(fs),
      volumes_(volumes),
      clock_(clock),
      server_epoch_(server_epoch) {}

catalog::Snapshot SnapshotService::NewSnapshot(const std::string& org, const std::string& env,
                                               const std::string& name) {
  catalog::Snapshot snapshot;
  snapshot.set_id(NewId(kSnapshotPrefix));
  snapshot.set_org(org);
  snapshot.set_env(env);
  snapshot.set_name(name);
  snapshot.set_created_ms(clock_.NowMs());
  snapshot.set_durability(catalog::DURABILITY_LOCAL);
  snapshot.set_may_contain_secrets(true);
  return snapshot;
}

Result<catalog::Snapshot> SnapshotService::Create(const std::string& org, const std::string& env,
                                                  const std::string& name,
                                                  const std::map<std::string, std::string>& labels,
                                                  const std::string& operation) {
  const OwnOperation own{.id = operation, .kind = "snapshot", .target = env};
  if (const auto done = CAIRN_TRY(FindDone(catalog_, org, own))) {
    return Get(org, *done);
  }
  catalog::Snapshot snapshot = NewSnapshot(org, env, name);
  snapshot.mutable_labels()->insert(labels.begin(), labels.end());
  CAIRN_TRY(volumes_.RoomToRetain("a snapshot", kRecordBytes));
  CAIRN_TRY(volumes_.EnsureInitialized(org, env));
  CAIRN_TRY(volumes_.Freeze(
      org, env,
      [&](CatalogTransaction& txn, const catalog::PointRecord& point, const FsView&) -> Status {
        const auto record =
            CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, env)));
        if (!record || record->state() == catalog::ENV_DELETING ||
            record->state() == catalog::ENV_DELETED) {
          return Err(ErrorCode::kNotFound, "no environment " + env);
        }
        *snapshot.mutable_point() = point.point();
        CAIRN_TRY(FillVolumeFields(txn, *record, snapshot));
        CAIRN_TRY(RecordDone(txn, org, own, snapshot.id(), server_epoch_, clock_.NowMs()));
        return PutNewSnapshot(txn, snapshot);
      }));
  return snapshot;
}

Status SnapshotService::FillVolumeFields(CatalogTransaction& txn, const catalog::Environment& env,
                                         catalog::Snapshot& snapshot) {
  const auto volume = CAIRN_TRY(GetRecord<catalog::Volume>(txn, keys::Volume(env.volume())));
  if (!volume) return Err(ErrorCode::kInternal, "volume record is gone");
  snapshot.set_rollback_epoch(volume->rollback_epoch());
  return {};
}

Result<catalog::Snapshot> SnapshotService::WithDurability(catalog::Snapshot snapshot) {
  const auto point = CAIRN_TRY(GetRecord<catalog::PointRecord>(
      catalog_, keys::Point(snapshot.point().volume(), snapshot.point().generation())));
  if (point && !point->root().empty()) snapshot.set_durability(catalog::DURABILITY_SEALED);
  return snapshot;
}

Result<std::vector<catalog::Snapshot>> SnapshotService::List(const std::string& org,
                                                             const std::string& env) {
  std::vector<catalog::Snapshot> snapshots = CAIRN_TRY(ListSnapshots(catalog_, org, env));
  for (catalog::Snapshot& snapshot : snapshots) snapshot = CAIRN_TRY(WithDurability(snapshot));
  return snapshots;
}

Result<catalog::Snapshot> SnapshotService::Get(const std::string& org, const std::string& id) {
  return WithDurability(CAIRN_TRY(GetSnapshot(catalog_, org, id)));
}

Ruled<void> SnapshotService::Delete(const std::string& org, const std::string& id) {
  return DeleteSnapshot(catalog_, org, id, clock_.NowMs());
}

// ---- fork ----

Result<catalog::Environment> SnapshotService::Fork(const std::string& org,
                                                   const std::string& source,
                                                   const std::string& name, bool with_memory,
                                                   const std::string& operation) {
  const OwnOperation own{.id = operation, .kind = "fork", .target = source};
  if (const auto done = CAIRN_TRY(FindDone(catalog_, org, own))) {
    const auto earlier =
        CAIRN_TRY(GetRecord<catalog::Environment>(catalog_, keys::Environment(org, *done)));
    if (!earlier) return NoSuch("environment", *done);
    return *earlier;
  }
  CAIRN_TRY(volumes_.RoomToRetain("a fork", kRecordBytes));
  catalog::Environment made;
  made.set_id(NewId(kEnvironmentPrefix));
  made.set_org(org);
  made.set_name(name);
  made.set_lifetime(catalog::LIFETIME_STANDALONE);
  made.set_state(catalog::ENV_READY);
  made.set_was_initialized(true);
  made.set_created_ms(clock_.NowMs());
  made.set_updated_ms(made.created_ms());
  made.set_vm_generation_id(std::string(Id128::Random().view()));

  auto add_fork = [&](CatalogTransaction& txn, const catalog::PointRecord& point,
                      const catalog::Environment& parent) -> Status {
    const catalog::Volume volume = CAIRN_TRY(volumes_.ForkVolume(txn, point, org, made.id()));
    made.set_volume(volume.id());
    made.set_forked_from_env(parent.id());
    made.set_workspace_uid(parent.workspace_uid());
    made.set_workspace_gid(parent.workspace_gid());
    made.set_quota_bytes(parent.quota_bytes());
    made.set_quota_inodes(parent.quota_inodes());
    made.set_network_policy(parent.network_policy());
    CAIRN_TRY(RecordDone(txn, org, own, made.id(), server_epoch_, clock_.NowMs()));
    return PutNewEnvironment(txn, made);
  };

  if (IsId(source, kEnvironmentPrefix)) {
    if (with_memory) {
      return Err(
          ErrorCode::kInvalidArgument,
          "a fork with memory starts from a snapshot that a pause made, not from an environment");
    }
    CAIRN_TRY(volumes_.EnsureInitialized(org, source));
    CAIRN_TRY(volumes_.Freeze(
        org, source,
        [&](CatalogTransaction& txn, const catalog::PointRecord& point, const FsView&) -> Status {
          const auto parent =
              CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, source)));
          if (!parent || parent->state() == catalog::ENV_DELETING ||
              parent->state() == catalog::ENV_DELETED) {
            return Err(ErrorCode::kNotFound, "no environment " + source);
          }
          return add_fork(txn, point, *parent);
        }));
    return made;
  }

  CAIRN_TRY(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    const catalog::Snapshot snapshot = CAIRN_TRY(GetSnapshot(txn, org, source));
    const auto point = CAIRN_TRY(GetRecord<catalog::PointRecord>(
        txn, keys::Point(snapshot.point().volume(), snapshot.point().generation())));
    if (!point) return Err(ErrorCode::kDataLoss, "snapshot " + source + " has no frozen state");
    // The parent may be a tombstone by now: its settings still count.
    auto parent =
        CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, snapshot.env())));
    if (!parent) parent.emplace();
    made.set_forked_from_snapshot(source);
    if (with_memory) {
      if (snapshot.memory_image().empty()) {
        return Err(ErrorCode::kFailedPrecondition,
                   "snapshot " + source + " has no memory: fork it without --memory");
      }
      // A pair of its own: the fork resumes from a snapshot that goes with it.
      catalog::Snapshot pair = NewSnapshot(org, made.id(), "fork of " + source);
      *pair.mutable_point() = snapshot.point();
      pair.set_memory_image(snapshot.memory_image());
      *pair.mutable_vmm() = snapshot.vmm();
      pair.set_memory_bytes(snapshot.memory_bytes());
      pair.set_vmstate_bytes(snapshot.vmstate_bytes());
      pair.set_vm_generation_id(snapshot.vm_generation_id());
      pair.set_memory_sha256(snapshot.memory_sha256());
      pair.set_vmstate_sha256(snapshot.vmstate_sha256());
      pair.set_from_pause(true);
      pair.set_parent(source);
      CAIRN_TRY(PutNewSnapshot(txn, pair));
      made.set_state(catalog::ENV_SUSPENDED);
      made.set_suspended_snapshot(pair.id());
    }
    CAIRN_TRY(add_fork(txn, *point, *parent));
    return PutForkHold(txn, org, source, made.id());
  }));
  return made;
}

// ---- pause ----

Result<catalog::Snapshot> SnapshotService::Pause(const std::string& org, const std::string& env,
                                                 const PauseRequest& request) {
  const UniqueFd memory = CAIRN_TRY(OpenRegularFile(request.memory_path, "memory"));
  UniqueFd vmstate;
  if (!request.vmstate_path.empty()) {
    vmstate = CAIRN_TRY(OpenRegularFile(request.vmstate_path, "vmstate"));
  }
  // Deduplication may leave little of it, but only capturing tells.
  const uint64_t captured_bytes =
      CAIRN_TRY(AllocatedBytes(memory)) + CAIRN_TRY(AllocatedBytes(vmstate)) + kRecordBytes;
  CAIRN_TRY(volumes_.RoomToRetain("a pause", captured_bytes));
  CAIRN_TRY(volumes_.EnsureInitialized(org, env));
  const Id128 realm = CAIRN_TRY(RealmOf(catalog_, org));
  const catalog::Operation operation =
      CAIRN_TRY(BeginOperation(catalog_, org, "pause", env, server_epoch_, clock_.NowMs()));
  auto run = [&]() -> Result<catalog::Snapshot> {
    const auto frozen = CAIRN_TRY(volumes_.FreezeForPause(org, env));
    CAIRN_TRY(AdvanceOperation(catalog_, org, operation.id(), "capturing"));

    catalog::Snapshot snapshot = NewSnapshot(org, env, request.name);
    CaptureOptions capture;
    const auto record =
        CAIRN_TRY(GetRecord<catalog::Environment>(catalog_, keys::Environment(org, env)));
    if (!record) return Err(ErrorCode::kNotFound, "no environment " + env);
    // What its last resume or fork gave the guest; zeros: it was given none yet.
    if (record->vm_generation_id().size() == 16)
      capture.vm_generation_id = Id128::FromView(record->vm_generation_id());
    capture.restore_count = record->restore_count();
    const std::unique_ptr<WriteSession> session = CAIRN_TRY(store_.BeginWrite(
        realm, {.use = SpaceUse::kRetaining, .expected_bytes = captured_bytes, .what = "a pause"}));
    const CaptureResult captured =
        CAIRN_TRY(CaptureMemoryImage(memory.get(), vmstate.get(), *session, capture));
    CAIRN_TRY(session->Sync());
    CAIRN_TRY(store_.Verify(realm, captured.image));  // it reads back

    *snapshot.mutable_point() = frozen->point().point();
    snapshot.set_memory_image(captured.image.Encode());
    snapshot.set_operation(operation.id());
    *snapshot.mutable_vmm() = request.vmm;
    if (snapshot.vmm().driver().empty()) snapshot.mutable_vmm()->set_driver("external");
    snapshot.set_memory_bytes(captured.head.memory_bytes);
    snapshot.set_vmstate_bytes(captured.head.vmstate_bytes);
    snapshot.set_memory_sha256(View(captured.head.memory_digest));
    snapshot.set_vmstate_sha256(View(captured.head.vmstate_sha256));
    snapshot.set_vm_generation_id(record->vm_generation_id());
    snapshot.set_from_pause(true);
    CAIRN_TRY(frozen->Commit([&](CatalogTransaction& txn, const catalog::PointRecord&,
                                 const FsView&) -> Status {
      auto current = CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, env)));
      if (!current || current->state() != catalog::ENV_READY) {
        return Err(ErrorCode::kFailedPrecondition,
                   "environment " + env + " was deleted or paused meanwhile");
      }
      CAIRN_TRY(FillVolumeFields(txn, *current, snapshot));
      current->set_state(catalog::ENV_SUSPENDED);
      current->set_suspended_snapshot(snapshot.id());
      current->set_updated_ms(clock_.NowMs());
      PutRecord(txn, keys::Environment(org, env), *current);
      CAIRN_TRY(PutNewSnapshot(txn, snapshot));
      return EndOperation(txn, org, operation.id(), snapshot.id(), nullptr, clock_.NowMs());
    }));
    return snapshot;
  };
  auto result = run();
  if (!result) {
    IgnoreError(EndFailedOperation(org, operation.id(), result.error()),
                "the pause's own error matters more");
    return result;
  }
  LogInfo("paused", {{"env", env}, {"memory_bytes", result->memory_bytes()}});
  return result;
}

// ---- resume ----

Result<ResumeResult> SnapshotService::Resume(const std::string& org, const std::string& env,
                                             const ResumeRequest& request) {
  const auto record =
      CAIRN_TRY(GetRecord<catalog::Environment>(catalog_, keys::Environment(org, env)));
  if (!record || record->state() == catalog::ENV_DELETED) {
    return Err(ErrorCode::kNotFound, "no environment " + env);
  }
  if (record->state() != catalog::ENV_SUSPENDED) {
    return Err(ErrorCode::kFailedPrecondition, "environment " + env + " is not suspended");
  }
  const std::string newest = record->suspended_snapshot();
  const std::string wanted = request.snapshot.empty() ? newest : request.snapshot;
  const bool older = wanted != newest;
  if (older && !request.allow_older) {
    return Err(ErrorCode::kFailedPrecondition,
               "the newest committed state of environment " + env +
                   " is another snapshot: to go back to an older one, allow it (--allow-older)");
  }
  const catalog::Snapshot snapshot = CAIRN_TRY(GetSnapshot(catalog_, org, wanted));
  if (snapshot.env() != env) {
    return Err(ErrorCode::kFailedPrecondition,
               "snapshot " + wanted + " belongs to another environment: fork it");
  }
  const bool with_memory = !snapshot.memory_image().empty() && !request.disk_only;
  if (!with_memory && !request.memory_path.empty()) {
    return Err(ErrorCode::kFailedPrecondition, "snapshot " + wanted + " has no memory to write");
  }
  if (with_memory && request.memory_path.empty()) {
    return Err(ErrorCode::kInvalidArgument,
               "say where the memory goes (--memory FILE), or ask for a cold boot from the disk "
               "alone (--disk-only)");
  }
  const Id128 realm = CAIRN_TRY(RealmOf(catalog_, org));
  const catalog::Operation operation =
      CAIRN_TRY(BeginOperation(catalog_, org, "resume", env, server_epoch_, clock_.NowMs()));

  auto run = [&]() -> Result<ResumeResult> {
    if (with_memory) {
      const BlockRef image = CAIRN_TRY(BlockRef::Decode(snapshot.memory_image()));
      const auto reader = CAIRN_TRY(MemoryImageReader::Open(store_, realm, image));
      CAIRN_TRY(RestoreMemory(fs_, keys_, store_, realm, *reader, request.memory_path));
      if (!request.vmstate_path.empty()) {
        CAIRN_TRY(RestoreVmState(fs_, *reader, request.vmstate_path));
      }
    }
    CAIRN_TRY(AdvanceOperation(catalog_, org, operation.id(), "committing"));
    const Id128 generation_id = Id128::Random();
    ResumeResult result;
    auto commit = [&](CatalogTransaction& txn) -> Status {
      auto current = CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, env)));
      if (!current || current->state() != catalog::ENV_SUSPENDED ||
          current->suspended_snapshot() != newest) {
        return Err(ErrorCode::kFailedPrecondition,
                   "environment " + env + " was resumed or deleted meanwhile");
      }
      current->set_state(catalog::ENV_READY);
      current->clear_suspended_snapshot();
      current->set_restore_count(current->restore_count() + 1);
      current->set_vm_generation_id(std::string(generation_id.view()));
      current->set_updated_ms(clock_.NowMs());
      PutRecord(txn, keys::Environment(org, env), *current);
      catalog::Snapshot used = CAIRN_TRY(GetSnapshot(txn, org, wanted));
      used.set_restore_count(used.restore_count() + 1);
      PutRecord(txn, keys::Snapshot(org, wanted), used);
      result.snapshot = used;
      result.restore_count = current->restore_count();
      return EndOperation(txn, org, operation.id(), wanted, nullptr, clock_.NowMs());
    };
    if (older) {
      CAIRN_TRY(volumes_.RollBack(org, env, snapshot.point(), commit));
    } else {
      CAIRN_TRY(catalog_.Run(commit));
      CAIRN_TRY(volumes_.Thaw(org, env));
    }
    result.vm_generation_id = generation_id.ToHex();
    result.host_time_ms = clock_.NowMs();
    return result;
  };
  auto result = run();
  if (!result) {
    IgnoreError(EndFailedOperation(org, operation.id(), result.error()),
                "the resume's own error matters more");
    return result;
  }
  LogInfo("resumed", {{"env", env}, {"restore_count", result->restore_count}});
  return result;
}

Status SnapshotService::EndFailedOperation(const std::string& org, const std::string& operation,
                                           const Error& error) {
  return catalog_.Run([&](CatalogTransaction& txn) {
    return EndOperation(txn, org, operation, "", &error, clock_.NowMs());
  });
}

}  // namespace cairn
