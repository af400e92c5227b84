// PutBatch: one PutMany on its way: address, look-up, compression, encryption, pack.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "store/address.h"
#include "store/base/mutex.h"
#include "store/block_index.h"
#include "store/block_store.h"
#include "store/key_ring.h"
#include "store/put_buffers.h"
#include "store/quarantine.h"
#include "store/realm_writer.h"
#include "store/worker_pool.h"

namespace cairn {

// Run is called once, by one thread; the parts of the batch run on several.
class PutBatch {
 public:
  struct Deps {
    const KeyRing& keys;
    Quarantine& quarantine;
    WorkerPool& pool;
    PutBuffers& buffers;
    // The index, rebuilding it when it is damaged: BlockIndex::GetMany.
    std::function<Status(std::span<const Address>, std::span<std::optional<BlockLocation>>)> lookup;
    // Takes a condemned block back; false when it is gone or was condemned anew meanwhile.
    std::function<Result<bool>(const Address&, uint64_t condemn_cycle)> resurrect;
  };
  PutBatch(const Deps& deps, RealmWriter& writer, const Id128& realm,
           std::span<const PutRequest> requests);

  // Every block is in the index, or whole in a pack that the index does not have yet. Errors are
  // WriteSession's.
  Status Run();

  struct Item {
    const PutRequest* request = nullptr;
    Address address;
    bool damaged = false;  // the index has a copy that is in the quarantine
    bool absent = false;   // the last look-up found none, or that
    bool done = false;
    // The pack in which it lies up to end_offset, if the index does not have it yet.
    std::shared_ptr<LivePack> pack;
    uint64_t end_offset = 0;
  };
  // After a Run that was ok, in the order of the requests.
  std::span<const Item> items() const { return items_; }

  // Work for one thread at a time. Large enough that taking it costs nothing, small enough to stay
  // in a core's second-level cache: bench/store_bench.
  static constexpr size_t kPartBytes = 512 << 10;
  static constexpr size_t kPartBlocks = 64;

 private:
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    size_t bytes = 0;
  };
  static std::vector<Part> Split(std::span<const PutRequest> requests);
  Status RunPart(const Part& part);
  Status AddressItems(std::span<Item> items);
  Status LookUp(std::span<Item* const> missing);
  Status StoreAbsent(std::span<Item* const> missing, uint64_t seen_generation,
                     std::optional<PutBuffers::Lease>& buffers);
  bool AwaitWrites();
  bool IsHeld(const BlockLocation& location);

  const Deps& deps_;
  RealmWriter& writer_;
  const Id128 realm_;
  std::vector<Item> items_;
  const std::vector<Part> parts_;
};

}  // namespace cairn
