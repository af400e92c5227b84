// zstd with one context a thread (a context costs more than a small block). Level 1 on the way to a
// pause, level 3 in background seals, level 2 there for large blocks: in 256 KiB it finds as much
// as level 3 in 64 KiB, in three quarters of the time (decision 13). A block that shrinks by less
// than 6 % is stored raw: reading it back costs no decompression then.
#include "store/block_codec.h"

#include <zstd.h>

#include <memory>

#include "store/base/check.h"
#include "store/base/uninitialized.h"

namespace cairn {
namespace {

struct FreeContext {
  void operator()(ZSTD_CCtx* ctx) const { ZSTD_freeCCtx(ctx); }
  void operator()(ZSTD_DCtx* ctx) const { ZSTD_freeDCtx(ctx); }
};

constexpr size_t kLargeBytes = 128 << 10;

constexpr int Level(Compression compression, size_t bytes) {
  if (compression == Compression::kFast) return 1;
  return bytes > kLargeBytes ? 2 : 3;
}

}  // namespace

EncodedBlock EncodeBlock(std::string_view plain, Compression compression, std::span<char> room) {
  CAIRN_CHECK(room.size() >= plain.size());
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> ctx(ZSTD_createCCtx());
  CAIRN_CHECK(ctx != nullptr);
  // Room for what is still worth keeping only: zstd gives up early on the rest.
  const size_t worth_bytes = plain.size() - plain.size() * 6 / 100;
  const size_t length = ZSTD_compressCCtx(ctx.get(), room.data(), worth_bytes, plain.data(),
                                          plain.size(), Level(compression, plain.size()));
  if (ZSTD_isError(length) || length >= plain.size()) return {.bytes = plain};
  return {.codec = Codec::kZstd, .bytes = {room.data(), length}};
}

Result<std::string> DecodeBlock(Codec codec, std::string bytes, uint32_t raw_length) {
  if (codec == Codec::kRaw) {
    if (bytes.size() != raw_length)
      return Err(ErrorCode::kDataLoss, "raw block has another length");
    return bytes;
  }
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> ctx(ZSTD_createDCtx());
  CAIRN_CHECK(ctx != nullptr);
  std::string plain;
  ResizeUninitialized(plain, raw_length);
  const size_t length =
      ZSTD_decompressDCtx(ctx.get(), plain.data(), plain.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(length) || length != raw_length) {
    return Err(ErrorCode::kDataLoss, "compressed block does not decode to its length");
  }
  return plain;
}

}  // namespace cairn
