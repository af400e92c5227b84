// Blocks that something refers to and no pack has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "gc/root_set.h"
#include "store/local_block_store.h"

namespace cairn {

struct AbsentOptions {
  // Called after each branch block that was read, with its length; false: stop.
  std::function<bool(uint64_t bytes)> pace;
  size_t most = 1000;  // are listed; the others are counted
  // Branch blocks that are remembered (about 50 bytes each). Past it they are forgotten and may be
  // read again.
  size_t remembered_nodes = 1 << 18;
};

struct AbsentBlocks {
  struct Absent {
    Id128 realm;  // that holds it
    BlockRef ref;
  };
  std::vector<Absent> blocks;
  uint64_t left_off = 0;
  bool complete = true;  // false: it was stopped, or the index did not answer
};

// Asks the index alone, and reads branch blocks: leaves are not read. A branch block that is there
// and does not read is left out, with what lies below it: that is a finding of its pack. Memory:
// `remembered_nodes`, and the children of one path down a tree.
AbsentBlocks FindAbsentBlocks(LocalBlockStore& store, const RootSet& roots,
                              const AbsentOptions& options = {});

}  // namespace cairn
