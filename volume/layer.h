// Layers: the state of a filesystem is a chain of in-memory deltas, one per unsealed generation,
// over one immutable tree.
//
//     active delta (generation g, takes writes) -> frozen g-1 -> frozen g-2 -> tree (root sealed
//     through g-3)
//
// Invariants
//   1. A frozen delta never changes. A sealed one is replaced by its tree, with the same content to
//   every reader.
//   2. A delta holds only what its own generation wrote. An extent of it covers a range of a file;
//   a range that no
//      extent of any delta covers is the tree's. A hole (punch, truncate) is an explicit extent, of
//      any length. So no delta ever points into an older generation's log, and dropping a
//      generation is unlinking its files.
//   3. Within one delta extents do not overlap; data extents never cross the 64 KiB grid.
//   4. Inline data (a whole file up to 2 KiB) and extents are exclusive per inode in the merged
//   view: with an inline
//      entry present, extents of lower layers are not visible (the writer puts a hole over all of
//      them when it goes inline, and deletes the inline entry when it goes to extents).
//
// Thread-safety: Layer is thread-safe. Readers hold it by shared_ptr; the active one is written by
// Head alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/tree.h"
#include "volume/inode.h"

namespace cairn {

class StagedBlock;  // volume/staged_block.h
class LogFile;  // volume/log_file.h: an encrypted journal or side log of one generation, open for
                // reading

// Bytes that a generation wrote and no seal has taken yet. Encrypted in frames of kPageBytes
// counted from the payload's start; `tags` holds 16 bytes per frame. Or, of an import, staged: on
// their way into the block store, without log and tags. Immutable, shared between the pieces of a
// split extent.
struct UnsealedPayload {
  std::shared_ptr<LogFile> log;
  std::shared_ptr<StagedBlock> staged;
  uint64_t log_offset = 0;
  uint32_t length_bytes = 0;
  std::string tags;
};

// A piece of a file as a reader finds it, in file order, never overlapping.
struct Segment {
  enum class Source : uint8_t { kHole, kBlock, kUnsealed };
  uint64_t offset = 0;        // in the file
  uint64_t length_bytes = 0;  // > 0
  Source source = Source::kHole;
  uint64_t source_offset = 0;                      // first byte within the block or payload
  BlockRef block;                                  // kBlock
  std::shared_ptr<const UnsealedPayload> payload;  // kUnsealed
};

// One entry of a delta.
struct DeltaValue {
  enum class Kind : uint8_t { kDelete, kEntry, kExtent } kind = Kind::kDelete;
  Entry entry;     // kEntry: everything but extents
  Segment extent;  // kExtent: `offset` repeats the key's
};

class Layer {
 public:
  virtual ~Layer() = default;

  // ---- the merged view of this layer and all below; any thread, never blocks on a writer's I/O
  // ---- Not for extents (InvalidArgument): those merge by range, see Extents.
  virtual Result<std::optional<Entry>> Get(std::string_view key) const = 0;

  // Visits keys in [begin, end) that are not extents, in order, until `visit` returns false.
  virtual Status Scan(
      std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view key, const Entry&)>& visit) const = 0;

  // The segments of [offset, offset + length), holes included, gapless.
  virtual Result<std::vector<Segment>> Extents(InodeNumber ino, uint64_t offset,
                                               uint64_t length_bytes) const = 0;

  // Fills `out` from segment bytes [within, within + out.size()). DataLoss when a tag or block is
  // wrong.
  virtual Status Read(const Segment& segment, uint64_t within, std::span<char> out) const = 0;

  // Fills `out`, whose first byte is the file's at `offset`, from segments that lie within it.
  // Their blocks are read together.
  virtual Status ReadMany(std::span<const Segment> segments, uint64_t offset, std::span<char> out,
                          const ReadOptions& options) const = 0;

  // Says that the segments' blocks will be read soon (BlockStore::Prefetch).
  virtual void Prefetch(std::span<const Segment> segments) const = 0;

  // ---- this generation alone (for the sealer): frozen layers only ----
  virtual uint64_t generation() const = 0;
  virtual Status ForEachDelta(
      const std::function<Status(std::string_view key, const DeltaValue&)>& visit) const = 0;
  virtual size_t delta_count() const = 0;
  virtual bool frozen() const = 0;

  // What lies below: another layer (nullptr when it is the tree), and the tree at the bottom of the
  // chain.
  virtual std::shared_ptr<const Layer> below() const = 0;
  virtual std::shared_ptr<const TreeReader> base_tree() const = 0;

  // Called once, by whoever sealed this frozen layer and committed the root: from now on readers of
  // this layer and of all above it use `tree` in place of this delta and everything below; the
  // delta's memory and logs are let go.
  virtual void BecomeSealed(std::shared_ptr<const TreeReader> tree) = 0;
};

// A layer that is only a tree (a sealed root: snapshots, Artifacts, an empty new volume).
std::shared_ptr<const Layer> TreeLayer(BlockStore& store, std::shared_ptr<const TreeReader> tree,
                                       uint64_t generation);

// Neighbouring frozen layers, oldest first, the oldest over a tree, as one frozen layer of the
// newest one's generation over that tree: its delta holds what they leave together. It copies their
// entries and shares their payloads. FailedPrecondition: they are not such layers (any more).
Result<std::shared_ptr<const Layer>> MergeLayers(
    BlockStore& store, const std::vector<std::shared_ptr<const Layer>>& oldest_first);

}  // namespace cairn
