// 76 bytes: magic, version, key id, then the key sealed by the master key with those 16 bytes as
// associated data.
#include "catalog/catalog_key.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/base/bytes.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CAIRNCK\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kFileBytes = kHeaderBytes + kSealOverheadBytes + sizeof(Key256);

}  // namespace

Result<CatalogKey> ReadCatalogKey(FileSystem& fs, const std::string& path, const Key256& master) {
  const std::string file = CAIRN_TRY(ReadWholeFile(fs, path, 4096));
  ByteReader in(file);
  if (in.Bytes(kMagic.size()) != kMagic) {
    return Err(ErrorCode::kDataLoss, fmt::format("{} is not a catalog key file", path));
  }
  if (const uint32_t version = in.U32(); in.ok() && version != kVersion) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} has version {}; this program knows {}", path, version, kVersion));
  }
  CatalogKey key{.key = {}, .key_id = in.U32()};
  if (!in.ok() || file.size() != kFileBytes) {
    return Err(ErrorCode::kDataLoss,
               fmt::format("{} has {} bytes, not {}", path, file.size(), kFileBytes));
  }
  auto plain = OpenWithKey(master, std::string_view(file).substr(kHeaderBytes),
                           std::string_view(file).substr(0, kHeaderBytes));
  if (!plain) {
    return Err(ErrorCode::kPermissionDenied,
               fmt::format("{} does not open with this master key (another key, or the file is "
                           "damaged)",
                           path));
  }
  std::ranges::copy(*plain, key.key.begin());
  return key;
}

Result<CatalogKey> CreateCatalogKey(FileSystem& fs, const std::string& path, const Key256& master) {
  const CatalogKey key{.key = RandomKey(), .key_id = 1};
  std::string file;
  ByteWriter out(file);
  out.Bytes(kMagic);
  out.U32(kVersion);
  out.U32(key.key_id);
  const std::string header = file;
  out.Bytes(
      SealWithKey(master, {reinterpret_cast<const char*>(key.key.data()), key.key.size()}, header));
  CAIRN_TRY(WriteFileAtomically(fs, path, file));
  return key;
}

}  // namespace cairn
