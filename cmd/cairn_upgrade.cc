// upgrade: the call, and then the question how it ended, until the server that answers is one that
// knows. Connections that are made in between wait for it in the socket's backlog.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cmd/cairn_commands.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPollEvery = std::chrono::milliseconds(20);
constexpr auto kStopsAndStarts = std::chrono::seconds(120);  // beside the time to become ready

// Nothing: nobody answers now.
std::optional<host::Pong> Ping(const std::string& socket_path) {
  auto client = HostClient::Connect(socket_path);
  if (!client) return std::nullopt;
  host::HostRequest request;
  request.mutable_ping();
  const auto answer = (*client)->Call(std::move(request));
  if (!answer || !answer->has_pong()) return std::nullopt;
  return answer->pong();
}

void Show(const CommandContext& context, const host::UpgradeState& state) {
  context.json ? PrintJson(state) : PrintRecord(state);
}

}  // namespace

ExitCode Upgrade(CommandContext& context, HostClient& client, const UpgradeArguments& arguments) {
  const auto began = Clock::now();
  host::HostRequest request;
  request.mutable_upgrade()->set_keeper(arguments.keeper);
  request.mutable_upgrade()->set_ready_timeout_ms(
      static_cast<uint32_t>(arguments.ready_timeout_s * 1000));
  host::HostResponse response;
  ExitCode code = kExitOk;
  if (!MakeCall(context, client, std::move(request), &response, &code)) return code;
  host::UpgradeState state = response.upgrade();
  if (arguments.keeper) {
    Show(context, state);
    return kExitOk;
  }
  const auto deadline = began + std::chrono::seconds(arguments.ready_timeout_s) + kStopsAndStarts;
  while (Clock::now() < deadline) {
    const auto pong = Ping(context.socket_path);
    if (!pong || pong->last_upgrade().id() != state.id() ||
        pong->last_upgrade().state() == "started") {
      std::this_thread::sleep_for(kPollEvery);
      continue;
    }
    state.set_state(pong->last_upgrade().state());
    state.set_why(pong->last_upgrade().why());
    state.set_program_version(pong->program_version());
    state.set_pid(pong->pid());
    state.set_took_ms(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count()));
    Show(context, state);
    return state.state() == "done" ? kExitOk : kExitFailed;
  }
  Show(context, state);
  std::fputs("cairn: no server answers that knows how it ended: see its log\n", stderr);
  return kExitFailed;
}

}  // namespace cairn
