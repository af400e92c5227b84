// cairn-barrier: started by the keeper with a socket on fd 3 (fuse/keeper/barrier_helper.h). Not
// for people.
#include <fcntl.h>

#include <cstdio>
#include <utility>

#include "fuse/keeper/barrier_helper.h"

int main() {
  if (::fcntl(cairn::kBarrierHelperFd, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr, "cairn-barrier: no socket on fd %d; cairn-keeper starts this program\n",
                 cairn::kBarrierHelperFd);
    return 2;
  }
  return cairn::RunBarrierHelper(cairn::Channel(cairn::UniqueFd(cairn::kBarrierHelperFd)));
}
