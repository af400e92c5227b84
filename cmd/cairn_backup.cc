// backup --verify: no daemon and no storage code; BACKUP, MANIFEST and SHA-256 say whether a set is
// whole.
#include "cmd/cairn_commands.h"
#include "store/manifest/backup_verify.h"

namespace cairn {

ExitCode VerifyBackupSet(CommandContext& context, const std::string& path) {
  FileSystem& fs = HostFileSystem();
  std::string set = path;
  const auto itself = ReadBackupMarker(fs, path);
  if (!itself && itself.error().code() == ErrorCode::kNotFound) {
    const auto newest = NewestBackupSet(fs, path, {});
    if (!newest) return PrintError(newest.error(), kExitNotFound, context.json);
    if (newest->empty()) {
      return PrintError(Error(ErrorCode::kNotFound, "there is no complete backup in " + path),
                        kExitNotFound, context.json);
    }
    set = *newest;
  }
  const auto verified = VerifyBackup(fs, set);
  if (!verified) {
    return PrintError(verified.error(), ExitCodeOf(ErrorCodeName(verified.error().code())),
                      context.json);
  }
  host::BackupVerification report;
  report.set_path(set);
  report.set_files(verified->files);
  report.set_total_bytes(verified->bytes);
  report.set_bad_files(verified->bad_files);
  for (const std::string& bad : verified->bad) report.add_bad(bad);
  if (context.json) {
    PrintJson(report);
  } else {
    PrintRecord(report);
  }
  return verified->bad_files == 0 ? kExitOk : kExitDataLoss;
}

}  // namespace cairn
