// Frames of the host protocol on a stream socket: u32 little-endian length, then that many bytes
// (api/host.proto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

inline constexpr uint32_t kHostProtocolVersion = 1;
inline constexpr uint32_t kMaxHostFrameBytes = 16u << 20;
// Where daemon and client meet when neither --socket nor CAIRN_SOCKET says otherwise.
inline constexpr std::string_view kDefaultHostSocket = "/run/cairn/cairn.sock";

// Deadlines of one frame. `first_byte_ms` may be long (an idle connection); once a frame has begun
// it must be whole within `rest_ms`, however slowly its bytes drip. -1: no limit.
struct FrameDeadlines {
  int64_t first_byte_ms = -1;
  int64_t rest_ms = 30000;
};

// Both block on `fd` (a connected stream socket, blocking or not) and are safe against SIGPIPE.
//
// ReadFrame: the message's bytes. NotFound: the peer closed between two frames (the orderly end).
// InvalidArgument: a length of 0 or above the limit; the stream cannot be used further.
// Unavailable: closed in the middle, a deadline passed, or a socket error. Memory grows with what
// has arrived, not with the length that was promised.
Result<std::string> ReadFrame(int fd, const FrameDeadlines& deadlines);
// InvalidArgument: too long. Unavailable: the peer is gone or does not read.
Status WriteFrame(int fd, std::string_view message, int64_t deadline_ms);

}  // namespace cairn
