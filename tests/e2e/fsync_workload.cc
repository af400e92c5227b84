// Writes under load and says, outside the file system it writes to, what fsync() acknowledged;
// later proves that all of it is there.
//
//   fsync_workload run DIR LOG SEED    four threads until a call fails (exit 0: the file system
//   went away) or SIGTERM fsync_workload verify DIR LOG      exit 1 and one line for each
//   acknowledged thing that is not there or not right
//
// Each thread owns DIR/<thread> and repeats, by a seeded choice:
//   append   a record of 1 to 20000 bytes to "log<n>", fsync                      acknowledged:
//   "append n index" slot     overwrite one of 64 pages of 4 KiB in "slots", fsync acknowledged:
//   "slot index version" replace  write "tmp", fsync, rename over "config", fsync(DIR/<thread>)
//   acknowledged: "replace 0 version" remove   unlink a whole "log<n>", fsync(DIR/<thread>)
//   acknowledged: "remove n 0"
// Contents follow from (seed, thread, what, version) alone, so the log holds numbers only. A line
// is appended to LOG.<thread> with one write(2) after the last fsync of the step returned, so it
// survives a kill of this process; LOG must not be on what crashes.
//
// Verify: every acknowledged append is at its offset with its bytes; every slot and config holds a
// whole version that is not older than the acknowledged one (a newer one may have been on its way);
// what was acknowledged as removed is not there.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4;
constexpr uint64_t kSlots = 64;
constexpr size_t kSlotBytes = 4096;
constexpr uint64_t kRecordsPerLog = 40;

enum What : uint64_t { kAppend = 1, kSlot = 2, kReplace = 3 };

// Starts with its version (8 bytes, little endian).
std::string Content(uint64_t seed, int thread, What what, uint64_t index, uint64_t version,
                    size_t size) {
  std::seed_seq sequence{seed, static_cast<uint64_t>(thread), static_cast<uint64_t>(what), index,
                         version};
  std::mt19937_64 random(sequence);
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = i == 0 ? version : random();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

std::string Record(uint64_t seed, int thread, uint64_t log, uint64_t index) {
  const size_t size = 1 + std::mt19937_64(seed ^ (log * 1000003 + index))() % 20000;
  return Content(seed, thread, kAppend, log, index, size);
}

std::string Slot(uint64_t seed, int thread, uint64_t index, uint64_t version) {
  return Content(seed, thread, kSlot, index, version, kSlotBytes);
}

std::string Config(uint64_t seed, int thread, uint64_t version) {
  return Content(seed, thread, kReplace, 0, version, 100 + version % 9000);
}

// One file or directory descriptor; every call returns false on failure.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool Write(std::string_view bytes, off_t offset) {
    return fd_ >= 0 &&
           pwrite(fd_, bytes.data(), bytes.size(), offset) == static_cast<ssize_t>(bytes.size());
  }
  bool Append(std::string_view bytes) {
    return fd_ >= 0 && write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  }
  bool Fsync() { return fd_ >= 0 && fsync(fd_) == 0; }

 private:
  int fd_;
};

bool WriteAndFsync(const std::string& path, int flags, std::string_view bytes, off_t offset) {
  Descriptor file(path, flags);
  return file.Write(bytes, offset) && file.Fsync();
}

bool FsyncDir(const std::string& path) { return Descriptor(path, O_RDONLY | O_DIRECTORY).Fsync(); }

std::atomic<bool> stop = false;

class Worker {
 public:
  Worker(std::string dir, const std::string& log, uint64_t seed, int thread)
      : dir_(std::move(dir)),
        acknowledged_(log + "." + std::to_string(thread), O_CREAT | O_APPEND | O_WRONLY),
        seed_(seed),
        thread_(thread),
        random_(seed * kThreads + static_cast<uint64_t>(thread)) {}

  // Until a call fails.
  void Run() {
    if (!Prepare()) return;
    while (!stop) {
      const uint64_t choice = random_() % 10;
      const bool done = choice < 4   ? AppendRecord()
                        : choice < 7 ? OverwriteSlot()
                        : choice < 9 ? ReplaceConfig()
                                     : RemoveLog();
      if (!done) return;
    }
  }

