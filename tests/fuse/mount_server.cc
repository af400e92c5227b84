// mount_server DIR [--journal DIR [--take-over [--no-resend]] | --write-delay-ms N] [--quota-bytes
// N]
// [--reply-delay-us N] [--no-writeback] --keeper-fd N: what the mount tests run under a real
// keeper: a volume in memory, or a real one with its journal, mounted on DIR, ruled by lines on
// stdin, one line of answer each on stdout. It exists because a process that serves /dev/fuse must
// not use its own mount.
//
//   barrier, unmount, unmount-lazy, mount-again, quit    -> ok, or error and why
//   opens, dirty-opens                                    -> a number
//   list-opens                                            -> inode:handles:mode:links ...
//   fail-writes 0|1, fail-syncs 0|1, sync-count, last-request (of a volume in memory)
//   hand-over                  -> exits in the middle of everything (--take-over)
//   resends                    -> opcode:seen:answered ... (--take-over)
//   stat PATH                  -> ino size mtime_ns ctime_ns mode nlink
//   read PATH, read-inode N    -> x and the content in hex
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "fuse/keeper_client.h"
#include "fuse/memory/memory_volume.h"
#include "fuse/mounted_volume.h"
#include "store/base/file_system.h"
#include "store/base/hex.h"
#include "store/key_ring.h"
#include "store/node_cache.h"
#include "store/tree.h"
#include "tests/support/mem_block_store.h"
#include "volume/layer.h"
#include "volume/volume.h"

namespace cairn {
namespace {

Result<NamedInode> Walk(Volume& volume, const std::string& path) {
  NamedInode at{.ino = kRootInode, .inode = CAIRN_TRY(volume.GetAttributes(kRootInode))};
  std::istringstream parts(path);
  std::string part;
  while (std::getline(parts, part, '/')) {
    if (!part.empty()) at = CAIRN_TRY(volume.Lookup(at.ino, part));
  }
  return at;
}

int64_t Nanoseconds(const TimeSpec& time) {
  return time.seconds * 1'000'000'000 + time.nanoseconds;
}

Result<std::string> AnswerOfMemory(MemoryVolume& volume, MountedVolume& mounted,
                                   const std::string& verb, const std::string& argument) {
  if (verb == "sync-count") return std::to_string(volume.syncs());
  if (verb == "fail-writes") {
    volume.FailWrites(argument == "1");
    return "ok";
  }
  if (verb == "fail-syncs") {
    volume.FailSyncs(argument == "1");
    return "ok";
  }
  if (verb == "last-request") {
    const ReplyRecord last = volume.last_request();
    std::ostringstream out;
    out << last.opcode << ' ' << last.unique << ' ' << last.reply_floor << ' '
        << (last.connection == mounted.connection());
    return out.str();
  }
  return Err(ErrorCode::kInvalidArgument, "no such verb");
}

// The volume that the command line asks for, with what it stands on.
struct Served {
  KeyRing keys;
  MemBlockStore blocks{keys};
  NodeCache cache;
  std::unique_ptr<Volume> volume;
  MemoryVolume* memory = nullptr;

