// BlockWriter: how LocalBlockStore writes: its sessions, the threads and memory that they share,
// and the open packs of all realms.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/pack_set.h"
#include "store/put_batch.h"
#include "store/put_buffers.h"
#include "store/quarantine.h"
#include "store/realm_writer.h"
#include "store/worker_pool.h"
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
    size_t threads;         // that help with large batches and seal packs; 0: callers do it
    uint64_t buffer_bytes;  // memory for blocks that are being put
    // The index, which does not exist yet when this is constructed. Look-ups (BlockIndex::GetMany)
    // rebuild it when it is damaged.
    std::function<BlockIndex&()> index;
    std::function<Status(std::span<const Address>, std::span<std::optional<BlockLocation>>)> lookup;
    std::function<Result<bool>(const Address&, uint64_t condemn_cycle)> resurrect;
    std::function<Status()> rebuild;
  };
  explicit BlockWriter(Deps deps);
  ~BlockWriter();

  // BlockStore's.
  Result<std::unique_ptr<WriteSession>> BeginWrite(const Id128& realm);

  // Where blocks are that a reader may ask for; `found` is as long as `addresses`.
  Status LocateMany(const Id128& realm, std::span<const Address> addresses,
                    std::span<std::optional<BlockLocation>> found);
  Result<std::optional<BlockLocation>> Locate(const Id128& realm, const Address& address);

  RealmWriter* FindWriter(const Id128& realm);
  std::vector<RealmWriter*> Writers();
  WriterGate& gate() { return gate_; }

  // Seals the open packs; the first error.
  Status Seal();

  // Begins no more sessions, and those that live get Unavailable. Seals the open packs and joins
  // the threads; the first error. Again: ok.
  Status Close();

 private:
  class Session;
  RealmWriter& WriterOf(const Id128& realm);
  const Deps deps_;
  WorkerPool pool_;
  PutBuffers buffers_;
  const PutBatch::Deps batch_deps_;
  WriterGate gate_;
  std::atomic<bool> closed_ = false;
  Mutex writers_mutex_;
  std::map<Id128, std::unique_ptr<RealmWriter>> writers_ GUARDED_BY(writers_mutex_);
};

}  // namespace cairn
