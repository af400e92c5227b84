// FakeKernel plays /dev/fuse over a socket pair: it sends raw requests to a DeviceTransport and
// reads the raw replies.
#pragma once

#include <linux/fuse.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/check.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct FakeReply {
  fuse_out_header header{};
  std::string body;

  template <typename T>
  T As(size_t offset = 0) const {
    T value{};
    CAIRN_CHECK(body.size() >= offset + sizeof value);
    std::memcpy(&value, body.data() + offset, sizeof value);
    return value;
  }
};

// Thread-compatible.
class FakeKernel {
 public:
  FakeKernel() {
    int fds[2];
    CAIRN_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    kernel_ = UniqueFd(fds[0]);
    server_ = UniqueFd(fds[1]);
  }

  UniqueFd TakeServerFd() { return std::move(server_); }

  // Sends a request whose header is filled in, but for what the test has set; returns its unique
  // number.
  uint64_t Send(uint32_t opcode, uint64_t node, std::string_view body) {
    fuse_in_header header{};
    header.len = static_cast<uint32_t>(sizeof header + body.size());
    header.opcode = opcode;
    header.unique = next_unique;
    header.nodeid = node;
    header.uid = uid;
    header.gid = gid;
    header.pid = pid;
    next_unique += 2;
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(body);
    SendRaw(bytes);
    return header.unique;
  }
  void SendRaw(std::string_view bytes) {
    CAIRN_CHECK(::send(kernel_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()));
  }

  // The next reply, or nothing within `timeout_ms`.
  std::optional<FakeReply> Receive(int timeout_ms = 10'000) {
    pollfd waiter{.fd = kernel_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waiter, 1, timeout_ms) <= 0) return std::nullopt;
    std::string bytes(1 << 17, '\0');
    const ssize_t count = ::recv(kernel_.get(), bytes.data(), bytes.size(), 0);
    FakeReply reply;
    if (count < static_cast<ssize_t>(sizeof reply.header)) return std::nullopt;
    std::memcpy(&reply.header, bytes.data(), sizeof reply.header);
    reply.body =
        bytes.substr(sizeof reply.header, static_cast<size_t>(count) - sizeof reply.header);
    return reply;
  }

  // Sends and takes the reply; fails the program when none comes. Notifications that come before it
  // are put aside.
  FakeReply Call(uint32_t opcode, uint64_t node, std::string_view body) {
    Send(opcode, node, body);
    while (true) {
      std::optional<FakeReply> reply = Receive();
      CAIRN_CHECK(reply.has_value());
      if (reply->header.unique != 0) return *reply;
      notifications.push_back(*std::move(reply));
    }
  }

  void Hangup() { kernel_.Reset(); }

  std::vector<FakeReply> notifications;
  uint64_t next_unique = 2;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 1;

 private:
  UniqueFd kernel_;
  UniqueFd server_;
};

// The bytes of a struct, and a name with its NUL.
template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
inline std::string Name(std::string_view name) { return std::string(name) + '\0'; }

}  // namespace cairn
