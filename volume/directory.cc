// Names in a directory. A name's dirent lies in the 256 cookies of its hash; a lookup compares the
// stored name, so a collision of hashes costs a comparison and nothing else. A new name takes the
// lowest free rank. (The scheme is ext4's htree cookie with the collision rank made part of the
// position, so that seekdir is stable under insertion and deletion.)
#include <sys/stat.h>

#include <bitset>
#include <cerrno>
#include <string>

#include "store/base/bytes.h"
#include "volume/directory_internal.h"

namespace cairn {
namespace {

constexpr uint64_t kRanks = 256;

}  // namespace

Result<StoredDirent> DecodeStoredDirent(std::string_view key, const Entry& entry) {
  const ParsedKey parsed = CAIRN_TRY(ParseKey(key));
  if (parsed.kind != KeyKind::kDirent) return Err(ErrorCode::kDataLoss, "not a dirent key");
  return StoredDirent{BigEndian64(parsed.subkey), CAIRN_TRY(Dirent::Decode(entry.payload))};
}

Result<DirentSearch> SearchDirent(const Layer& layer, uint64_t hash_seed, InodeNumber dir,
                                  std::string_view name) {
  const uint64_t first = NameHash(hash_seed, name) << 8;
  DirentSearch search;
  std::bitset<kRanks> taken;
  Status decoded;
  const auto visit = [&](std::string_view key, const Entry& entry) {
    const Result<StoredDirent> stored = DecodeStoredDirent(key, entry);
    if (!stored) {
      decoded = std::unexpected(stored.error());
      return false;
    }
    taken.set(stored->cookie - first);
    if (stored->dirent.name == name) {
      search.found = FoundDirent{stored->cookie, stored->dirent.child, stored->dirent.type};
    }
    return true;
  };
  CAIRN_TRY(layer.Scan(DirentKey(dir, first), DirentKey(dir, first + kRanks), visit));
  CAIRN_TRY(std::move(decoded));
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    if (!taken.test(rank)) {
      search.free_cookie = first + rank;
      break;
    }
  }
  return search;
}

Result<std::optional<FoundDirent>> FindDirent(const Layer& layer, uint64_t hash_seed,
                                              InodeNumber dir, std::string_view name) {
  const uint64_t first = NameHash(hash_seed, name) << 8;
  const std::optional<Entry> entry = CAIRN_TRY(layer.Get(DirentKey(dir, first)));
  if (entry) {
    const Dirent dirent = CAIRN_TRY(Dirent::Decode(entry->payload));
    if (dirent.name == name) return FoundDirent{first, dirent.child, dirent.type};
  }
  return CAIRN_TRY(SearchDirent(layer, hash_seed, dir, name)).found;
}

Result<bool> DirectoryIsEmpty(const Layer& layer, InodeNumber dir) {
  const std::string begin = KeyPrefix(dir, KeyKind::kDirent);
  bool empty = true;
  CAIRN_TRY(layer.Scan(begin, PrefixEnd(begin), [&](std::string_view, const Entry&) {
    empty = false;
    return false;
  }));
  return empty;
}

Status CheckName(std::string_view name) {
  if (name.size() > kMaxNameBytes) return ErrErrno(ENAMETOOLONG);
  if (name.empty() || name == "." || name == "..") return ErrErrno(EINVAL);
  if (name.find('/') != name.npos || name.find('\0') != name.npos) return ErrErrno(EINVAL);
  return {};
}

uint8_t DirentType(uint32_t mode) { return static_cast<uint8_t>((mode & S_IFMT) >> 12); }

}  // namespace cairn
