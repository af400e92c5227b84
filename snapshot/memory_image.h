// Memory images: the memory and device state of a stopped VM as blocks
// (docs/formats/memory_image.md).
//
//   head (kMemoryImage) -> maps (kMemoryMap, 1024 chunks = 64 MiB each) -> chunks (kMemory: the
//   non-zero pages of 64 KiB)
//                       -> device state (kMemory, 64 KiB each)
//
// Every image is complete: a reader goes head -> map -> chunk and never to a parent. What an image
// shares with an older one it shares by address, so an unchanged chunk is stored once, and a zero
// page not at all.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/address.h"
#include "store/base/error.h"
#include "store/base/file_system.h"
#include "store/base/id128.h"
#include "store/base/mutex.h"
#include "store/block_store.h"
#include "store/key_ring.h"

namespace cairn {

inline constexpr uint32_t kMemoryPageBytes = 4096;
inline constexpr uint32_t kMemoryChunkBytes = 64 * 1024;
inline constexpr uint32_t kMemoryPagesPerChunk = kMemoryChunkBytes / kMemoryPageBytes;
inline constexpr uint32_t kMemoryMapSlots = 1024;                // chunks of one map: 64 MiB
inline constexpr uint64_t kMaxMemoryBytes = uint64_t{1} << 40;   // 1 TiB: 16384 maps fit the head
inline constexpr uint64_t kMaxVmStateBytes = uint64_t{1} << 28;  // 256 MiB
inline constexpr size_t kMaxMemoryRegions = 256;
inline constexpr size_t kMaxMemoryRegionNameBytes = 255;

// A piece of guest physical memory and where the memory file keeps it.
struct MemoryRegion {
  std::string name;
  uint64_t guest_address = 0;
  uint64_t file_offset = 0;
  uint64_t length_bytes = 0;
  bool operator==(const MemoryRegion&) const = default;
};

using Digest256 = std::array<uint8_t, 32>;

// The head, decoded.
struct MemoryImage {
  uint64_t memory_bytes = 0;   // size of the memory file
  uint64_t vmstate_bytes = 0;  // size of the device state
  std::vector<MemoryRegion> regions;
  Id128 vm_generation_id;
  uint64_t restore_count = 0;
  std::optional<BlockRef> parent;  // informative: in the body only, it keeps nothing alive
  uint64_t nonzero_pages = 0;
  uint64_t nonzero_chunks = 0;
  // Not the SHA-256 of the file: SHA-256 over its size and each non-zero chunk's {index, page mask,
  // address}. Addresses are HMACs of the chunk's bytes, so within one realm equal digests mean
  // equal files; holes cost nothing.
  Digest256 memory_digest{};
  Digest256 vmstate_sha256{};  // SHA-256 of the device state's bytes

  std::vector<std::optional<BlockRef>> maps;  // one per 64 MiB of memory; absent: all zero
  std::vector<BlockRef> vmstate_blocks;
  std::optional<BlockRef> working_set_trace;  // reserved: carried, not interpreted

  std::string Encode() const;                                 // EncodeBranch; CHECKs the limits
  static Result<MemoryImage> Decode(std::string_view plain);  // DataLoss
};

// One map, decoded. pages[i] has bit p set when page p of chunk i is not zero; chunk i is stored
// iff pages[i] != 0.
struct MemoryMap {
  std::vector<uint16_t> pages;                  // 1 to kMemoryMapSlots
  std::vector<std::optional<BlockRef>> chunks;  // as many

  std::string Encode() const;
  static Result<MemoryMap> Decode(std::string_view plain);  // DataLoss
};

struct CaptureOptions {
  std::vector<MemoryRegion>
      regions;  // empty: one region "ram" at guest address 0 over the whole file
  std::optional<BlockRef> parent;
  Id128 vm_generation_id;
  uint64_t restore_count = 0;
  Compression compression = Compression::kFast;
};

struct CaptureResult {
  BlockRef image;
  MemoryImage head;
  uint64_t read_bytes = 0;  // read from the memory file: holes are skipped
};

// Puts the memory file (`memory_fd`) and the device state (`vmstate_fd`, or -1 for none) through
// `session`. Volatile until its Sync. Holes are found with SEEK_DATA (this moves the file offset),
// zero pages by looking. Uses about 1 MiB of memory plus the head, whatever the file's size. The VM
// must be stopped: a file that shrinks meanwhile is FailedPrecondition. InvalidArgument: over the
// size limits, regions outside the file. Blocks on I/O.
Result<CaptureResult> CaptureMemoryImage(int memory_fd, int vmstate_fd, WriteSession& session,
                                         const CaptureOptions& options);

// Random access to one image. Thread-safe; keeps a few decoded maps. Errors: DataLoss from the
// store passes through.
class MemoryImageReader {
 public:
  static Result<std::unique_ptr<MemoryImageReader>> Open(BlockStore& store, const Id128& realm,
                                                         const BlockRef& image);

  const MemoryImage& head() const { return head_; }

  // Fills `out` from the memory at `offset`; fewer bytes only at the end. Returns the count.
  Result<size_t> ReadAt(uint64_t offset, std::span<char> out);
  // The whole device state.
  Result<std::string> ReadVmState();

  // For restore and check: the map of one 64 MiB group (nullptr: all zero), and a chunk's bytes
  // expanded to kMemoryChunkBytes (fewer for the last one).
  Result<std::shared_ptr<const MemoryMap>> LoadMap(size_t map_index);
  uint64_t ChunkBytes(uint64_t chunk_index) const;
  // `block` is what the map's reference points to.
  Result<std::string> ExpandChunk(uint64_t chunk_index, uint16_t pages,
                                  std::string_view block) const;

 private:
  struct CachedMap {
    size_t index = 0;
    std::shared_ptr<const MemoryMap> map;
  };
  static constexpr size_t kCachedMaps = 64;

  MemoryImageReader(BlockStore& store, const Id128& realm, MemoryImage head)
      : store_(store), realm_(realm), head_(std::move(head)) {}

  BlockStore& store_;
  const Id128 realm_;
  const MemoryImage head_;
  Mutex mutex_;
  std::array<CachedMap, kCachedMaps> cached_ GUARDED_BY(mutex_);  // map i at i % kCachedMaps
};

// Writes the memory file (sparse) to `path`: to path + ".tmp", verified against
// head().memory_digest while it is written (every chunk's address is recomputed with `keys`),
// synced, renamed, the directory synced. Durable on return. On an error there is no file at `path`
// that was not there before, and the .tmp is removed. Errors: DataLoss, Exhausted, NotFound (keys).
Status RestoreMemory(FileSystem& fs, const KeyRing& keys, BlockStore& store, const Id128& realm,
                     MemoryImageReader& reader, const std::string& path);

// The device state, the same way, verified against head().vmstate_sha256.
Status RestoreVmState(FileSystem& fs, MemoryImageReader& reader, const std::string& path);

}  // namespace cairn
