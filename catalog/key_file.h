// Key files as bytes: one slot (docs/formats/keys.md). What the slots mean: catalog/key_store.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.h"
#include "store/base/id128.h"

namespace cairn {

inline constexpr size_t kKeySlotBytes = 8192;
inline constexpr size_t kKeyFileBytes = 2 * kKeySlotBytes;
inline constexpr size_t kMaxKeyVersions = 120;
inline constexpr size_t kStoredKeyBytes = 60;
inline constexpr size_t kKeyCheckBytes = 8;

enum class KeySlotKind : uint16_t { kRealm = 1, kCatalog = 2, kDestroyed = 3 };

struct KeySlot {
  KeySlotKind kind = KeySlotKind::kRealm;
  uint64_t generation = 0;
  Id128 realm;
  std::string master_check;  // kKeyCheckBytes
  uint32_t current_key_id = 0;
  std::string wrapped_address_key;                        // kStoredKeyBytes; empty but for a realm
  std::vector<std::pair<uint32_t, std::string>> wrapped;  // ascending by key id
};

// kKeySlotBytes. The slot must be one that decodes (CHECKed).
std::string EncodeKeySlot(const KeySlot& slot);
// DataLoss: not a whole slot of version 1. An erased slot is none.
Result<KeySlot> DecodeKeySlot(std::string_view bytes);

// What binds a wrapped key to its place. `key_id` 0: the address key.
std::string WrappedKeyAad(KeySlotKind kind, const Id128& realm, uint32_t key_id);

}  // namespace cairn
