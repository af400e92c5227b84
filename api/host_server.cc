// The daemon's unix socket. Start: probe for a living daemon -> unlink a stale file -> bind under
// umask 0177 (so the file is never wider than 0600) -> listen. Each connection: SO_PEERCRED (root
// or our uid, else one error and close) -> frame -> parse -> version -> handler -> answer, until
// the peer closes, idles too long or sends what is not a message.
//
// Invariant: a peer costs one thread of a bounded number and never more time in a frame than
// frame_ms, so a slow or broken one delays nobody else. Source: unix(7), shutdown(2).
#include "api/host_server.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "api/host_frame.h"
#include "store/base/log.h"

namespace cairn {
namespace {

host::HostResponse ErrorResponse(std::string_view code, std::string_view reason,
                                 std::string message) {
  host::HostResponse response;
  response.set_version(kHostProtocolVersion);
  response.mutable_error()->set_code(std::string(code));
  response.mutable_error()->set_reason(std::string(reason));
  response.mutable_error()->set_message(std::move(message));
  return response;
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "the socket path must have 1 to {} bytes: {} (choose a shorter one with --socket)",
            sizeof address.sun_path - 1, path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Removes a socket file that nobody serves.
Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return ErrErrno(errno, fmt::format("cannot look at {}", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Err(ErrorCode::kAlreadyExists,
               fmt::format("{} exists and is not a socket: name another path with --socket", path));
  }
  UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return Err(ErrorCode::kInternal, "socket", errno);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN) {
    return Err(
        ErrorCode::kAlreadyExists,
        fmt::format("another daemon serves {}: stop it, or name another path with --socket", path));
  }
  if (::unlink(path.c_str()) != 0)
    return ErrErrno(errno, fmt::format("cannot remove the stale socket {}", path));
  return {};
}

Result<UniqueFd> Listen(const std::string& path) {
  const sockaddr_un address = CAIRN_TRY(AddressOf(path));
  CAIRN_TRY(RemoveStale(path, address));
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Err(ErrorCode::kInternal, "socket", errno);
  const mode_t old_mask = ::umask(0177);
  const int bound =
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int bind_error = errno;
  ::umask(old_mask);
  if (bound != 0)
    return ErrErrno(
        bind_error,
        fmt::format("cannot bind {}: {}. Make its directory, or name another path with --socket",
                    path, std::strerror(bind_error)));
  if (::listen(listener.get(), 64) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return ErrErrno(error, fmt::format("cannot listen on {}", path));
  }
  return listener;
}

}  // namespace

Result<std::unique_ptr<HostServer>> HostServer::Start(const HostServerOptions& options,
                                                      Handler handler) {
  UniqueFd listener(options.listener);
  if (!listener.valid()) listener = CAIRN_TRY(Listen(options.socket_path));
  const int flags = ::fcntl(listener.get(), F_GETFL);
  ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK);
  std::unique_ptr<HostServer> server(
      new HostServer(options, std::move(handler), std::move(listener)));
  if (!server->wake_.valid()) return Err(ErrorCode::kInternal, "eventfd", errno);
  struct stat info{};
  if (::lstat(options.socket_path.c_str(), &info) == 0) server->socket_inode_ = info.st_ino;
  server->accept_thread_ = std::thread([raw = server.get()] { raw->AcceptLoop(); });
  return server;
}

HostServer::HostServer(const HostServerOptions& options, Handler handler, UniqueFd listener)
    : options_(options),
      handler_(std::move(handler)),
      listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC)) {}

HostServer::~HostServer() { Stop(); }

// Reading ends at once; an answer that is being made can still be written.
void HostServer::EndReading(bool fresh_too) {
  for (Connection& connection : connections_) {
    if (!connection.fd.valid() || (!fresh_too && !connection.served)) continue;
    ::shutdown(connection.fd.get(), SHUT_RD);
  }
}

void HostServer::TakeNoMore() {
  MutexLock lock(mutex_);
  stopping_ = true;
  ::eventfd_write(wake_.get(), 1);
}

// Who has just been accepted is about to ask: it is answered, and not cut off.
void HostServer::Drain(int64_t timeout_ms) {
  constexpr auto kFirstRequest = std::chrono::milliseconds(1000);
  TakeNoMore();
  const auto began = std::chrono::steady_clock::now();
  const auto until = began + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(mutex_);
  EndReading(/*fresh_too=*/false);
  bool all_told = false;
  while (std::ranges::any_of(connections_, [](const Connection& c) { return !c.done; })) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) return;
    if (!all_told && now >= began + kFirstRequest) {
      EndReading(/*fresh_too=*/true);
      all_told = true;
    }
    const auto next = all_told ? until : std::min(until, began + kFirstRequest);
    one_done_.WaitFor(mutex_, std::chrono::ceil<std::chrono::milliseconds>(next - now).count());
  }
}

