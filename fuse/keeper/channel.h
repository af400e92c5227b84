// Channel: one end of a SOCK_SEQPACKET pair that carries keeper messages, at most one fd with each.
#pragma once

#include <optional>
#include <utility>

#include "fuse/keeper/protocol.h"
#include "store/base/error.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct ReceivedMessage {
  Message message;
  UniqueFd fd;  // valid if the peer sent one
};

// Owns its socket. Send is thread-safe (a datagram is atomic); one thread receives.
class Channel {
 public:
  Channel() = default;
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  // Two connected ends, both close-on-exec.
  static Result<std::pair<Channel, Channel>> MakePair();

  // Unavailable: the peer is gone. Blocks while the peer's buffer is full. `fd` (or -1) is sent
  // along, and stays the caller's.
  Status Send(const Message& message, int fd = -1) const;

  // The next message; nothing at the end of the stream. `timeout_ms` < 0: no limit. Errors:
  // Unavailable (time ran out), InvalidArgument (a malformed datagram; the next may be fine),
  // Internal.
  Result<std::optional<ReceivedMessage>> Receive(int64_t timeout_ms = -1) const;

  // Wakes a blocked Receive of both ends, which then see the end of the stream.
  void Shutdown() const;

  int fd() const { return socket_.get(); }
  bool valid() const { return socket_.valid(); }
  UniqueFd TakeFd() { return std::move(socket_); }

 private:
  UniqueFd socket_;
};

}  // namespace cairn
