// cairnd: the server process. Without --keeper-fd it becomes the keeper, which starts it again with
// one (fuse/keeper/keeper.h). Then: signals are blocked for all threads -> keeper -> Daemon::Start
// -> "ready" -> wait. Told to stop by the keeper, or at its end: Daemon::Stop. SIGTERM to this very
// process: Daemon::HandOver, and the keeper starts the next. SIGINT is the keeper's, which a
// terminal sends it too.
#include <errno.h>
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "cmd/daemon.h"
#include "cmd/usage_error.h"
#include "store/base/log.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 64;
constexpr int kStopSignal = SIGUSR1;  // sent by this process to itself

int Fail(const cairn::Error& error) {
  std::string text = error.message().empty() ? error.ToString() : error.message();
  // The reason, for those texts that name only what was tried.
  const char* reason = std::strerror(error.sys_errno());
  if (error.sys_errno() != 0 && text.find(reason) == std::string::npos) {
    text += fmt::format(": {}", reason);
  }
  std::fputs(fmt::format("cairnd: {}\n", text).c_str(), stderr);
  if (error.code() == cairn::ErrorCode::kDataLoss) {
    std::fputs(
        "cairnd: stored bytes are damaged (data_loss): nothing was changed. Keep a copy of the "
        "data "
        "directory, then restore the file named above, or the whole directory, from a backup\n",
        stderr);
  }
  return kExitFailed;
}

// Packs, journals and connections all want descriptors; the soft limit is often 1024.
void RaiseDescriptorLimit() {
  constexpr rlim_t kEnough = 4096;  // docs/OPERATIONS.md
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = soft;
  if (limit.rlim_cur < kEnough) {
    cairn::LogWarning("few_descriptors", {{"limit", limit.rlim_cur}, {"enough", kEnough}});
  } else {
    cairn::LogInfo("descriptors", {{"limit", limit.rlim_cur}});
  }
}

// What the first use of libraries costs, before it is this server's turn: callers of a mount wait
// from then on.
void Warm() {
  ::tzset();
  ::OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG | OPENSSL_INIT_ADD_ALL_CIPHERS, nullptr);
}

