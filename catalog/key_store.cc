// Key files in place. Every change writes the slot that does not count, syncs, and only then erases
// the one that did; so a crash leaves the old state, or both, and what counts is decided by
// docs/formats/keys.md. Invariant: while a file lives, one whole slot opens with the master key in
// use; after its destruction no slot holds a wrapped key.
#include "catalog/key_store.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <iterator>

#include "store/base/check.h"
#include "store/base/key_check.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".key";
constexpr std::string_view kCatalogName = "catalog.key";

std::string_view ViewOf(const Key256& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

std::optional<Id128> RealmOfName(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  const auto realm = Id128::FromHex(name);
  if (!realm || realm->ToHex() != name) return std::nullopt;
  return *realm;
}

Result<Key256> OpenKey(const Key256& master, const KeySlot& slot, uint32_t key_id,
                       std::string_view wrapped) {
  std::string plain =
      CAIRN_TRY(OpenWithKey(master, wrapped, WrappedKeyAad(slot.kind, slot.realm, key_id)));
  if (plain.size() != sizeof(Key256)) {
    return Err(ErrorCode::kDataLoss, "a wrapped key has a wrong length");
  }
  Key256 key;
  std::ranges::copy(plain, key.begin());
  OPENSSL_cleanse(plain.data(), plain.size());
  return key;
}

Result<RealmSecrets> OpenSlot(const Key256& master, const KeySlot& slot) {
  RealmSecrets keys;
  keys.realm = slot.realm;
  keys.current_key_id = slot.current_key_id;
  if (slot.kind == KeySlotKind::kRealm) {
    keys.address_key = CAIRN_TRY(OpenKey(master, slot, 0, slot.wrapped_address_key));
  }
  for (const auto& [key_id, wrapped] : slot.wrapped) {
    keys.wrapping_keys[key_id] = CAIRN_TRY(OpenKey(master, slot, key_id, wrapped));
  }
  return keys;
}

KeySlot WrapSlot(const Key256& master, KeySlotKind kind, uint64_t generation,
                 const RealmSecrets& keys) {
  KeySlot slot{.kind = kind,
               .generation = generation,
               .realm = keys.realm,
               .master_check = KeyCheck(master),
               .current_key_id = keys.current_key_id,
               .wrapped_address_key = {},
               .wrapped = {}};
  if (kind == KeySlotKind::kRealm) {
    slot.wrapped_address_key =
        SealWithKey(master, ViewOf(keys.address_key), WrappedKeyAad(kind, keys.realm, 0));
  }
  for (const auto& [key_id, key] : keys.wrapping_keys) {
    slot.wrapped.emplace_back(
        key_id, SealWithKey(master, ViewOf(key), WrappedKeyAad(kind, keys.realm, key_id)));
  }
  return slot;
}

}  // namespace

RealmSecrets::~RealmSecrets() {
  WipeKey(address_key);
  for (auto& [id, key] : wrapping_keys) WipeKey(key);
}

int KeyStore::Slots::Best(const std::string& master_check) const {
  int best = -1;
  for (int i = 0; i < 2; ++i) {
    if (!slot[i] || slot[i]->master_check != master_check) continue;
    if (best < 0 || slot[i]->generation > slot[best]->generation) best = i;
  }
  return best;
}

bool KeyStore::Slots::destroyed() const {
  return std::ranges::any_of(slot,
                             [](const auto& s) { return s && s->kind == KeySlotKind::kDestroyed; });
}

uint64_t KeyStore::Slots::generation() const {
  uint64_t highest = 0;
  for (const auto& s : slot) highest = std::max(highest, s ? s->generation : 0);
  return highest;
}

KeyStore::KeyStore(FileSystem& fs, std::string dir, const Key256& master)
    : fs_(fs), dir_(std::move(dir)), master_(master) {}

KeyStore::~KeyStore() {
  MutexLock lock(mutex_);
  WipeKey(master_);
  if (next_master_) WipeKey(*next_master_);
}

Result<std::unique_ptr<KeyStore>> KeyStore::Open(FileSystem& fs, std::string dir,
                                                 const Key256& master) {
  std::unique_ptr<KeyStore> store(new KeyStore(fs, std::move(dir), master));
  MutexLock lock(store->mutex_);
  for (const std::string& name : CAIRN_TRY(fs.List(store->dir_))) {
    if (!name.ends_with(".tmp")) continue;
    CAIRN_TRY(fs.Unlink(store->dir_ + "/" + name));  // a creation that nobody was told of
    CAIRN_TRY(fs.SyncDir(store->dir_));
  }
  for (const std::string& path : CAIRN_TRY(store->ListPaths())) {
    const std::optional<Id128> realm = RealmOfName(path);
    if (!realm) continue;
    const auto slots = store->ReadSlots(path);
    if (!slots || !slots->destroyed()) continue;
    CAIRN_TRY(store->DestroyFile(path, *realm));
  }
  return store;
}

