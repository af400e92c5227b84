// RocksDB's files by way of our own seam: what a test does to a FileSystem it does to the databases
// too.
#pragma once

#include <rocksdb/env.h>

#include <memory>

#include "store/base/file_system.h"

namespace cairn {

// `fs` must outlive it. Reads, locks and times go to the host.
std::unique_ptr<rocksdb::Env> NewSeamEnv(FileSystem& fs);

}  // namespace cairn
