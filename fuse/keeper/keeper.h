// The keeper: a small process that mounts, holds the /dev/fuse fds and starts the server. No
// storage code is linked into it, so it outlives what kills a server; the kernel keeps a connection
// alive as long as one process holds its fd.
//
//   server exits         -> every connection left is aborted and unmounted (nobody hangs), the
//   keeper exits with the server's code server is killed     -> the same; the exit code is 128 +
//   the signal keeper gets SIGTERM  -> SIGTERM to the server, then as above keeper is killed     ->
//   the server sees the end of its socket, unmounts and stops
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct KeeperOptions {
  std::vector<std::string> server_command;  // argv of the server; --keeper-fd N is appended
  std::string barrier_program;              // path of cairn-barrier
};

// Runs until the server has exited; returns the exit code of the process. Blocks signals and starts
// threads: call it from main only.
int RunKeeper(const KeeperOptions& options);

}  // namespace cairn