  Status OpenJournal(const std::string& dir, uint64_t quota_bytes, const TakenMount* taken) {
    VolumeOptions options;
    if (taken != nullptr) {
      options.head.live_connection = taken->request.connection;
      options.opens = CAIRN_TRY(MountedVolume::OpensOf(*taken));
    }
    options.head.volume.bytes.fill(7);
    options.head.realm.bytes.fill(9);
    options.head.dir = dir;
    options.rollback_epoch = 3;
    options.quota_bytes = quota_bytes;
    keys.Add(options.head.realm, TestRealmKeys(1));
    options.head.base = TreeLayer(
        blocks, std::make_shared<TreeReader>(blocks, cache, options.head.realm, TreeRoot{}), 0);
    volume = CAIRN_TRY(Volume::Open(HostFileSystem(), keys, blocks, SystemClock(), options));
    return {};
  }
};

Result<std::string> Answer(KeeperClient& keeper, Served& served, MountedVolume& mounted,
                           const std::string& line) {
  Volume& volume = *served.volume;
  std::istringstream words(line);
  std::string verb;
  std::string argument;
  words >> verb >> argument;
  if (verb == "barrier") {
    CAIRN_TRY(mounted.Barrier());
    return "ok";
  }
  if (verb == "unmount" || verb == "unmount-lazy") {
    CAIRN_TRY(mounted.Unmount(verb == "unmount-lazy"));
    return "ok";
  }
  if (verb == "hand-over") {
    mounted.HandOver();
    ::_exit(0);
  }
  if (verb == "resends") {
    std::string all = "resends";
    for (const auto& [opcode, count] : mounted.resends()) {
      all += fmt::format(" {}:{}:{}", opcode, count.seen, count.answered);
    }
    return all;
  }
  if (verb == "opens") return std::to_string(volume.GetStatus().open_handles);
  if (verb == "list-opens") {
    std::string all = "opens";
    for (const OpenTable::Listed& open : volume.ListOpens()) {
      const auto inode = volume.GetAttributes(open.ino);
      all += fmt::format(" {}:{}:{:o}:{}", open.ino, open.opens.handles, inode ? inode->mode : 0,
                         inode ? inode->nlink : 0);
    }
    return all;
  }
  if (verb == "dirty-opens") return std::to_string(volume.WritableOpens().size());
  if (verb == "stat") {
    const NamedInode found = CAIRN_TRY(Walk(volume, argument));
    std::ostringstream out;
    out << found.ino << ' ' << found.inode.size_bytes << ' ' << Nanoseconds(found.inode.mtime)
        << ' ' << Nanoseconds(found.inode.ctime) << ' ' << found.inode.mode << ' '
        << found.inode.nlink;
    return out.str();
  }
  if (verb == "read") {
    const NamedInode found = CAIRN_TRY(Walk(volume, argument));
    std::string data(found.inode.size_bytes, '\0');
    CAIRN_TRY(volume.Read(found.ino, 0, data));
    return "x" + HexEncode(data);
  }
  if (verb == "read-inode") {
    const InodeNumber ino = std::strtoull(argument.c_str(), nullptr, 10);
    std::string data(CAIRN_TRY(volume.GetAttributes(ino)).size_bytes, '\0');
    CAIRN_TRY(volume.Read(ino, 0, data));
    return "x" + HexEncode(data);
  }
  if (verb == "mount-again") {
    MemoryVolume other{MemoryVolumeOptions{}};
    FuseMountOptions options;
    options.dir = mounted.dir();
    CAIRN_TRY(MountedVolume::Mount(keeper, other, options));
    return "ok";
  }
  if (served.memory != nullptr) {
    return AnswerOfMemory(*served.memory, mounted, verb, argument);
  }
  return Err(ErrorCode::kInvalidArgument, "no such verb");
}

// False at the end of the input or when told to stop.
bool NextLine(int stop_event, std::string& line) {
  line.clear();
  while (true) {
    pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                     {.fd = stop_event, .events = POLLIN, .revents = 0}};
    if (::poll(fds, 2, -1) < 0) continue;  // EINTR
    char byte;
    if (fds[1].revents != 0 || ::read(STDIN_FILENO, &byte, 1) != 1) return false;
    if (byte == '\n') return true;
    line.push_back(byte);
  }
}

int Serve(int argc, char** argv) {
  FuseMountOptions options;
  MemoryVolumeOptions volume_options;
  std::string journal_dir;
  int keeper_fd = -1;
  bool take_over = false;
  options.dir = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--no-writeback") options.writeback_cache = false;
    if (word == "--take-over") take_over = true;
    if (word == "--no-resend") options.resends = false;
    if (i + 1 == argc) break;
    if (word == "--write-delay-ms") {
      volume_options.before_write = [ms = std::atoi(argv[i + 1])] {
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      };
    }
    if (word == "--reply-delay-us") {
      options.before_reply = [us = std::atoi(argv[i + 1])] {
        std::this_thread::sleep_for(std::chrono::microseconds(us));
      };
    }
    if (word == "--quota-bytes")
      volume_options.quota_bytes = std::strtoull(argv[i + 1], nullptr, 10);
    if (word == "--journal") journal_dir = argv[i + 1];
    if (word == "--keeper-fd") keeper_fd = std::atoi(argv[i + 1]);
  }
  // A lost keeper ends the program like the end of stdin: the destructors unmount.
  const UniqueFd stop_event(::eventfd(0, EFD_CLOEXEC));
  const auto stop = [&stop_event] { ::eventfd_write(stop_event.get(), 1); };
  auto keeper = KeeperClient::Connect(UniqueFd(keeper_fd), stop);
  if (!keeper) {
    std::cout << "error " << keeper.error().ToString() << std::endl;
    return 3;
  }
  std::optional<TakenMount> taken;
  if (const auto mounts = (*keeper)->ListMounts(); take_over && mounts && !mounts->empty()) {
    auto mount = (*keeper)->Take(mounts->front());
    if (!mount) {
      std::cout << "error " << mount.error().ToString() << std::endl;
      return 6;
    }
    taken = *std::move(mount);
  }
  Served served;
  if (journal_dir.empty()) {
    auto memory = std::make_unique<MemoryVolume>(volume_options);
    served.memory = memory.get();
    served.volume = std::move(memory);
  } else {
    const Status opened =
        served.OpenJournal(journal_dir, volume_options.quota_bytes, taken ? &*taken : nullptr);
    if (!opened) {
      std::cout << "error " << opened.error().ToString() << std::endl;
      return 5;
    }
  }
  auto mounted = taken
                     ? MountedVolume::TakeOver(**keeper, *served.volume, *std::move(taken), options)
                     : MountedVolume::Mount(**keeper, *served.volume, options);
  if (!mounted) {
    std::cout << "error " << mounted.error().ToString() << std::endl;
    return 4;
  }
  if (take_over && !(*keeper)->Ready()) return 7;
  std::cout << "ready " << ::getpid() << ' ' << (*keeper)->keeper_pid() << std::endl;
  std::string line;
  while (NextLine(stop_event.get(), line) && line != "quit") {
    const Result<std::string> answer = Answer(**keeper, served, **mounted, line);
    std::cout << (answer ? *answer : "error " + answer.error().ToString()) << std::endl;
  }
  if (take_over) {  // else the keeper would start the next
    ::kill(static_cast<pid_t>((*keeper)->keeper_pid()), SIGTERM);
    pollfd stopped{.fd = stop_event.get(), .events = POLLIN, .revents = 0};
    ::poll(&stopped, 1, -1);
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return cairn::Serve(argc, argv);
}
