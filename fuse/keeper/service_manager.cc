#include "fuse/keeper/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "store/base/log.h"
#include "store/base/unique_fd.h"

namespace cairn {

std::map<std::string, int> SocketsOfServiceManager() {
  constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
  constexpr int kMost = 16;
  std::map<std::string, int> sockets;
  const char* const pid = std::getenv("LISTEN_PID");
  const char* const count = std::getenv("LISTEN_FDS");
  const char* const names = std::getenv("LISTEN_FDNAMES");
  if (pid != nullptr && count != nullptr && std::atoi(pid) == ::getpid()) {
    std::string_view rest = names != nullptr ? names : "";
    for (int i = 0; i < std::atoi(count) && i < kMost; ++i) {
      const size_t end = rest.find(':');
      const std::string_view name = rest.substr(0, end);
      sockets[fmt::format("systemd:{}", name.substr(0, 48))] = kFirst + i;
      rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    }
  }
  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) {
    ::unsetenv(variable);
  }
  return sockets;
}

void TellServiceManager(std::string_view state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || path[0] == '\0') return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // the abstract namespace
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length)) < 0) {
    LogWarning("service_manager_not_told", {{"errno", errno}});
  }
}

}  // namespace cairn
