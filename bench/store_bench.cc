// What one core does to a block on its way into and out of a pack, each step beside the limit it
// cannot pass: memcpy for the computations, a plain append + fdatasync of the same bytes for a
// session's Put + Sync.
//
// Text is /usr/include, cut into 64 KiB; noise is seeded random bytes that do not compress.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "store/base/aead.h"
#include "store/base/check.h"
#include "store/base/clock.h"
#include "store/base/file_system.h"
#include "store/base/random.h"
#include "store/block_codec.h"
#include "store/key_ring.h"
#include "store/local_block_store.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
constexpr size_t kBatchBlocks = 64;  // 4 MiB between two syncs

const std::vector<std::string>& TextBlocks() {
  static const std::vector<std::string> blocks = [] {
    std::vector<std::string> result;
    std::string text;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             "/usr/include", std::filesystem::directory_options::skip_permission_denied)) {
      if (!entry.is_regular_file() || result.size() >= 256) continue;
      std::ostringstream file;
      file << std::ifstream(entry.path()).rdbuf();
      text += file.str();
      for (; text.size() >= kBlockBytes; text.erase(0, kBlockBytes)) {
        result.push_back(text.substr(0, kBlockBytes));
      }
    }
    CAIRN_CHECK(!result.empty());
    return result;
  }();
  return blocks;
}

const std::string& Text(size_t index) { return TextBlocks()[index % TextBlocks().size()]; }

void SetBytes(benchmark::State& state, size_t per_iteration) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(per_iteration));
}

// A store in a directory of its own with one realm, removed at the end.
struct World {
  World() {
    char name[] = "/tmp/cairn-store-bench.XXXXXX";
    CAIRN_CHECK(mkdtemp(name) != nullptr);
    dir = name;
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
  void Open(uint64_t cache_bytes) {
    auto opened = LocalBlockStore::Open({.fs = HostFileSystem(),
                                         .dir = dir,
                                         .keys = keys,
                                         .clock = SystemClock(),
                                         .store = Id128::Random(),
                                         .cache_bytes = cache_bytes});
    CAIRN_CHECK(opened.has_value());
    store = std::move(*opened);
  }

  std::string dir;
  Id128 realm = Id128::Random();
  KeyRing keys;
  std::unique_ptr<LocalBlockStore> store;
};

void BM_Memcpy(benchmark::State& state) {
  std::string target(kBlockBytes, '\0');
  size_t i = TextBlocks().size();  // reads them before the clock runs
  for (auto _ : state) {
    std::memcpy(target.data(), Text(i++).data(), kBlockBytes);
    benchmark::ClobberMemory();
  }
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_Memcpy);

void BM_Address(benchmark::State& state) {
  World world;
  const size_t size = static_cast<size_t>(state.range(0));
  size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(world.keys.AddressOf(world.realm, BlockKind::kData,
                                                  std::string_view(Text(i++)).substr(0, size)));
  }
  SetBytes(state, size);
}
BENCHMARK(BM_Address)->Arg(4096)->Arg(kBlockBytes);

void BM_Encode(benchmark::State& state) {
  const auto compression = static_cast<Compression>(state.range(0));
  std::string room(kBlockBytes, '\0');
  size_t i = 0, stored = 0;
  for (auto _ : state) stored += EncodeBlock(Text(i++), compression, room).bytes.size();
  SetBytes(state, kBlockBytes);
  state.counters["ratio"] = double(i) * kBlockBytes / double(stored);
}
BENCHMARK(BM_Encode)
    ->Arg(static_cast<int>(Compression::kFast))
    ->Arg(static_cast<int>(Compression::kBackground));

void BM_EncodeNoise(benchmark::State& state) {
  const std::string noise = SeededRandom(1).Bytes(kBlockBytes);
  std::string room(kBlockBytes, '\0');
  for (auto _ : state) benchmark::DoNotOptimize(EncodeBlock(noise, Compression::kFast, room));
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_EncodeNoise);