void HostServer::End(bool hand_over) {
  TakeNoMore();
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    EndReading(/*fresh_too=*/true);
  }
  if (accept_thread_.joinable()) accept_thread_.join();
  std::list<Connection> connections;
  {
    MutexLock lock(mutex_);
    connections.swap(connections_);
  }
  for (Connection& connection : connections) connection.thread.join();
  // Only our own file: another daemon may have replaced it.
  struct stat info{};
  if (!hand_over && options_.removes_socket && ::lstat(options_.socket_path.c_str(), &info) == 0 &&
      info.st_ino == socket_inode_) {
    ::unlink(options_.socket_path.c_str());
  }
  listener_.Reset();
}

void HostServer::JoinFinished() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->done) {
      it->thread.join();
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void HostServer::AcceptLoop() {
  while (true) {
    pollfd entries[2] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(entries, 2, 1000) < 0 && errno != EINTR) {
      LogError("host_socket_poll_failed", {{"errno", errno}});
      return;
    }
    MutexLock lock(mutex_);
    JoinFinished();
    if (stopping_) return;
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE) {
        // Nothing to close for it here: the peer waits in the backlog until a descriptor is free.
        LogWarning("host_socket_out_of_descriptors");
        ::poll(nullptr, 0, 50);
      }
      continue;
    }
    if (connections_.size() >= options_.max_connections) {
      const auto refusal =
          ErrorResponse("unavailable", "too_many_connections",
                        "the daemon serves as many connections as it may: close one, or try again");
      IgnoreError(WriteFrame(fd.get(), refusal.SerializeAsString(), 0),
                  "the peer sees the closed connection");
      continue;
    }
    Connection& connection = connections_.emplace_back();
    connection.fd = std::move(fd);
    connection.thread = std::thread([this, &connection] { Serve(connection); });
  }
}

void HostServer::Serve(Connection& connection) {
  const int fd = connection.fd.get();
  const auto answer = [&](host::HostResponse response, uint64_t request_id) {
    response.set_version(kHostProtocolVersion);
    response.set_request_id(request_id);
    std::string bytes = response.SerializeAsString();
    if (bytes.size() > kMaxHostFrameBytes) {
      host::HostResponse error = ErrorResponse("exhausted", "answer_too_large",
                                               "the answer is larger than 16 MiB: ask for less");
      error.set_request_id(request_id);
      bytes = error.SerializeAsString();
    }
    return WriteFrame(fd, bytes, options_.frame_ms).has_value();
  };

  ucred peer{};
  socklen_t length = sizeof peer;
  bool open = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  if (open && peer.uid != 0 && peer.uid != ::geteuid()) {
    LogWarning("host_peer_refused", {{"uid", peer.uid}, {"pid", peer.pid}});
    answer(ErrorResponse("permission_denied", "permission_denied",
                         "only root and the daemon's user may use this socket"),
           0);
    open = false;
  }
  while (open) {
    auto frame = ReadFrame(fd, {.first_byte_ms = options_.idle_ms, .rest_ms = options_.frame_ms});
    if (!frame) {
      if (frame.error().code() == ErrorCode::kInvalidArgument) {
        answer(ErrorResponse("invalid_argument", "bad_frame", frame.error().message()), 0);
      }
      break;
    }
    host::HostRequest request;
    if (!request.ParseFromString(*frame)) {
      answer(ErrorResponse("invalid_argument", "bad_message",
                           "the message is not a request of this protocol"),
             0);
      break;
    }
    frame->clear();
    host::HostResponse response;
    if (request.version() != kHostProtocolVersion) {
      response = ErrorResponse(
          "invalid_argument", "unsupported_version",
          fmt::format(
              "this daemon speaks version {} of the host protocol, the request is in version {}",
              kHostProtocolVersion, request.version()));
    } else if (request.call_case() == host::HostRequest::CALL_NOT_SET) {
      response =
          ErrorResponse("invalid_argument", "unsupported_call",
                        "this daemon does not know the call: it may be older than the client");
    } else {
      response = handler_(request);
    }
    open = answer(std::move(response), request.request_id());
    MutexLock lock(mutex_);
    connection.served = true;
    if (stopping_) open = false;
  }
  MutexLock lock(mutex_);
  // The descriptor is closed here and not at the join, so that the peer sees the end at once.
  connection.fd.Reset();
  connection.done = true;
  one_done_.NotifyAll();
}

}  // namespace cairn
