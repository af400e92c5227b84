// The key space of one filesystem and the fixed layouts of its values (docs/formats/tree.md, part
// two).
//
//   key   = inode number u64 big-endian | key kind u8 | subkey
//   kinds: attributes (no subkey), dirent (cookie u64 BE), xattr (name), extent (file offset u64
//   BE),
//          inline data or symlink target (no subkey), orphan (under inode 0; subkey = inode number
//          u64 BE)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/clock.h"
#include "store/base/error.h"
#include "store/base/id128.h"

namespace cairn {

using InodeNumber = uint64_t;
inline constexpr InodeNumber kRootInode = 1;
inline constexpr InodeNumber kNoInode = 0;  // also the key prefix of the orphan list
inline constexpr InodeNumber kFirstFreeInode = 2;

enum class KeyKind : uint8_t {
  kAttributes = 1,
  kDirent = 2,
  kXattr = 3,
  kExtent = 4,
  kInline = 5,
  kOrphan = 6,
};

inline constexpr uint32_t kGridBytes =
    64 * 1024;  // file data blocks; extents never cross this grid
inline constexpr uint32_t kInlineLimitBytes = 2048;  // whole files up to this size live in the tree
inline constexpr uint32_t kPageBytes = 4096;
inline constexpr uint64_t kMaxFileBytes = uint64_t{1} << 44;  // 16 TiB
inline constexpr uint32_t kMaxNameBytes = 255;
inline constexpr uint32_t kMaxXattrBytes = 65536;
inline constexpr uint32_t kMaxLinks = 65000;

std::string AttributesKey(InodeNumber ino);
std::string DirentKey(InodeNumber dir, uint64_t cookie);
std::string XattrKey(InodeNumber ino, std::string_view name);
std::string ExtentKey(InodeNumber ino, uint64_t offset);
std::string InlineKey(InodeNumber ino);
std::string OrphanKey(InodeNumber ino);
// All keys of one inode, or of one kind of it: [first, last).
std::string KeyPrefix(InodeNumber ino);
std::string KeyPrefix(InodeNumber ino, KeyKind kind);
std::string PrefixEnd(std::string_view prefix);  // the first key after all that start with `prefix`

struct ParsedKey {
  InodeNumber ino = 0;
  KeyKind kind = KeyKind::kAttributes;
  std::string_view subkey;
};
Result<ParsedKey> ParseKey(std::string_view key);  // DataLoss

// 144 bytes encoded. `birth` is the identity for diff: forks reuse inode numbers.
struct Inode {
  uint32_t mode = 0;  // S_IFMT | permissions, as in struct stat
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t nlink = 0;
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;  // st_blocks * 512: holes cost nothing
  uint64_t rdev = 0;             // as in struct stat, for devices
  TimeSpec atime, mtime, ctime, btime;
  Id128 birth_volume;
  uint64_t birth_sequence = 0;
  uint64_t change_counter = 0;  // +1 for every change of the inode or its data
  InodeNumber parent = 0;       // of a directory: what ".." is; 0 for others
  uint32_t flags = 0;           // reserved, 0

  bool operator==(const Inode&) const = default;
  std::string Encode() const;
  static Result<Inode> Decode(std::string_view bytes);  // DataLoss
};

// Value of a dirent: {child u64, type u8 (DT_*), name}.
struct Dirent {
  InodeNumber child = 0;
  uint8_t type = 0;
  std::string name;
  std::string Encode() const;
  static Result<Dirent> Decode(std::string_view bytes);  // DataLoss
};

// Cookies: 55-bit seeded hash of the name << 8 | rank. Hash values 0 to 2 are reserved (".", "..",
// start), so the smallest cookie is 3 << 8. Ranks are never renumbered.
uint64_t NameHash(uint64_t hash_seed, std::string_view name);

}  // namespace cairn