Result<std::vector<std::string>> KeyStore::ListPaths() {
  std::vector<std::string> paths;
  for (const std::string& name : CAIRN_TRY(fs_.List(dir_))) {
    if (name == kCatalogName || RealmOfName(name)) {
      paths.push_back(dir_ + "/" + name);
    } else {
      LogWarning("unknown_file", {{"path", dir_ + "/" + name}});
    }
  }
  return paths;
}

// Slots that do not decode, or are of another realm, are empty.
Result<KeyStore::Slots> KeyStore::ReadSlots(const std::string& path) {
  const std::unique_ptr<File> file = CAIRN_TRY(fs_.Open(path, {.read_only = true}));
  std::string bytes(kKeyFileBytes, '\0');
  const size_t got = CAIRN_TRY(file->ReadAt(0, bytes));
  const Id128 realm = RealmOfName(path).value_or(Id128{});
  Slots slots;
  for (int i = 0; i < 2; ++i) {
    const size_t at = static_cast<size_t>(i) * kKeySlotBytes;
    const std::string_view raw = std::string_view(bytes).substr(at, kKeySlotBytes);
    slots.blank[i] = std::ranges::all_of(raw, [](char c) { return c == '\0'; });
    if (got < at + kKeySlotBytes) continue;
    auto slot = DecodeKeySlot(raw);
    if (slot && slot->realm == realm) slots.slot[i] = *std::move(slot);
  }
  return slots;
}

Result<KeySlot> KeyStore::ReadBest(const std::string& path, KeySlotKind kind, const Id128& realm) {
  const Slots slots = CAIRN_TRY(ReadSlots(path));
  if (slots.destroyed()) {
    return Err(ErrorCode::kFailedPrecondition, path + ": the key is destroyed");
  }
  const int best = slots.Best(KeyCheck(master_));
  if (best < 0 && (slots.slot[0] || slots.slot[1])) {
    return Err(ErrorCode::kPermissionDenied,
               path + " does not open with this master key: another one wrapped it");
  }
  if (best < 0) {
    return Err(ErrorCode::kDataLoss,
               path + " is damaged: restore it from a backup, nothing else opens what it wrapped");
  }
  if (slots.slot[best]->kind != kind || slots.slot[best]->realm != realm) {
    return Err(ErrorCode::kDataLoss, path + " is another key's file");
  }
  return *slots.slot[best];
}

Status KeyStore::WriteSlot(const std::string& path, int index, const std::string& bytes) {
  CAIRN_CHECK(bytes.size() == kKeySlotBytes);
  const std::unique_ptr<File> file = CAIRN_TRY(fs_.Open(path, {}));
  CAIRN_TRY(file->WriteAt(static_cast<uint64_t>(index) * kKeySlotBytes, bytes));
  return file->Sync();
}

Status KeyStore::CreateFile(const std::string& path, KeySlotKind kind, const RealmSecrets& keys) {
  if (CAIRN_TRY(fs_.Exists(path))) return Err(ErrorCode::kAlreadyExists, path + " exists");
  std::string bytes = EncodeKeySlot(WrapSlot(master_, kind, 1, keys));
  if (next_master_) bytes += EncodeKeySlot(WrapSlot(*next_master_, kind, 1, keys));
  bytes.resize(kKeyFileBytes);
  return WriteFileAtomically(fs_, path, bytes);
}

// ---- catalog ----

bool KeyStore::HasCatalogKey() {
  MutexLock lock(mutex_);
  const auto exists = fs_.Exists(CatalogPath());
  return !exists || *exists;
}

Result<CatalogKey> KeyStore::ReadCatalogKey() {
  MutexLock lock(mutex_);
  const KeySlot slot = CAIRN_TRY(ReadBest(CatalogPath(), KeySlotKind::kCatalog, {}));
  auto keys = OpenSlot(master_, slot);
  if (!keys) return std::unexpected(std::move(keys).error().WithContext(CatalogPath()));
  return CatalogKey{.key = keys->wrapping_keys.at(keys->current_key_id),
                    .key_id = keys->current_key_id};
}

Result<CatalogKey> KeyStore::CreateCatalogKey() {
  MutexLock lock(mutex_);
  RealmSecrets keys;
  keys.current_key_id = 1;
  keys.wrapping_keys[1] = RandomKey();
  CAIRN_TRY(CreateFile(CatalogPath(), KeySlotKind::kCatalog, keys));
  return CatalogKey{.key = keys.wrapping_keys[1], .key_id = 1};
}

