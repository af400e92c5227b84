// MemBlockStore: a BlockStore in memory for the unit tests of what lies above store/. Addresses are
// the real ones.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "store/base/mutex.h"
#include "store/block_store.h"
#include "store/key_ring.h"

namespace cairn {

// A key ring entry with fixed keys (not random: addresses are the same in every run).
RealmKeys TestRealmKeys(uint8_t seed);

// Thread-safe. `keys` must outlive it and hold every realm that is used.
class MemBlockStore final : public BlockStore {
 public:
  explicit MemBlockStore(KeyRing& keys) : keys_(keys) {}

  using BlockStore::BeginWrite;
  Result<std::unique_ptr<WriteSession>> BeginWrite(const Id128& realm,
                                                   const WriteBudget& budget) override;
  Result<Block> Get(const Id128& realm, const BlockRef& ref) override;
  Status Verify(const Id128& realm, const BlockRef& ref) override;
  BlockStoreStats Stats() override;

  // Faults. A damaged or dropped block reads as DataLoss; while `fail_puts` is set Put gives
  // Exhausted; while `fail_syncs` is set Sync gives Internal and the session is failed.
  void Damage(const Address& address);
  void Drop(const Address& address);
  void FailPuts(bool on);
  void FailSyncs(bool on);
  // From now on sessions take what they write out of its budgets.
  void LimitSpace(SpaceGuard& space);

  // Counters since the start.
  uint64_t put_count() const;    // new blocks stored
  uint64_t dedup_count() const;  // puts that found their block
  uint64_t get_count() const;
  uint64_t sync_count() const;
  uint64_t live_sessions() const;

 private:
  class Session;
  using Key = std::pair<Id128, Address>;
  struct Stored {
    BlockKind kind;
    Block plain;
    bool damaged = false;
  };

  KeyRing& keys_;
  mutable Mutex mutex_;
  std::map<Key, Stored> blocks_ GUARDED_BY(mutex_);
  SpaceGuard* space_ GUARDED_BY(mutex_) = nullptr;
  bool fail_puts_ GUARDED_BY(mutex_) = false;
  bool fail_syncs_ GUARDED_BY(mutex_) = false;
  uint64_t puts_ GUARDED_BY(mutex_) = 0;
  uint64_t dedups_ GUARDED_BY(mutex_) = 0;
  uint64_t gets_ GUARDED_BY(mutex_) = 0;
  uint64_t syncs_ GUARDED_BY(mutex_) = 0;
  uint64_t sessions_ GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
