// Reads RocksDB's write-ahead log by itself, because what RocksDB does with a damaged one is not
// what we promise: its tolerant recovery takes a flipped length byte in the middle for the end of
// the log and drops every commit after it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "store/base/file_system.h"

namespace cairn {

struct LogScan {
  enum class End {
    kWhole,    // every byte belongs to a sound record
    kTorn,     // ends inside one write that was never acknowledged; sound up to sound_bytes
    kDamaged,  // acknowledged commits do not read back
  };
  End end = End::kWhole;
  uint64_t sound_bytes = 0;  // of whole records from the beginning
  std::string what;          // for kDamaged: where and why
};

// `is_last`: no later log has records (only the last one may be torn). Pure. Takes any bytes.
LogScan ScanLog(std::string_view log, bool is_last);

struct CatalogLog {
  std::string path;
  std::string bytes;
};
// The logs (*.log) of a database directory that are not empty, oldest first. An absent directory
// has none.
Result<std::vector<CatalogLog>> ReadLogs(FileSystem& fs, const std::string& dir);

// Cuts a torn tail off the last log of a closed database. Durable on return. DataLoss naming file
// and offset: acknowledged commits are damaged; nothing was changed. `before` is asked once the
// logs are seen to be no worse than torn: its error is returned, with nothing changed either.
Status CutTornLog(FileSystem& fs, const std::string& dir,
                  const std::function<Status()>& before = {});

}  // namespace cairn
