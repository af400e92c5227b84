// The reference table at the head of every branch block. Layout and validity rule:
// docs/formats/block.md. The decoder compares the counts with the bytes it has before it allocates
// anything.
#include "store/reference_table.h"

#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint32_t kMagic = 0x52424e43;  // "CNBR"
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;

}  // namespace

std::string EncodeBranch(BlockKind kind, const std::vector<BlockRef>& refs, std::string_view body) {
  const size_t total = kHeaderBytes + refs.size() * BlockRef::kEncodedBytes + body.size();
  CAIRN_CHECK(IsBranch(kind));
  CAIRN_CHECK(total <= kMaxBlockBytes);
  std::string out;
  out.reserve(total);
  ByteWriter w(out);
  w.U32(kMagic);
  w.U16(kVersion);
  w.U8(static_cast<uint8_t>(kind));
  w.U8(0);
  w.U32(static_cast<uint32_t>(refs.size()));
  w.U32(static_cast<uint32_t>(body.size()));
  for (const BlockRef& ref : refs) ref.AppendTo(out);
  w.Bytes(body);
  return out;
}

Result<BranchBlock> DecodeBranch(BlockKind expected, std::string_view plain) {
  ByteReader r(plain);
  const uint32_t magic = r.U32();
  const uint16_t version = r.U16();
  const uint8_t kind = r.U8();
  const uint8_t flags = r.U8();
  const uint64_t ref_count = r.U32();
  const uint64_t body_length = r.U32();
  if (!r.ok()) return Err(ErrorCode::kDataLoss, "branch block is shorter than its header");
  if (magic != kMagic) return Err(ErrorCode::kDataLoss, "branch block has a wrong magic");
  if (version != kVersion) return Err(ErrorCode::kDataLoss, "branch block has an unknown version");
  if (kind != static_cast<uint8_t>(expected) || !IsBranch(expected)) {
    return Err(ErrorCode::kDataLoss, "branch block is of another kind than its reference says");
  }
  if (flags != 0) return Err(ErrorCode::kDataLoss, "branch block has reserved bits set");
  if (ref_count * BlockRef::kEncodedBytes + body_length != r.remaining()) {
    return Err(ErrorCode::kDataLoss, "branch block's counts disagree with its length");
  }
  BranchBlock block;
  block.kind = expected;
  block.refs.reserve(ref_count);
  for (uint64_t i = 0; i < ref_count; ++i) {
    block.refs.push_back(CAIRN_TRY(BlockRef::Decode(r.Bytes(BlockRef::kEncodedBytes))));
  }
  block.body = r.Bytes(body_length);
  return block;
}

}  // namespace cairn
