// First use of an Environment: its volume and its working directories are made once.
//
// Steps of first use: Environment initializing (with a volume id) -> volume record -> /workspace in
// one journal, synced -> ready. One that starts from a base image has its volume already. A crash
// between any two steps is taken up by the next caller: each finds what the one before it left.
#include <sys/stat.h>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "catalog/refusal.h"
#include "snapshot/volume_manager.h"
#include "snapshot/volume_manager_internal.h"
#include "store/base/random.h"

namespace cairn {

Status VolumeManager::EnsureInitialized(const std::string& org, const std::string& env) {
  return state_->EnsureInitialized(org, env);
}

Status VolumeManager::State::EnsureInitialized(const std::string& org, const std::string& env) {
  const std::string key = keys::Environment(org, env);
  std::shared_ptr<Mutex> once;
  {
    MutexLock lock(mutex);
    auto& slot = initializing[key];
    if (!slot) slot = std::make_shared<Mutex>();
    once = slot;
  }
  MutexLock one_initialiser(*once);

  // Claim: the record gets its volume, once.
  constexpr uint64_t kFirstUseBytes = 1 << 20;  // two journals, some records
  catalog::Environment record;
  bool ready = false;
  CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
    const auto found = CAIRN_TRY(GetRecord<catalog::Environment>(txn, key));
    if (!found || found->state() == catalog::ENV_DELETED) return NoSuch("environment", env);
    record = *found;
    ready = record.state() == catalog::ENV_READY || record.state() == catalog::ENV_SUSPENDED;
    if (ready) return {};
    if (record.state() == catalog::ENV_DELETING) {
      return Err(ErrorCode::kFailedPrecondition, "environment " + env + " is being deleted");
    }
    if (options.space != nullptr) {
      CAIRN_TRY(options.space->Reserve(SpaceUse::kGrowing, kFirstUseBytes, "an Environment"));
    }
    if (record.state() == catalog::ENV_FAILED) {
      return Err(ErrorCode::kFailedPrecondition,
                 "environment " + env + " failed to initialise: " + record.failure());
    }
    record.set_state(catalog::ENV_INITIALIZING);
    record.set_updated_ms(clock.NowMs());
    if (record.volume().empty()) {
      const Id128 id = Id128::Random();
      record.set_volume(std::string(id.view()));
      catalog::Volume volume;
      volume.set_id(std::string(id.view()));
      volume.set_env(env);
      volume.set_org(org);
      volume.set_next_ino(kFirstFreeInode);
      SeededRandom seed(BigEndian64(RandomBytes(8)));
      volume.set_hash_seed(seed.Next());
      PutRecord(txn, keys::Volume(id.view()), volume);
    }
    PutRecord(txn, key, record);
    return {};
  }));
  if (ready) return {};

  auto set_up = [&]() -> Status {
    const auto open = CAIRN_TRY(OpenById(Id128::FromView(record.volume())));
    const OpContext root;
    for (const std::string& path : {std::string("workspace"), std::string("workspace/outputs")}) {
      const size_t slash = path.rfind('/');
      InodeNumber parent = kRootInode;
      if (slash != std::string::npos) {
        parent = CAIRN_TRY(open->volume->View().Resolve(path.substr(0, slash)));
      }
      const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
      auto made = open->volume->MakeDir(root, parent, name, 0755);
      if (!made && made.error().code() != ErrorCode::kAlreadyExists) {
        return std::unexpected(made.error());
      }
      const InodeNumber ino = CAIRN_TRY(open->volume->View().Resolve(path));
      SetAttributes owner;
      owner.uid = record.workspace_uid();
      owner.gid = record.workspace_gid();
      CAIRN_TRY(open->volume->SetAttr(root, ino, owner));
    }
    return open->volume->Sync();
  };
  const Status made = set_up();
  const bool transient = !made && (made.error().code() == ErrorCode::kUnavailable ||
                                   made.error().code() == ErrorCode::kExhausted);
  if (transient) return made;  // stays initializing: the next caller goes on

  CAIRN_TRY(catalog.Run([&](CatalogTransaction& txn) -> Status {
    auto found = CAIRN_TRY(GetRecord<catalog::Environment>(txn, key));
    if (!found || found->state() != catalog::ENV_INITIALIZING) {
      return Err(ErrorCode::kFailedPrecondition, "environment " + env + " was deleted meanwhile");
    }
    found->set_state(made ? catalog::ENV_READY : catalog::ENV_FAILED);
    found->set_was_initialized(made.has_value());
    if (!made) found->set_failure(std::string(ErrorCodeName(made.error().code())));
    found->set_updated_ms(clock.NowMs());
    PutRecord(txn, key, *found);
    if (made) {
      const Id128 id = Id128::FromView(found->volume());
      auto volume = CAIRN_TRY(GetRecord<catalog::Volume>(txn, keys::Volume(id.view())));
      if (!volume) return Err(ErrorCode::kInternal, "volume record is gone");
      volume->set_initialized(true);
      PutRecord(txn, keys::Volume(id.view()), *volume);
    }
    return {};
  }));
  return made;
}

Status VolumeManager::State::MakeOutputDirectories(OpenVolume& open,
                                                   const catalog::Environment& env) {
  std::vector<std::string> sessions;
  CAIRN_TRY(ScanRecords<catalog::Binding>(catalog, keys::Below("binding", env.org(), env.id()),
                                          [&](std::string_view, const catalog::Binding& binding) {
                                            if (binding.active())
                                              sessions.push_back(binding.session());
                                            return true;
                                          }));
  const OpContext root;
  for (const std::string& id : sessions) {
    const auto session =
        CAIRN_TRY(GetRecord<catalog::Session>(catalog, keys::Session(env.org(), id)));
    if (!session) continue;
    InodeNumber dir = kRootInode;
    std::string_view rest = session->output_directory();
    while (!rest.empty()) {
      const size_t slash = rest.find('/');
      const std::string_view name = rest.substr(0, slash);
      rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
      if (name.empty()) continue;
      const auto made = open.volume->MakeDir(root, dir, name, 0755);
      if (made) {
        SetAttributes owner;
        owner.uid = env.workspace_uid();
        owner.gid = env.workspace_gid();
        CAIRN_TRY(open.volume->SetAttr(root, made->ino, owner));
        dir = made->ino;
        continue;
      }
      if (made.error().code() != ErrorCode::kAlreadyExists) return std::unexpected(made.error());
      const NamedInode there = CAIRN_TRY(open.volume->Lookup(dir, name));
      if (!S_ISDIR(there.inode.mode))
        break;  // the guest put something else there: the turn's report will say so
      dir = there.ino;
    }
  }
  return {};
}

}  // namespace cairn