 private:
  bool Prepare() {
    if (mkdir(dir_.c_str(), 0755) != 0) return false;
    const std::string parent = dir_.substr(0, dir_.rfind('/'));
    return WriteAndFsync(dir_ + "/slots", O_CREAT | O_WRONLY, std::string(kSlots * kSlotBytes, 0),
                         0) &&
           FsyncDir(dir_) && FsyncDir(parent) && Acknowledge("seed", seed_, 0);
  }

  bool AppendRecord() {
    const std::string path = dir_ + "/log" + std::to_string(log_);
    const std::string bytes = Record(seed_, thread_, log_, record_);
    if (!WriteAndFsync(path, O_CREAT | O_WRONLY, bytes, static_cast<off_t>(log_bytes_))) {
      return false;
    }
    if (record_ == 0 && !FsyncDir(dir_)) return false;
    if (!Acknowledge("append", log_, record_)) return false;
    log_bytes_ += bytes.size();
    if (++record_ == kRecordsPerLog) {
      whole_logs_.push_back(log_++);
      record_ = log_bytes_ = 0;
    }
    return true;
  }

  bool OverwriteSlot() {
    const uint64_t index = random_() % kSlots;
    const uint64_t version = ++slot_versions_[index];
    return WriteAndFsync(dir_ + "/slots", O_WRONLY, Slot(seed_, thread_, index, version),
                         static_cast<off_t>(index * kSlotBytes)) &&
           Acknowledge("slot", index, version);
  }

  bool ReplaceConfig() {
    const uint64_t version = ++config_version_;
    const std::string tmp = dir_ + "/tmp";
    return WriteAndFsync(tmp, O_CREAT | O_TRUNC | O_WRONLY, Config(seed_, thread_, version), 0) &&
           rename(tmp.c_str(), (dir_ + "/config").c_str()) == 0 && FsyncDir(dir_) &&
           Acknowledge("replace", 0, version);
  }

  bool RemoveLog() {
    if (whole_logs_.empty()) return true;
    const uint64_t log = whole_logs_.back();
    whole_logs_.pop_back();
    // The intent first: from here on the log may be there or not.
    return Acknowledge("removing", log, 0) &&
           unlink((dir_ + "/log" + std::to_string(log)).c_str()) == 0 && FsyncDir(dir_) &&
           Acknowledge("remove", log, 0);
  }

  bool Acknowledge(const char* what, uint64_t index, uint64_t version) {
    std::array<char, 80> line{};
    const int size = std::snprintf(line.data(), line.size(), "%s %llu %llu\n", what,
                                   static_cast<unsigned long long>(index),
                                   static_cast<unsigned long long>(version));
    if (acknowledged_.Append({line.data(), static_cast<size_t>(size)})) return true;
    std::perror("fsync_workload: cannot write the log");
    std::exit(2);
  }

  const std::string dir_;
  Descriptor acknowledged_;
  const uint64_t seed_;
  const int thread_;
  std::mt19937_64 random_;
  uint64_t log_ = 0;
  uint64_t record_ = 0;
  uint64_t log_bytes_ = 0;
  std::vector<uint64_t> whole_logs_;
  std::array<uint64_t, kSlots> slot_versions_{};
  uint64_t config_version_ = 0;
};

class Verifier {
 public:
  Verifier(std::string dir, int thread) : dir_(std::move(dir)), thread_(thread) {}

  // Returns how much was acknowledged.
  uint64_t Run(const std::string& log) {
    std::ifstream lines(log);
    std::string what;
    uint64_t index = 0, version = 0, count = 0, seed = 0;
    bool prepared = false;
    while (lines >> what >> index >> version) {
      ++count;
      if (what == "seed") {
        seed = index;
        prepared = true;
      } else if (what == "append") {
        logs_[index] = version + 1;
      } else if (what == "slot") {
        slots_[index] = version;
      } else if (what == "replace") {
        config_ = version;
      } else if (what == "removing") {
        logs_.erase(index);
      } else if (what == "remove") {
        removed_.insert(index);
      }
    }
    if (prepared) Compare(seed);
    return count;
  }

  uint64_t faults() const { return faults_; }

