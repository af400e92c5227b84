// Datagrams with SCM_RIGHTS over SOCK_SEQPACKET (unix(7), cmsg(3)). Received fds are close-on-exec
// from the start, and an fd that came with a malformed message is closed.
#include "fuse/keeper/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace cairn {

Result<std::pair<Channel, Channel>> Channel::MakePair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrErrno(errno, "socketpair");
  }
  return std::pair(Channel(UniqueFd(fds[0])), Channel(UniqueFd(fds[1])));
}

Status Channel::Send(const Message& message, int fd) const {
  std::string bytes = message.Encode();
  if (bytes.size() > kMaxMessageBytes) {
    return Err(ErrorCode::kInvalidArgument, "keeper message too long", EMSGSIZE);
  }
  iovec iov{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  while (::sendmsg(socket_.get(), &header, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return Err(ErrorCode::kUnavailable, "the peer of the keeper socket is gone", errno);
    }
    return ErrErrno(errno, "sendmsg on the keeper socket");
  }
  return {};
}

Result<std::optional<ReceivedMessage>> Channel::Receive(int64_t timeout_ms) const {
  if (timeout_ms >= 0) {
    pollfd waiter{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    int ready;
    do {
      ready = ::poll(&waiter, 1, static_cast<int>(timeout_ms));
    } while (ready < 0 && errno == EINTR);
    if (ready < 0) return ErrErrno(errno, "poll on the keeper socket");
    if (ready == 0) {
      return Err(ErrorCode::kUnavailable, "no answer on the keeper socket in time", ETIMEDOUT);
    }
  }
  std::string bytes(kMaxMessageBytes, '\0');
  iovec iov{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t count;
  do {
    count = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    if (errno == ECONNRESET) return std::nullopt;
    return ErrErrno(errno, "recvmsg on the keeper socket");
  }
  ReceivedMessage received;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    if (c->cmsg_len != CMSG_LEN(sizeof(int))) continue;
    int fd;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    received.fd = UniqueFd(fd);
  }
  if (count == 0) return std::nullopt;
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Err(ErrorCode::kInvalidArgument, "keeper message too long", EPROTO);
  }
  bytes.resize(static_cast<size_t>(count));
  received.message = CAIRN_TRY(Message::Decode(bytes));
  return received;
}

void Channel::Shutdown() const { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace cairn
