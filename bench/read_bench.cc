// What reads cost beside what the machine can do, in one run.
//
//   read_bench [--mb=256] [--rounds=5] [--dir=/tmp] [--only=cached|random|ordered]
//
// Rounds are interleaved (each does every row once), medians are printed. "raw" is io_uring with
// O_DIRECT and registered buffers on the store's own pack files and nothing else: 64 KiB at random
// places at depth 32, or 256 KiB in order at depth 8; "fio" is fio doing the same, where it is
// installed, and then the limit. The store's rows read the same bytes as
// blocks, out of the page cache's way, verified, decrypted and decompressed:
//   GetMany     several hundred blocks a call, by one caller and the threads of the store
//   read ahead  Get of one after the other, with Prefetch 4 MiB ahead, as a file is read in order
// "steps" is what checksum, AES-256-GCM and zstd of those bytes cost alone on one core.
//
// Noise is seeded random bytes that do not compress; sources are /usr/include. MB/s of plaintext,
// but for raw.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <liburing.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "store/base/aead.h"
#include "store/base/check.h"
#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/random.h"
#include "store/base/unique_fd.h"
#include "store/block_codec.h"
#include "store/key_ring.h"
#include "store/local_block_store.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
constexpr size_t kCallBlocks = 256;
constexpr size_t kAheadBlocks = 64;
constexpr uint64_t kCacheBytes = 32 << 20;

struct Options {
  size_t mb = 256;
  int rounds = 5;
  std::string dir = "/tmp";
  std::string only;
};

double CpuSeconds() {
  rusage usage{};
  CAIRN_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Medians of what each row did.
class Rows {
 public:
  template <typename F>
  void Time(const std::string& row, double bytes, F f) {
    const double cpu = CpuSeconds();
    const auto begun = std::chrono::steady_clock::now();
    f();
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (!samples_.contains(row)) order_.push_back(row);
    samples_[row].push_back({bytes / wall / 1e6, (CpuSeconds() - cpu) / bytes * 1e9});
  }
  // A rate that another program measured; 0: it could not.
  void Add(const std::string& row, double bytes_per_second) {
    if (bytes_per_second == 0) return;
    if (!samples_.contains(row)) order_.push_back(row);
    samples_[row].push_back({bytes_per_second / 1e6, 0});
  }
  // The first of `limits` that is there is the row that the others are compared with.
  void Print(const std::string& title, const std::vector<std::string>& limits) {
    std::printf("%-44s %9s %8s %12s\n", title.c_str(), "MB/s", "of limit", "CPU, ms/MB");
    const auto limit = std::ranges::find_if(
        limits, [this](const std::string& row) { return samples_.contains(row); });
    CAIRN_CHECK(limit != limits.end());
    const double best = Median(*limit).first;
    for (const std::string& row : order_) {
      const auto [rate, cpu] = Median(row);
      std::printf("  %-42s %9.0f %8.2f %12s\n", row.c_str(), rate, rate / best,
                  cpu == 0 ? "" : fmt::format("{:.3f}", cpu).c_str());
    }
  }

 private:
  std::pair<double, double> Median(const std::string& row) {
    auto samples = samples_.at(row);
    std::ranges::sort(samples);
    const double rate = samples[samples.size() / 2].first;
    std::ranges::sort(samples, {}, &std::pair<double, double>::second);
    return {rate, samples[samples.size() / 2].second};
  }
  std::vector<std::string> order_;
  std::map<std::string, std::vector<std::pair<double, double>>> samples_;
};

std::vector<std::string> SourceBlocks(size_t count) {
  std::vector<std::string> files;
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           "/usr/include", std::filesystem::directory_options::skip_permission_denied)) {
    if (!entry.is_regular_file() || text.size() > (64u << 20)) continue;
    std::ostringstream file;
    file << std::ifstream(entry.path()).rdbuf();
    text += file.str();
  }
  std::vector<std::string> blocks;
  for (size_t i = 0; i < count; ++i) {
    blocks.push_back(text.substr(i * kBlockBytes % (text.size() - kBlockBytes), kBlockBytes));
    std::memcpy(blocks.back().data(), &i, sizeof i);  // none is there twice
  }
  return blocks;
}

