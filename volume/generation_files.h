// The files of one generation of a volume, and what the volume's high-water mark says of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/high_water_mark.h"
#include "store/key_ring.h"
#include "volume/journal_reader.h"
#include "volume/log_file.h"

namespace cairn {

std::string LogPath(const std::string& dir, uint64_t generation, LogKind kind);
// Where the volume's mark is.
std::string MarkPath(const std::string& dir);

// Absent files are fine.
Status UnlinkIfThere(FileSystem& fs, const std::string& path);
// The journal first: a side log without one is nothing.
Status UnlinkGeneration(FileSystem& fs, const std::string& dir, uint64_t generation);

struct GenerationLogs {
  std::shared_ptr<LogFile> journal;
  std::shared_ptr<LogFile> side;  // null: there is none
};
// Errors: LogFile::Open's.
Result<GenerationLogs> OpenLogs(FileSystem& fs, KeyRing& keys, const Id128& realm,
                                const Id128& volume, const std::string& dir, uint64_t generation);

// How far the journals were durable; zeros: nothing is known that a seal has not taken.
Result<LogPosition> UnsealedMark(FileSystem& fs, const std::string& dir,
                                 uint64_t sealed_through_generation);
// Up to where that generation's records were durable. 0: the mark does not say.
uint64_t MarkedLsn(const LogPosition& mark, uint64_t generation);
// What is wrong if the mark's journal is not among those found. (One without records may go, and
// has no mark.)
std::string MissingJournal(const LogPosition& mark, const JournalDirectory& found);

}  // namespace cairn