 private:
  void Compare(uint64_t seed) {
    for (const auto& [log, records] : logs_) {
      const std::string name = "log" + std::to_string(log);
      const std::string bytes = ReadAll(name);
      size_t offset = 0;
      for (uint64_t i = 0; i < records; ++i) {
        const std::string record = Record(seed, thread_, log, i);
        if (bytes.compare(std::min(offset, bytes.size()), record.size(), record) != 0) {
          Fault(name, "record " + std::to_string(i) + " of " + std::to_string(records) +
                          " at offset " + std::to_string(offset) + " is missing or wrong; " +
                          std::to_string(bytes.size()) + " bytes are there");
          break;
        }
        offset += record.size();
      }
    }
    const std::string slots = ReadAll("slots");
    for (uint64_t index = 0; index < kSlots; ++index) {
      if (slots.size() < (index + 1) * kSlotBytes) {
        Fault("slots", "is short: " + std::to_string(slots.size()));
        break;
      }
      const std::string slot = slots.substr(index * kSlotBytes, kSlotBytes);
      const uint64_t version = VersionOf(slot);
      const std::string right =
          version == 0 ? std::string(kSlotBytes, '\0') : Slot(seed, thread_, index, version);
      if (version < slots_[index] || slot != right) {
        Fault("slots", "slot " + std::to_string(index) + " has version " + std::to_string(version) +
                           (slot == right ? "" : " in part") + ", acknowledged was " +
                           std::to_string(slots_[index]));
      }
    }
    if (config_ > 0) {
      const std::string config = ReadAll("config");
      const uint64_t version = VersionOf(config);
      if (version < config_ || config != Config(seed, thread_, version)) {
        Fault("config", "has version " + std::to_string(version) + ", acknowledged was " +
                            std::to_string(config_));
      }
    }
    for (const uint64_t log : removed_) {
      const std::string name = "log" + std::to_string(log);
      struct stat st = {};
      if (lstat((dir_ + "/" + name).c_str(), &st) == 0) Fault(name, "is back after its removal");
    }
  }

  static uint64_t VersionOf(const std::string& bytes) {
    uint64_t version = 0;
    if (bytes.size() >= sizeof(version)) std::memcpy(&version, bytes.data(), sizeof(version));
    return version;
  }

  std::string ReadAll(const std::string& name) {
    std::string bytes;
    const int fd = open((dir_ + "/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      Fault(name, std::strerror(errno));
      return bytes;
    }
    std::array<char, 65536> buffer;
    ssize_t got = 0;
    while ((got = read(fd, buffer.data(), buffer.size())) > 0) {
      bytes.append(buffer.data(), static_cast<size_t>(got));
    }
    if (got < 0) Fault(name, std::strerror(errno));
    close(fd);
    return bytes;
  }

  void Fault(const std::string& name, const std::string& what) {
    std::printf("LOST %s/%s: %s\n", dir_.c_str(), name.c_str(), what.c_str());
    ++faults_;
  }

  const std::string dir_;
  const int thread_;
  uint64_t faults_ = 0;
  std::map<uint64_t, uint64_t> logs_;   // log -> acknowledged records
  std::map<uint64_t, uint64_t> slots_;  // slot -> acknowledged version
  uint64_t config_ = 0;
  std::set<uint64_t> removed_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if (verb == "run" && argc == 5) {
    std::signal(SIGTERM, [](int) { stop = true; });
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([=] {
        Worker(std::string(argv[2]) + "/" + std::to_string(i), argv[3],
               std::strtoull(argv[4], nullptr, 10), i)
            .Run();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return 0;
  }
  if (verb == "verify" && argc == 4) {
    uint64_t count = 0, faults = 0;
    for (int i = 0; i < kThreads; ++i) {
      Verifier verifier(std::string(argv[2]) + "/" + std::to_string(i), i);
      count += verifier.Run(std::string(argv[3]) + "." + std::to_string(i));
      faults += verifier.faults();
    }
    std::printf("%llu acknowledgements, %llu lost\n", static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(faults));
    return faults == 0 ? 0 : 1;
  }
  std::fprintf(stderr, "usage: see the head of tests/e2e/fsync_workload.cc\n");
  return 2;
}
