// Encodes and decodes the two branch blocks of a memory image, head and map
// (docs/formats/memory_image.md). Decoders compare every count with the bytes and references that
// are there before they allocate.
#include "snapshot/memory_image.h"

#include <bit>
#include <utility>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "store/reference_table.h"

namespace cairn {
namespace {

constexpr uint32_t kHasTrace = 1;
constexpr uint32_t kHasParent = 2;
constexpr uint64_t kMapBytes = uint64_t{kMemoryChunkBytes} * kMemoryMapSlots;

std::unexpected<Error> BadHead(const char* what) {
  return Err(ErrorCode::kDataLoss, std::string("memory image: ") + what);
}
std::unexpected<Error> BadMap(const char* what) {
  return Err(ErrorCode::kDataLoss, std::string("memory map: ") + what);
}

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

Digest256 ReadDigest(ByteReader& r) {
  Digest256 digest{};
  const std::string_view bytes = r.Bytes(digest.size());
  if (r.ok()) std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

std::string_view View(const Digest256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

std::string MemoryImage::Encode() const {
  CAIRN_CHECK(memory_bytes <= kMaxMemoryBytes && vmstate_bytes <= kMaxVmStateBytes);
  CAIRN_CHECK(maps.size() == CeilDiv(memory_bytes, kMapBytes));
  CAIRN_CHECK(vmstate_blocks.size() == CeilDiv(vmstate_bytes, kMemoryChunkBytes));
  CAIRN_CHECK(regions.size() <= kMaxMemoryRegions);
  std::string body;
  ByteWriter w(body);
  w.U64(memory_bytes);
  w.U64(vmstate_bytes);
  w.U32(kMemoryPageBytes);
  w.U32(kMemoryChunkBytes);
  w.U32(kMemoryMapSlots);
  w.U32(static_cast<uint32_t>(maps.size()));
  w.U32(static_cast<uint32_t>(regions.size()));
  w.U32((working_set_trace ? kHasTrace : 0) | (parent ? kHasParent : 0));
  w.U64(restore_count);
  w.Bytes(vm_generation_id.view());
  w.Bytes(View(memory_digest));
  w.Bytes(View(vmstate_sha256));
  w.U64(nonzero_pages);
  w.U64(nonzero_chunks);
  if (parent) {
    parent->AppendTo(body);
  } else {
    w.Zeros(BlockRef::kEncodedBytes);
  }
  std::vector<BlockRef> refs;
  std::string present(CeilDiv(maps.size(), 8), '\0');
  for (size_t i = 0; i < maps.size(); ++i) {
    if (!maps[i]) continue;
    present[i / 8] |= static_cast<char>(1u << (i % 8));
    refs.push_back(*maps[i]);
  }
  w.Bytes(present);
  for (const MemoryRegion& region : regions) {
    CAIRN_CHECK(!region.name.empty() && region.name.size() <= kMaxMemoryRegionNameBytes);
    w.U64(region.guest_address);
    w.U64(region.file_offset);
    w.U64(region.length_bytes);
    w.U16(static_cast<uint16_t>(region.name.size()));
    w.Bytes(region.name);
  }
  refs.insert(refs.end(), vmstate_blocks.begin(), vmstate_blocks.end());
  if (working_set_trace) refs.push_back(*working_set_trace);
  return EncodeBranch(BlockKind::kMemoryImage, refs, body);
}

Result<MemoryImage> MemoryImage::Decode(std::string_view plain) {
  const BranchBlock block = CAIRN_TRY(DecodeBranch(BlockKind::kMemoryImage, plain));
  ByteReader r(block.body);
  MemoryImage image;
  image.memory_bytes = r.U64();
  image.vmstate_bytes = r.U64();
  const uint32_t page_bytes = r.U32();
  const uint32_t chunk_bytes = r.U32();
  const uint32_t slots_per_map = r.U32();
  const uint32_t map_count = r.U32();
  const uint32_t region_count = r.U32();
  const uint32_t flags = r.U32();
  image.restore_count = r.U64();
  const std::string_view generation = r.Bytes(16);
  image.memory_digest = ReadDigest(r);
  image.vmstate_sha256 = ReadDigest(r);
  image.nonzero_pages = r.U64();
  image.nonzero_chunks = r.U64();
  const std::string_view parent = r.Bytes(BlockRef::kEncodedBytes);
  if (!r.ok()) return BadHead("shorter than its fixed part");
  image.vm_generation_id = Id128::FromView(generation);
  if (page_bytes != kMemoryPageBytes || chunk_bytes != kMemoryChunkBytes ||
      slots_per_map != kMemoryMapSlots) {
    return BadHead("units that this version does not read");
  }
  if (image.memory_bytes > kMaxMemoryBytes || image.vmstate_bytes > kMaxVmStateBytes ||
      region_count > kMaxMemoryRegions || map_count != CeilDiv(image.memory_bytes, kMapBytes)) {
    return BadHead("sizes over the limits or inconsistent");
  }
  if ((flags & ~(kHasTrace | kHasParent)) != 0) return BadHead("reserved bits set");
  if ((flags & kHasParent) != 0) {
    image.parent = CAIRN_TRY(BlockRef::Decode(parent));
    if (image.parent->kind != BlockKind::kMemoryImage) return BadHead("parent of another kind");
  } else if (parent.find_first_not_of('\0') != std::string_view::npos) {
    return BadHead("parent without its flag");
  }

  const std::string_view present = r.Bytes(CeilDiv(map_count, 8));
  if (!r.ok()) return BadHead("ends inside the map bits");
  const size_t vmstate_count = CeilDiv(image.vmstate_bytes, kMemoryChunkBytes);
  size_t next = 0;
  image.maps.resize(map_count);
  for (size_t i = 0; i < present.size() * 8; ++i) {
    if ((static_cast<uint8_t>(present[i / 8]) >> (i % 8) & 1) == 0) continue;
    if (i >= map_count) return BadHead("map bits past the end");
    if (next == block.refs.size() || block.refs[next].kind != BlockKind::kMemoryMap) {
      return BadHead("map without its reference");
    }
    image.maps[i] = block.refs[next++];
  }
  const size_t rest = vmstate_count + ((flags & kHasTrace) != 0 ? 1 : 0);
  if (block.refs.size() - next != rest) return BadHead("wrong number of references");
  for (size_t i = next; i < block.refs.size(); ++i) {
    if (block.refs[i].kind != BlockKind::kMemory) return BadHead("reference of another kind");
  }
  image.vmstate_blocks.assign(block.refs.begin() + static_cast<ptrdiff_t>(next),
                              block.refs.begin() + static_cast<ptrdiff_t>(next + vmstate_count));
  if ((flags & kHasTrace) != 0) image.working_set_trace = block.refs.back();

  for (uint32_t i = 0; i < region_count; ++i) {
    MemoryRegion region;
    region.guest_address = r.U64();
    region.file_offset = r.U64();
    region.length_bytes = r.U64();
    region.name = r.Bytes(r.U16());
    if (!r.ok() || region.name.empty() || region.name.size() > kMaxMemoryRegionNameBytes ||
        region.file_offset > image.memory_bytes ||
        region.length_bytes > image.memory_bytes - region.file_offset) {
      return BadHead("bad region");
    }
    image.regions.push_back(std::move(region));
  }
  if (!r.done()) return BadHead("bytes after the last region");
  return image;
}

std::string MemoryMap::Encode() const {
  CAIRN_CHECK(!pages.empty() && pages.size() <= kMemoryMapSlots && chunks.size() == pages.size());
  std::string body;
  ByteWriter w(body);
  w.U32(static_cast<uint32_t>(pages.size()));
  w.U32(0);
  std::vector<BlockRef> refs;
  for (size_t i = 0; i < pages.size(); ++i) {
    CAIRN_CHECK(chunks[i].has_value() == (pages[i] != 0));
    w.U16(pages[i]);
    if (chunks[i]) refs.push_back(*chunks[i]);
  }
  return EncodeBranch(BlockKind::kMemoryMap, refs, body);
}

Result<MemoryMap> MemoryMap::Decode(std::string_view plain) {
  auto branch = DecodeBranch(BlockKind::kMemoryMap, plain);
  if (!branch) return std::unexpected(std::move(branch).error());
  const BranchBlock& block = *branch;
  ByteReader r(block.body);
  const uint32_t slot_count = r.U32();
  const uint32_t reserved = r.U32();
  if (!r.ok() || slot_count == 0 || slot_count > kMemoryMapSlots ||
      r.remaining() != slot_count * sizeof(uint16_t)) {
    return BadMap("slot count does not fit");
  }
  if (reserved != 0) return BadMap("reserved bits set");
  MemoryMap map;
  map.pages.resize(slot_count);
  map.chunks.resize(slot_count);
  size_t next = 0;
  for (uint32_t i = 0; i < slot_count; ++i) {
    map.pages[i] = r.U16();
    if (map.pages[i] == 0) continue;
    if (next == block.refs.size()) return BadMap("chunk without its reference");
    const BlockRef& ref = block.refs[next++];
    if (ref.kind != BlockKind::kMemory || ref.raw_length_bytes == 0 ||
        ref.raw_length_bytes >
            static_cast<uint32_t>(std::popcount(map.pages[i])) * kMemoryPageBytes) {
      return BadMap("reference that does not fit its pages");
    }
    map.chunks[i] = ref;
  }
  if (next != block.refs.size()) return BadMap("references that no chunk owns");
  return map;
}

}  // namespace cairn
