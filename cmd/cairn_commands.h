// The cairn command's verbs: which call each makes and how its answer is shown.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "api/host_client.h"
#include "cmd/cairn_output.h"

namespace cairn {

// What every verb may use. Lives as long as the CLI::App that AddCommands filled.
struct CommandContext {
  std::string socket_path;
  std::string org;
  bool json = false;
  // Set by the verb that was parsed; run after parsing.
  std::function<ExitCode(CommandContext&, HostClient&)> action;
  // Set in its place by a verb that needs no daemon.
  std::function<ExitCode(CommandContext&)> local_action;
};

void AddCommands(CLI::App& app, CommandContext& context);

// One call; prints an error itself. False: `exit` is set.
bool MakeCall(CommandContext& context, HostClient& client, host::HostRequest request,
              host::HostResponse* response, ExitCode* exit);

// check: with lines of progress on stderr while it runs, unless `json`.
ExitCode Check(CommandContext& context, HostClient& client, bool rebuild_index);

struct ScrubArguments {
  uint64_t rate_mb = 0;
  bool wait = false;
  bool status = false;
  bool stop = false;
};
ExitCode Scrub(CommandContext& context, HostClient& client, const ScrubArguments& arguments);

struct UpgradeArguments {
  uint64_t ready_timeout_s = 30;
  bool keeper = false;
};
ExitCode Upgrade(CommandContext& context, HostClient& client, const UpgradeArguments& arguments);

// `path` from the root, its parent's links resolved; the last component as it stands (it may be a
// mount that does not answer).
std::string AbsolutePath(const std::string& path);

// backup --verify: reads a set (the newest of a destination) and compares every digest.
ExitCode VerifyBackupSet(CommandContext& context, const std::string& path);

// artifact get: content in chunks to `output` (a file, written beside and renamed; "-": stdout).
// Verifies length and, where it is known, SHA-256.
ExitCode DownloadArtifact(CommandContext& context, HostClient& client, const std::string& session,
                          const std::string& artifact, const std::string& output);

}  // namespace cairn
