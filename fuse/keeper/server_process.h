// A server as its keeper starts it: a process and the keeper's end of the socket to it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuse/keeper/channel.h"
#include "store/base/unique_fd.h"

namespace cairn {

struct ServerProcess {
  pid_t pid = -1;  // -1: it could not be started
  std::shared_ptr<Channel> channel = {};
};

// Executes `program` with `command` and --keeper-fd.
ServerProcess StartServerProcess(const std::vector<std::string>& command, const UniqueFd& program);

// The server that is started next: executed and linked already, it waits for the answer to its
// HELLO. One that ends, or says anything else, is not replaced by itself. Thread-compatible.
class StandbyServer {
 public:
  ~StandbyServer() { End(); }

  void Start(const std::vector<std::string>& command, const UniqueFd& program);
  void End();
  // What it says is to be read with HandleMessage. -1: there is none.
  int fd() const { return process_ ? process_->channel->fd() : -1; }
  void HandleMessage();
  // Whether `pid`, which was reaped, was it.
  bool Reaped(pid_t pid);
  // It is the server now, and has its HELLO answered. Nothing: there is none that waits.
  std::optional<ServerProcess> Take();

 private:
  std::optional<ServerProcess> process_;
  std::optional<Message> hello_;
};

}  // namespace cairn
