// What ingest costs beside what its steps cost alone, in one run.
//
//   ingest_bench [--mb=192] [--rounds=5] [--records=2000000] [--dir=/tmp] [--background]
//   [--only=ingest|durable|index]
//
// Rounds are interleaved (each does every row once), medians are printed. One core: the process may
// run on one CPU only. The steps alone run on the same bytes in the same parts on that core:
//   address   HMAC-SHA-256 of the plaintext
//   zstd      at that level, into memory that is there
//   seal      AES-256-GCM of what zstd left
//   memcpy    of the plaintext, once
//   write     of the frames' bytes to a new file, half a MiB a call, fdatasync each 32 MiB
// Their limit is the harmonic sum: what a core would do that did one after the other and nothing
// else. For blocks that the store has already only the address is on the way.
// "cpu" is the same of CPU time, which a busy machine disturbs less.
//
// Sources are /usr/include cut into 64 KiB; noise is seeded random bytes that do not compress.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "store/base/aead.h"
#include "store/base/check.h"
#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/random.h"
#include "store/block_codec.h"
#include "store/block_index.h"
#include "store/key_ring.h"
#include "store/local_block_store.h"

namespace {
std::atomic<uint64_t> fdatasync_calls = 0;
}  // namespace

// Takes the place of libc's, to count.
extern "C" int fdatasync(int fd) {
  fdatasync_calls.fetch_add(1);
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
constexpr size_t kBatchBlocks = 128;
constexpr size_t kPartBytes = 512 << 10;
constexpr size_t kSyncBytes = 32 << 20;

struct Options {
  size_t mb = 192;
  int rounds = 5;
  size_t records = 2'000'000;
  std::string dir = "/tmp";
  std::string only;
  Compression compression = Compression::kFast;
};

struct Times {
  double wall = 0;
  double cpu = 0;
};

double CpuSeconds() {
  rusage usage{};
  CAIRN_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <typename F>
Times Timed(F f) {
  const double cpu = CpuSeconds();
  const auto begun = std::chrono::steady_clock::now();
  f();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(),
          CpuSeconds() - cpu};
}

void UseCores(int count) {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    CAIRN_CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    return set;
  }();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < CPU_SETSIZE && count > 0; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &set);
    --count;
  }
  CAIRN_CHECK(count == 0 && sched_setaffinity(0, sizeof set, &set) == 0);
}

std::vector<std::string> SourceBlocks(size_t limit_bytes) {
  std::vector<std::string> blocks;
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           "/usr/include", std::filesystem::directory_options::skip_permission_denied)) {
    if (blocks.size() * kBlockBytes >= limit_bytes) break;
    if (!entry.is_regular_file()) continue;
    std::ostringstream file;
    file << std::ifstream(entry.path()).rdbuf();
    text += file.str();
    size_t used = 0;
    for (; text.size() - used >= kBlockBytes; used += kBlockBytes) {
      blocks.push_back(text.substr(used, kBlockBytes));
      // Headers are there twice and more; the rows are about blocks that are new.
      const uint64_t number = blocks.size();
      std::memcpy(blocks.back().data(), &number, sizeof number);
    }
    text.erase(0, used);
  }
  return blocks;
}

std::vector<std::string> NoiseBlocks(size_t limit_bytes) {
  SeededRandom random(1);
  std::vector<std::string> blocks;
  while (blocks.size() * kBlockBytes < limit_bytes) blocks.push_back(random.Bytes(kBlockBytes));
  return blocks;
}

// A store in a directory of its own with one realm, removed at the end.
struct World {
  explicit World(const std::string& parent) : dir(parent + "/cairn-ingest-bench.XXXXXX") {
    CAIRN_CHECK(mkdtemp(dir.data()) != nullptr);
    RealmKeys realm_keys;
    realm_keys.address_key = RandomKey();
    realm_keys.wrapping_keys[1] = RandomKey();
    keys.Add(realm, realm_keys);
  }
  ~World() {
    if (store) IgnoreError(store->Close(), "the directory goes next");
    store.reset();
    IgnoreError(RemoveTree(HostFileSystem(), dir), "a temporary directory");
  }
  void Open(size_t threads) {
    auto opened = LocalBlockStore::Open({.fs = HostFileSystem(),
                                         .dir = dir,
                                         .keys = keys,
                                         .clock = SystemClock(),
                                         .store = Id128::Random(),
                                         .put_threads = threads});
    CAIRN_CHECK(opened.has_value());
    store = std::move(*opened);
  }

