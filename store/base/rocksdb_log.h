// RocksDB's own log, without a file. Debian builds RocksDB with assertions on, and its file logger
// aborts the process at the second write after an I/O error (a full or failing disk). What a
// database has to say reaches us as the Status of each call.
#pragma once

#include <rocksdb/env.h>

#include <cstdarg>

namespace cairn {

// Thread-safe: holds nothing.
class SilentRocksdbLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

}  // namespace cairn
