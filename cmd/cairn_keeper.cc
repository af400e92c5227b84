// cairn-keeper [--barrier PROGRAM] [--] SERVER ARGS...: starts the server under a keeper
// (fuse/keeper/keeper.h).
// cairn-keeper --resume FD, --can-resume FD: goes on as the keeper that this process was, whose
// state lies in FD; or says with its exit code whether it could.
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fuse/keeper/keeper.h"
#include "fuse/keeper/service_manager.h"
#include "store/base/unique_fd.h"

namespace {

constexpr int kExitUsage = 2;
constexpr int kExitNoState = 3;

// The directory of this program, with its slash.
std::string OwnDirectory() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return {};
  const std::string_view whole(path, static_cast<size_t>(length));
  return std::string(whole.substr(0, whole.rfind('/') + 1));
}

cairn::Result<cairn::KeeperState> ReadState(const char* number) {
  const cairn::UniqueFd file(std::atoi(number));
  struct stat st{};
  if (::fstat(file.get(), &st) != 0) return cairn::ErrErrno(errno, "the state");
  std::string bytes(static_cast<size_t>(st.st_size), '\0');
  if (::pread(file.get(), bytes.data(), bytes.size(), 0) != st.st_size) {
    return cairn::ErrErrno(EIO, "the state");
  }
  return cairn::KeeperState::Decode(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc == 3 && (first == "--resume" || first == "--can-resume")) {
    const auto state = ReadState(argv[2]);
    if (!state) {
      std::fprintf(stderr, "cairn-keeper: %s\n", state.error().ToString().c_str());
      return kExitNoState;
    }
    return first == "--resume" ? cairn::RunKeeper(*state) : 0;
  }
  cairn::KeeperOptions options{.server_command = {},
                               .barrier_program = OwnDirectory() + "cairn-barrier",
                               .files = cairn::SocketsOfServiceManager()};
  int i = 1;
  if (i + 1 < argc && first == "--barrier") {
    options.barrier_program = argv[i + 1];
    i += 2;
  }
  if (i < argc && std::string_view(argv[i]) == "--") ++i;
  options.server_command.assign(argv + i, argv + argc);
  if (options.server_command.empty() || options.server_command[0].starts_with("--")) {
    std::fprintf(stderr, "usage: cairn-keeper [--barrier PROGRAM] [--] SERVER ARGS...\n");
    return kExitUsage;
  }
  return cairn::RunKeeper(options);
}
