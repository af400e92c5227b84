// Encodes and decodes the value of an xattr key. Two forms because the tree bounds a payload
// (kMaxTreePayloadBytes) and Linux allows 64 KiB in an xattr (xattr(7), XATTR_SIZE_MAX); a delta
// has no such bound, so only the sealer makes form 1.
#include "volume/xattr_value.h"

#include <span>
#include <utility>

#include "store/base/check.h"
#include "volume/inode.h"

namespace cairn {
namespace {

constexpr char kFormInline = 0;
constexpr char kFormBlock = 1;

}  // namespace

Entry EncodeXattrInline(std::string_view value) {
  CAIRN_CHECK(value.size() <= kMaxXattrBytes);
  Entry entry;
  entry.payload.reserve(1 + value.size());
  entry.payload.push_back(kFormInline);
  entry.payload.append(value);
  return entry;
}

Entry EncodeXattrBlock(const BlockRef& block) {
  CAIRN_CHECK(block.kind == BlockKind::kData && block.raw_length_bytes <= kMaxXattrBytes);
  Entry entry;
  entry.payload.push_back(kFormBlock);
  entry.refs.push_back(block);
  return entry;
}

Result<XattrValue> DecodeXattrValue(const Entry& entry) {
  if (entry.payload.empty()) return Err(ErrorCode::kDataLoss, "xattr value without a form");
  XattrValue value;
  if (entry.payload[0] == kFormInline) {
    if (!entry.refs.empty() || entry.payload.size() > 1 + size_t{kMaxXattrBytes}) {
      return Err(ErrorCode::kDataLoss, "inline xattr value is too long or has references");
    }
    value.inline_value = std::string_view(entry.payload).substr(1);
    return value;
  }
  if (entry.payload[0] != kFormBlock) return Err(ErrorCode::kDataLoss, "unknown xattr form");
  if (entry.payload.size() != 1 || entry.refs.size() != 1 ||
      entry.refs[0].kind != BlockKind::kData || entry.refs[0].raw_length_bytes > kMaxXattrBytes) {
    return Err(ErrorCode::kDataLoss, "xattr block form without exactly one data block");
  }
  value.block = &entry.refs[0];
  return value;
}

Result<std::string> ReadXattrValue(const Layer& layer, const Entry& entry) {
  const XattrValue value = CAIRN_TRY(DecodeXattrValue(entry));
  if (value.block == nullptr) return std::string(value.inline_value);
  Segment segment;
  segment.source = Segment::Source::kBlock;
  segment.length_bytes = value.block->raw_length_bytes;
  segment.block = *value.block;
  std::string bytes(segment.length_bytes, '\0');
  CAIRN_TRY(layer.Read(segment, 0, std::span<char>(bytes)));
  return bytes;
}

}  // namespace cairn
