// The root record of a sealed filesystem: a branch block of kind kFsRoot whose one reference is the
// tree's top node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "store/tree.h"
#include "volume/inode.h"

namespace cairn {

struct FsRoot {
  Id128 volume;
  std::optional<BlockRef>
      parent;  // root this one was sealed over: kept in the body, not in the reference table,
               // because history must not keep old blocks alive
  uint64_t generation = 0;
  uint64_t hash_seed = 0;
  TreeRoot tree;             // totals are the tree's counters
  InodeNumber next_ino = 0;  // at the seal: informative, the volume record rules
  bool has_orphans = false;
  TimeSpec sealed_at;

  std::string Encode() const;                            // EncodeBranch
  static Result<FsRoot> Decode(std::string_view plain);  // DataLoss
};

// Totals of one leaf entry: one inode and its size per attributes entry.
TreeCounters CountEntry(std::string_view key, const Entry& entry);

// Reads and decodes. DataLoss passes through.
Result<FsRoot> LoadFsRoot(BlockStore& store, const Id128& realm, const BlockRef& ref);

}  // namespace cairn