std::vector<std::string> NoiseBlocks(size_t count) {
  SeededRandom random(1);
  std::vector<std::string> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(random.Bytes(kBlockBytes));
  return blocks;
}

// A store in a directory of its own that holds the blocks in sealed packs; removed at the end.
struct World {
  World(const Options& options, const std::vector<std::string>& plains) {
    dir = options.dir + "/cairn-read-bench.XXXXXX";
    CAIRN_CHECK(mkdtemp(dir.data()) != nullptr);
    RealmKeys realm_keys;
    realm_keys.address_key = RandomKey();
    realm_keys.wrapping_keys[1] = RandomKey();
    keys.Add(realm, realm_keys);
    Open(0);
    auto session = store->BeginWrite(realm);
    CAIRN_CHECK(session.has_value());
    for (const std::string& plain : plains) {
      refs.push_back(*(*session)->Put(BlockKind::kData, plain, Compression::kFast));
    }
    CAIRN_CHECK((*session)->Sync().has_value());
    session->reset();
    CAIRN_CHECK(store->Close().has_value());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir + "/packs")) {
      if (entry.is_regular_file()) packs.push_back(entry.path());
    }
  }
  ~World() {
    if (store) IgnoreError(store->Close(), "the directory goes next");
    store.reset();
    IgnoreError(RemoveTree(HostFileSystem(), dir), "a temporary directory");
  }
  void Open(uint64_t cache_bytes) {
    if (store) IgnoreError(store->Close(), "opened again next");
    store.reset();
    auto opened = LocalBlockStore::Open({.fs = HostFileSystem(),
                                         .dir = dir,
                                         .keys = keys,
                                         .clock = SystemClock(),
                                         .store = BaseRealm(),
                                         .cache_bytes = cache_bytes});
    CAIRN_CHECK(opened.has_value());
    store = std::move(*opened);
  }
  void DropPageCache() const {
    for (const std::string& pack : packs) {
      UniqueFd fd(open(pack.c_str(), O_RDONLY | O_CLOEXEC));
      CAIRN_CHECK(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
    }
  }

  std::string dir;
  Id128 realm = Id128::Random();
  KeyRing keys;
  std::unique_ptr<LocalBlockStore> store;
  std::vector<BlockRef> refs;
  std::vector<std::string> packs;
};

// Reads `count` parts of `part_bytes` of the files at `depth`; at random places, or in order.
void RawReads(const std::vector<std::string>& paths, size_t count, size_t part_bytes,
              unsigned depth, bool in_order, uint64_t seed) {
  std::vector<UniqueFd> files;
  std::vector<std::pair<int, uint64_t>> parts;  // of all files, in order
  for (const std::string& path : paths) {
    files.emplace_back(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    struct stat st{};
    CAIRN_CHECK(files.back().valid() && fstat(files.back().get(), &st) == 0);
    for (uint64_t at = 0; at + part_bytes <= static_cast<uint64_t>(st.st_size); at += part_bytes) {
      parts.emplace_back(files.back().get(), at);
    }
  }
  io_uring ring;
  CAIRN_CHECK(io_uring_queue_init(depth, &ring,
                                  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) == 0);
  char* const arena = static_cast<char*>(std::aligned_alloc(4096, depth * part_bytes));
  const iovec whole{.iov_base = arena, .iov_len = depth * part_bytes};
  CAIRN_CHECK(io_uring_register_buffers(&ring, &whole, 1) == 0);
  std::vector<unsigned> idle;
  for (unsigned slot = 0; slot < depth; ++slot) idle.push_back(slot);
  SeededRandom random(seed);
  for (size_t started = 0, ended = 0; ended < count;) {
    for (; started < count && !idle.empty(); ++started) {
      const auto& [fd, at] = parts[(in_order ? started : random.Next()) % parts.size()];
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
      io_uring_prep_read_fixed(sqe, fd, arena + idle.back() * part_bytes,
                               static_cast<unsigned>(part_bytes), at, 0);
      io_uring_sqe_set_data64(sqe, idle.back());
      idle.pop_back();
    }
    CAIRN_CHECK(io_uring_submit_and_wait(&ring, 1) >= 0);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      CAIRN_CHECK(cqe->res == static_cast<int>(part_bytes));
      idle.push_back(static_cast<unsigned>(cqe->user_data));
      io_uring_cqe_seen(&ring, cqe);
      ++ended;
    }
  }
  io_uring_queue_exit(&ring);
  std::free(arena);
}

