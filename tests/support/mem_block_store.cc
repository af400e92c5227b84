// Blocks in a map from (realm, address) to plaintext; addresses, realms, kinds and lengths behave
// as in the real store.
#include "tests/support/mem_block_store.h"

#include "store/budgeted_session.h"

namespace cairn {

RealmKeys TestRealmKeys(uint8_t seed) {
  RealmKeys keys;
  keys.address_key.fill(seed);
  Key256 wrapping;
  wrapping.fill(static_cast<uint8_t>(seed + 128));
  keys.current_key_id = 1;
  keys.wrapping_keys[1] = wrapping;
  return keys;
}

class MemBlockStore::Session final : public WriteSession {
 public:
  Session(MemBlockStore& store, const Id128& realm) : store_(store), realm_(realm) {}
  ~Session() override {
    MutexLock lock(store_.mutex_);
    --store_.sessions_;
  }

  Status PutMany(std::span<const PutRequest> requests, std::span<BlockRef> refs,
                 Durability durability) override {
    for (size_t i = 0; i < requests.size(); ++i) refs[i] = CAIRN_TRY(PutOne(requests[i]));
    return durability == Durability::kDurable ? Sync() : Status();
  }

  Status Sync() override {
    MutexLock lock(store_.mutex_);
    if (failed_) return Err(ErrorCode::kUnavailable, "an earlier write of this session failed");
    ++store_.syncs_;
    if (store_.fail_syncs_) {
      failed_ = true;
      return Err(ErrorCode::kInternal, "fdatasync", 5);
    }
    return {};
  }

 private:
  Result<BlockRef> PutOne(const PutRequest& request) {
    const std::string_view plain = request.plain;
    if (plain.empty() || plain.size() > kMaxBlockBytes) {
      return Err(ErrorCode::kInvalidArgument, "a block has 1 to 1048576 bytes");
    }
    const Address address = CAIRN_TRY(store_.keys_.AddressOf(realm_, request.kind, plain));
    MutexLock lock(store_.mutex_);
    if (failed_) return Err(ErrorCode::kUnavailable, "an earlier write of this session failed");
    if (store_.fail_puts_) return Err(ErrorCode::kExhausted, "no space", 28);
    const auto [it, inserted] = store_.blocks_.try_emplace(Key{realm_, address});
    if (inserted || it->second.damaged) {
      it->second =
          Stored{.kind = request.kind, .plain = std::make_shared<const std::string>(plain)};
      ++store_.puts_;
    } else {
      ++store_.dedups_;
    }
    return BlockRef{.realm = realm_ == BaseRealm() ? RealmTag::kBase : RealmTag::kOwn,
                    .kind = request.kind,
                    .raw_length_bytes = static_cast<uint32_t>(plain.size()),
                    .address = address};
  }

  MemBlockStore& store_;
  const Id128 realm_;
  bool failed_ = false;  // under store_.mutex_
};

Result<std::unique_ptr<WriteSession>> MemBlockStore::BeginWrite(const Id128& realm,
                                                                const WriteBudget& budget) {
  if (!keys_.Has(realm)) return Err(ErrorCode::kNotFound, "no keys for this realm");
  SpaceGuard* space;
  {
    MutexLock lock(mutex_);
    ++sessions_;
    space = space_;
  }
  auto session = std::make_unique<Session>(*this, realm);
  if (space == nullptr) return session;
  return BudgetSession(*space, budget, std::move(session));
}

void MemBlockStore::LimitSpace(SpaceGuard& space) {
  MutexLock lock(mutex_);
  space_ = &space;
}

Result<Block> MemBlockStore::Get(const Id128& realm, const BlockRef& ref) {
  const Id128 owner = ref.realm == RealmTag::kBase ? BaseRealm() : realm;
  MutexLock lock(mutex_);
  ++gets_;
  const auto it = blocks_.find(Key{owner, ref.address});
  if (it == blocks_.end()) {
    return Err(ErrorCode::kDataLoss, "block " + ref.address.ToHex() + " is missing");
  }
  const Stored& stored = it->second;
  if (stored.damaged || stored.kind != ref.kind || stored.plain->size() != ref.raw_length_bytes) {
    return Err(ErrorCode::kDataLoss, "block " + ref.address.ToHex() + " is damaged");
  }
  return stored.plain;
}

Status MemBlockStore::Verify(const Id128& realm, const BlockRef& ref) {
  const Block block = CAIRN_TRY(Get(realm, ref));
  const Id128 owner = ref.realm == RealmTag::kBase ? BaseRealm() : realm;
  if (CAIRN_TRY(keys_.AddressOf(owner, ref.kind, *block)) != ref.address) {
    return Err(ErrorCode::kDataLoss, "block " + ref.address.ToHex() + " has another address");
  }
  return {};
}

BlockStoreStats MemBlockStore::Stats() {
  MutexLock lock(mutex_);
  BlockStoreStats stats;
  stats.block_count = blocks_.size();
  for (const auto& [key, stored] : blocks_) stats.raw_bytes += stored.plain->size();
  stats.stored_bytes = stats.raw_bytes;
  return stats;
}

void MemBlockStore::Damage(const Address& address) {
  MutexLock lock(mutex_);
  for (auto& [key, stored] : blocks_) {
    if (key.second == address) stored.damaged = true;
  }
}

void MemBlockStore::Drop(const Address& address) {
  MutexLock lock(mutex_);
  std::erase_if(blocks_, [&](const auto& item) { return item.first.second == address; });
}

void MemBlockStore::FailPuts(bool on) {
  MutexLock lock(mutex_);
  fail_puts_ = on;
}

void MemBlockStore::FailSyncs(bool on) {
  MutexLock lock(mutex_);
  fail_syncs_ = on;
}

uint64_t MemBlockStore::put_count() const {
  MutexLock lock(mutex_);
  return puts_;
}
uint64_t MemBlockStore::dedup_count() const {
  MutexLock lock(mutex_);
  return dedups_;
}
uint64_t MemBlockStore::get_count() const {
  MutexLock lock(mutex_);
  return gets_;
}
uint64_t MemBlockStore::sync_count() const {
  MutexLock lock(mutex_);
  return syncs_;
}
uint64_t MemBlockStore::live_sessions() const {
  MutexLock lock(mutex_);
  return sessions_;
}

}  // namespace cairn
