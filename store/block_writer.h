// BlockWriter: how LocalBlockStore writes: address, look-up, compression, append; and the open
// packs of all realms.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/block_reader.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/pack_set.h"
#include "store/quarantine.h"
#include "store/realm_writer.h"
#include "store/writer_gate.h"

namespace cairn {

// Thread-safe. Owned by one LocalBlockStore; outlives its sessions.
class BlockWriter {
 public:
  struct Deps {
    FileSystem& fs;
    const KeyRing& keys;
    Clock& clock;
    PackSet& packs;
    Quarantine& quarantine;
    uint64_t epoch;
    uint64_t pack_bytes;
    // The index, which does not exist yet when this is constructed. Look-ups rebuild it when it is
    // damaged.
    std::function<BlockIndex&()> index;
    std::function<Result<std::optional<BlockLocation>>(const Address&)> lookup;
    std::function<Result<bool>(const Address&, uint64_t condemn_cycle)> resurrect;
    std::function<Status()> rebuild;
  };
  explicit BlockWriter(Deps deps) : deps_(std::move(deps)) {}

  // BlockStore's.
  Result<std::unique_ptr<WriteSession>> BeginWrite(const Id128& realm);

  struct Found {
    BlockLocation location;
    std::shared_ptr<LivePack> live;  // not null: it is not in the index yet
  };
  Result<std::optional<Found>> Locate(const Id128& realm, const Address& address);

  RealmWriter* FindWriter(const Id128& realm);
  std::vector<RealmWriter*> Writers();
  WriterGate& gate() { return gate_; }

  // Seals the open packs; the first error.
  Status Seal();

  // Begins no more sessions, and those that live get Unavailable.
  void Close();

 private:
  class Session;
  RealmWriter& WriterOf(const Id128& realm);
  Result<BlockRef> PutBlock(Session& session, const Id128& realm, BlockKind kind,
                            std::string_view plain, Compression compression);

  const Deps deps_;
  WriterGate gate_;
  std::atomic<bool> closed_ = false;
  Mutex writers_mutex_;
  std::map<Id128, std::unique_ptr<RealmWriter>> writers_ GUARDED_BY(writers_mutex_);
};

}  // namespace cairn
