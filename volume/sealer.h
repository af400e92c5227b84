// Seal: merges one frozen delta into the tree below it and writes the new root. Runs in the
// background, beside readers and the writer of a newer generation.
//
// For every 64 KiB window of a file that the delta touched: if the whole window is new, or it has
// become more than kMaxWindowSegments pieces, or its blocks together exceed kMaxWindowPinnedBytes
// (they hold bytes that later writes covered), one new block is written for it; otherwise only the
// new bytes become a block (page-aligned where the writes were) and the rest goes on pointing into
// the old one. A block that windows share (an import's, volume/staged_head.h) counts in each as one
// window at most. Blocks of zeros become holes. xattrs and payloads over the tree's limit become
// data blocks.
#pragma once

#include "store/block_store.h"
#include "volume/fs_root.h"
#include "volume/layer.h"

namespace cairn {

inline constexpr size_t kMaxWindowSegments = 8;
inline constexpr uint64_t kMaxWindowPinnedBytes = 2 * kGridBytes;

struct SealResult {
  BlockRef root;  // of kind kFsRoot
  FsRoot record;
  std::shared_ptr<const TreeReader> tree;
  uint64_t data_bytes = 0;  // plaintext read from logs
};

struct SealOptions {
  Id128 volume;
  Id128 realm;
  uint64_t hash_seed = 0;
  InodeNumber next_ino = 0;
  std::optional<BlockRef> parent;
  uint64_t epoch = 0;  // writer epoch stamped into nodes
  Compression compression = Compression::kBackground;
  TreeOptions tree = {};  // how large nodes become
  TimeSpec now;
};

// `layer` is frozen and what lies below it is a tree (seal in order). Puts through `session` and
// syncs it: durable on return. Publishing the root is the caller's. Errors: FailedPrecondition (not
// frozen, or over an unsealed delta), DataLoss (a log or block that it had to read), and the
// session's.
Result<SealResult> SealLayer(BlockStore& store, NodeCache& cache, WriteSession& session,
                             const Layer& layer, const SealOptions& options);

}  // namespace cairn
