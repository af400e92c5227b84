#include "fuse/keeper/socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace cairn {
namespace {

std::optional<SocketFile> Look(const std::string& path) {
  struct stat st{};
  if (::lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return std::nullopt;
  return SocketFile{.path = path,
                    .inode = st.st_ino,
                    .changed_ns = st.st_ctim.tv_sec * int64_t{1'000'000'000} + st.st_ctim.tv_nsec};
}

}  // namespace

std::optional<SocketFile> SocketFileOf(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  if (address.sun_family != AF_UNIX || length <= offsetof(sockaddr_un, sun_path)) {
    return std::nullopt;
  }
  const size_t most = length - offsetof(sockaddr_un, sun_path);
  const std::string path(address.sun_path, ::strnlen(address.sun_path, most));
  if (path.empty()) return std::nullopt;  // in the abstract namespace
  return Look(path);
}

void RemoveSocketFile(const SocketFile& file) {
  const auto now = Look(file.path);
  if (now && now->inode == file.inode && now->changed_ns == file.changed_ns) {
    ::unlink(file.path.c_str());
  }
}

}  // namespace cairn
