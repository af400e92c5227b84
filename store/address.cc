// Addresses and references: the 32-byte name of a block and the 40-byte pointer to it. Layout and
// validity rule: docs/formats/block.md. Decoding checks every field, since references come from
// disk.
#include "store/address.h"

#include "store/base/check.h"
#include "store/base/hex.h"

namespace cairn {

bool IsBranch(BlockKind kind) {
  switch (kind) {
    case BlockKind::kTreeNode:
    case BlockKind::kMemoryMap:
    case BlockKind::kMemoryImage:
    case BlockKind::kFsRoot:
      return true;
    case BlockKind::kData:
    case BlockKind::kMemory:
      return false;
  }
  return false;
}

bool IsKnownKind(uint8_t kind) {
  return kind >= static_cast<uint8_t>(BlockKind::kData) &&
         kind <= static_cast<uint8_t>(BlockKind::kFsRoot);
}

std::string_view BlockKindName(BlockKind kind) {
  switch (kind) {
    case BlockKind::kData:
      return "data";
    case BlockKind::kTreeNode:
      return "tree_node";
    case BlockKind::kMemory:
      return "memory";
    case BlockKind::kMemoryMap:
      return "memory_map";
    case BlockKind::kMemoryImage:
      return "memory_image";
    case BlockKind::kFsRoot:
      return "fs_root";
  }
  return "unknown";
}

std::string Address::ToHex() const { return HexEncode(view()); }

Address Address::FromView(std::string_view thirty_two_bytes) {
  CAIRN_CHECK(thirty_two_bytes.size() == 32);
  Address address;
  std::memcpy(address.bytes.data(), thirty_two_bytes.data(), 32);
  return address;
}

Result<Address> Address::FromHex(std::string_view hex) {
  const std::string raw = CAIRN_TRY(HexDecode(hex));
  if (raw.size() != 32) return Err(ErrorCode::kInvalidArgument, "an address has 64 hex digits");
  return FromView(raw);
}

Id128 BaseRealm() {
  static constexpr std::string_view kName = "cairn base realm";
  static_assert(kName.size() == 16);
  return Id128::FromView(kName);
}

void BlockRef::AppendTo(std::string& out) const {
  ByteWriter w(out);
  w.U8(static_cast<uint8_t>(realm));
  w.U8(static_cast<uint8_t>(kind));
  w.U16(0);
  w.U32(raw_length_bytes);
  w.Bytes(address.view());
}

std::string BlockRef::Encode() const {
  std::string out;
  out.reserve(kEncodedBytes);
  AppendTo(out);
  return out;
}

Result<BlockRef> BlockRef::Decode(std::string_view forty_bytes) {
  ByteReader r(forty_bytes);
  const uint8_t realm = r.U8();
  const uint8_t kind = r.U8();
  const uint16_t reserved = r.U16();
  const uint32_t raw_length_bytes = r.U32();
  const std::string_view address = r.Bytes(32);
  if (!r.done()) return Err(ErrorCode::kDataLoss, "block reference is not 40 bytes");
  if (realm > static_cast<uint8_t>(RealmTag::kBase)) {
    return Err(ErrorCode::kDataLoss, "block reference has an unknown realm tag");
  }
  if (!IsKnownKind(kind)) return Err(ErrorCode::kDataLoss, "block reference has an unknown kind");
  if (reserved != 0) return Err(ErrorCode::kDataLoss, "block reference has reserved bits set");
  if (raw_length_bytes == 0 || raw_length_bytes > kMaxBlockBytes) {
    return Err(ErrorCode::kDataLoss, "block reference has an impossible length");
  }
  return BlockRef{.realm = static_cast<RealmTag>(realm),
                  .kind = static_cast<BlockKind>(kind),
                  .raw_length_bytes = raw_length_bytes,
                  .address = Address::FromView(address)};
}

}  // namespace cairn