// Bytes per second of fio's reads of these files, 0 where fio is not installed. It says itself what
// it measured: starting it takes longer than the reads.
double FioReads(const std::vector<std::string>& paths, const std::string& how, double bytes) {
  const std::string command = fmt::format(
      "fio --name=reads --readonly --ioengine=io_uring --direct=1 --fixedbufs=1 --registerfiles=1 "
      "--gtod_reduce=1 {} --filename={} --io_size={:.0f} --output-format=terse --terse-version=3 "
      "2>/dev/null",
      how, fmt::join(paths, ":"), bytes);
  FILE* const output = popen(command.c_str(), "r");
  CAIRN_CHECK(output != nullptr);
  std::string line(1 << 16, '\0');
  line.resize(std::fread(line.data(), 1, line.size(), output));
  if (pclose(output) != 0) return 0;
  std::istringstream fields(line);
  std::string field;
  for (int i = 0; i < 7; ++i) std::getline(fields, field, ';');
  return std::stod(field) * 1024;
}

void Steps(Rows& rows, const std::vector<std::string>& plains) {
  const Key256 key = RandomKey();
  std::vector<std::pair<Codec, std::string>> sealed;
  std::string room(kBlockBytes, '\0');
  for (size_t i = 0; i < std::min<size_t>(plains.size(), 256); ++i) {
    const EncodedBlock block = EncodeBlock(plains[i], Compression::kFast, room);
    sealed.emplace_back(block.codec, std::string());
    AppendSealed(key, Nonce96{}, block.bytes, "header", sealed.back().second);
  }
  rows.Time("steps alone, one core", double(sealed.size()) * kBlockBytes, [&] {
    uint64_t sum = 0;
    for (const auto& [codec, bytes] : sealed) {
      sum += XXH3_64bits(bytes.data(), bytes.size());
      auto opened = OpenSealed(key, Nonce96{}, bytes, "header");
      const auto plain = DecodeBlock(codec, *std::move(opened), kBlockBytes);
      sum += plain->size();
    }
    CAIRN_CHECK(sum != 0);
  });
}

void GetAll(World& world, std::span<const BlockRef> refs) {
  for (size_t i = 0; i < refs.size(); i += kCallBlocks) {
    const auto call = refs.subspan(i, std::min(kCallBlocks, refs.size() - i));
    for (const auto& block : world.store->GetMany(world.realm, call, {.keep = false})) {
      CAIRN_CHECK(block.has_value());
    }
  }
}

void GetAllByTwo(World& world, std::span<const BlockRef> refs) {
  std::thread other([&] { GetAll(world, refs.subspan(refs.size() / 2)); });
  GetAll(world, refs.first(refs.size() / 2));
  other.join();
}

void ReadAhead(World& world, std::span<const BlockRef> refs) {
  for (size_t i = 0; i < refs.size(); ++i) {
    if (i % (kAheadBlocks / 4) == 0) {
      const size_t from = std::min(refs.size(), i == 0 ? 0 : i + kAheadBlocks * 3 / 4);
      const size_t to = std::min(refs.size(), i + kAheadBlocks);
      world.store->Prefetch(world.realm, refs.subspan(from, to - from));
    }
    CAIRN_CHECK(world.store->Get(world.realm, refs[i]).has_value());
  }
}

void RunCached(const Options& options) {
  const auto plains = NoiseBlocks(256);
  World world(options, plains);
  world.Open(64 << 20);
  for (const BlockRef& ref : world.refs) CAIRN_CHECK(world.store->Get(world.realm, ref));
  std::string target(kBlockBytes, '\0');
  Rows rows;
  for (int round = 0; round < options.rounds; ++round) {
    const double bytes = 40.0 * double(plains.size()) * kBlockBytes;
    rows.Time("memcpy of 64 KiB", bytes, [&] {
      for (int i = 0; i < 40; ++i) {
        for (const std::string& plain : plains) {
          std::memcpy(target.data(), plain.data(), kBlockBytes);
          asm volatile("" : : "r"(target.data()) : "memory");
        }
      }
    });
    rows.Time("cached Get and memcpy", bytes, [&] {
      for (int i = 0; i < 40; ++i) {
        for (const BlockRef& ref : world.refs) {
          const auto block = world.store->Get(world.realm, ref);
          std::memcpy(target.data(), (*block)->data(), kBlockBytes);
          asm volatile("" : : "r"(target.data()) : "memory");
        }
      }
    });
  }
  rows.Print("cached", {"memcpy of 64 KiB"});
}

