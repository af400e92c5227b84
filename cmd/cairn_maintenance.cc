// check and scrub. A check occupies its connection until it has ended, so that progress is asked
// for on a second one; a scrub runs in the daemon, and to wait for it is to ask again and again.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "cmd/cairn_commands.h"

namespace cairn {

namespace {

constexpr auto kProgressEvery = std::chrono::seconds(1);
constexpr auto kPollEvery = std::chrono::milliseconds(200);

std::string Line(const host::CheckProgressInfo& progress) {
  if (progress.phase() == "index") {
    return fmt::format("check: index: {} of {} packs, {} blocks", progress.done(), progress.total(),
                       progress.blocks());
  }
  if (progress.phase() == "packs") {
    return fmt::format("check: {} of {} packs", progress.done(), progress.total());
  }
  return progress.phase().empty() ? "" : "check: " + progress.phase();
}

// Prints how far the check is, once a second, until it is destroyed.
class ProgressLines {
 public:
  explicit ProgressLines(const std::string& socket_path)
      : thread_([this, socket_path] { Run(socket_path); }) {}
  ~ProgressLines() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Run(const std::string& socket_path) {
    std::unique_lock lock(mutex_);
    std::string before;
    while (!changed_.wait_for(lock, kProgressEvery, [this] { return ended_; })) {
      lock.unlock();
      auto client = HostClient::Connect(socket_path);
      host::HostRequest request;
      request.mutable_check_progress();
      const auto answer = client ? (*client)->Call(std::move(request))
                                 : Result<host::HostResponse>(std::unexpected(client.error()));
      const std::string line = answer ? Line(answer->check_progress()) : "";
      if (!line.empty() && line != before) std::fputs((line + "\n").c_str(), stderr);
      before = line;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

void ShowScrub(const CommandContext& context, const host::ScrubInfo& info) {
  if (context.json) {
    PrintJson(info);
    return;
  }
  if (info.findings_size() > 0) {
    PrintTable(info, "findings", {"where", "what", "resolved", "owners"});
  }
  host::ScrubInfo rest = info;
  rest.clear_findings();
  PrintRecord(rest);
}

bool FoundDamage(const host::ScrubInfo& info) {
  if (info.findings_left_off() > 0) return true;
  for (const auto& finding : info.findings()) {
    if (!finding.resolved()) return true;
  }
  return false;
}

}  // namespace

ExitCode Check(CommandContext& context, HostClient& client, bool rebuild_index) {
  host::HostRequest request;
  request.mutable_check()->set_rebuild_index(rebuild_index);
  host::HostResponse response;
  ExitCode code = kExitOk;
  bool made;
  {
    std::unique_ptr<ProgressLines> lines;
    if (!context.json) lines = std::make_unique<ProgressLines>(context.socket_path);
    made = MakeCall(context, client, std::move(request), &response, &code);
  }
  if (!made) return code;
  host::CheckInfo report = response.check();
  if (context.json) {
    PrintJson(report);
  } else {
    if (report.has_index()) {
      std::fputs(fmt::format("index rebuilt: {} of {} packs, {} blocks\n", report.index().packs(),
                             report.index().packs_total(), report.index().blocks())
                     .c_str(),
                 stdout);
      if (report.index().left_out_size() > 0) {
        PrintTable(report.index(), "left_out", {"where", "why"});
      }
    }
    if (report.damages_size() > 0) {
      PrintTable(report, "damages", {"structure", "where", "what", "owners"});
    }
    host::CheckInfo rest = report;
    rest.clear_damages();
    rest.clear_index();
    PrintRecord(rest);
  }
  return report.damages_size() > 0 ? kExitDataLoss : kExitOk;
}

ExitCode Scrub(CommandContext& context, HostClient& client, const ScrubArguments& arguments) {
  const auto ask = [&](host::ScrubAction action, host::ScrubInfo* info, ExitCode* code) {
    host::HostRequest request;
    request.mutable_scrub()->set_action(action);
    request.mutable_scrub()->set_rate_bytes(arguments.rate_mb * 1000000);
    host::HostResponse response;
    if (!MakeCall(context, client, std::move(request), &response, code)) return false;
    *info = response.scrub();
    return true;
  };
  const host::ScrubAction action = arguments.stop     ? host::STOP
                                   : arguments.status ? host::STATUS
                                                      : host::START;
  host::ScrubInfo info;
  ExitCode code = kExitOk;
  if (!ask(action, &info, &code)) return code;
  while (arguments.wait && info.state() == "running") {
    std::this_thread::sleep_for(kPollEvery);
    if (!ask(host::STATUS, &info, &code)) return code;
  }
  ShowScrub(context, info);
  if (arguments.wait && info.state() != "finished") return kExitFailed;
  const bool result = arguments.wait || arguments.status;
  return result && FoundDamage(info) ? kExitDataLoss : kExitOk;
}

}  // namespace cairn
