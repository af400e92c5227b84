// What recovery would refuse, for all journals of a volume at once and without changing anything.
#include <algorithm>
#include <optional>
#include <utility>

#include "volume/generation_files.h"
#include "volume/head.h"
#include "volume/journal_reader.h"

namespace cairn {

Result<std::vector<JournalReport>> CheckJournals(FileSystem& fs, KeyRing& keys, const Id128& realm,
                                                 const Id128& volume, const std::string& dir,
                                                 uint64_t sealed_through_generation) {
  const JournalDirectory found = CAIRN_TRY(ListJournals(fs, dir));
  const LogPosition marked = CAIRN_TRY(UnsealedMark(fs, dir, sealed_through_generation));
  std::vector<JournalReport> reports;
  std::vector<Result<GenerationLogs>> logs;
  uint64_t expected = sealed_through_generation + 1;
  for (const uint64_t generation : found.journals) {
    if (generation <= sealed_through_generation) continue;
    if (expected < generation) {
      reports.push_back({.file = LogPath(dir, expected, LogKind::kJournal),
                         .records = 0,
                         .damage = "missing, and a later generation is there"});
      logs.push_back(Err(ErrorCode::kNotFound));
    }
    reports.push_back(
        {.file = LogPath(dir, generation, LogKind::kJournal), .records = 0, .damage = {}});
    logs.push_back(OpenLogs(fs, keys, realm, volume, dir, generation));
    if (!logs.back()) reports.back().damage = logs.back().error().ToString();
    expected = generation + 1;
    const bool unborn = logs.back() && (*logs.back()).journal->header().first_lsn == kUnborn;
    if (unborn && generation != found.journals.back()) {
      reports.back().damage = "never begun, and a later generation is there";
      logs.back() = Err(ErrorCode::kNotFound);
    } else if (unborn) {
      reports.pop_back();
      logs.pop_back();
    }
  }
  for (size_t i = 0; i < logs.size(); i++) {
    if (!logs[i]) continue;
    const std::shared_ptr<LogFile>& journal = (*logs[i]).journal;
    std::optional<uint64_t> durable_until_lsn;
    if (i + 1 < logs.size() && logs[i + 1]) {
      durable_until_lsn = (*logs[i + 1]).journal->header().first_lsn;
    }
    const auto replay = ReplayJournal(
        journal, (*logs[i]).side, durable_until_lsn,
        [&](ReplayedRecord&&) { reports[i].records++; },
        MarkedLsn(marked, journal->header().generation));
    if (!replay) reports[i].damage = replay.error().ToString();
  }
  std::string missing = MissingJournal(marked, found);
  std::string path = LogPath(dir, marked.generation, LogKind::kJournal);
  if (!missing.empty() && std::ranges::find(reports, path, &JournalReport::file) == reports.end()) {
    reports.push_back({.file = std::move(path), .records = 0, .damage = std::move(missing)});
  }
  return reports;
}

}  // namespace cairn