// ---- realms ----

Result<RealmSecrets> KeyStore::CreateRealm(const Id128& realm) {
  MutexLock lock(mutex_);
  if (other_pending_) {
    return Err(ErrorCode::kFailedPrecondition,
               "a rotation of the master key is pending, and this process does not know the new "
               "one: end the rotation first");
  }
  RealmSecrets keys;
  keys.realm = realm;
  keys.address_key = RandomKey();
  keys.current_key_id = 1;
  keys.wrapping_keys[1] = RandomKey();
  CAIRN_TRY(CreateFile(PathOf(realm), KeySlotKind::kRealm, keys));
  const KeySlot written = CAIRN_TRY(ReadBest(PathOf(realm), KeySlotKind::kRealm, realm));
  return OpenSlot(master_, written);  // what is used is what reads back
}

Result<RealmSecrets> KeyStore::ReadRealm(const Id128& realm) {
  MutexLock lock(mutex_);
  const KeySlot slot = CAIRN_TRY(ReadBest(PathOf(realm), KeySlotKind::kRealm, realm));
  auto keys = OpenSlot(master_, slot);
  if (!keys) return std::unexpected(std::move(keys).error().WithContext(PathOf(realm)));
  return keys;
}

Result<RealmSecrets> KeyStore::RotateRealm(const Id128& realm) {
  MutexLock lock(mutex_);
  if (other_pending_ || next_master_) {
    return Err(ErrorCode::kFailedPrecondition,
               "a rotation of the master key is pending: end it first");
  }
  const std::string path = PathOf(realm);
  const KeySlot slot = CAIRN_TRY(ReadBest(path, KeySlotKind::kRealm, realm));
  RealmSecrets keys = CAIRN_TRY(OpenSlot(master_, slot));
  if (keys.wrapping_keys.size() >= kMaxKeyVersions) {
    return Err(ErrorCode::kExhausted, path + " holds " + std::to_string(kMaxKeyVersions) +
                                          " versions: there is no room for another");
  }
  keys.current_key_id = keys.wrapping_keys.rbegin()->first + 1;
  keys.wrapping_keys[keys.current_key_id] = RandomKey();
  const Slots slots = CAIRN_TRY(ReadSlots(path));
  const int old = slots.Best(KeyCheck(master_));
  CAIRN_TRY(WriteSlot(
      path, 1 - old,
      EncodeKeySlot(WrapSlot(master_, KeySlotKind::kRealm, slots.generation() + 1, keys))));
  const KeySlot written = CAIRN_TRY(ReadBest(path, KeySlotKind::kRealm, realm));
  if (written.current_key_id != keys.current_key_id) {
    return Err(ErrorCode::kInternal, path + ": the new version does not read back");
  }
  CAIRN_TRY(WriteSlot(path, old, std::string(kKeySlotBytes, '\0')));
  return keys;
}

Status KeyStore::DestroyFile(const std::string& path, const Id128& realm) {
  const Slots slots = CAIRN_TRY(ReadSlots(path));
  const KeySlot destroyed{.kind = KeySlotKind::kDestroyed,
                          .generation = slots.generation() + 1,
                          .realm = realm,
                          .master_check = {},
                          .wrapped_address_key = {},
                          .wrapped = {}};
  const std::string bytes = EncodeKeySlot(destroyed);
  // The slot that counts comes last: until the first write is whole, the key is as it was.
  const auto is_destroyed = [&](int i) {
    return slots.slot[i] && slots.slot[i]->kind == KeySlotKind::kDestroyed;
  };
  const int first = slots.Best(KeyCheck(master_)) == 0 ? 1 : 0;
  for (const int i : {first, 1 - first}) {
    if (!is_destroyed(i)) CAIRN_TRY(WriteSlot(path, i, bytes));
  }
  return {};
}

Status KeyStore::DestroyRealm(const Id128& realm) {
  MutexLock lock(mutex_);
  const std::string path = PathOf(realm);
  if (!CAIRN_TRY(fs_.Exists(path))) return {};
  return DestroyFile(path, realm);
}

Status KeyStore::RemoveDestroyed(const Id128& realm) {
  MutexLock lock(mutex_);
  const std::string path = PathOf(realm);
  if (!CAIRN_TRY(fs_.Exists(path))) return {};
  const Slots slots = CAIRN_TRY(ReadSlots(path));
  if (!slots.destroyed()) {
    return Err(ErrorCode::kFailedPrecondition, path + ": the key is not destroyed");
  }
  CAIRN_TRY(fs_.Unlink(path));
  return fs_.SyncDir(dir_);
}

