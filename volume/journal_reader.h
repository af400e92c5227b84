// Replay of one generation's journal after a crash, or for a check.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/error.h"
#include "store/base/file_system.h"
#include "volume/delta.h"
#include "volume/journal_format.h"
#include "volume/log_file.h"

namespace cairn {

// A record that counts, as a delta takes it.
struct ReplayedRecord {
  uint64_t lsn = 0;
  RecordFields fields;
  std::vector<DeltaChange> changes;
};

struct ReplayResult {
  uint64_t records = 0;
  uint64_t next_lsn = 1;    // one past the last record that counts
  uint64_t end_offset = 0;  // where replay stopped
};

// Calls `apply` for every record that counts, in order. `side` is null when there is no side log.
// `durable_until_lsn`: the next generation's first LSN, if there is one: all records below it must
// be there, and none from it on counts. `synced_lsn`: all records up to it must be there as well.
// DataLoss (names file and offset) when the journal is damaged before its end; records before the
// damage were applied.
Result<ReplayResult> ReplayJournal(const std::shared_ptr<LogFile>& journal,
                                   const std::shared_ptr<LogFile>& side,
                                   std::optional<uint64_t> durable_until_lsn,
                                   const std::function<void(ReplayedRecord&&)>& apply,
                                   uint64_t synced_lsn = 0);

// What a volume's directory holds.
struct JournalDirectory {
  std::vector<uint64_t> journals;   // generations that have a journal, ascending
  std::vector<uint64_t> sides;      // generations that have a side log, ascending
  std::vector<std::string> unborn;  // names of journals that were never finished
};
// An absent directory is an empty one. Other names are left out.
Result<JournalDirectory> ListJournals(FileSystem& fs, const std::string& dir);

}  // namespace cairn