int Run(const cairn::DaemonOptions& options, int keeper_fd) {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, kStopSignal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  ::umask(0077);  // RocksDB makes its files with 0644: everything here is its owner's alone

  Warm();
  auto keeper = cairn::KeeperClient::Connect(cairn::UniqueFd(keeper_fd),
                                             [] { ::kill(::getpid(), kStopSignal); });
  if (!keeper) return Fail(keeper.error());
  auto daemon = cairn::Daemon::Start(options, **keeper);
  if (!daemon) return Fail(daemon.error());
  if (const auto told = (*keeper)->Ready(); !told) {
    cairn::LogWarning("keeper_not_told", {{"error", told.error().ToString()}});
  }
  cairn::LogInfo("ready",
                 {{"pid", ::getpid()},
                  {"data", options.data_dir},
                  {"socket", (*daemon)->socket_path()},
                  {"http", fmt::format("{}:{}", options.listen.address, (*daemon)->http_port())}});
  int signal_number = 0;
  while (::sigwait(&signals, &signal_number) != 0) {
  }
  const bool hand_over = signal_number != kStopSignal && !(*keeper)->lost();
  cairn::LogInfo(hand_over ? "handing_over" : "stopping", {{"signal", signal_number}});
  hand_over ? (*daemon)->HandOver() : (*daemon)->Stop();
  daemon->reset();
  cairn::LogInfo("stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace cairn;
  // Blocks come and go by the megabyte. malloc's defaults give freed memory back to the kernel at
  // once, and the page faults of the next blocks cost more than to decrypt them (bench/read_bench).
  ::prctl(PR_SET_NAME, "cairnd");  // an executed descriptor names the process by its number
  mallopt(M_TRIM_THRESHOLD, 32 << 20);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  CLI::App app(
      "cairnd: serves one data directory: a unix socket for the host, HTTP for applications, and "
      "the mounts.",
      "cairnd");
  DaemonOptions options;
  std::string listen = "127.0.0.1:7070";
  std::string log_level = "info";
  bool anywhere = false;
  int keeper_fd = -1;
  const std::map<std::string, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warning", LogLevel::kWarning},
                                                  {"error", LogLevel::kError}};
  app.set_version_flag("--version", "cairnd " CAIRN_VERSION);
  app.add_option("--data", options.data_dir, "data directory; made when it does not exist")
      ->required();
  app.add_option("--socket", options.socket_path, "unix socket for the host: where cairn looks")
      ->envname("CAIRN_SOCKET")
      ->capture_default_str();
  app.add_option("--listen", listen, "address and port of the HTTP API")->capture_default_str();
  app.add_flag("--insecure-listen-anywhere", anywhere,
               "allow --listen to name more than this machine: HTTP is not encrypted, keys can be "
               "read on the way");
  CLI::Option* key_file = app.add_option("--master-key", options.master_key_file,
                                         "file of the master key (DATA/master.key)");
  app.add_option("--master-key-command", options.master_key_command,
                 "command that prints the master key, 64 hex digits; run by /bin/sh")
      ->excludes(key_file);
  app.add_flag("--adopt", options.adopt,
               "serve a data directory that was copied or moved, as one of its own: only when the "
               "one it came from is never served again, or the two are to go apart");
  const auto add_limit = [&app](const char* name, uint64_t& bytes, const char* what) {
    app.add_option(name, bytes, what)
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 50))
        ->default_str("by size");
  };
  add_limit("--space-reserve", options.space.reserve_bytes,
            "bytes of the reserve file, for deletions on a full disk (64MiB, 1GiB, ...)");
  add_limit("--space-floor", options.space.floor_bytes, "bytes that writes leave free");
  add_limit("--space-headroom", options.space.headroom_bytes,
            "bytes that snapshots, pauses, Artifacts, forks and imports leave for running volumes");
  add_limit("--space-dirty", options.space.dirty_bytes_per_mount,
            "bytes that the kernel may hold dirty for one mount");
  app.add_option("--log-level", log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->check(CLI::IsMember(levels));
  app.add_option("--keeper-fd", keeper_fd, "given by cairn-keeper")->group("");
  bool check_format = false;
  app.add_flag("--check-format", check_format,
               "say whether this program may serve the data directory, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fputs(fmt::format("cairnd: {}\n", UsageMessage(app, error)).c_str(), stderr);
    return kExitUsage;
  }
  const auto address = ParseListenAddress(listen);
  if (!address) {
    Fail(address.error());
    return kExitUsage;
  }
  if (!address->loopback && !anywhere) {
    std::fputs(fmt::format("cairnd: --listen {} is reachable from other machines and HTTP is not "
                           "encrypted. Listen on 127.0.0.1 behind a TLS proxy, or "
                           "add --insecure-listen-anywhere\n",
                           listen)
                   .c_str(),
               stderr);
    return kExitUsage;
  }
  options.listen = *address;
  SetLogLevel(levels.at(log_level));
  if (check_format) {
    if (const Status read = DataDirectory::CheckFormat(HostFileSystem(), options.data_dir); !read) {
      return Fail(read.error());
    }
    std::puts("cairnd " CAIRN_VERSION);
    return 0;
  }
  for (int i = 0; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--keeper-fd") {
      ++i;
    } else {
      options.server_command.emplace_back(argv[i]);
    }
  }
  if (keeper_fd < 0) {
    const auto failed = ExecUnderKeeper(argc, argv);
    return Fail(failed.error());
  }
  // What a client sends wrong is answered to the client; our log has its own form.
  google::protobuf::SetLogHandler(nullptr);
  return Run(options, keeper_fd);
}
