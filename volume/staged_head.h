// StagedHead: a head without a journal, for filling a volume that nobody else uses (an import).
// What is written goes into the block store at once, once; the records wait in memory until there
// are enough for a slice, which is sealed and published like a generation. So an import costs one
// write of its data, compressed, instead of three (journal, read back, pack).
//
// Promises: nothing is durable, or visible outside, before its slice is published; a crash or an
// error leaves the volume as the last published slice made it, and unreachable blocks for the
// collector. Slices end between transactions, so a published state is one that a journal could
// have held too.
#pragma once

#include <functional>
#include <memory>

#include "store/block_store.h"
#include "volume/head.h"

namespace cairn {

// A file's data is put in blocks of this size at most, of several windows of the grid: they
// compress better, and each costs a frame, an entry of the index and a reference (decision 13).
inline constexpr uint64_t kStagedBlockBytes = 256 << 10;

struct StagedHeadOptions {
  Id128 realm;
  uint64_t generation = 1;            // of the first slice
  std::shared_ptr<const Layer> base;  // a sealed tree
  HeadState state;                    // of `base`
  Compression compression = Compression::kBackground;
  // Begins the session of a slice. Null: one of `realm`, from the budget of what is kept.
  std::function<Result<std::unique_ptr<WriteSession>>()> begin_session = {};
  uint64_t batch_bytes = 8 << 20;  // data that is put together; two batches are in memory
  // A slice ends at the first of these: records and their bytes in memory, and data.
  uint64_t slice_records = 100'000;
  uint64_t slice_record_bytes = 48 << 20;
};

// Thread-safe, but commits wait for the block store: for one writer.
class StagedHead : public Head {
 public:
  // Seals `slice` (frozen) with `session`, which has put its data, and makes it the volume's root.
  // The tree that it became is what the next slice lies on.
  using Publish = std::function<Result<std::shared_ptr<const TreeReader>>(
      const Layer& slice, WriteSession& session, const HeadState& state)>;
  // Asked before each batch and each slice; an error ends the import.
  using MayGoOn = std::function<Status()>;

  static std::unique_ptr<StagedHead> Create(BlockStore& store, const StagedHeadOptions& options,
                                            Publish publish, MayGoOn may_go_on);

  // Publishes what is left: everything committed is durable and visible on return. The last call.
  virtual Status Finish() = 0;
};

}  // namespace cairn
