#include "fuse/keeper/server_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "fuse/keeper/protocol.h"
#include "fuse/keeper/spawn.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr std::string_view kServerOomScore = "-800";

}  // namespace

ServerProcess StartServerProcess(const std::vector<std::string>& command, const UniqueFd& program) {
  auto pair = Channel::MakePair();
  if (!pair) {
    LogError("keeper_socket_failed", {{"error", pair.error().ToString()}});
    return {};
  }
  const Channel end = std::move(pair->second);
  std::vector<std::string> words = command;
  words.push_back("--keeper-fd");
  words.push_back(fmt::format("{}", end.fd()));
  ServerProcess process{.channel = std::make_shared<Channel>(std::move(pair->first))};
  process.pid = Spawn({.words = words,
                       .program = program.get(),
                       .inherited = end.fd(),
                       .as = end.fd(),
                       .oom_score = kServerOomScore});
  return process;
}

void StandbyServer::Start(const std::vector<std::string>& command, const UniqueFd& program) {
  End();
  ServerProcess process = StartServerProcess(command, program);
  if (process.pid >= 0) process_ = std::move(process);
}

void StandbyServer::End() {
  if (!process_) return;
  ::kill(process_->pid, SIGKILL);
  ::waitpid(process_->pid, nullptr, 0);
  process_.reset();
  hello_.reset();
}

void StandbyServer::HandleMessage() {
  auto received = process_->channel->Receive(0);
  const bool hello = received && *received &&
                     (*received)->message.type == static_cast<uint16_t>(MessageType::kHello);
  if (!hello || hello_) return End();
  hello_ = (*received)->message;
}

bool StandbyServer::Reaped(pid_t pid) {
  if (!process_ || process_->pid != pid) return false;
  process_.reset();
  hello_.reset();
  return true;
}

std::optional<ServerProcess> StandbyServer::Take() {
  if (!process_ || !hello_) return std::nullopt;
  const Message reply{.type = static_cast<uint16_t>(hello_->type | kReplyBit),
                      .id = hello_->id,
                      .error = 0,
                      .payload = EncodePid(static_cast<uint32_t>(::getpid()))};
  const Status sent = process_->channel->Send(reply);
  if (!sent) {
    End();
    return std::nullopt;
  }
  hello_.reset();
  return std::exchange(process_, std::nullopt);
}

}  // namespace cairn
