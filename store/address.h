// What a block is called: its kind, its address, and the reference that trees and records hold.
//
// Address = HMAC-SHA-256(realm address key, kind byte || plaintext). The kind is part of the
// address, so bytes that a guest wrote can never be read as a tree node. Layouts:
// docs/formats/block.md.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/error.h"
#include "store/base/id128.h"

namespace cairn {

// Stored in frames, index values and references: never renumber. Branch kinds start with a
// reference table (store/reference_table.h), so that a collector can walk them without knowing what
// they mean.
enum class BlockKind : uint8_t {
  kData = 1,         // leaf: bytes of guest files, large xattrs
  kTreeNode = 2,     // branch: node of a Merkle B+ tree (store/tree_node.h)
  kMemory = 3,       // leaf: 64 KiB of guest memory, or device state
  kMemoryMap = 4,    // branch: second level of a memory image's page map
  kMemoryImage = 5,  // branch: head of a memory image
  kFsRoot = 6,       // branch: root record of a filesystem (volume/fs_root.h)
};
bool IsBranch(BlockKind kind);
bool IsKnownKind(uint8_t kind);
std::string_view BlockKindName(BlockKind kind);

inline constexpr uint32_t kMaxBlockBytes = 1u << 20;  // plaintext of any block

struct Address {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Address&) const = default;
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), 32}; }
  std::string ToHex() const;
  static Address FromView(std::string_view thirty_two_bytes);  // CHECKs the length
  static Result<Address> FromHex(std::string_view hex);        // InvalidArgument
};
struct AddressHash {
  size_t operator()(const Address& a) const {
    uint64_t h;
    std::memcpy(&h, a.bytes.data(), sizeof h);
    return h;
  }
};

// Which realm of a reader's two a reference means: its organization's own, or the operator-filled
// base realm.
enum class RealmTag : uint8_t { kOwn = 0, kBase = 1 };

// The base realm's id in packs and keys ("cairn base realm").
Id128 BaseRealm();

// 40 bytes encoded: {realm tag u8, kind u8, reserved u16 = 0, raw length u32, address}.
struct BlockRef {
  RealmTag realm = RealmTag::kOwn;
  BlockKind kind = BlockKind::kData;
  uint32_t raw_length_bytes = 0;
  Address address;

  bool operator==(const BlockRef&) const = default;
  static constexpr size_t kEncodedBytes = 40;
  void AppendTo(std::string& out) const;
  std::string Encode() const;
  // DataLoss: wrong length, unknown kind or realm tag, reserved bits set, length over
  // kMaxBlockBytes.
  static Result<BlockRef> Decode(std::string_view forty_bytes);
};

}  // namespace cairn
