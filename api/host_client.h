// HostClient: one connection to a daemon's socket, for the command line and for tests.
#pragma once

#include <memory>
#include <string>

#include "api/host.pb.h"
#include "store/base/error.h"
#include "store/base/unique_fd.h"

namespace cairn {

// Thread-compatible: one call at a time.
class HostClient {
 public:
  // Unavailable: nobody serves that socket; the message names it and says what to do.
  static Result<std::unique_ptr<HostClient>> Connect(const std::string& socket_path);

  // Fills version and request id in, sends, waits for the answer (calls may be long: no deadline).
  // An answer that is an error is a value here (HostResponse.error). Unavailable: the connection
  // broke; whether the call was done is not known.
  Result<host::HostResponse> Call(host::HostRequest request);

 private:
  HostClient(UniqueFd fd, std::string socket_path)
      : fd_(std::move(fd)), socket_path_(std::move(socket_path)) {}

  UniqueFd fd_;
  std::string socket_path_;
  uint64_t next_request_id_ = 1;
};

}  // namespace cairn
