// fork(2) and execveat(2). Between the two only async-signal-safe calls: this may be a process with
// threads.
#include "fuse/keeper/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fuse/keeper/mount_point.h"
#include "store/base/log.h"

namespace cairn {

UniqueFd OpenProgram(const std::string& name) {
  constexpr int kFlags = O_PATH | O_CLOEXEC;
  if (name.find('/') != std::string::npos) return UniqueFd(::open(name.c_str(), kFlags));
  const char* const path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/bin:/usr/bin";
  while (true) {
    const size_t end = rest.find(':');
    const std::string candidate = std::string(rest.substr(0, end)) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) {
      return UniqueFd(::open(candidate.c_str(), kFlags));
    }
    if (end == std::string_view::npos) return {};
    rest.remove_prefix(end + 1);
  }
}

bool EndsWell(pid_t pid, int timeout_ms) {
  constexpr int kStepMs = 5;
  int status = 0;
  for (int waited = 0; pid > 0 && waited < timeout_ms; waited += kStepMs) {
    if (::waitpid(pid, &status, WNOHANG) == pid) {
      return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    ::usleep(kStepMs * 1000);
  }
  if (pid > 0) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
  }
  return false;
}

pid_t Spawn(const SpawnOptions& options) {
  std::vector<char*> argv;
  for (const std::string& word : options.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) LogError("keeper_fork_failed", {{"errno", errno}});
  if (pid != 0) return pid;
  if (!options.oom_score.empty()) WriteControl("/proc/self/oom_score_adj", options.oom_score);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.inherited >= 0 && options.inherited == options.as) {
    ::fcntl(options.inherited, F_SETFD, 0);
  } else if (options.inherited >= 0) {
    ::dup2(options.inherited, options.as);
  }
  if (options.program >= 0) {
    ::execveat(options.program, "", argv.data(), environ, AT_EMPTY_PATH);
  } else {
    ::execvp(argv[0], argv.data());
  }
  const char* why = std::strerror(errno);
  const char* const parts[] = {"cairn-keeper: cannot run ", argv[0], ": ", why, "\n"};
  for (const char* part : parts) {
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, part, std::strlen(part));
  }
  ::_exit(127);
}

}  // namespace cairn
