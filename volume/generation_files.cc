// Names, opening and removal in one place, for recovery (volume/head.cc) and for the check
// (volume/journal_check.cc), which must take the same files for the same thing.
#include "volume/generation_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace cairn {

std::string LogPath(const std::string& dir, uint64_t generation, LogKind kind) {
  return fmt::format("{}/{}", dir, LogFileName(generation, kind));
}
std::string MarkPath(const std::string& dir) { return dir + "/synced"; }

Status UnlinkIfThere(FileSystem& fs, const std::string& path) {
  const Status unlinked = fs.Unlink(path);
  if (!unlinked && unlinked.error().code() != ErrorCode::kNotFound) return unlinked;
  return {};
}

Status UnlinkGeneration(FileSystem& fs, const std::string& dir, uint64_t generation) {
  CAIRN_TRY(UnlinkIfThere(fs, LogPath(dir, generation, LogKind::kJournal)));
  return UnlinkIfThere(fs, LogPath(dir, generation, LogKind::kSide));
}

Result<GenerationLogs> OpenLogs(FileSystem& fs, KeyRing& keys, const Id128& realm,
                                const Id128& volume, const std::string& dir, uint64_t generation) {
  LogFile::Expected expected{
      .kind = LogKind::kJournal, .realm = realm, .volume = volume, .generation = generation};
  GenerationLogs logs;
  logs.journal =
      CAIRN_TRY(LogFile::Open(fs, keys, LogPath(dir, generation, LogKind::kJournal), expected));
  expected.kind = LogKind::kSide;
  const std::string side_path = LogPath(dir, generation, LogKind::kSide);
  if (CAIRN_TRY(fs.Exists(side_path))) {
    logs.side = CAIRN_TRY(LogFile::Open(fs, keys, side_path, expected));
  }
  return logs;
}

Result<LogPosition> UnsealedMark(FileSystem& fs, const std::string& dir,
                                 uint64_t sealed_through_generation) {
  const auto mark = CAIRN_TRY(HighWaterMark::Read(fs, MarkPath(dir)));
  if (!mark || mark->generation <= sealed_through_generation) return LogPosition();
  return *mark;
}
uint64_t MarkedLsn(const LogPosition& mark, uint64_t generation) {
  return mark.generation == generation ? mark.sequence : 0;
}
std::string MissingJournal(const LogPosition& mark, const JournalDirectory& found) {
  if (mark == LogPosition() || std::ranges::binary_search(found.journals, mark.generation)) {
    return {};
  }
  return fmt::format("missing, and its records through {} were durable", mark.sequence);
}

}  // namespace cairn
