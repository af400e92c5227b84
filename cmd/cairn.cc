// cairn: the operator's command line. Parse -> connect -> one call (or a few) -> print. Exit codes:
// docs/CLI.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "api/host_frame.h"
#include "cmd/cairn_commands.h"
#include "cmd/usage_error.h"

int main(int argc, char** argv) {
  using namespace cairn;
  CLI::App app("cairn: snapshots and storage of agent sandboxes", "cairn");
  CommandContext context;
  context.socket_path = kDefaultHostSocket;
  app.set_version_flag("--version", "cairn " CAIRN_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "cairn VERB --help says more. --socket, --org and --json stand before or after any verb.\n"
      "Exit codes: 0 ok, 1 failed, 2 no daemon, 3 not found, 4 refused, 5 data loss, 64 usage.");
  app.add_option("--socket", context.socket_path, "the daemon's socket")
      ->envname("CAIRN_SOCKET")
      ->capture_default_str();
  app.add_option("--org", context.org,
                 "organization of the call; may be left out while there is only one")
      ->envname("CAIRN_ORG");
  app.add_flag("--json", context.json, "print JSON");
  AddCommands(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const bool json =
        std::any_of(argv + 1, argv + argc, [](std::string_view word) { return word == "--json"; });
    return PrintError(Error(ErrorCode::kInvalidArgument, UsageMessage(app, error)), kExitUsage,
                      json);
  }
  if (context.local_action) return context.local_action(context);
  auto client = HostClient::Connect(context.socket_path);
  if (!client) {
    const bool usage = client.error().code() == ErrorCode::kInvalidArgument;
    return PrintError(client.error(), usage ? kExitUsage : kExitUnreachable, context.json);
  }
  return context.action(context, **client);
}
