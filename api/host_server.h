// HostServer: the daemon's unix socket. Transport only: frames, peers, threads; what a call means
// is the handler's.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "api/host.pb.h"
#include "store/base/error.h"
#include "store/base/mutex.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct HostServerOptions {
  std::string socket_path;
  int listener = -1;              // a listening socket on that path already, which the server owns
  bool removes_socket = true;     // at Stop; no when the service manager made it
  uint32_t max_connections = 64;  // a thread each; one more is answered "unavailable" and closed
  int64_t idle_ms = 600000;       // a connection without a request is closed after this
  int64_t frame_ms = 30000;  // a message that has begun must be whole within this; an answer must
                             // be taken within it
};

// Thread-safe. Start once; Stop (or destruction) joins every thread.
class HostServer {
 public:
  // Called on the connection's thread, several at a time. The server fills in version and request
  // id.
  using Handler = std::function<host::HostResponse(const host::HostRequest&)>;

  // Binds (mode 0600) and serves. A socket file that a dead daemon left is replaced; AlreadyExists
  // when a living one answers on it; InvalidArgument for a path that is too long, PermissionDenied
  // or NotFound for its directory.
  static Result<std::unique_ptr<HostServer>> Start(const HostServerOptions& options,
                                                   Handler handler);
  ~HostServer();

  // No new connections; idle ones are closed, calls that run are finished and answered; the socket
  // file is removed. Idempotent.
  void Stop() { End(/*hand_over=*/false); }
  // Before either: no new connections, idle ones are closed, but for such as have not sent anything
  // yet, which have a second to do so; waits until no call runs any more, for `timeout_ms` at most.
  void Drain(int64_t timeout_ms);
  // As Stop, but the socket goes on listening for whoever has another descriptor of it, and its
  // file stays: who connects from now on waits for the next server.
  void HandOver() { End(/*hand_over=*/true); }
  int listener() const { return listener_.get(); }

  const std::string& socket_path() const { return options_.socket_path; }

 private:
  struct Connection {
    UniqueFd fd;
    std::thread thread;
    bool served = false;  // a request of it has been answered
    bool done = false;
  };

  HostServer(const HostServerOptions& options, Handler handler, UniqueFd listener);
  void End(bool hand_over);
  void TakeNoMore();
  void EndReading(bool fresh_too) REQUIRES(mutex_);
  void AcceptLoop();
  void Serve(Connection& connection);
  void JoinFinished() REQUIRES(mutex_);

  const HostServerOptions options_;
  const Handler handler_;
  UniqueFd listener_;
  UniqueFd wake_;  // an eventfd: End is called
  uint64_t socket_inode_ = 0;
  std::thread accept_thread_;
  Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;  // takes no more
  bool ended_ GUARDED_BY(mutex_) = false;
  CondVar one_done_;
  std::list<Connection> connections_ GUARDED_BY(mutex_);
};

}  // namespace cairn