  std::string dir;
  Id128 realm = Id128::Random();
  KeyRing keys;
  std::unique_ptr<LocalBlockStore> store;
};

class Rows {
 public:
  void Add(const std::string& name, const Times& times) { rows_[name].push_back(times); }
  Times Median(const std::string& name) const {
    const std::vector<Times>& all = rows_.at(name);
    const auto middle = [&](double Times::* field) {
      std::vector<double> values;
      for (const Times& times : all) values.push_back(times.*field);
      std::ranges::sort(values);
      return values[values.size() / 2];
    };
    return {middle(&Times::wall), middle(&Times::cpu)};
  }

 private:
  std::map<std::string, std::vector<Times>> rows_;
};

void PutAll(World& world, const std::vector<std::string>& blocks, Compression compression) {
  auto session = world.store->BeginWrite(world.realm);
  CAIRN_CHECK(session.has_value());
  std::vector<PutRequest> requests;
  std::vector<BlockRef> refs(kBatchBlocks);
  const auto put = [&] {
    CAIRN_CHECK(
        (*session)
            ->PutMany(requests, std::span(refs).first(requests.size()), Durability::kVolatile)
            .has_value());
    requests.clear();
  };
  for (const std::string& block : blocks) {
    requests.push_back({.plain = block, .compression = compression});
    if (requests.size() == kBatchBlocks) put();
  }
  put();
  CAIRN_CHECK((*session)->Sync().has_value());
}

void MeasureSteps(const Options& options, const std::vector<std::string>& blocks, Rows& rows) {
  UseCores(1);
  World world(options.dir);
  rows.Add("address", Timed([&] {
             for (const std::string& block : blocks) {
               CAIRN_CHECK(world.keys.AddressOf(world.realm, BlockKind::kData, block).has_value());
             }
           }));
  std::string room(kBlockBytes, '\0');
  std::vector<std::string> encoded(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    encoded[i] = EncodeBlock(blocks[i], options.compression, room).bytes;
  }
  rows.Add("zstd", Timed([&] {
             for (const std::string& block : blocks) EncodeBlock(block, options.compression, room);
           }));
  std::string frame(kBlockBytes + kAeadTagBytes, '\0');
  rows.Add("seal", Timed([&] {
             AeadSealer sealer(RandomKey());
             for (const std::string& bytes : encoded) {
               sealer.Seal(Nonce96{}, bytes, "header", frame.data());
             }
           }));
  rows.Add("memcpy", Timed([&] {
             for (const std::string& block : blocks) {
               std::memcpy(room.data(), block.data(), block.size());
               asm volatile("" : : "r"(room.data()) : "memory");
             }
           }));
  uint64_t frame_bytes = 0;
  for (const std::string& bytes : encoded) {
    frame_bytes += PackEntry::FrameBytes(bytes.size() + kAeadTagBytes);
  }
  const std::string part = SeededRandom(2).Bytes(kPartBytes);
  rows.Add("write", Timed([&] {
             const int fd = open((world.dir + "/raw").c_str(), O_CREAT | O_WRONLY, 0600);
             CAIRN_CHECK(fd >= 0);
             for (uint64_t at = 0; at < frame_bytes; at += kPartBytes) {
               const size_t length = std::min<uint64_t>(kPartBytes, frame_bytes - at);
               CAIRN_CHECK(pwrite(fd, part.data(), length, static_cast<off_t>(at)) ==
                           static_cast<ssize_t>(length));
               if ((at + length) % kSyncBytes == 0) CAIRN_CHECK(fdatasync(fd) == 0);
             }
             CAIRN_CHECK(fdatasync(fd) == 0);
             close(fd);
           }));
}

void MeasureIngest(const Options& options, const std::vector<std::string>& blocks, int cores,
                   Rows& rows) {
  UseCores(cores);
  World world(options.dir);
  world.Open(static_cast<size_t>(cores));
  const std::string suffix = cores == 1 ? " on one core" : " on two cores";
  rows.Add("ingest" + suffix, Timed([&] {
             PutAll(world, blocks, options.compression);
             CAIRN_CHECK(world.store->SealOpenPacks().has_value());
           }));
  rows.Add("known" + suffix, Timed([&] { PutAll(world, blocks, options.compression); }));
}

