// null_fuse DIR: mounts a filesystem on DIR that keeps names and sizes in memory and throws data
// away, through the same keeper, transport and codec as cairnd: what is left of Cairn's time after
// subtracting this one's is storage. Ends with SIGTERM or an unmount.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "fuse/keeper_client.h"
#include "fuse/memory/memory_volume.h"
#include "fuse/mounted_volume.h"

int main(int argc, char** argv) {
  int keeper_fd = -1;
  if (argc == 4 && std::string_view(argv[2]) == "--keeper-fd") {
    keeper_fd = std::atoi(argv[3]);
  } else if (argc != 2) {
    std::fprintf(stderr, "usage: null_fuse DIR\n");
    return 2;
  }
  if (keeper_fd < 0) {
    const cairn::Status failed = cairn::ExecUnderKeeper(argc, argv);
    std::fprintf(stderr, "null_fuse: %s\n", failed.error().ToString().c_str());
    return 1;
  }
  // Blocked before any thread starts, so that only sigwait below sees them.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  const auto request_stop = [] { ::kill(::getpid(), SIGTERM); };

  cairn::MemoryVolume volume(cairn::MemoryVolumeOptions{.keep_data = false});
  auto keeper = cairn::KeeperClient::Connect(cairn::UniqueFd(keeper_fd), request_stop);
  if (!keeper) {
    std::fprintf(stderr, "null_fuse: %s\n", keeper.error().ToString().c_str());
    return 1;
  }
  cairn::FuseMountOptions options;
  options.dir = argv[1];
  options.on_closed = request_stop;
  auto mounted = cairn::MountedVolume::Mount(**keeper, volume, options);
  if (!mounted) {
    std::fprintf(stderr, "null_fuse: %s\n", mounted.error().ToString().c_str());
    return 1;
  }
  int signal;
  sigwait(&stop, &signal);
  return 0;
}
