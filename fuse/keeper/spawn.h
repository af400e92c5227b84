// Starting the server and the barrier helpers.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "store/base/unique_fd.h"

namespace cairn {

// The file of a program as execvp(3) would find it. Invalid: there is none; errno says why.
UniqueFd OpenProgram(const std::string& name);

struct SpawnOptions {
  std::vector<std::string> words;   // argv
  int program = -1;                 // what is executed; -1: words[0], by its path
  int inherited = -1;               // the one fd that the child gets (all others are close-on-exec)
  int as = -1;                      // under this number
  std::string_view oom_score = {};  // empty: as here
};

// Reaps a child; whether it ended by itself, with 0, within `timeout_ms`. Else it is killed.
bool EndsWell(pid_t pid, int timeout_ms);

// Forks and execs; -1: it could not fork. What cannot be executed ends with 127.
pid_t Spawn(const SpawnOptions& options);

}  // namespace cairn
