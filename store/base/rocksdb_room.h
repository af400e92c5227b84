// Room for the opening of a database: RocksDB writes tables of what is in its logs, and gives up
// when there is no space for them.
#pragma once

#include <rocksdb/env.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/base/error.h"

namespace cairn {

// Asks `make_room` (null: nothing) for what the logs (*.log) in `dir` may become, twice over, and a
// new manifest. If there is no room the opening is tried all the same, and says what it lacks.
inline void MakeRoomToOpen(rocksdb::Env& env, const std::string& dir,
                           const std::function<Status(uint64_t bytes)>& make_room) {
  if (!make_room) return;
  uint64_t bytes = 1 << 20;
  std::vector<rocksdb::Env::FileAttributes> files;
  if (env.GetChildrenFileAttributes(dir, &files).ok()) {
    for (const auto& file : files) bytes += file.name.ends_with(".log") ? 2 * file.size_bytes : 0;
  }
  IgnoreError(make_room(bytes), "opening says what it lacks");
}

// Whether it may allocate its logs ahead, many MiB: on a disk that is nearly full they would take
// what deletions need.
inline bool MayAllocateAhead(rocksdb::Env& env, const std::string& dir) {
  constexpr uint64_t kPlentyBytes = 64 << 20;
  uint64_t free_bytes = 0;
  return !env.GetFreeSpace(dir, &free_bytes).ok() || free_bytes >= kPlentyBytes;
}

}  // namespace cairn
