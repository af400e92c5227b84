// cairn: the operator's command line. Parse -> connect -> one call (or a few) -> print. Exit codes:
// docs/CLI.md.
#include <CLI/CLI.hpp>

#include "cmd/cairn_commands.h"

int main(int argc, char** argv) {
  using namespace cairn;
  CLI::App app(
      "cairn: snapshots and storage of agent sandboxes. Exit codes: 0 ok, 1 failed, 2 no daemon, 3 "
      "not found, "
      "4 refused, 5 data loss, 64 usage.",
      "cairn");
  CommandContext context;
  context.socket_path = "/run/cairn/cairn.sock";
  app.set_version_flag("--version", "cairn 0.1.0");
  app.require_subcommand(1);
  app.fallthrough();
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
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  auto client = HostClient::Connect(context.socket_path);
  if (!client) {
    const bool usage = client.error().code() == ErrorCode::kInvalidArgument;
    return PrintError(client.error(), usage ? kExitUsage : kExitUnreachable, context.json);
  }
  return context.action(context, **client);
}
