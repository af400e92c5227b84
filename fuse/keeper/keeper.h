// The keeper: a small process that mounts, holds the /dev/fuse fds and starts the server. No
// storage code is linked into it, so it outlives what kills a server; the kernel keeps a connection
// alive as long as one process holds its fd.
//
//   server exits or is killed, and said READY once -> it is started again, and takes the mounts
//   over it does so before it was ever READY            -> every connection left is aborted and
//                                                     unmounted (nobody hangs), the keeper exits
//                                                     with the server's code, or 128 + the signal
//   it cannot be started any more                  -> the same
//   keeper gets SIGTERM or SIGINT                  -> the server is told to stop, then the same
//   keeper is killed                               -> the server sees the end of its socket,
//                                                     unmounts and stops
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fuse/keeper/keeper_state.h"

namespace cairn {

struct KeeperOptions {
  std::vector<std::string> server_command;  // argv of the server; --keeper-fd N is appended
  std::string barrier_program;              // path of cairn-barrier
  std::map<std::string, int> files;         // kept from the start; it owns them
};

// Runs until the server has exited; returns the exit code of the process. Blocks signals and starts
// threads: call it from main only.
int RunKeeper(const KeeperOptions& options);
// As the keeper that this process was until now.
int RunKeeper(const KeeperState& state);

}  // namespace cairn
