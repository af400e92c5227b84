// Reading memory images: by offset, and as a whole into a file.
//
// Order of a restore: path.tmp is made anew -> its size set (all of it a hole) -> for each map and
// each chunk in order: read the block, recompute its address, write its non-zero pages -> digest of
// what was written == head's -> sync -> rename -> sync the directory. Any failure before the rename
// removes path.tmp and leaves path alone.
#include <algorithm>
#include <utility>

#include "snapshot/memory_digest_internal.h"
#include "snapshot/memory_image.h"

namespace cairn {
namespace {

constexpr size_t kRestoreTogetherChunks = 64;  // 4 MiB
constexpr uint64_t kMapBytes = uint64_t{kMemoryChunkBytes} * kMemoryMapSlots;

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Writes the non-zero pages of one chunk, neighbouring ones at once.
Status WritePages(File& file, uint64_t chunk_offset, uint16_t pages, std::string_view chunk) {
  for (uint32_t page = 0; page < kMemoryPagesPerChunk;) {
    if ((pages >> page & 1) == 0) {
      ++page;
      continue;
    }
    const uint32_t first = page;
    while (page < kMemoryPagesPerChunk && (pages >> page & 1) != 0) ++page;
    const uint64_t from = uint64_t{first} * kMemoryPageBytes;
    CAIRN_TRY(file.WriteAt(chunk_offset + from,
                           chunk.substr(from, uint64_t{page - first} * kMemoryPageBytes)));
  }
  return {};
}

Status WriteMemory(File& file, const KeyRing& keys, BlockStore& store, const Id128& realm,
                   MemoryImageReader& reader) {
  const MemoryImage& head = reader.head();
  CAIRN_TRY(file.Truncate(head.memory_bytes));
  MemoryDigest digest(head.memory_bytes);
  for (size_t m = 0; m < head.maps.size(); ++m) {
    const std::shared_ptr<const MemoryMap> map = CAIRN_TRY(reader.LoadMap(m));
    if (map == nullptr) continue;
    std::vector<size_t> slots;
    std::vector<BlockRef> refs;
    const auto write = [&]() -> Status {
      const std::vector<Result<Block>> blocks = store.GetMany(realm, refs, {.keep = false});
      for (size_t i = 0; i < slots.size(); ++i) {
        const size_t slot = slots[i];
        const uint64_t index = m * kMemoryMapSlots + slot;
        const Block block = CAIRN_TRY(blocks[i]);
        const Address address = CAIRN_TRY(keys.AddressOf(
            refs[i].realm == RealmTag::kBase ? BaseRealm() : realm, BlockKind::kMemory, *block));
        const std::string chunk = CAIRN_TRY(reader.ExpandChunk(index, map->pages[slot], *block));
        CAIRN_TRY(WritePages(file, index * kMemoryChunkBytes, map->pages[slot], chunk));
        digest.AddChunk(index, map->pages[slot], address);
      }
      slots.clear();
      refs.clear();
      return {};
    };
    for (size_t slot = 0; slot < map->pages.size(); ++slot) {
      if (map->pages[slot] == 0) continue;
      slots.push_back(slot);
      refs.push_back(*map->chunks[slot]);
      if (slots.size() == kRestoreTogetherChunks) CAIRN_TRY(write());
    }
    CAIRN_TRY(write());
  }
  if (digest.Finish() != head.memory_digest) {
    return Err(ErrorCode::kDataLoss, "restored memory does not have the digest of its image");
  }
  return file.Sync();
}

}  // namespace

Result<std::unique_ptr<MemoryImageReader>> MemoryImageReader::Open(BlockStore& store,
                                                                   const Id128& realm,
                                                                   const BlockRef& image) {
  if (image.kind != BlockKind::kMemoryImage) {
    return Err(ErrorCode::kDataLoss, "reference is not to a memory image");
  }
  const Block block = CAIRN_TRY(store.Get(realm, image));
  MemoryImage head = CAIRN_TRY(MemoryImage::Decode(*block));
  return std::unique_ptr<MemoryImageReader>(new MemoryImageReader(store, realm, std::move(head)));
}

Result<size_t> MemoryImageReader::ReadAt(uint64_t offset, std::span<char> out) {
  if (offset >= head_.memory_bytes) return 0;
  const size_t length = std::min<uint64_t>(out.size(), head_.memory_bytes - offset);
  for (size_t done = 0; done < length;) {
    const uint64_t at = offset + done;
    const uint64_t index = at / kMemoryChunkBytes;
    const size_t within = at % kMemoryChunkBytes;
    const size_t slot = index % kMemoryMapSlots;
    const size_t part = std::min<uint64_t>(kMemoryChunkBytes - within, length - done);
    const std::span<char> target = out.subspan(done, part);
    const std::shared_ptr<const MemoryMap> map = CAIRN_TRY(LoadMap(index / kMemoryMapSlots));
    if (map == nullptr || map->pages[slot] == 0) {
      std::ranges::fill(target, '\0');
    } else {
      const Block block = CAIRN_TRY(store_.Get(realm_, *map->chunks[slot]));
      const std::string chunk = CAIRN_TRY(ExpandChunk(index, map->pages[slot], *block));
      std::copy_n(chunk.data() + within, part, target.data());
    }
    done += part;
  }
  return length;
}

Result<std::string> MemoryImageReader::ReadVmState() {
  std::string bytes;
  bytes.reserve(head_.vmstate_bytes);
  for (const BlockRef& ref : head_.vmstate_blocks) {
    bytes.append(*CAIRN_TRY(store_.Get(realm_, ref)));
    if (bytes.size() > head_.vmstate_bytes) break;
  }
  Sha256 sha;
  sha.Add(bytes);
  if (bytes.size() != head_.vmstate_bytes || sha.Finish() != head_.vmstate_sha256) {
    return Err(ErrorCode::kDataLoss, "device state does not have the digest of its image");
  }
  return bytes;
}

Result<std::shared_ptr<const MemoryMap>> MemoryImageReader::LoadMap(size_t map_index) {
  const std::optional<BlockRef>& ref = head_.maps[map_index];
  if (!ref) return nullptr;
  const size_t place = map_index % kCachedMaps;
  {
    MutexLock lock(mutex_);
    const CachedMap& cached = cached_[place];
    if (cached.map != nullptr && cached.index == map_index) return cached.map;
  }
  const Block block = CAIRN_TRY(store_.Get(realm_, *ref));
  auto map = std::make_shared<const MemoryMap>(CAIRN_TRY(MemoryMap::Decode(*block)));
  const uint64_t covered = std::min(kMapBytes, head_.memory_bytes - map_index * kMapBytes);
  if (map->pages.size() != (covered + kMemoryChunkBytes - 1) / kMemoryChunkBytes) {
    return Err(ErrorCode::kDataLoss, "memory map has not the slots of its place");
  }
  MutexLock lock(mutex_);
  cached_[place] = {map_index, map};
  return map;
}

uint64_t MemoryImageReader::ChunkBytes(uint64_t chunk_index) const {
  return std::min<uint64_t>(kMemoryChunkBytes,
                            head_.memory_bytes - chunk_index * kMemoryChunkBytes);
}

Result<std::string> MemoryImageReader::ExpandChunk(uint64_t chunk_index, uint16_t pages,
                                                   std::string_view block) const {
  std::string chunk(ChunkBytes(chunk_index), '\0');
  size_t used = 0;
  for (uint32_t page = 0; page < kMemoryPagesPerChunk; ++page) {
    if ((pages >> page & 1) == 0) continue;
    const size_t from = size_t{page} * kMemoryPageBytes;
    const size_t length =
        from < chunk.size() ? std::min<size_t>(kMemoryPageBytes, chunk.size() - from) : 0;
    if (length == 0 || length > block.size() - used) {
      return Err(ErrorCode::kDataLoss, "memory chunk has not the pages of its map");
    }
    chunk.replace(from, length, block.substr(used, length));
    used += length;
  }
  if (used != block.size()) {
    return Err(ErrorCode::kDataLoss, "memory chunk has not the pages of its map");
  }
  return chunk;
}

Status RestoreMemory(FileSystem& fs, const KeyRing& keys, BlockStore& store, const Id128& realm,
                     MemoryImageReader& reader, const std::string& path) {
  const std::string temporary = path + ".tmp";
  if (const Status removed = fs.Unlink(temporary);
      !removed && removed.error().code() != ErrorCode::kNotFound) {
    return removed;
  }
  auto file = CAIRN_TRY(fs.Open(temporary, {.create = true, .exclusive = true}));
  Status written = WriteMemory(*file, keys, store, realm, reader);
  file.reset();
  if (written) written = fs.Rename(temporary, path);
  if (!written) {
    IgnoreError(fs.Unlink(temporary), "the first error counts");
    return written;
  }
  return fs.SyncDir(DirectoryOf(path));
}

Status RestoreVmState(FileSystem& fs, MemoryImageReader& reader, const std::string& path) {
  return WriteFileAtomically(fs, path, CAIRN_TRY(reader.ReadVmState()));
}

}  // namespace cairn