void RunRandom(const Options& options, const std::string& what,
               const std::vector<std::string>& plains) {
  World world(options, plains);
  world.Open(0);
  Rows rows;
  SeededRandom random(7);
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<BlockRef> asked = world.refs;
    for (size_t i = asked.size(); i > 1; --i) std::swap(asked[i - 1], asked[random.Below(i)]);
    const double bytes = double(asked.size()) * kBlockBytes;
    world.DropPageCache();
    rows.Time("raw, depth 32", bytes,
              [&] { RawReads(world.packs, asked.size(), kBlockBytes, 32, false, random.Next()); });
    rows.Add("fio, depth 32", FioReads(world.packs, "--rw=randread --bs=64k --iodepth=32", bytes));
    rows.Time("GetMany", bytes, [&] { GetAll(world, asked); });
    rows.Time("GetMany, two callers", bytes, [&] { GetAllByTwo(world, asked); });
    Steps(rows, plains);
  }
  rows.Print("64 KiB at random, " + what, {"fio, depth 32", "raw, depth 32"});
}

void RunOrdered(const Options& options, const std::string& what,
                const std::vector<std::string>& plains) {
  World world(options, plains);
  Rows rows;
  for (int round = 0; round < options.rounds; ++round) {
    constexpr size_t kPartBytes = 256 << 10;
    size_t pack_bytes = 0;
    for (const std::string& pack : world.packs) pack_bytes += std::filesystem::file_size(pack);
    const double bytes = double(plains.size()) * kBlockBytes;
    world.DropPageCache();
    const size_t parts = pack_bytes / kPartBytes;
    rows.Time("raw, 256 KiB at depth 8", double(parts) * kPartBytes,
              [&] { RawReads(world.packs, parts, kPartBytes, 8, true, 0); });
    rows.Add("fio, 256 KiB at depth 8",
             FioReads(world.packs, "--rw=read --bs=256k --iodepth=8", bytes));
    world.Open(0);
    rows.Time("GetMany", bytes, [&] { GetAll(world, world.refs); });
    rows.Time("GetMany, two callers", bytes, [&] { GetAllByTwo(world, world.refs); });
    // The first half fills the cache and with it memory that the process has for good from then on;
    // the other half is what is measured.
    const auto half = std::span(world.refs).subspan(world.refs.size() / 2);
    world.Open(kCacheBytes);
    ReadAhead(world, std::span(world.refs).first(world.refs.size() / 2));
    world.DropPageCache();
    rows.Time("read ahead", double(half.size()) * kBlockBytes, [&] { ReadAhead(world, half); });
    Steps(rows, plains);
  }
  rows.Print("in order, " + what, {"fio, 256 KiB at depth 8", "raw, 256 KiB at depth 8"});
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
    } else if (name == "--dir") {
      options.dir = value;
    } else if (name == "--only") {
      options.only = value;
    } else {
      std::fprintf(stderr, "unknown option %s: see the head of bench/read_bench.cc\n", argv[i]);
      std::exit(2);
    }
  }
  const size_t count = (options.mb << 20) / kBlockBytes;
  const auto wanted = [&](std::string_view rows) {
    return options.only.empty() || options.only == rows;
  };
  if (wanted("cached")) RunCached(options);
  if (!wanted("random") && !wanted("ordered")) return;
  for (const bool noise : {true, false}) {
    const auto plains = noise ? NoiseBlocks(count) : SourceBlocks(count);
    const std::string what = noise ? "noise" : "sources";
    if (wanted("random")) RunRandom(options, what, plains);
    if (wanted("ordered")) RunOrdered(options, what, plains);
  }
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  mallopt(M_TRIM_THRESHOLD, 32 << 20);  // as cairnd
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  cairn::Main(argc, argv);
  return 0;
}
