// Rotation with a key of our own, in order: FILE.next holds it, durably -> every key file is
// wrapped by both -> cairn.format names both -> FILE.next is renamed to FILE -> FILE is read again
// -> cairn.format names the new one alone -> slots of the old one are erased -> the old file's
// bytes are overwritten. Up to the third step a crash leaves the old key in charge, and Resume
// clears what was begun; from then on FILE.next (or FILE) holds the new one, and Resume goes on.
// With an operator's key the fourth step is his.
#include "admin/master_rotation.h"

#include <utility>

#include "store/base/log.h"
#include "store/master_key.h"

namespace cairn {
namespace {

// Wiped on destruction.
struct HeldKey {
  Key256 key;
  ~HeldKey() { WipeKey(key); }
};

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

Status MasterRotation::Resume() {
  MutexLock lock(mutex_);
  const HeldKey present{keys_.CopyMaster()};
  const bool from_file = directory_.master_key_source().command.empty();
  if (!directory_.has_next_master_key()) {
    if (from_file) CAIRN_TRY(DestroyMasterKeyFile(fs_, NextFile()));
    return keys_.ForgetOtherMasters();
  }
  if (directory_.IsNextMasterKey(present.key)) return TakeUp(present.key);
  if (from_file && CAIRN_TRY(fs_.Exists(NextFile()))) {
    const auto read = ReadMasterKey({.file = NextFile(), .command = {}});
    if (read && directory_.IsNextMasterKey(*read)) {
      const HeldKey next{*read};
      // Once more: the same crash may have cut off another change of a key file, in the new one's
      // slot.
      const Status prepared = keys_.PrepareMaster(next.key);
      if (prepared) {
        LogInfo("master_key_rotation_resumed");
        return Switch(next.key);
      }
      LogError("master_key_rotation_not_resumed", {{"error", prepared.error().ToString()}});
      keys_.SetOtherMasterPending();
      return {};
    }
  }
  keys_.SetOtherMasterPending();
  operators_key_pending_ = true;
  LogWarning("master_key_rotation_pending",
             {{"what",
               "both keys open this directory: give the new one to the daemon, or rotate "
               "again"}});
  return {};
}

Result<MasterRotation::Outcome> MasterRotation::Rotate(const std::string& new_key_file) {
  MutexLock lock(mutex_);
  const bool own = new_key_file.empty();
  if (own && !directory_.master_key_source().command.empty()) {
    return Err(ErrorCode::kFailedPrecondition,
               "the master key comes from a command, which this daemon cannot change: make the new "
               "key, put it into a file and name it with --new-key FILE");
  }
  if (own && operators_key_pending_) {
    return Err(ErrorCode::kFailedPrecondition,
               "a rotation to a key of yours is pending: end it with --finish, or name another key "
               "with --new-key FILE");
  }
  const HeldKey next{own ? RandomKey()
                         : CAIRN_TRY(ReadMasterKey({.file = new_key_file, .command = {}}))};
  if (own) CAIRN_TRY(WriteMasterKeyFile(fs_, NextFile(), next.key));
  CAIRN_TRY(keys_.PrepareMaster(next.key));
  CAIRN_TRY(directory_.SetNextMasterKey(next.key));
  if (!own) {
    operators_key_pending_ = true;
    LogInfo("master_key_rotation_pending");
    return Outcome::kPending;
  }
  CAIRN_TRY(Switch(next.key));
  return Outcome::kRotated;
}

Result<MasterRotation::Outcome> MasterRotation::Finish() {
  MutexLock lock(mutex_);
  if (!directory_.has_next_master_key()) {
    return Err(ErrorCode::kFailedPrecondition, "no rotation of the master key is pending");
  }
  const HeldKey now{CAIRN_TRY(ReadMasterKey(directory_.master_key_source()))};
  if (!directory_.IsNextMasterKey(now.key)) {
    return Err(ErrorCode::kFailedPrecondition,
               "the source of the master key does not give the new one yet: change it first");
  }
  CAIRN_TRY(TakeUp(now.key));
  return Outcome::kRotated;
}

// The key in NextFile takes the place of the one in the source.
Status MasterRotation::Switch(const Key256& next) {
  const std::string& path = directory_.master_key_source().file;
  // The old file stays open over the rename, so that its bytes can be overwritten afterwards.
  const std::unique_ptr<File> old_file = CAIRN_TRY(fs_.Open(path, {}));
  CAIRN_TRY(fs_.Rename(NextFile(), path));
  CAIRN_TRY(fs_.SyncDir(FolderOf(path)));
  const HeldKey now{CAIRN_TRY(ReadMasterKey(directory_.master_key_source()))};
  if (now.key != next) {
    return Err(ErrorCode::kInternal, path + " does not read back as it was written");
  }
  CAIRN_TRY(TakeUp(next));
  Status wiped = old_file->WriteAt(0, std::string(CAIRN_TRY(old_file->SizeBytes()), '\0'));
  if (wiped) wiped = old_file->Sync();
  if (!wiped) LogWarning("old_master_key_not_overwritten", {{"error", wiped.error().ToString()}});
  return {};
}

// The source gives `next`, which cairn.format names: it becomes the only one. In this order: slots
// of the old key are erased only once nothing needs it.
Status MasterRotation::TakeUp(const Key256& next) {
  CAIRN_TRY(keys_.OpensWith(next));
  CAIRN_TRY(directory_.SetMasterKey(next));
  operators_key_pending_ = false;
  CAIRN_TRY(keys_.AdoptMaster(next));
  LogInfo("master_key_rotated");
  return {};
}

}  // namespace cairn