Result<std::vector<std::pair<Id128, KeyStore::RealmState>>> KeyStore::ListRealms() {
  MutexLock lock(mutex_);
  std::vector<std::pair<Id128, RealmState>> realms;
  for (const std::string& path : CAIRN_TRY(ListPaths())) {
    const std::optional<Id128> realm = RealmOfName(path);
    if (!realm) continue;
    const auto slots = ReadSlots(path);
    RealmState state = RealmState::kUnreadable;
    if (slots && slots->destroyed()) {
      state = RealmState::kDestroyed;
    } else if (slots && slots->Best(KeyCheck(master_)) >= 0) {
      state = RealmState::kOpens;
    }
    realms.emplace_back(*realm, state);
  }
  return realms;
}

// ---- master key ----

Status KeyStore::PrepareMaster(const Key256& next) {
  MutexLock lock(mutex_);
  const std::string ours = KeyCheck(master_);
  if (KeyCheck(next) == ours) {
    return Err(ErrorCode::kInvalidArgument, "the new master key is the one in use");
  }
  const std::vector<std::string> paths = CAIRN_TRY(ListPaths());
  for (const bool write : {false, true}) {  // all are read before any is written
    for (const std::string& path : paths) {
      const Id128 realm = RealmOfName(path).value_or(Id128{});
      const KeySlotKind kind = realm.is_zero() ? KeySlotKind::kCatalog : KeySlotKind::kRealm;
      const Slots slots = CAIRN_TRY(ReadSlots(path));
      if (slots.destroyed()) continue;
      const KeySlot slot = CAIRN_TRY(ReadBest(path, kind, realm));
      auto keys = OpenSlot(master_, slot);
      if (!keys) return std::unexpected(std::move(keys).error().WithContext(path));
      if (!write) continue;
      CAIRN_TRY(WriteSlot(path, 1 - slots.Best(ours),
                          EncodeKeySlot(WrapSlot(next, kind, slots.generation() + 1, *keys))));
    }
  }
  next_master_ = next;
  other_pending_ = false;
  return {};
}

Status KeyStore::OpensWith(const Key256& master) {
  MutexLock lock(mutex_);
  for (const std::string& path : CAIRN_TRY(ListPaths())) {
    const Slots slots = CAIRN_TRY(ReadSlots(path));
    if (slots.destroyed()) continue;
    if (!slots.slot[0] && !slots.slot[1]) continue;  // damaged: no key opens it
    const int best = slots.Best(KeyCheck(master));
    if (best < 0) {
      return Err(ErrorCode::kFailedPrecondition, path + " does not open with that master key");
    }
    auto keys = OpenSlot(master, *slots.slot[best]);
    if (!keys) return std::unexpected(std::move(keys).error().WithContext(path));
  }
  return {};
}

Status KeyStore::AdoptMaster(const Key256& next) {
  MutexLock lock(mutex_);
  if (next_master_) WipeKey(*next_master_);
  next_master_.reset();
  other_pending_ = false;
  master_ = next;
  return EraseOthers(next);
}

Status KeyStore::EraseOthers(const Key256& keep) {
  for (const std::string& path : CAIRN_TRY(ListPaths())) {
    const Slots slots = CAIRN_TRY(ReadSlots(path));
    if (slots.destroyed()) continue;
    const int best = slots.Best(KeyCheck(keep));
    if (best < 0 || slots.blank[1 - best]) continue;  // remains of a write count, too
    CAIRN_TRY(WriteSlot(path, 1 - best, std::string(kKeySlotBytes, '\0')));
  }
  return {};
}

Status KeyStore::ForgetOtherMasters() {
  MutexLock lock(mutex_);
  if (next_master_) WipeKey(*next_master_);
  next_master_.reset();
  other_pending_ = false;
  return EraseOthers(master_);
}

void KeyStore::SetOtherMasterPending() {
  MutexLock lock(mutex_);
  other_pending_ = true;
}

bool KeyStore::other_master_pending() {
  MutexLock lock(mutex_);
  return other_pending_ || next_master_.has_value();
}

Key256 KeyStore::CopyMaster() {
  MutexLock lock(mutex_);
  return master_;
}

Status KeyStore::WithFilesHeld(const std::function<Status(const Files&)>& body) {
  MutexLock lock(mutex_);
  Files files;
  for (const std::string& path : CAIRN_TRY(ListPaths())) {
    files.emplace_back(path.substr(path.rfind('/') + 1),
                       CAIRN_TRY(ReadWholeFile(fs_, path, kKeyFileBytes)));
  }
  return body(files);
}

}  // namespace cairn