void BM_Decode(benchmark::State& state) {
  std::vector<std::pair<Codec, std::string>> encoded;
  std::string room(kBlockBytes, '\0');
  for (const std::string& plain : TextBlocks()) {
    const EncodedBlock block = EncodeBlock(plain, Compression::kFast, room);
    encoded.emplace_back(block.codec, block.bytes);
  }
  size_t i = 0;
  for (auto _ : state) {
    const auto& [codec, bytes] = encoded[i++ % encoded.size()];
    benchmark::DoNotOptimize(DecodeBlock(codec, bytes, kBlockBytes));
  }
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_Decode);

void BM_Seal(benchmark::State& state) {
  const Key256 key = RandomKey();
  std::string out;
  size_t i = 0;
  for (auto _ : state) {
    out.clear();
    AppendSealed(key, Nonce96{}, Text(i++), "header", out);
    benchmark::DoNotOptimize(out.data());
  }
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_Seal);

void BM_Unseal(benchmark::State& state) {
  const Key256 key = RandomKey();
  std::string sealed;
  AppendSealed(key, Nonce96{}, Text(0), "header", sealed);
  for (auto _ : state) benchmark::DoNotOptimize(OpenSealed(key, Nonce96{}, sealed, "header"));
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_Unseal);

// The limit of BM_PutNew: the same plaintext bytes appended to one file, one fdatasync per batch.
void BM_AppendAndSync(benchmark::State& state) {
  World world;
  const std::string path = world.dir + "/raw";
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  CAIRN_CHECK(fd >= 0);
  const std::string noise = SeededRandom(2).Bytes(kBlockBytes);
  for (auto _ : state) {
    for (size_t i = 0; i < kBatchBlocks; ++i) {
      CAIRN_CHECK(write(fd, noise.data(), noise.size()) == static_cast<ssize_t>(noise.size()));
    }
    CAIRN_CHECK(fdatasync(fd) == 0);
  }
  close(fd);
  SetBytes(state, kBatchBlocks * kBlockBytes);
}
BENCHMARK(BM_AppendAndSync)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_PutNew(benchmark::State& state) {
  World world;
  world.Open(64 << 20);
  std::string noise = SeededRandom(3).Bytes(kBlockBytes);
  uint64_t stamp = 0;
  auto session = world.store->BeginWrite(world.realm);
  CAIRN_CHECK(session.has_value());
  for (auto _ : state) {
    for (size_t i = 0; i < kBatchBlocks; ++i) {
      ++stamp;
      std::memcpy(noise.data(), &stamp, sizeof(stamp));
      CAIRN_CHECK((*session)->Put(BlockKind::kData, noise, Compression::kFast).has_value());
    }
    CAIRN_CHECK((*session)->Sync().has_value());
  }
  session->reset();
  SetBytes(state, kBatchBlocks * kBlockBytes);
}
BENCHMARK(BM_PutNew)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_PutKnown(benchmark::State& state) {
  World world;
  world.Open(64 << 20);
  auto session = world.store->BeginWrite(world.realm);
  CAIRN_CHECK(session.has_value());
  size_t i = 0;
  for (const std::string& plain : TextBlocks()) {
    CAIRN_CHECK((*session)->Put(BlockKind::kData, plain, Compression::kFast).has_value());
  }
  for (auto _ : state) {
    CAIRN_CHECK((*session)->Put(BlockKind::kData, Text(i++), Compression::kFast).has_value());
  }
  session->reset();
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_PutKnown)->UseRealTime();

// Arg 0: nothing is cached by the store (the host's page cache holds the pack); 1: everything is.
void BM_Get(benchmark::State& state) {
  World world;
  world.Open(state.range(0) == 0 ? 0 : 256 << 20);
  std::vector<BlockRef> refs;
  {
    auto session = world.store->BeginWrite(world.realm);
    CAIRN_CHECK(session.has_value());
    for (const std::string& plain : TextBlocks()) {
      auto ref = (*session)->Put(BlockKind::kData, plain, Compression::kFast);
      CAIRN_CHECK(ref.has_value());
      refs.push_back(*ref);
    }
    CAIRN_CHECK((*session)->Sync().has_value());
  }
  for (const BlockRef& ref : refs) CAIRN_CHECK(world.store->Get(world.realm, ref).has_value());
  size_t i = 0;
  for (auto _ : state) {
    CAIRN_CHECK(world.store->Get(world.realm, refs[i++ % refs.size()]).has_value());
  }
  SetBytes(state, kBlockBytes);
}
BENCHMARK(BM_Get)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