void RunIngest(const Options& options) {
  for (const bool noise : {true, false}) {
    const std::vector<std::string> blocks =
        noise ? NoiseBlocks(options.mb << 20) : SourceBlocks(options.mb << 20);
    const double mb = double(blocks.size() * kBlockBytes) / 1e6;
    Rows rows;
    for (int round = 0; round < options.rounds; ++round) {
      MeasureSteps(options, blocks, rows);
      MeasureIngest(options, blocks, 1, rows);
      MeasureIngest(options, blocks, 2, rows);
    }
    std::printf("\n%s: %.0f MB in blocks of 64 KiB, %d rounds     MB/s   MB/cpu-s\n",
                noise ? "noise" : "sources", mb, options.rounds);
    const auto print = [&](const std::string& name, const Times& t) {
      std::printf("  %-46s %8.0f %8.0f\n", name.c_str(), mb / t.wall, mb / t.cpu);
    };
    Times limit;
    for (const char* step : {"address", "zstd", "seal", "memcpy", "write"}) {
      const Times t = rows.Median(step);
      print(step, t);
      limit.wall += t.wall;
      limit.cpu += t.cpu;
    }
    const auto ratio = [](const char* what, const Times& a, const Times& b) {
      std::printf("  %-46s %8.2f %8.2f\n", what, a.wall / b.wall, a.cpu / b.cpu);
    };
    print("harmonic sum of these", limit);
    for (const char* name :
         {"ingest on one core", "ingest on two cores", "known on one core", "known on two cores"}) {
      print(name, rows.Median(name));
    }
    ratio("ingest / harmonic sum", limit, rows.Median("ingest on one core"));
    ratio("ingest: two cores / one", rows.Median("ingest on one core"),
          rows.Median("ingest on two cores"));
    ratio("known / address", rows.Median("address"), rows.Median("known on one core"));
    ratio("known: two cores / one", rows.Median("known on one core"),
          rows.Median("known on two cores"));
  }
}

