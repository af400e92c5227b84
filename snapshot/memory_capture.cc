// CaptureMemoryImage: memory file and device state -> blocks.
//
// Order of steps: walk the memory file's data ranges (lseek(2) SEEK_DATA and SEEK_HOLE; a file
// system that knows no holes reports one range) in reads of 4 MiB aligned to chunks -> find the
// non-zero pages of each chunk -> put the chunks as one batch, a block each -> note mask and
// reference of each in the map of its 64 MiB -> put each map when its last chunk is past -> device
// state -> head. A chunk that the realm has already costs its address and nothing more. Invariant:
// chunks are taken in ascending order, each at most once.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "snapshot/memory_digest_internal.h"
#include "snapshot/memory_image.h"

namespace cairn {
namespace {

constexpr uint64_t kReadBytes = 4 << 20;
constexpr uint64_t kMapBytes = uint64_t{kMemoryChunkBytes} * kMemoryMapSlots;

// `bytes` is not empty. memcmp with itself, one byte on: at memory speed.
bool IsZero(std::string_view bytes) {
  return bytes[0] == '\0' && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

Result<uint64_t> SizeOf(int fd, const char* what) {
  struct stat st{};
  if (fstat(fd, &st) != 0) return ErrErrno(errno, std::string("stat of the ") + what);
  if (!S_ISREG(st.st_mode)) {
    return Err(ErrorCode::kInvalidArgument, std::string(what) + " is not a regular file");
  }
  return static_cast<uint64_t>(st.st_size);
}

// All of `out`, which lies inside the file as it was when its size was taken.
Status ReadExactly(int fd, uint64_t offset, std::span<char> out, const char* what) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrErrno(errno, std::string("read of the ") + what);
    if (n == 0) {
      return Err(ErrorCode::kFailedPrecondition,
                 std::string(what) + " shrank while it was captured: is the VM stopped?");
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

class Capture {
 public:
  Capture(int memory_fd, WriteSession& session, const CaptureOptions& options, MemoryImage& head)
      : fd_(memory_fd),
        session_(session),
        options_(options),
        head_(head),
        digest_(head.memory_bytes),
        buffer_(kReadBytes, '\0') {
    head_.maps.resize((head_.memory_bytes + kMapBytes - 1) / kMapBytes);
  }

  Status Run() {
    uint64_t at = 0;  // a multiple of the chunk size; what lies before is done
    while (at < head_.memory_bytes) {
      const off_t data = lseek(fd_, static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 && errno == ENXIO) break;  // only holes from here
      uint64_t begin = at;
      uint64_t end = head_.memory_bytes;
      if (data >= 0) {
        const off_t hole = lseek(fd_, data, SEEK_HOLE);
        if (hole < 0) return ErrErrno(errno, "SEEK_HOLE in the memory file");
        begin = static_cast<uint64_t>(data) / kMemoryChunkBytes * kMemoryChunkBytes;
        end = (static_cast<uint64_t>(hole) + kMemoryChunkBytes - 1) / kMemoryChunkBytes *
              kMemoryChunkBytes;
        end = std::min(end, head_.memory_bytes);
      } else if (errno != EINVAL && errno != EOPNOTSUPP) {
        return ErrErrno(errno, "SEEK_DATA in the memory file");
      }
      CAIRN_TRY(TakeRange(begin, end));
      at = (end + kMemoryChunkBytes - 1) / kMemoryChunkBytes * kMemoryChunkBytes;
    }
    CAIRN_TRY(FinishMap());
    head_.memory_digest = digest_.Finish();
    return {};
  }

  uint64_t read_bytes() const { return read_bytes_; }

 private:
  Status TakeRange(uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end; at += kReadBytes) {
      const size_t length = std::min(kReadBytes, end - at);
      CAIRN_TRY(ReadExactly(fd_, at, std::span<char>(buffer_).first(length), "memory file"));
      read_bytes_ += length;
      CAIRN_TRY(TakeChunks(at / kMemoryChunkBytes, {buffer_.data(), length}));
    }
    return {};
  }

  struct Chunk {
    uint64_t index = 0;
    uint16_t pages = 0;    // that are not zero
    std::string gathered;  // those pages, where others are zero
  };

  static uint16_t NonZeroPages(std::string_view bytes) {
    uint16_t pages = 0;
    for (size_t from = 0; from < bytes.size(); from += kMemoryPageBytes) {
      if (IsZero(bytes.substr(from, kMemoryPageBytes))) continue;
      pages |= static_cast<uint16_t>(1u << (from / kMemoryPageBytes));
    }
    return pages;
  }

  static std::string Gather(std::string_view bytes, uint16_t pages) {
    std::string gathered;
    for (size_t from = 0; from < bytes.size(); from += kMemoryPageBytes) {
      if ((pages >> (from / kMemoryPageBytes) & 1) == 0) continue;
      gathered.append(bytes.substr(from, kMemoryPageBytes));
    }
    return gathered;
  }

  Status TakeChunks(uint64_t first_index, std::string_view bytes) {
    std::vector<Chunk> chunks;
    chunks.reserve(kReadBytes / kMemoryChunkBytes);  // requests view into them
    std::vector<PutRequest> requests;
    for (size_t from = 0; from < bytes.size(); from += kMemoryChunkBytes) {
      const std::string_view whole = bytes.substr(from, kMemoryChunkBytes);
      const uint16_t pages = NonZeroPages(whole);
      if (pages == 0) continue;
      Chunk& chunk = chunks.emplace_back(
          Chunk{.index = first_index + from / kMemoryChunkBytes, .pages = pages, .gathered = {}});
      const size_t page_count = (whole.size() + kMemoryPageBytes - 1) / kMemoryPageBytes;
      const bool all = static_cast<size_t>(std::popcount(pages)) == page_count;
      if (!all) chunk.gathered = Gather(whole, pages);
      requests.push_back({.kind = BlockKind::kMemory,
                          .plain = all ? whole : chunk.gathered,
                          .compression = options_.compression});
    }
    std::vector<BlockRef> refs(requests.size());
    CAIRN_TRY(session_.PutMany(requests, refs, Durability::kVolatile));
    for (size_t i = 0; i < refs.size(); ++i) {
      CAIRN_TRY(NoteChunk(chunks[i].index, chunks[i].pages, refs[i]));
    }
    return {};
  }

  Status NoteChunk(uint64_t index, uint16_t pages, const BlockRef& ref) {
    digest_.AddChunk(index, pages, ref.address);
    ++head_.nonzero_chunks;
    head_.nonzero_pages += static_cast<uint64_t>(std::popcount(pages));

    const size_t map_index = index / kMemoryMapSlots;
    if (map_.pages.empty() || map_index != map_index_) {
      CAIRN_TRY(FinishMap());
      map_index_ = map_index;
      const uint64_t chunks_left =
          (head_.memory_bytes - map_index * kMapBytes + kMemoryChunkBytes - 1) / kMemoryChunkBytes;
      const size_t slots = std::min<uint64_t>(kMemoryMapSlots, chunks_left);
      map_.pages.assign(slots, 0);
      map_.chunks.assign(slots, std::nullopt);
    }
    map_.pages[index % kMemoryMapSlots] = pages;
    map_.chunks[index % kMemoryMapSlots] = ref;
    return {};
  }

  Status FinishMap() {
    if (map_.pages.empty()) return {};
    head_.maps[map_index_] =
        CAIRN_TRY(session_.Put(BlockKind::kMemoryMap, map_.Encode(), options_.compression));
    map_ = {};
    return {};
  }

  const int fd_;
  WriteSession& session_;
  const CaptureOptions& options_;
  MemoryImage& head_;
  MemoryDigest digest_;
  std::string buffer_;
  MemoryMap map_;  // of map_index_, being filled; empty: none
  size_t map_index_ = 0;
  uint64_t read_bytes_ = 0;
};

Status CaptureVmState(int fd, WriteSession& session, const CaptureOptions& options,
                      MemoryImage& head) {
  Sha256 sha;
  std::string buffer;
  for (uint64_t at = 0; at < head.vmstate_bytes; at += kMemoryChunkBytes) {
    buffer.resize(std::min<uint64_t>(kMemoryChunkBytes, head.vmstate_bytes - at));
    CAIRN_TRY(ReadExactly(fd, at, std::span<char>(buffer), "device state"));
    sha.Add(buffer);
    head.vmstate_blocks.push_back(
        CAIRN_TRY(session.Put(BlockKind::kMemory, buffer, options.compression)));
  }
  head.vmstate_sha256 = sha.Finish();
  return {};
}

Status CheckRegions(const std::vector<MemoryRegion>& regions, uint64_t memory_bytes) {
  if (regions.size() > kMaxMemoryRegions) {
    return Err(ErrorCode::kInvalidArgument, "too many memory regions");
  }
  for (const MemoryRegion& region : regions) {
    if (region.name.empty() || region.name.size() > kMaxMemoryRegionNameBytes) {
      return Err(ErrorCode::kInvalidArgument, "memory region needs a name of 1 to 255 bytes");
    }
    if (region.file_offset > memory_bytes ||
        region.length_bytes > memory_bytes - region.file_offset) {
      return Err(ErrorCode::kInvalidArgument,
                 "memory region " + region.name + " lies outside the memory file");
    }
  }
  return {};
}

}  // namespace

Result<CaptureResult> CaptureMemoryImage(int memory_fd, int vmstate_fd, WriteSession& session,
                                         const CaptureOptions& options) {
  CaptureResult result;
  MemoryImage& head = result.head;
  head.memory_bytes = CAIRN_TRY(SizeOf(memory_fd, "memory file"));
  if (vmstate_fd >= 0) head.vmstate_bytes = CAIRN_TRY(SizeOf(vmstate_fd, "device state"));
  if (head.memory_bytes > kMaxMemoryBytes) {
    return Err(ErrorCode::kInvalidArgument, "memory file is over 1 TiB");
  }
  if (head.vmstate_bytes > kMaxVmStateBytes) {
    return Err(ErrorCode::kInvalidArgument, "device state is over 256 MiB");
  }
  CAIRN_TRY(CheckRegions(options.regions, head.memory_bytes));
  head.regions = options.regions;
  if (head.regions.empty() && head.memory_bytes > 0) {
    head.regions = {{.name = "ram", .length_bytes = head.memory_bytes}};
  }
  head.vm_generation_id = options.vm_generation_id;
  head.restore_count = options.restore_count;
  head.parent = options.parent;

  Capture capture(memory_fd, session, options, head);
  CAIRN_TRY(capture.Run());
  result.read_bytes = capture.read_bytes();
  CAIRN_TRY(CaptureVmState(vmstate_fd, session, options, head));
  if (CAIRN_TRY(SizeOf(memory_fd, "memory file")) != head.memory_bytes) {
    return Err(ErrorCode::kFailedPrecondition,
               "memory file changed its size while it was captured: is the VM stopped?");
  }
  const std::string plain = head.Encode();
  if (auto decoded = MemoryImage::Decode(plain); !decoded) {
    return Err(ErrorCode::kInternal, "encoded " + decoded.error().message());
  }
  result.image = CAIRN_TRY(session.Put(BlockKind::kMemoryImage, plain, options.compression));
  return result;
}

}  // namespace cairn
