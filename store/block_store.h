// BlockStore: immutable, content-addressed, encrypted blocks of many realms. The interface that
// everything above store/ sees; LocalBlockStore (store/local_block_store.h) keeps packs in a
// directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/address.h"
#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/space_guard.h"

namespace cairn {

// Verified plaintext, shared with the cache. Immutable.
using Block = std::shared_ptr<const std::string>;

enum class Compression : uint8_t {
  kFast,        // zstd level 1: on the way to a pause
  kBackground,  // zstd level 3 (2 beyond 128 KiB): seals
};

// What a put that returned survives.
enum class Durability : uint8_t {
  // In the pack file, so in the host's page cache: a kill of this process, not a loss of power.
  // Sync makes it durable.
  kVolatile,
  // As volatile, and never behind: once a later put of this session is acknowledged as durable,
  // this one is durable too.
  kOrdered,
  // A loss of power: fdatasynced on return, with all ordered puts of this session before it.
  // Callers that wait at the same time share one fdatasync.
  kDurable,
};

struct PutRequest {
  BlockKind kind = BlockKind::kData;
  std::string_view plain;  // 1 to kMaxBlockBytes bytes, unchanged until the put returns
  Compression compression = Compression::kFast;
};

// The right to add blocks to one realm. While it lives, no block that it put, or was told exists
// already, is collected; so: begin, put, Sync, commit the catalog record that names the root, and
// only then destroy it. Thread-safe: several threads may put on one session.
class WriteSession {
 public:
  virtual ~WriteSession() = default;

  // Stores each plaintext unless the realm has it, and sets `refs` (as long as `requests`) to their
  // references, in the same order. Large batches are worked on by several threads; the caller's is
  // one of them. Blocks: on I/O, and while other batches use the memory that there is for this.
  // On an error `refs` mean nothing: some blocks may be stored, but nothing refers to them, and a
  // collection removes them. Errors: InvalidArgument (a length; nothing was done), Exhausted (no
  // space; the session goes on), Unavailable (an earlier write of this session failed: abandon it;
  // or the store is closed), Internal (this write failed: abandon the session), DataLoss and
  // NotFound (index, keys).
  virtual Status PutMany(std::span<const PutRequest> requests, std::span<BlockRef> refs,
                         Durability durability) = 0;

  // One block, in the caller's thread. Volatile unless told otherwise.
  Result<BlockRef> Put(BlockKind kind, std::string_view plain, Compression compression,
                       Durability durability = Durability::kVolatile) {
    const PutRequest request{.kind = kind, .plain = plain, .compression = compression};
    BlockRef ref;
    Status put = PutMany({&request, 1}, {&ref, 1}, durability);
    if (!put) return std::unexpected(std::move(put).error());
    return ref;
  }

  // Everything put so far (new or found) is durable on return. An error is final for this session.
  virtual Status Sync() = 0;
};

struct ReadOptions {
  // Put what had to be read into the cache. Not for who reads much and once: a seal, an export.
  bool keep = true;
};

// Whose budget of the disk a session writes from (store/space_guard.h).
struct WriteBudget {
  SpaceUse use = SpaceUse::kDraining;
  uint64_t expected_bytes = 0;  // set aside at once; a session may write more, if there is room
  std::string_view what = "a seal";  // for messages; lives until BeginWrite returns
};

struct BlockStoreStats {
  uint64_t pack_count = 0;
  uint64_t pack_bytes = 0;  // bytes of pack files on disk, trash included
  uint64_t trash_bytes = 0;
  uint64_t block_count = 0;   // indexed
  uint64_t stored_bytes = 0;  // sum of indexed frames as stored
  uint64_t raw_bytes = 0;     // sum of their plaintext lengths
  uint64_t cache_bytes = 0;
};

// Thread-safe. Owns nothing of its callers; outlives all sessions.
class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Errors: NotFound (no keys for this realm), PermissionDenied (the base realm), Unavailable
  // (shutting down), Exhausted (the budget does not have so much; the message says how much it
  // has). Blocks while a collector holds writers off: a thread that has a session must not begin
  // another.
  virtual Result<std::unique_ptr<WriteSession>> BeginWrite(const Id128& realm,
                                                           const WriteBudget& budget) = 0;
  Result<std::unique_ptr<WriteSession>> BeginWrite(const Id128& realm) {
    return BeginWrite(realm, WriteBudget());
  }

  // The plaintext of `ref` as seen from `realm` (ref.realm picks own or base). Verified: GCM tag,
  // length, kind. Errors: DataLoss (missing, torn or wrong bytes: never retried into wrong bytes),
  // Unavailable.
  virtual Result<Block> Get(const Id128& realm, const BlockRef& ref) = 0;

  // As Get of each, in the order of `refs`, but read together: look-ups in one batch, neighbours in
  // a pack by one read, many reads in flight. An error is that block's alone. Holds all the blocks
  // in memory: a few megabytes at a time.
  virtual std::vector<Result<Block>> GetMany(const Id128& realm, std::span<const BlockRef> refs,
                                             const ReadOptions& options) {
    (void)options;
    std::vector<Result<Block>> blocks;
    blocks.reserve(refs.size());
    for (const BlockRef& ref : refs) blocks.push_back(Get(realm, ref));
    return blocks;
  }

  // Says that these blocks will be asked for soon, in this order. Returns at once; what there is no
  // room for is dropped, and an error is left to who asks for the block.
  virtual void Prefetch(const Id128& realm, std::span<const BlockRef> refs) {
    (void)realm;
    (void)refs;
  }

  // As Get, but bypasses the cache, recomputes the address too and counts as a scrub read.
  virtual Status Verify(const Id128& realm, const BlockRef& ref) = 0;

  virtual BlockStoreStats Stats() = 0;
};

}  // namespace cairn
