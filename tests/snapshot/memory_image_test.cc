// Memory images of real sparse files: what is captured is restored byte for byte, zeros and equal
// chunks cost nothing, and a wrong byte gives DataLoss and no file.
#include "snapshot/memory_image.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "store/base/random.h"
#include "store/base/unique_fd.h"
#include "store/reference_table.h"
#include "tests/support/mem_block_store.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kMapBytes = 64 * kMiB;

std::string Noise(uint64_t seed, size_t length_bytes) {
  SeededRandom random(seed);
  std::string bytes = random.Bytes(length_bytes);
  if (!bytes.empty()) bytes[0] = 1;
  return bytes;
}

class MemoryImageTest : public testing::Test {
 protected:
  MemoryImageTest() : store_(keys_) {
    realm_.bytes[0] = 1;
    keys_.Add(realm_, TestRealmKeys(1));
    session_ = *store_.BeginWrite(realm_);
    std::string pattern = "/tmp/cairn_memory_XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~MemoryImageTest() override { IgnoreError(RemoveTree(fs_, dir_), "a test's leftovers"); }

  std::string Path(const std::string& name) { return dir_ + "/" + name; }

  // A sparse file with `pieces` at their offsets.
  UniqueFd MakeFile(const std::string& name, uint64_t size_bytes,
                    const std::map<uint64_t, std::string>& pieces) {
    UniqueFd fd(open(Path(name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd.valid());
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0);
    for (const auto& [offset, bytes] : pieces) Poke(fd, offset, bytes);
    return fd;
  }
  static void Poke(const UniqueFd& fd, uint64_t offset, const std::string& bytes) {
    EXPECT_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }

  CaptureResult Capture(const UniqueFd& memory, int vmstate_fd = -1,
                        const CaptureOptions& options = {}) {
    auto captured = CaptureMemoryImage(memory.get(), vmstate_fd, *session_, options);
    EXPECT_TRUE(captured) << captured.error().ToString();
    return captured ? *captured : CaptureResult{};
  }

  std::unique_ptr<MemoryImageReader> Open(const BlockRef& image) {
    auto reader = MemoryImageReader::Open(store_, realm_, image);
    EXPECT_TRUE(reader) << reader.error().ToString();
    return std::move(*reader);
  }

  Status Restore(const BlockRef& image, const std::string& name) {
    auto reader = CAIRN_TRY(MemoryImageReader::Open(store_, realm_, image));
    return RestoreMemory(fs_, keys_, store_, realm_, *reader, Path(name));
  }

  // Compares two files by ranges, so that large sparse ones are fine.
  void ExpectSameBytes(const std::string& a, const std::string& b) {
    const UniqueFd fa(open(Path(a).c_str(), O_RDONLY | O_CLOEXEC));
    const UniqueFd fb(open(Path(b).c_str(), O_RDONLY | O_CLOEXEC));
    struct stat sa{}, sb{};
    ASSERT_EQ(fstat(fa.get(), &sa), 0);
    ASSERT_EQ(fstat(fb.get(), &sb), 0);
    ASSERT_EQ(sa.st_size, sb.st_size);
    for (const auto* fd : {&fa, &fb}) {  // every data range of either must be equal in both
      off_t at = 0;
      while ((at = lseek(fd->get(), at, SEEK_DATA)) >= 0) {
        const off_t end = lseek(fd->get(), at, SEEK_HOLE);
        std::string ba(kMiB, '\0'), bb(kMiB, '\0');
        while (at < end) {
          const size_t length = std::min<size_t>(kMiB, static_cast<size_t>(end - at));
          ASSERT_EQ(pread(fa.get(), ba.data(), length, at), static_cast<ssize_t>(length));
          ASSERT_EQ(pread(fb.get(), bb.data(), length, at), static_cast<ssize_t>(length));
          ASSERT_EQ(ba.compare(0, length, bb, 0, length), 0) << "near offset " << at;
          at += static_cast<off_t>(length);
        }
      }
    }
  }

  uint64_t DiskBytes(const std::string& name) {
    struct stat st{};
    EXPECT_EQ(stat(Path(name).c_str(), &st), 0);
    return static_cast<uint64_t>(st.st_blocks) * 512;
  }
  bool Exists(const std::string& name) { return access(Path(name).c_str(), F_OK) == 0; }

  FileSystem& fs_ = HostFileSystem();
  KeyRing keys_;
  MemBlockStore store_;
  Id128 realm_;
  std::unique_ptr<WriteSession> session_;
  std::string dir_;
};

TEST_F(MemoryImageTest, SparseFileComesBackSparse) {
  const UniqueFd memory = MakeFile("memory", 200 * kMiB,
                                   {{0, Noise(1, 5000)},
                                    {10 * kMiB + 123, Noise(2, 300'000)},
                                    {kMapBytes - 4096, Noise(3, 8192)},
                                    {200 * kMiB - 1, "x"}});
  const CaptureResult captured = Capture(memory);
  EXPECT_LT(captured.read_bytes, 2 * kMiB);  // holes were not read
  EXPECT_EQ(captured.head.maps.size(), 4u);
  EXPECT_TRUE(captured.head.maps[0] && captured.head.maps[1] && captured.head.maps[3]);
  EXPECT_FALSE(captured.head.maps[2]);
  const Status restored = Restore(captured.image, "restored");
  ASSERT_TRUE(restored) << restored.error().ToString();
  ExpectSameBytes("memory", "restored");
  EXPECT_LT(DiskBytes("restored"), kMiB);
  EXPECT_FALSE(Exists("restored.tmp"));
}

TEST_F(MemoryImageTest, AllZeroFileStoresTheHeadAlone) {
  const UniqueFd memory = MakeFile("memory", 300 * kMiB, {{5 * kMiB, std::string(kMiB, '\0')}});
  const CaptureResult captured = Capture(memory);
  EXPECT_EQ(store_.put_count(), 1u);
  EXPECT_EQ(captured.head.nonzero_chunks, 0u);
  ASSERT_TRUE(Restore(captured.image, "restored"));
  ExpectSameBytes("memory", "restored");
}

TEST_F(MemoryImageTest, VastSparseFileIsCapturedByItsData) {
  const UniqueFd memory =
      MakeFile("memory", 1024 * 1024 * kMiB, {{700'000 * kMiB + 5, "far"}});  // 1 TiB
  const CaptureResult captured = Capture(memory);
  EXPECT_EQ(captured.read_bytes, kMemoryChunkBytes);
  EXPECT_EQ(store_.put_count(), 3u);  // chunk, map, head
  char out[3];
  EXPECT_EQ(*Open(captured.image)->ReadAt(700'000 * kMiB + 5, out), 3u);
  EXPECT_EQ(std::string_view(out, 3), "far");
}

TEST_F(MemoryImageTest, AnySizeComesBack) {
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4096}, uint64_t{4097}, uint64_t{65535},
        uint64_t{65536}, uint64_t{65537}, 3 * kMiB + 77, kMapBytes, kMapBytes + 1}) {
    SCOPED_TRACE(size);
    std::map<uint64_t, std::string> pieces;
    if (size > 0) {
      pieces[0] = Noise(size, std::min<uint64_t>(size, 3000));
      pieces[size - 1] = "e";
    }
    const UniqueFd memory = MakeFile("memory", size, pieces);
    const CaptureResult captured = Capture(memory);
    const Status restored = Restore(captured.image, "restored");
    ASSERT_TRUE(restored) << restored.error().ToString();
    ExpectSameBytes("memory", "restored");
    std::string all(size + 10, '?');
    EXPECT_EQ(*Open(captured.image)->ReadAt(0, all), size);
  }
}

// More than is read and put at a time, in chunks that are whole and chunks with zeros.
TEST_F(MemoryImageTest, ChunksOfEveryBatchComeBackInTheirPlace) {
  std::map<uint64_t, std::string> pieces;
  for (uint64_t at = 0; at < 9 * kMiB; at += 3 * kMemoryChunkBytes) {
    pieces[at] = Noise(at + 1, kMemoryChunkBytes);
    pieces[at + kMemoryChunkBytes + 8192] = Noise(at + 2, 5000);
  }
  const UniqueFd memory = MakeFile("memory", 9 * kMiB + 77, pieces);
  const CaptureResult captured = Capture(memory);
  const Status restored = Restore(captured.image, "restored");
  ASSERT_TRUE(restored) << restored.error().ToString();
  ExpectSameBytes("memory", "restored");
}

TEST_F(MemoryImageTest, ZeroPagesOfAChunkTakeNoByte) {
  const UniqueFd memory = MakeFile("memory", kMemoryChunkBytes,
                                   {{2 * 4096, Noise(1, 4096)}, {9 * 4096, Noise(2, 4096)}});
  const CaptureResult captured = Capture(memory);
  EXPECT_EQ(captured.head.nonzero_pages, 2u);
  const auto map = *Open(captured.image)->LoadMap(0);
  EXPECT_EQ(map->pages[0], 1u << 2 | 1u << 9);
  EXPECT_EQ(map->chunks[0]->raw_length_bytes, 2 * 4096u);
}

TEST_F(MemoryImageTest, SecondCaptureStoresOnlyTheChangedChunks) {
  const UniqueFd memory =
      MakeFile("memory", 130 * kMiB, {{0, Noise(1, 8 * kMiB)}, {68 * kMiB, Noise(2, 16 * kMiB)}});
  const CaptureResult first = Capture(memory);
  EXPECT_EQ(first.head.nonzero_chunks, 384u);
  const uint64_t puts = store_.put_count();
  Capture(memory);
  EXPECT_EQ(store_.put_count(), puts);  // nothing at all: not even a head

  Poke(memory, 5 * kMiB + 100, "dirty");
  Poke(memory, 5 * kMiB + 20'000, "same chunk");
  Poke(memory, 70 * kMiB, "dirty");
  Poke(memory, 80 * kMiB, std::string(kMemoryChunkBytes, '\0'));  // became zero
  CaptureOptions options;
  options.parent = first.image;
  const CaptureResult second = Capture(memory, -1, options);
  EXPECT_EQ(store_.put_count() - puts, 2u + 2u + 1u);  // chunks, maps, head
  EXPECT_EQ(second.head.nonzero_chunks, 383u);
  EXPECT_NE(second.head.memory_digest, first.head.memory_digest);
  ASSERT_TRUE(Restore(second.image, "second"));
  ExpectSameBytes("memory", "second");

  // A complete image: it reads without its parent's own blocks.
  store_.Drop(first.image.address);
  store_.Drop(first.head.maps[0]->address);
  EXPECT_TRUE(Restore(second.image, "again"));
  EXPECT_FALSE(Restore(first.image, "first"));
}

TEST_F(MemoryImageTest, HeadCarriesWhatWasGiven) {
  const UniqueFd memory = MakeFile("memory", 2 * kMiB, {{0, "x"}});
  const std::string state = Noise(5, 340'000);
  const UniqueFd vmstate = MakeFile("vmstate", state.size(), {{0, state}});
  CaptureOptions options;
  options.regions = {{"pc.ram", 0, 0, kMiB}, {"high", uint64_t{4} << 30, kMiB, kMiB}};
  options.vm_generation_id.bytes.fill(9);
  options.restore_count = 4;
  options.parent = Capture(memory).image;
  const CaptureResult captured = Capture(memory, vmstate.get(), options);
  const auto reader = Open(captured.image);
  const MemoryImage& head = reader->head();
  EXPECT_EQ(head.regions, options.regions);
  EXPECT_EQ(head.vm_generation_id, options.vm_generation_id);
  EXPECT_EQ(head.restore_count, 4u);
  EXPECT_EQ(head.parent, options.parent);
  EXPECT_EQ(head.memory_bytes, 2 * kMiB);
  EXPECT_EQ(head.vmstate_bytes, state.size());
  EXPECT_EQ(head.vmstate_blocks.size(), 6u);
  EXPECT_EQ(head.memory_digest, captured.head.memory_digest);
  EXPECT_EQ(*reader->ReadVmState(), state);
  ASSERT_TRUE(RestoreVmState(fs_, *reader, Path("vmstate.restored")));
  ExpectSameBytes("vmstate", "vmstate.restored");
  // The parent keeps nothing alive.
  const Block block = *store_.Get(realm_, captured.image);
  const BranchBlock branch = *DecodeBranch(BlockKind::kMemoryImage, *block);
  for (const BlockRef& ref : branch.refs) {
    EXPECT_NE(ref.kind, BlockKind::kMemoryImage);
  }
}

TEST_F(MemoryImageTest, DefaultRegionIsTheWholeFile) {
  const UniqueFd memory = MakeFile("memory", 12345, {});
  const MemoryRegion whole{.name = "ram", .length_bytes = 12345};
  EXPECT_THAT(Open(Capture(memory).image)->head().regions, testing::ElementsAre(whole));
}

TEST_F(MemoryImageTest, ReadsAtAnyOffset) {
  const std::string bytes = Noise(1, 3 * kMiB);
  const UniqueFd memory = MakeFile("memory", 70 * kMiB, {{kMapBytes - kMiB, bytes}});
  const auto reader = Open(Capture(memory).image);
  std::string expected(70 * kMiB, '\0');
  expected.replace(kMapBytes - kMiB, bytes.size(), bytes);
  const uint64_t seed = 8;
  SCOPED_TRACE(seed);
  SeededRandom random(seed);
  for (int i = 0; i < 200; ++i) {
    const uint64_t offset = kMapBytes - 2 * kMiB + random.Below(8 * kMiB);
    std::string out(random.Below(300'000), '?');
    const size_t n = *reader->ReadAt(offset, out);
    const size_t left = offset < expected.size() ? expected.size() - offset : 0;
    ASSERT_EQ(n, std::min(out.size(), left));
    ASSERT_EQ(out.compare(0, n, expected, std::min<size_t>(offset, expected.size()), n), 0);
  }
  char one;
  EXPECT_EQ(*reader->ReadAt(expected.size(), {&one, 1}), 0u);
}

TEST_F(MemoryImageTest, ManyThreadsReadOneImage) {
  const std::string bytes = Noise(1, 2 * kMiB);
  const UniqueFd memory = MakeFile("memory", 65 * kMapBytes, {{0, bytes}, {64 * kMapBytes, bytes}});
  const auto reader = Open(Capture(memory).image);  // maps 0 and 64 share a place in the cache
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      SeededRandom random(t);
      for (int i = 0; i < 200; ++i) {
        const uint64_t within = random.Below(kMiB);
        std::string out(1000, '?');
        const auto n = reader->ReadAt((random.OneIn(2) ? 64 * kMapBytes : 0) + within, out);
        if (!n || out != bytes.substr(within, 1000)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// ---- errors ----

TEST_F(MemoryImageTest, DamagedBlockGivesDataLossAndNoFile) {
  const UniqueFd memory =
      MakeFile("memory", 100 * kMiB, {{0, Noise(1, kMiB)}, {70 * kMiB, Noise(2, kMiB)}});
  const CaptureResult captured = Capture(memory);
  const auto map = *Open(captured.image)->LoadMap(1);
  const Address victims[] = {map->chunks[100]->address, captured.head.maps[1]->address,
                             captured.image.address};
  for (const Address& victim : victims) {
    store_.Damage(victim);
    EXPECT_EQ(Restore(captured.image, "restored").error().code(), ErrorCode::kDataLoss);
    EXPECT_FALSE(Exists("restored"));
    EXPECT_FALSE(Exists("restored.tmp"));
    Capture(memory);  // puts the block again
    EXPECT_TRUE(Restore(captured.image, "good"));
  }
  char byte;
  store_.Damage(map->chunks[100]->address);
  const auto reader = Open(captured.image);
  EXPECT_EQ(reader->ReadAt(kMapBytes + 100 * kMemoryChunkBytes, {&byte, 1}).error().code(),
            ErrorCode::kDataLoss);
  EXPECT_EQ(*reader->ReadAt(0, {&byte, 1}), 1u);  // the rest of the image still reads
}

TEST_F(MemoryImageTest, FailedRestoreLeavesAnOlderFileAlone) {
  const UniqueFd memory = MakeFile("memory", kMiB, {{0, Noise(1, kMiB)}});
  const CaptureResult captured = Capture(memory);
  MakeFile("target", 3, {{0, "old"}});
  MakeFile("target.tmp", 3, {{0, "left by a crash"}});
  const auto map = *Open(captured.image)->LoadMap(0);
  store_.Damage(map->chunks[3]->address);
  EXPECT_FALSE(Restore(captured.image, "target"));
  EXPECT_EQ(*ReadWholeFile(fs_, Path("target"), 100), "old");
  EXPECT_FALSE(Exists("target.tmp"));
  Capture(memory);
  ASSERT_TRUE(Restore(captured.image, "target"));
  ExpectSameBytes("memory", "target");
}

// A chunk swapped for another valid one, in a map and head that are valid too: only the digest sees
// it.
TEST_F(MemoryImageTest, SwappedChunkIsSeenByTheDigest) {
  const UniqueFd memory = MakeFile("memory", kMiB, {{0, Noise(1, kMiB)}});
  const CaptureResult captured = Capture(memory);
  MemoryMap map = **Open(captured.image)->LoadMap(0);
  std::swap(map.chunks[2], map.chunks[5]);
  MemoryImage head = captured.head;
  head.maps[0] = *session_->Put(BlockKind::kMemoryMap, map.Encode(), Compression::kFast);
  const BlockRef forged =
      *session_->Put(BlockKind::kMemoryImage, head.Encode(), Compression::kFast);
  EXPECT_EQ(Restore(forged, "restored").error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(Exists("restored"));
}

TEST_F(MemoryImageTest, WrongDeviceStateIsDataLoss) {
  const UniqueFd memory = MakeFile("memory", kMiB, {});
  const UniqueFd vmstate = MakeFile("vmstate", 100'000, {{0, Noise(1, 100'000)}});
  const CaptureResult captured = Capture(memory, vmstate.get());
  MemoryImage head = captured.head;
  head.vmstate_sha256[0] ^= 1;
  const BlockRef forged =
      *session_->Put(BlockKind::kMemoryImage, head.Encode(), Compression::kFast);
  EXPECT_EQ(Open(forged)->ReadVmState().error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(RestoreVmState(fs_, *Open(forged), Path("out")).error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(Exists("out"));
}

TEST_F(MemoryImageTest, MapThatDoesNotFitItsPlaceIsDataLoss) {
  const UniqueFd memory = MakeFile("memory", kMiB, {{0, Noise(1, kMiB)}});
  const CaptureResult captured = Capture(memory);
  const MemoryMap good = **Open(captured.image)->LoadMap(0);
  const auto forge = [&](const MemoryMap& map) {
    MemoryImage head = captured.head;
    head.maps[0] = *session_->Put(BlockKind::kMemoryMap, map.Encode(), Compression::kFast);
    return *session_->Put(BlockKind::kMemoryImage, head.Encode(), Compression::kFast);
  };
  MemoryMap short_map = good;
  short_map.pages.pop_back();
  short_map.chunks.pop_back();
  EXPECT_EQ(Restore(forge(short_map), "out").error().code(), ErrorCode::kDataLoss);
  MemoryMap other_pages = good;  // more bytes in the block than the mask has pages for
  other_pages.pages[0] = 0xffff;
  other_pages.chunks[0]->raw_length_bytes = 4096;
  EXPECT_FALSE(Restore(forge(other_pages), "out"));
  EXPECT_FALSE(Exists("out"));
}

TEST_F(MemoryImageTest, BadInputIsRefused) {
  const UniqueFd memory = MakeFile("memory", kMiB, {{0, "x"}});
  const auto code = [&](int fd, int vmstate, const CaptureOptions& options) {
    const auto captured = CaptureMemoryImage(fd, vmstate, *session_, options);
    return captured ? ErrorCode::kInternal : captured.error().code();
  };
  const UniqueFd directory(open(dir_.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(code(directory.get(), -1, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(memory.get(), directory.get(), {}), ErrorCode::kInvalidArgument);
  const UniqueFd too_large = MakeFile("vast", kMaxMemoryBytes + 1, {});
  EXPECT_EQ(code(too_large.get(), -1, {}), ErrorCode::kInvalidArgument);
  const UniqueFd large_state = MakeFile("large", kMaxVmStateBytes + 1, {});
  EXPECT_EQ(code(memory.get(), large_state.get(), {}), ErrorCode::kInvalidArgument);
  CaptureOptions options;
  options.regions = {{"ram", 0, 1, kMiB}};  // one byte past the end
  EXPECT_EQ(code(memory.get(), -1, options), ErrorCode::kInvalidArgument);
  options.regions = {{"", 0, 0, kMiB}};
  EXPECT_EQ(code(memory.get(), -1, options), ErrorCode::kInvalidArgument);
  options.regions.assign(kMaxMemoryRegions + 1, {"ram", 0, 0, kMiB});
  EXPECT_EQ(code(memory.get(), -1, options), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(-1, -1, {}), ErrorCode::kInternal);
  store_.FailPuts(true);
  EXPECT_EQ(code(memory.get(), -1, {}), ErrorCode::kExhausted);
}

TEST_F(MemoryImageTest, WithoutKeysNothingIsRestored) {
  const UniqueFd memory = MakeFile("memory", kMiB, {{0, "x"}});
  const CaptureResult captured = Capture(memory);
  const auto reader = Open(captured.image);
  const KeyRing none;
  EXPECT_EQ(RestoreMemory(fs_, none, store_, realm_, *reader, Path("out")).error().code(),
            ErrorCode::kNotFound);
  EXPECT_FALSE(Exists("out"));
}

// ---- codecs ----

BlockRef Ref(BlockKind kind, uint32_t raw_length_bytes) {
  BlockRef ref;
  ref.kind = kind;
  ref.raw_length_bytes = raw_length_bytes;
  return ref;
}

MemoryImage SampleHead() {
  MemoryImage head;
  head.memory_bytes = 3 * kMapBytes - 5;
  head.vmstate_bytes = 65537;
  head.regions = {{"ram", 1, 2, 3}};
  head.maps = {Ref(BlockKind::kMemoryMap, 50), std::nullopt, Ref(BlockKind::kMemoryMap, 60)};
  head.vmstate_blocks = {Ref(BlockKind::kMemory, 65536), Ref(BlockKind::kMemory, 1)};
  return head;
}

TEST(MemoryImage, TraceReferenceIsCarried) {
  MemoryImage head = SampleHead();
  EXPECT_FALSE(MemoryImage::Decode(head.Encode())->working_set_trace);
  head.working_set_trace = Ref(BlockKind::kMemory, 77);
  EXPECT_EQ(MemoryImage::Decode(head.Encode())->working_set_trace, head.working_set_trace);
  EXPECT_EQ(MemoryImage::Decode(head.Encode())->vmstate_blocks, head.vmstate_blocks);
}

TEST(MemoryImage, LargestHeadFitsABlock) {
  MemoryImage head;
  head.memory_bytes = kMaxMemoryBytes;
  head.vmstate_bytes = kMaxVmStateBytes;
  head.maps.assign(kMaxMemoryBytes / kMapBytes, Ref(BlockKind::kMemoryMap, 1));
  head.vmstate_blocks.assign(kMaxVmStateBytes / kMemoryChunkBytes, Ref(BlockKind::kMemory, 1));
  head.regions.assign(kMaxMemoryRegions, {std::string(kMaxMemoryRegionNameBytes, 'n'), 0, 0, 1});
  EXPECT_TRUE(MemoryImage::Decode(head.Encode()));
}

TEST(MemoryImage, EachBrokenRuleIsDataLoss) {
  const BranchBlock good = *DecodeBranch(BlockKind::kMemoryImage, SampleHead().Encode());
  const auto code = [](const std::vector<BlockRef>& refs, const std::string& body) {
    const auto head = MemoryImage::Decode(EncodeBranch(BlockKind::kMemoryImage, refs, body));
    return head ? ErrorCode::kInternal : head.error().code();
  };
  const auto with = [&](size_t at, int byte) {
    std::string body = good.body;
    body[at] = static_cast<char>(byte);
    return body;
  };
  ASSERT_EQ(code(good.refs, good.body), ErrorCode::kInternal);  // decodes
  const struct {
    const char* rule;
    std::string body;
  } bodies[] = {
      {"cut in the fixed part", good.body.substr(0, 100)},
      {"cut in the regions", good.body.substr(0, good.body.size() - 1)},
      {"longer", good.body + "x"},
      {"memory over 1 TiB", with(5, 2)},
      {"device state over its limit", with(11, 0x11)},
      {"page size", with(16, 1)},
      {"chunk size", with(20, 1)},
      {"slots", with(24, 1)},
      {"map count", with(28, 2)},
      {"region count", with(33, 0xff)},
      {"unknown flag", with(36, 4)},
      {"trace without its reference", with(36, 1)},
      {"parent without its flag", with(144, 1)},
      {"parent of another kind", with(36, 2)},
      {"map bit past the end", with(184, 0x0d)},
      {"map bit without a reference", with(184, 0x07)},
      {"map reference without a bit", with(184, 0x01)},
      {"region past the end", with(185 + 16 + 7, 0x7f)},
      {"region without a name", with(185 + 24, 0)},
  };
  for (const auto& c : bodies) EXPECT_EQ(code(good.refs, c.body), ErrorCode::kDataLoss) << c.rule;
  std::vector<BlockRef> refs = good.refs;
  refs.pop_back();
  EXPECT_EQ(code(refs, good.body), ErrorCode::kDataLoss);
  refs = good.refs;
  refs.push_back(refs.back());
  EXPECT_EQ(code(refs, good.body), ErrorCode::kDataLoss);
  refs = good.refs;
  refs.back().kind = BlockKind::kData;
  EXPECT_EQ(code(refs, good.body), ErrorCode::kDataLoss);
  refs = good.refs;
  refs[0].kind = BlockKind::kMemory;
  EXPECT_EQ(code(refs, good.body), ErrorCode::kDataLoss);
}

TEST(MemoryMap, EachBrokenRuleIsDataLoss) {
  MemoryMap map;
  map.pages = {0, 3, 0};
  map.chunks = {std::nullopt, Ref(BlockKind::kMemory, 8192), std::nullopt};
  const BranchBlock good = *DecodeBranch(BlockKind::kMemoryMap, map.Encode());
  const auto code = [](const std::vector<BlockRef>& refs, const std::string& body) {
    const auto decoded = MemoryMap::Decode(EncodeBranch(BlockKind::kMemoryMap, refs, body));
    return decoded ? ErrorCode::kInternal : decoded.error().code();
  };
  const auto with = [&](size_t at, int byte) {
    std::string body = good.body;
    body[at] = static_cast<char>(byte);
    return body;
  };
  ASSERT_EQ(code(good.refs, good.body), ErrorCode::kInternal);  // decodes
  EXPECT_EQ(code(good.refs, ""), ErrorCode::kDataLoss);
  EXPECT_EQ(code(good.refs, with(0, 2)), ErrorCode::kDataLoss);  // slot count
  EXPECT_EQ(code(good.refs, with(3, 0xff)), ErrorCode::kDataLoss);
  EXPECT_EQ(code({}, std::string(8, '\0')), ErrorCode::kDataLoss);  // no slot
  EXPECT_EQ(code(good.refs, with(4, 1)), ErrorCode::kDataLoss);     // reserved
  EXPECT_EQ(code(good.refs, with(8, 1)), ErrorCode::kDataLoss);     // a chunk without reference
  EXPECT_EQ(code(good.refs, with(10, 0)), ErrorCode::kDataLoss);    // a reference without chunk
  EXPECT_EQ(code(good.refs, with(10, 1)), ErrorCode::kDataLoss);    // longer than its pages
  EXPECT_EQ(code({Ref(BlockKind::kData, 8192)}, good.body), ErrorCode::kDataLoss);
  EXPECT_EQ(code({Ref(BlockKind::kMemory, 0)}, good.body), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace cairn
