// HostClient: connect(2), then frames in turn. An answer with another request id means that the
// stream is out of step; the connection is of no further use then.
#include "api/host_client.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "api/host_frame.h"

namespace cairn {

Result<std::unique_ptr<HostClient>> HostClient::Connect(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.empty() || socket_path.size() >= sizeof address.sun_path) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the socket path must have 1 to {} bytes: {}",
                           sizeof address.sun_path - 1, socket_path));
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Err(ErrorCode::kInternal, "socket", errno);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    const std::string what_to_do =
        error == EACCES
            ? std::string("Only root and the daemon's own user may use it")
            : fmt::format(
                  "Start it (cairnd --data DIR --socket {}) or name another socket with "
                  "--socket or CAIRN_SOCKET",
                  socket_path);
    return Err(ErrorCode::kUnavailable,
               fmt::format("no daemon answers on {}: {}. {}", socket_path, std::strerror(error),
                           what_to_do),
               error);
  }
  return std::unique_ptr<HostClient>(new HostClient(std::move(fd), socket_path));
}

Result<host::HostResponse> HostClient::Call(host::HostRequest request) {
  request.set_version(kHostProtocolVersion);
  request.set_request_id(next_request_id_++);
  const auto broken = [this](const Error& error) {
    return Err(ErrorCode::kUnavailable,
               fmt::format("the connection to {} broke: {}. The call may or may not have been "
                           "done: look before repeating it",
                           socket_path_, error.message()));
  };
  if (auto sent = WriteFrame(fd_.get(), request.SerializeAsString(), 60000); !sent) {
    if (sent.error().code() == ErrorCode::kInvalidArgument) return std::unexpected(sent.error());
    // The daemon may have refused the connection and said why before it read anything.
    auto refusal = ReadFrame(fd_.get(), {.first_byte_ms = 1000, .rest_ms = 1000});
    host::HostResponse response;
    if (refusal && response.ParseFromString(*refusal) && response.has_error()) return response;
    return broken(sent.error());
  }
  auto bytes = ReadFrame(fd_.get(), {.first_byte_ms = -1, .rest_ms = 60000});
  if (!bytes) {
    if (bytes.error().code() == ErrorCode::kNotFound)
      return broken(Error(ErrorCode::kUnavailable, "it was closed"));
    return broken(bytes.error());
  }
  host::HostResponse response;
  if (!response.ParseFromString(*bytes)) {
    return broken(Error(ErrorCode::kUnavailable, "the answer is not a message of this protocol"));
  }
  // Id 0: an error about the connection itself (refused peer, unreadable request).
  if (response.request_id() != request.request_id() &&
      !(response.has_error() && response.request_id() == 0)) {
    return broken(Error(ErrorCode::kUnavailable, "the answer belongs to another request"));
  }
  return response;
}

}  // namespace cairn
