// The lock is a listening unix socket in the abstract namespace (unix(7)): bind(2) is the test and
// set, nothing is left on any disk, and a second process learns the holder's pid by SO_PEERCRED of
// a connection that nobody accepts. The holder's directory is the one whose LOCK file it has open.
//
// Birth is statx(2)'s stx_btime: given by the file system at mkdir(2), kept by rename(2), and not
// settable, so that cp -a, rsync and tar give a copy another one. A copied block device keeps it;
// the machine's id may then be what differs.
#include "store/instance.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/sha.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>

#include "store/base/file_system.h"
#include "store/base/hex.h"

namespace cairn {
namespace {

constexpr std::string_view kNoPart = "-";
constexpr std::string_view kLockName = "/LOCK";

// The directory of that instance whose LOCK the process holds open; empty when that cannot be seen.
// (Databases have files of that name, too.)
std::string DirectoryOf(pid_t pid, const Id128& instance) {
  const std::string fds = fmt::format("/proc/{}/fd", pid);
  DIR* dir = opendir(fds.c_str());
  if (dir == nullptr) return {};
  std::string found;
  while (const dirent* entry = readdir(dir)) {
    char target[PATH_MAX];
    const ssize_t length = readlink((fds + "/" + entry->d_name).c_str(), target, sizeof target);
    if (length <= 0) continue;
    const std::string_view path(target, static_cast<size_t>(length));
    if (!path.ends_with(kLockName)) continue;
    const std::string holds(path.substr(0, path.size() - kLockName.size()));
    const auto format = ReadWholeFile(HostFileSystem(), holds + "/cairn.format", 4096);
    if (!format || format->find(instance.ToHex()) == std::string::npos) continue;
    found = holds;
    break;
  }
  closedir(dir);
  return found;
}

std::unexpected<Error> HeldBy(const Id128& instance, const sockaddr_un& address, socklen_t length) {
  std::string holder = "another process";
  const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ucred peer{};
  socklen_t size = sizeof peer;
  if (client.valid() &&
      connect(client.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
      getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0) {
    holder = fmt::format("process {}", peer.pid);
    const std::string dir = DirectoryOf(peer.pid, instance);
    if (!dir.empty()) holder += " serves it in " + dir;
  }
  return Err(
      ErrorCode::kFailedPrecondition,
      "this data directory, or the one that it is a copy of, is served already (" + holder + ")");
}

}  // namespace

Result<UniqueFd> LockInstance(const Id128& instance) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrErrno(errno, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "cairn-instance-" + instance.ToHex();
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero: abstract
  const socklen_t length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) return HeldBy(instance, address, length);
    return ErrErrno(errno, "bind of the instance lock");
  }
  if (listen(fd.get(), 8) != 0) return ErrErrno(errno, "listen on the instance lock");
  return fd;
}

Result<std::string> HomeOf(const std::string& dir, const std::string& machine_id_file) {
  std::string machine(kNoPart);
  const auto id = ReadWholeFile(HostFileSystem(), machine_id_file, 4096);
  constexpr size_t kMachineIdDigits = 32;  // machine-id(5); an image without one has it empty
  if (id && id->size() >= kMachineIdDigits) {
    const std::string text = "cairn home " + id->substr(0, kMachineIdDigits);
    std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
    machine = HexEncode({reinterpret_cast<const char*>(digest.data()), 8});
  }
  struct statx st{};
  if (statx(AT_FDCWD, dir.c_str(), 0, STATX_BTIME, &st) != 0)
    return ErrErrno(errno, "statx " + dir);
  std::string birth(kNoPart);
  if ((st.stx_mask & STATX_BTIME) != 0 && st.stx_btime.tv_sec != 0) {
    birth = fmt::format("{}.{:09}", st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
  }
  return machine + " " + birth;
}

bool SameHome(std::string_view a, std::string_view b) {
  const auto same = [](std::string_view x, std::string_view y) {
    return x == kNoPart || y == kNoPart || x == y;
  };
  const size_t cut_a = a.find(' ');
  const size_t cut_b = b.find(' ');
  if (cut_a == std::string_view::npos || cut_b == std::string_view::npos) return true;
  return same(a.substr(0, cut_a), b.substr(0, cut_b)) &&
         same(a.substr(cut_a + 1), b.substr(cut_b + 1));
}

}  // namespace cairn
