// ServerUpgrade: the program on disk in place of this one (docs/decisions/0015-upgrade.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/host.pb.h"
#include "fuse/keeper_client.h"
#include "store/base/error.h"

namespace cairn {

// Thread-safe. `keeper` outlives it.
class ServerUpgrade {
 public:
  // `command`: argv of this server, without what the keeper adds.
  ServerUpgrade(KeeperClient& keeper, std::vector<std::string> command)
      : keeper_(keeper), command_(std::move(command)) {}

  // Runs the program on disk with these arguments and --check-format; when that ends well, it is
  // the one that the keeper starts next, and this process is told to hand over (SIGTERM to itself).
  // FailedPrecondition: there is none, it cannot be run, it does not read the data directory, or
  // another upgrade is under way; nothing has changed then. Blocks for up to 10 s.
  Result<host::UpgradeState> Begin(uint32_t ready_timeout_ms);

  // The keeper goes on as cairn-keeper from beside the program. FailedPrecondition: it cannot.
  Status ReplaceKeeper();

  // How the last one ended; nothing set: there was none.
  host::UpgradeState Last();

 private:
  KeeperClient& keeper_;
  const std::vector<std::string> command_;
};

}  // namespace cairn
