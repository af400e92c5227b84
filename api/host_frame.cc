// Frames on a stream socket. One loop each for reading and writing: poll(2) until ready or the
// deadline, then recv(2)/send(2) with MSG_DONTWAIT, so that neither a silent nor a dripping peer
// holds a thread beyond its deadline. A length is checked before any memory is taken for it, and
// memory is taken in steps of what arrives (256 KiB ahead at most).
#include "api/host_frame.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "store/base/clock.h"

namespace cairn {
namespace {

constexpr size_t kStepBytes = 256u << 10;

// A point on the monotonic clock, or none.
class Deadline {
 public:
  explicit Deadline(int64_t ms)
      : end_ns_(ms < 0 ? -1 : SystemClock().MonotonicNs() + ms * 1000000) {}
  // For poll(2): -1 waits for ever, 0 is over.
  int RemainingMs() const {
    if (end_ns_ < 0) return -1;
    const int64_t left = (end_ns_ - SystemClock().MonotonicNs() + 999999) / 1000000;
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }

 private:
  int64_t end_ns_;
};

Status WaitReady(int fd, short events, const Deadline& deadline) {
  while (true) {
    const int timeout_ms = deadline.RemainingMs();
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, timeout_ms);
    if (ready > 0) return {};
    if (ready == 0) return Err(ErrorCode::kUnavailable, "the peer did not answer in time");
    if (errno != EINTR) return Err(ErrorCode::kUnavailable, "poll on the socket failed", errno);
  }
}

// Bytes received (at least 1), or 0 at the end of the stream.
Result<size_t> ReceiveSome(int fd, char* out, size_t limit, const Deadline& deadline) {
  while (true) {
    CAIRN_TRY(WaitReady(fd, POLLIN, deadline));
    const ssize_t n = ::recv(fd, out, limit, MSG_DONTWAIT);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR || errno == EAGAIN) continue;
    return Err(ErrorCode::kUnavailable, "reading from the socket failed", errno);
  }
}

}  // namespace

Result<std::string> ReadFrame(int fd, const FrameDeadlines& deadlines) {
  unsigned char header[4];
  size_t have = CAIRN_TRY(ReceiveSome(fd, reinterpret_cast<char*>(header), sizeof header,
                                      Deadline(deadlines.first_byte_ms)));
  if (have == 0) return Err(ErrorCode::kNotFound);
  const Deadline rest(deadlines.rest_ms);
  while (have < sizeof header) {
    const size_t n = CAIRN_TRY(
        ReceiveSome(fd, reinterpret_cast<char*>(header) + have, sizeof header - have, rest));
    if (n == 0)
      return Err(ErrorCode::kUnavailable,
                 "the peer closed the connection in the middle of a message");
    have += n;
  }
  const uint32_t length = static_cast<uint32_t>(header[0]) | static_cast<uint32_t>(header[1]) << 8 |
                          static_cast<uint32_t>(header[2]) << 16 |
                          static_cast<uint32_t>(header[3]) << 24;
  if (length == 0 || length > kMaxHostFrameBytes) {
    return Err(ErrorCode::kInvalidArgument, "a message's length must be 1 byte to 16 MiB");
  }
  std::string message;
  while (message.size() < length) {
    const size_t begin = message.size();
    const size_t step = std::min<size_t>(kStepBytes, length - begin);
    message.resize(begin + step);
    const size_t n = CAIRN_TRY(ReceiveSome(fd, message.data() + begin, step, rest));
    if (n == 0)
      return Err(ErrorCode::kUnavailable,
                 "the peer closed the connection in the middle of a message");
    message.resize(begin + n);
  }
  return message;
}

Status WriteFrame(int fd, std::string_view message, int64_t deadline_ms) {
  if (message.empty() || message.size() > kMaxHostFrameBytes) {
    return Err(ErrorCode::kInvalidArgument, "a message's length must be 1 byte to 16 MiB");
  }
  const uint32_t length = static_cast<uint32_t>(message.size());
  std::string bytes;
  bytes.reserve(message.size() + 4);
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<char>(length >> shift & 0xff));
  bytes.append(message);
  const Deadline deadline(deadline_ms);
  size_t sent = 0;
  while (sent < bytes.size()) {
    CAIRN_TRY(WaitReady(fd, POLLOUT, deadline));
    const ssize_t n =
        ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EINTR && errno != EAGAIN) {
      return Err(ErrorCode::kUnavailable, "writing to the socket failed", errno);
    }
  }
  return {};
}

}  // namespace cairn