void RunDurable(const Options& options) {
  UseCores(2);
  constexpr size_t kPuts = 8000;
  std::vector<double> rates[2];
  std::vector<double> syncs[2];
  for (int round = 0; round < options.rounds; ++round) {
    for (const size_t which : {0, 1}) {
      const size_t writers = which == 0 ? 1 : 16;
      const size_t puts = which == 0 ? kPuts / 4 : kPuts;
      World world(options.dir);
      world.Open(2);
      const uint64_t before = fdatasync_calls.load();
      const Times times = Timed([&] {
        std::vector<std::thread> threads;
        for (size_t t = 0; t < writers; ++t) {
          threads.emplace_back([&, t] {
            SeededRandom random(100 * static_cast<uint64_t>(round) + t);
            auto session = world.store->BeginWrite(world.realm);
            for (size_t i = 0; i < puts / writers; ++i) {
              CAIRN_CHECK((*session)
                              ->Put(BlockKind::kData, random.Bytes(4096), Compression::kFast,
                                    Durability::kDurable)
                              .has_value());
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
      });
      rates[which].push_back(double(puts) / times.wall);
      syncs[which].push_back(double(fdatasync_calls.load() - before) / double(puts));
    }
  }
  const auto middle = [](std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
  };
  std::printf("\ndurable puts of 4 KiB, %d rounds               puts/s  syncs/put\n",
              options.rounds);
  std::printf("  %-46s %8.0f %8.3f\n", "one writer", middle(rates[0]), middle(syncs[0]));
  std::printf("  %-46s %8.0f %8.3f\n", "16 writers", middle(rates[1]), middle(syncs[1]));
  std::printf("  %-46s %8.2f\n", "16 writers / one", middle(rates[1]) / middle(rates[0]));
}

uint64_t ResidentMb() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096 / 1'000'000;
}

Address AddressOfNumber(uint64_t number) {
  SeededRandom random(number);
  return Address::FromView(random.Bytes(32));
}

// Until the process takes no CPU of its own accord: RocksDB goes on compacting after a fill, on the
// core that the look-ups would be measured on.
double WaitUntilIdle() {
  return Timed([] {
           for (double before = -1, now = CpuSeconds(); now - before > 0.01;) {
             before = now;
             std::this_thread::sleep_for(std::chrono::seconds(1));
             now = CpuSeconds();
           }
         })
      .wall;
}

void RunIndex(const Options& options) {
  UseCores(1);
  malloc_trim(0);
  const uint64_t resident_before = ResidentMb();
  World world(options.dir);
  const auto open = [&] {
    auto opened = BlockIndex::Open({.dir = world.dir + "/index", .store = world.realm});
    CAIRN_CHECK(opened.has_value());
    return std::move(*opened);
  };
  constexpr size_t kPackEntries = 1024;
  constexpr size_t kBatch = 64;
  auto index = open();
  const Times fill = Timed([&] {
    std::vector<PackEntry> entries;
    for (size_t i = 0; i < options.records; ++i) {
      entries.push_back({.address = AddressOfNumber(i),
                         .offset = 160 + entries.size() * 20000,
                         .stored_length = 19000,
                         .raw_length = 65536});
      if (entries.size() < kPackEntries && i + 1 < options.records) continue;
      const PackSummary pack{.pack = Id128::Random(), .realm = world.realm};
      CAIRN_CHECK(index->AddPack(pack, 1, entries).has_value());
      entries.clear();
    }
  });
  CAIRN_CHECK(index->Close().has_value());
  index = open();
  const double idle = WaitUntilIdle();
  std::printf("\nindex of %zu records (filled in %.0f s, one core, compacted %.0f s later)\n",
              options.records, fill.wall, idle);
  std::printf("  %-46s %8s %8s %8s\n", "", "us each", "k/s", "k/cpu-s");
  const size_t asks = std::min<size_t>(options.records, 200'000);
  SeededRandom random(7);
  for (const bool hit : {false, true}) {
    for (const size_t batch : {size_t{1}, kBatch}) {
      std::vector<double> wall, cpu;
      for (int round = 0; round < options.rounds; ++round) {
        std::vector<Address> addresses;
        for (size_t i = 0; i < asks; ++i) {
          addresses.push_back(
              AddressOfNumber(random.Below(options.records) + (hit ? 0 : options.records)));
        }
        std::vector<std::optional<BlockLocation>> found(batch);
        size_t hits = 0;
        const Times times = Timed([&] {
          for (size_t i = 0; i + batch <= asks; i += batch) {
            CAIRN_CHECK(index->GetMany(std::span(addresses).subspan(i, batch), found).has_value());
            for (const auto& location : found) hits += location.has_value();
          }
        });
        CAIRN_CHECK(hits == (hit ? asks / batch * batch : 0));
        wall.push_back(times.wall / double(asks));
        cpu.push_back(times.cpu / double(asks));
      }
      std::ranges::sort(wall);
      std::ranges::sort(cpu);
      const double w = wall[wall.size() / 2], c = cpu[cpu.size() / 2];
      std::printf("  %-46s %8.2f %8.0f %8.0f\n",
                  fmt::format("{}, {}", hit ? "hit" : "miss",
                              batch == 1 ? std::string("one at a time")
                                         : fmt::format("{} at a time", batch))
                      .c_str(),
                  w * 1e6, 1e-3 / w, 1e-3 / c);
    }
  }
  malloc_trim(0);
  std::printf("  %-46s %8ld\n", "resident MB, more than before",
              static_cast<long>(ResidentMb()) - static_cast<long>(resident_before));
}

void Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t eq = arg.find('=');
    const std::string name = arg.substr(0, eq);
    const std::string value = eq == std::string::npos ? "" : arg.substr(eq + 1);
    if (name == "--mb") {
      options.mb = std::stoul(value);
    } else if (name == "--rounds") {
      options.rounds = std::stoi(value);
    } else if (name == "--records") {
      options.records = std::stoul(value);
    } else if (name == "--dir") {
      options.dir = value;
    } else if (name == "--only") {
      options.only = value;
    } else if (name == "--background") {
      options.compression = Compression::kBackground;
    } else {
      std::fprintf(stderr, "unknown option %s: see the head of bench/ingest_bench.cc\n", argv[i]);
      std::exit(2);
    }
  }
  if (options.only.empty() || options.only == "ingest") RunIngest(options);
  if (options.only.empty() || options.only == "durable") RunDurable(options);
  if (options.only.empty() || options.only == "index") RunIndex(options);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::Main(argc, argv);
  return 0;
}
