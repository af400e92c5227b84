// Order: open the program -> run it with --check-format -> hand its descriptor to the keeper ->
// SIGTERM to this process. What was checked is what is started, whatever gets its path meanwhile.
#include "cmd/server_upgrade.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "fuse/keeper/spawn.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr uint32_t kReadyTimeoutMs = 30'000;
constexpr int64_t kCheckTimeoutMs = 10'000;
constexpr size_t kMaxOutputBytes = 4096;

std::unexpected<Error> Refused(const std::string& why) {
  return Err(ErrorCode::kFailedPrecondition, why + ". The server that runs goes on");
}

// What `program` prints, when it ends with 0.
Result<std::string> OutputOf(int program, std::vector<std::string> words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrErrno(errno, "pipe");
  const UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return ErrErrno(errno, "fork");
  if (pid == 0) {  // of a process with threads: async-signal-safe calls only
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(out.get(), STDOUT_FILENO);
    ::dup2(out.get(), STDERR_FILENO);
    ::execveat(program, "", argv.data(), environ, AT_EMPTY_PATH);
    const char* const why = std::strerror(errno);
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, why, std::strlen(why));
    ::_exit(127);
  }
  out.Reset();
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(kCheckTimeoutMs);
  std::string text;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd ready{.fd = in.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) == 0) break;
    char buffer[512];
    const ssize_t got = ::read(in.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (text.size() < kMaxOutputBytes) text.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() >= deadline) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return Refused(fmt::format("it did not end within {} ms", kCheckTimeoutMs));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  while (text.ends_with('\n')) text.pop_back();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  if (text.empty()) {
    text = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                               : fmt::format("exit code {}", WEXITSTATUS(status));
  }
  return Refused(text);
}

}  // namespace

Result<host::UpgradeState> ServerUpgrade::Begin(uint32_t ready_timeout_ms) {
  const std::string& path = command_.at(0);
  const UniqueFd program = OpenProgram(path);
  if (!program.valid())
    return Refused(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  std::vector<std::string> words = command_;
  words.push_back("--check-format");
  auto says = OutputOf(program.get(), std::move(words));
  if (!says) return std::unexpected(std::move(says).error().WithContext(path));
  const UpgradeRequest request{
      .id = Id128::Random(),
      .ready_timeout_ms = ready_timeout_ms == 0 ? kReadyTimeoutMs : ready_timeout_ms};
  CAIRN_TRY(keeper_.Upgrade(request, program.get()));
  LogInfo("upgrade_begun", {{"id", request.id.ToHex()}, {"program", *says}});
  ::kill(::getpid(), SIGTERM);
  host::UpgradeState state;
  state.set_id(request.id.ToHex());
  state.set_state("started");
  state.set_program(*says);
  return state;
}

Status ServerUpgrade::ReplaceKeeper() {
  const std::string& path = command_.at(0);
  const std::string keeper = path.substr(0, path.rfind('/') + 1) + "cairn-keeper";
  const UniqueFd program = OpenProgram(keeper);
  if (!program.valid()) {
    return Refused(fmt::format("cannot open {}: {}", keeper, std::strerror(errno)));
  }
  auto replaced = keeper_.ReplaceKeeper(program.get());
  if (!replaced) return std::unexpected(std::move(replaced).error().WithContext(keeper));
  return {};
}

host::UpgradeState ServerUpgrade::Last() {
  host::UpgradeState state;
  const auto outcome = keeper_.LastUpgrade();
  if (!outcome || outcome->state == UpgradeOutcome::kNone) return state;
  state.set_id(outcome->id.ToHex());
  state.set_state(outcome->state == UpgradeOutcome::kDone       ? "done"
                  : outcome->state == UpgradeOutcome::kFellBack ? "fell_back"
                                                                : "started");
  state.set_why(outcome->why);
  return state;
}

}  // namespace cairn
