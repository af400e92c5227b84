// The system call loops of bench/run.py, so that no interpreter stands between two calls. One
// measurement a run:
//
//   fsops create DIR COUNT SIZE      COUNT files of SIZE bytes in DIR/0, DIR/1, ... (1000 each):
//   open, write, close fsops stat DIR COUNT             lstat of each, in creation order fsops
//   unlink DIR COUNT fsops write FILE SIZE            1 MiB writes in order, then fsync (both
//   timed) fsops read FILE                  1 MiB reads in order fsops random_read FILE COUNT     4
//   KiB preads at seeded random 4 KiB offsets fsops write_fsync FILE COUNT     4 KiB pwrite at a
//   seeded random 4 KiB offset, then fsync; each pair is one operation
//
// Prints one JSON object: operations, bytes, seconds (wall time of the loop), p50_us and p99_us of
// one operation. Any failed call ends the run with exit code 1: half a measurement is none.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr uint64_t kFilesPerDir = 1000;
constexpr size_t kChunkBytes = 1 << 20;
constexpr size_t kPageBytes = 4096;

[[noreturn]] void Fail(const char* call, const std::string& path) {
  std::fprintf(stderr, "fsops: %s %s: %s\n", call, path.c_str(), std::strerror(errno));
  std::exit(1);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times each operation and the whole loop.
class Meter {
 public:
  explicit Meter(uint64_t operations) { seconds_.reserve(operations); }
  void Start() { start_ = last_ = Now(); }
  void Lap() {
    const double now = Now();
    seconds_.push_back(now - last_);
    last_ = now;
  }
  void Print(uint64_t bytes) {
    const double total = last_ - start_;
    std::sort(seconds_.begin(), seconds_.end());
    const auto percentile = [&](double part) {
      return seconds_.empty()
                 ? 0.0
                 : 1e6 * seconds_[static_cast<size_t>(part * double(seconds_.size() - 1))];
    };
    std::printf(
        "{\"operations\": %zu, \"bytes\": %llu, \"seconds\": %.6f, \"p50_us\": %.2f, \"p99_us\": "
        "%.2f}\n",
        seconds_.size(), static_cast<unsigned long long>(bytes), total, percentile(0.5),
        percentile(0.99));
  }

 private:
  double start_ = 0;
  double last_ = 0;
  std::vector<double> seconds_;
};

// Bytes that neither compress nor repeat.
std::string Noise(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

std::string FilePath(const std::string& dir, uint64_t index) {
  return dir + "/" + std::to_string(index / kFilesPerDir) + "/file" + std::to_string(index);
}

int Open(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) Fail("open", path);
  return fd;
}

uint64_t Pages(int fd, const std::string& path) {
  struct stat st = {};
  if (fstat(fd, &st) != 0) Fail("fstat", path);
  const uint64_t pages = static_cast<uint64_t>(st.st_size) / kPageBytes;
  if (pages == 0) {
    errno = EINVAL;
    Fail("a file of at least 4 KiB is needed:", path);
  }
  return pages;
}

void Create(const std::string& dir, uint64_t count, size_t size) {
  for (uint64_t i = 0; i * kFilesPerDir < count; ++i) {
    const std::string sub = dir + "/" + std::to_string(i);
    if (mkdir(sub.c_str(), 0755) != 0 && errno != EEXIST) Fail("mkdir", sub);
  }
  std::string bytes = Noise(size, 1);
  Meter meter(count);
  meter.Start();
  for (uint64_t i = 0; i < count; ++i) {
    const std::string path = FilePath(dir, i);
    std::memcpy(bytes.data(), &i, std::min(sizeof(i), size));
    const int fd = Open(path, O_CREAT | O_EXCL | O_WRONLY);
    if (write(fd, bytes.data(), size) != static_cast<ssize_t>(size)) Fail("write", path);
    if (close(fd) != 0) Fail("close", path);
    meter.Lap();
  }
  meter.Print(count * size);
}

void Stat(const std::string& dir, uint64_t count) {
  Meter meter(count);
  meter.Start();
  for (uint64_t i = 0; i < count; ++i) {
    struct stat st = {};
    const std::string path = FilePath(dir, i);
    if (lstat(path.c_str(), &st) != 0) Fail("lstat", path);
    meter.Lap();
  }
  meter.Print(0);
}

void Unlink(const std::string& dir, uint64_t count) {
  Meter meter(count);
  meter.Start();
  for (uint64_t i = 0; i < count; ++i) {
    const std::string path = FilePath(dir, i);
    if (unlink(path.c_str()) != 0) Fail("unlink", path);
    meter.Lap();
  }
  meter.Print(0);
}

void WriteSequential(const std::string& path, uint64_t size) {
  std::string bytes = Noise(kChunkBytes, 2);
  const int fd = Open(path, O_CREAT | O_TRUNC | O_WRONLY);
  Meter meter(size / kChunkBytes + 1);
  meter.Start();
  for (uint64_t done = 0; done < size; done += kChunkBytes) {
    // A stamp in each 4 KiB page: no two pages of the file are equal.
    for (size_t page = 0; page < kChunkBytes; page += kPageBytes) {
      const uint64_t stamp = done + page;
      std::memcpy(&bytes[page], &stamp, sizeof(stamp));
    }
    if (write(fd, bytes.data(), kChunkBytes) != static_cast<ssize_t>(kChunkBytes))
      Fail("write", path);
    meter.Lap();
  }
  if (fsync(fd) != 0) Fail("fsync", path);
  meter.Lap();
  if (close(fd) != 0) Fail("close", path);
  meter.Print(size);
}

void ReadSequential(const std::string& path) {
  std::string buffer(kChunkBytes, '\0');
  const int fd = Open(path, O_RDONLY);
  uint64_t bytes = 0;
  Meter meter(1024);
  meter.Start();
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0) Fail("read", path);
    if (got == 0) break;
    bytes += static_cast<uint64_t>(got);
    meter.Lap();
  }
  close(fd);
  meter.Print(bytes);
}

