// Transport: how FUSE requests reach the server and replies reach the kernel. It knows headers, not
// operations.
//
// The classic /dev/fuse transport (fuse/device_transport.h) is the first. Others (FUSE over
// io_uring, a fake kernel's socket) deliver the same requests: whoever implements this interface
// needs no change above it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "store/base/error.h"

namespace cairn {

// One request, in a buffer that belongs to the calling thread until HandleRequest returns.
struct FuseRequest {
  uint16_t lane = 0;    // of the thread that delivers it
  uint64_t unique = 0;  // bit 63 masked: the identity across a resend
  bool resent = false;  // bit 63: the kernel has sent it before (FUSE_NOTIFY_RESEND)
  uint32_t opcode = 0;
  uint64_t node = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;              // of the thread that asks, in the mounting process's namespace
  uint64_t reply_floor = 0;      // see Transport
  std::span<char> bytes = {};    // header and body as the kernel wrote them
  std::span<char> scratch = {};  // room for a reply's payload (max_write bytes), the thread's own

  // What the reply must carry: the number as it came.
  uint64_t reply_unique() const { return resent ? unique | uint64_t{1} << 63 : unique; }
};

class FuseRequestHandler {
 public:
  virtual ~FuseRequestHandler() = default;
  // Called on many threads at once. Answers through Transport::Send before it returns, or not at
  // all where FUSE wants no reply.
  virtual void HandleRequest(const FuseRequest& request) = 0;
  // Called once, on one of the threads, when no request will come any more (unmounted, aborted,
  // broken).
  virtual void HandleClosed() = 0;
};

// Reply floor: every request with a smaller unique number that this connection has ever delivered
// has been answered, and the answer was accepted by the kernel. So a reply record below the floor
// need not be kept for a takeover. It is a lower bound: it may lag by as many requests as there are
// threads, and it is 0 (nothing known) once a kernel was seen to hand out numbers out of order.
class Transport {
 public:
  virtual ~Transport() = default;
  // Starts delivering requests to `handler`, which outlives Stop().
  virtual Status Start(FuseRequestHandler& handler) = 0;
  // Stops delivering and joins the threads. Requests in progress are finished. Does not unmount.
  // Idempotent. Not from HandleRequest.
  virtual void Stop() = 0;
  // Sends one reply or notification (iov[0] is its fuse_out_header). 0 or an errno; ENOENT: nobody
  // waits for the reply any more.
  virtual int Send(std::span<const iovec> iov) = 0;
  // The largest WRITE and READ payload that fits the buffers.
  virtual uint32_t max_payload_bytes() const = 0;
};

}  // namespace cairn
