// Encodes and decodes the value of an extent key: {length u32, offset in block u32} and one
// reference to a data block. Rule: length >= 1, the piece does not cross the 64 KiB grid of its
// file, and lies within its block.
#include "volume/extent_value.h"

#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {
namespace {

bool IsValid(const Segment& piece) {
  return piece.block.kind == BlockKind::kData && piece.length_bytes > 0 &&
         piece.offset % kGridBytes + piece.length_bytes <= kGridBytes &&
         piece.source_offset + piece.length_bytes <= piece.block.raw_length_bytes;
}

}  // namespace

Entry EncodeExtent(const Segment& piece) {
  CAIRN_CHECK(piece.source == Segment::Source::kBlock && IsValid(piece));
  Entry entry;
  ByteWriter w(entry.payload);
  w.U32(static_cast<uint32_t>(piece.length_bytes));
  w.U32(static_cast<uint32_t>(piece.source_offset));
  entry.refs.push_back(piece.block);
  return entry;
}

Result<Segment> DecodeExtent(uint64_t offset, const Entry& entry) {
  ByteReader r(entry.payload);
  Segment piece;
  piece.source = Segment::Source::kBlock;
  piece.offset = offset;
  piece.length_bytes = r.U32();
  piece.source_offset = r.U32();
  if (!r.done() || entry.refs.size() != 1) {
    return Err(ErrorCode::kDataLoss, "extent value is malformed");
  }
  piece.block = entry.refs[0];
  if (!IsValid(piece)) return Err(ErrorCode::kDataLoss, "extent value breaks its bounds");
  return piece;
}

}  // namespace cairn
