// What a keeper is made of, for the one that replaces it in the same process
// (docs/formats/keeper_protocol.md, "Upgrade"). No I/O.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuse/keeper/protocol.h"
#include "store/base/error.h"

namespace cairn {

// Descriptors by their numbers, which execve(2) keeps.
struct KeeperState {
  struct File {
    int fd = -1;
    std::string name = {};
  };
  struct Mount {
    TakeReply reply = {};
    int fuse = -1;
    int file = -1;  // -1: none
  };
  std::vector<std::string> server_command;
  std::string barrier_program;
  int program = -1;  // of the server; -1: by its path
  pid_t server_pid = 0;
  int channel = -1;
  bool connected = false;
  bool ready = false;
  bool ever_ready = false;
  bool stopping = false;
  uint32_t failed_starts = 0;
  uint64_t message_id = 0;  // the REPLACE_KEEPER that waits for its answer
  std::vector<pid_t> helpers;
  UpgradeOutcome outcome;
  std::vector<File> files;
  std::vector<Mount> mounts;

  // Each of its descriptors once.
  std::vector<int> Descriptors() const;
  std::string Encode() const;
  static Result<KeeperState> Decode(std::string_view bytes);  // InvalidArgument with EPROTO
};

}  // namespace cairn
