// Keys and values of the filesystem's key space. Keys sort by (inode, kind, subkey) as byte
// strings, so that all of one inode lie together and a directory's entries come in cookie order.
// Values are fixed little-endian layouts; decoders accept exactly what the encoders write (reserved
// bytes zero). Source of the name hash: XXH3 with a per-volume seed, so that a guest cannot aim for
// collisions without knowing the seed.
#include "volume/inode.h"

#include <xxhash.h>

#include <array>

#include "store/base/bytes.h"

namespace cairn {
namespace {

constexpr size_t kInodeBytes = 144;
constexpr size_t kInodeReservedBytes = 12;
constexpr size_t kDirentFixedBytes = 9;
constexpr uint32_t kNanosecondsPerSecond = 1000000000;

std::string KeyOf(InodeNumber ino, KeyKind kind, size_t subkey_bytes) {
  std::string key;
  key.reserve(9 + subkey_bytes);
  AppendBigEndian64(key, ino);
  key.push_back(static_cast<char>(kind));
  return key;
}

}  // namespace

std::string AttributesKey(InodeNumber ino) { return KeyOf(ino, KeyKind::kAttributes, 0); }

std::string DirentKey(InodeNumber dir, uint64_t cookie) {
  std::string key = KeyOf(dir, KeyKind::kDirent, 8);
  AppendBigEndian64(key, cookie);
  return key;
}

std::string XattrKey(InodeNumber ino, std::string_view name) {
  std::string key = KeyOf(ino, KeyKind::kXattr, name.size());
  key.append(name);
  return key;
}

std::string ExtentKey(InodeNumber ino, uint64_t offset) {
  std::string key = KeyOf(ino, KeyKind::kExtent, 8);
  AppendBigEndian64(key, offset);
  return key;
}

std::string InlineKey(InodeNumber ino) { return KeyOf(ino, KeyKind::kInline, 0); }

std::string OrphanKey(InodeNumber ino) {
  std::string key = KeyOf(kNoInode, KeyKind::kOrphan, 8);
  AppendBigEndian64(key, ino);
  return key;
}

std::string KeyPrefix(InodeNumber ino) {
  std::string key;
  AppendBigEndian64(key, ino);
  return key;
}

std::string KeyPrefix(InodeNumber ino, KeyKind kind) { return KeyOf(ino, kind, 0); }

std::string PrefixEnd(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<uint8_t>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<uint8_t>(end.back()) + 1);
  return end;
}

Result<ParsedKey> ParseKey(std::string_view key) {
  if (key.size() < 9) return Err(ErrorCode::kDataLoss, "key is shorter than 9 bytes");
  ParsedKey parsed;
  parsed.ino = BigEndian64(key);
  parsed.kind = static_cast<KeyKind>(key[8]);
  parsed.subkey = key.substr(9);
  bool good = false;
  switch (parsed.kind) {
    case KeyKind::kAttributes:
    case KeyKind::kInline:
      good = parsed.ino != kNoInode && parsed.subkey.empty();
      break;
    case KeyKind::kDirent:
    case KeyKind::kExtent:
      good = parsed.ino != kNoInode && parsed.subkey.size() == 8;
      break;
    case KeyKind::kXattr:
      good = parsed.ino != kNoInode && !parsed.subkey.empty() && parsed.subkey.size() <= 255;
      break;
    case KeyKind::kOrphan:
      good = parsed.ino == kNoInode && parsed.subkey.size() == 8;
      break;
  }
  if (!good) return Err(ErrorCode::kDataLoss, "key of unknown kind or wrong length");
  return parsed;
}

std::string Inode::Encode() const {
  std::string out;
  out.reserve(kInodeBytes);
  ByteWriter w(out);
  w.U32(mode);
  w.U32(uid);
  w.U32(gid);
  w.U32(nlink);
  w.U64(size_bytes);
  w.U64(allocated_bytes);
  w.U64(rdev);
  for (const TimeSpec* t : {&atime, &mtime, &ctime, &btime}) w.I64(t->seconds);
  for (const TimeSpec* t : {&atime, &mtime, &ctime, &btime}) w.U32(t->nanoseconds);
  w.Bytes(birth_volume.view());
  w.U64(birth_sequence);
  w.U64(change_counter);
  w.U64(parent);
  w.U32(flags);
  w.Zeros(kInodeReservedBytes);
  return out;
}

Result<Inode> Inode::Decode(std::string_view bytes) {
  if (bytes.size() != kInodeBytes) return Err(ErrorCode::kDataLoss, "inode is not 144 bytes");
  ByteReader r(bytes);
  Inode inode;
  inode.mode = r.U32();
  inode.uid = r.U32();
  inode.gid = r.U32();
  inode.nlink = r.U32();
  inode.size_bytes = r.U64();
  inode.allocated_bytes = r.U64();
  inode.rdev = r.U64();
  const std::array<TimeSpec*, 4> times = {&inode.atime, &inode.mtime, &inode.ctime, &inode.btime};
  for (TimeSpec* t : times) t->seconds = r.I64();
  bool good = true;
  for (TimeSpec* t : times) {
    t->nanoseconds = r.U32();
    good = good && t->nanoseconds < kNanosecondsPerSecond;
  }
  inode.birth_volume = Id128::FromView(r.Bytes(16));
  inode.birth_sequence = r.U64();
  inode.change_counter = r.U64();
  inode.parent = r.U64();
  inode.flags = r.U32();
  good = good && inode.flags == 0;
  for (const char c : r.Bytes(kInodeReservedBytes)) good = good && c == 0;
  if (!good || !r.done()) return Err(ErrorCode::kDataLoss, "inode with fields out of range");
  return inode;
}

std::string Dirent::Encode() const {
  std::string out;
  out.reserve(kDirentFixedBytes + name.size());
  ByteWriter w(out);
  w.U64(child);
  w.U8(type);
  w.Bytes(name);
  return out;
}

Result<Dirent> Dirent::Decode(std::string_view bytes) {
  if (bytes.size() <= kDirentFixedBytes || bytes.size() > kDirentFixedBytes + kMaxNameBytes) {
    return Err(ErrorCode::kDataLoss, "dirent of impossible length");
  }
  ByteReader r(bytes);
  Dirent dirent;
  dirent.child = r.U64();
  dirent.type = r.U8();
  dirent.name = std::string(r.Bytes(r.remaining()));
  if (dirent.child == kNoInode) return Err(ErrorCode::kDataLoss, "dirent without an inode");
  return dirent;
}

uint64_t NameHash(uint64_t hash_seed, std::string_view name) {
  const uint64_t hash = XXH3_64bits_withSeed(name.data(), name.size(), hash_seed) >> 9;
  return hash < 3 ? hash + 3 : hash;
}

}  // namespace cairn
