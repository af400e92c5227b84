// cairn-keeper [--barrier PROGRAM] [--] SERVER ARGS...: starts the server under a keeper
// (fuse/keeper/keeper.h).
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>
#include <string_view>

#include "fuse/keeper/keeper.h"

namespace {

// The directory of this program, with its slash.
std::string OwnDirectory() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return {};
  const std::string_view whole(path, static_cast<size_t>(length));
  return std::string(whole.substr(0, whole.rfind('/') + 1));
}

}  // namespace

int main(int argc, char** argv) {
  cairn::KeeperOptions options{.server_command = {},
                               .barrier_program = OwnDirectory() + "cairn-barrier"};
  int i = 1;
  if (i + 1 < argc && std::string_view(argv[i]) == "--barrier") {
    options.barrier_program = argv[i + 1];
    i += 2;
  }
  if (i < argc && std::string_view(argv[i]) == "--") ++i;
  options.server_command.assign(argv + i, argv + argc);
  if (options.server_command.empty() || options.server_command[0].starts_with("--")) {
    std::fprintf(stderr, "usage: cairn-keeper [--barrier PROGRAM] [--] SERVER ARGS...\n");
    return 2;
  }
  return cairn::RunKeeper(options);
}