void RandomRead(const std::string& path, uint64_t count) {
  std::string buffer(kPageBytes, '\0');
  const int fd = Open(path, O_RDONLY);
  const uint64_t pages = Pages(fd, path);
  std::mt19937_64 random(3);
  Meter meter(count);
  meter.Start();
  for (uint64_t i = 0; i < count; ++i) {
    const off_t offset = static_cast<off_t>(random() % pages * kPageBytes);
    if (pread(fd, buffer.data(), kPageBytes, offset) != static_cast<ssize_t>(kPageBytes))
      Fail("pread", path);
    meter.Lap();
  }
  close(fd);
  meter.Print(count * kPageBytes);
}

void WriteFsync(const std::string& path, uint64_t count) {
  std::string bytes = Noise(kPageBytes, 4);
  const int fd = Open(path, O_WRONLY);
  const uint64_t pages = Pages(fd, path);
  std::mt19937_64 random(5);
  Meter meter(count);
  meter.Start();
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(bytes.data(), &i, sizeof(i));
    const off_t offset = static_cast<off_t>(random() % pages * kPageBytes);
    if (pwrite(fd, bytes.data(), kPageBytes, offset) != static_cast<ssize_t>(kPageBytes))
      Fail("pwrite", path);
    if (fsync(fd) != 0) Fail("fsync", path);
    meter.Lap();
  }
  if (close(fd) != 0) Fail("close", path);
  meter.Print(count * kPageBytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 2 ? argv[1] : "";
  const auto number = [&](int index) { return std::strtoull(argv[index], nullptr, 10); };
  if (verb == "create" && argc == 5) {
    Create(argv[2], number(3), number(4));
  } else if (verb == "stat" && argc == 4) {
    Stat(argv[2], number(3));
  } else if (verb == "unlink" && argc == 4) {
    Unlink(argv[2], number(3));
  } else if (verb == "write" && argc == 4) {
    WriteSequential(argv[2], number(3));
  } else if (verb == "read" && argc == 3) {
    ReadSequential(argv[2]);
  } else if (verb == "random_read" && argc == 4) {
    RandomRead(argv[2], number(3));
  } else if (verb == "write_fsync" && argc == 4) {
    WriteFsync(argv[2], number(3));
  } else {
    std::fprintf(stderr, "usage: see the head of bench/fsops.cc\n");
    return 2;
  }
  return 0;
}
