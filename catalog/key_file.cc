// One slot of a key file, encoded and decoded. The encoder decodes what it made: a slot is written
// in place over an older one, so a malformed one would be found too late.
#include "catalog/key_file.h"

#include <xxhash.h>

#include <algorithm>

#include "store/base/bytes.h"
#include "store/base/check.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CAIRNKY\n";
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 116;
constexpr size_t kEntryBytes = 4 + kStoredKeyBytes;
constexpr size_t kChecksumOffset = kKeySlotBytes - 8;
static_assert(kHeaderBytes + kMaxKeyVersions * kEntryBytes <= kChecksumOffset);

bool AllZero(std::string_view bytes) {
  return std::ranges::all_of(bytes, [](char c) { return c == '\0'; });
}

}  // namespace

std::string WrappedKeyAad(KeySlotKind kind, const Id128& realm, uint32_t key_id) {
  std::string aad = "cairn key";
  ByteWriter out(aad);
  out.U16(static_cast<uint16_t>(kind));
  out.Bytes(realm.view());
  out.U32(key_id);
  return aad;
}

std::string EncodeKeySlot(const KeySlot& slot) {
  std::string bytes;
  ByteWriter out(bytes);
  out.Bytes(kMagic);
  out.U16(kVersion);
  out.U16(static_cast<uint16_t>(slot.kind));
  out.U32(static_cast<uint32_t>(slot.wrapped.size()));
  out.U64(slot.generation);
  out.Bytes(slot.realm.view());
  std::string check = slot.master_check;
  check.resize(kKeyCheckBytes);
  out.Bytes(check);
  out.U32(slot.current_key_id);
  out.U32(0);
  std::string address_key = slot.wrapped_address_key;
  address_key.resize(kStoredKeyBytes);
  out.Bytes(address_key);
  for (const auto& [key_id, wrapped] : slot.wrapped) {
    out.U32(key_id);
    out.Bytes(wrapped);
  }
  CAIRN_CHECK(bytes.size() <= kChecksumOffset);
  bytes.resize(kChecksumOffset);
  out.U64(XXH3_64bits(bytes.data(), bytes.size()));
  CAIRN_CHECK(DecodeKeySlot(bytes).has_value());
  return bytes;
}

Result<KeySlot> DecodeKeySlot(std::string_view bytes) {
  const auto bad = [](std::string_view what) {
    return Err(ErrorCode::kDataLoss, "key slot: " + std::string(what));
  };
  if (bytes.size() != kKeySlotBytes) return bad("wrong length");
  ByteReader in(bytes);
  if (in.Bytes(kMagic.size()) != kMagic) return bad("wrong magic");
  ByteReader end(bytes.substr(kChecksumOffset));
  if (end.U64() != XXH3_64bits(bytes.data(), kChecksumOffset)) return bad("wrong checksum");
  if (in.U16() != kVersion) return bad("unknown version");
  KeySlot slot;
  const uint16_t kind = in.U16();
  if (kind < 1 || kind > 3) return bad("unknown kind");
  slot.kind = static_cast<KeySlotKind>(kind);
  const uint32_t count = in.U32();
  slot.generation = in.U64();
  slot.realm = Id128::FromView(in.Bytes(sizeof(Id128)));
  slot.master_check = in.Bytes(kKeyCheckBytes);
  slot.current_key_id = in.U32();
  if (in.U32() != 0) return bad("reserved bytes are set");
  const std::string_view address_key = in.Bytes(kStoredKeyBytes);
  if (slot.kind == KeySlotKind::kRealm) {
    slot.wrapped_address_key = address_key;
  } else if (!AllZero(address_key)) {
    return bad("an address key where none belongs");
  }
  if (slot.kind == KeySlotKind::kCatalog && !slot.realm.is_zero()) return bad("a realm is named");
  if (slot.kind == KeySlotKind::kDestroyed) {
    if (count != 0 || slot.current_key_id != 0 || !AllZero(slot.master_check)) {
      return bad("a destroyed one holds keys");
    }
  } else if (count < 1 || count > kMaxKeyVersions) {
    return bad("wrong count of keys");
  }
  bool has_current = slot.kind == KeySlotKind::kDestroyed;
  uint32_t last = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t key_id = in.U32();
    if (key_id <= last) return bad("key ids are not in order");
    last = key_id;
    has_current = has_current || key_id == slot.current_key_id;
    slot.wrapped.emplace_back(key_id, in.Bytes(kStoredKeyBytes));
  }
  if (!has_current) return bad("the current key is missing");
  if (!AllZero(bytes.substr(in.position(), kChecksumOffset - in.position()))) {
    return bad("bytes after the keys");
  }
  return slot;
}

}  // namespace cairn
