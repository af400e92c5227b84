// Base images: their records, and Environments that start from one.
//
// The record's key is an id, since keys of the catalog hold nothing that anybody chose; the name is
// found by its HMAC, whose record every import and deletion writes, so that two imports of one name
// cannot both commit.
//
// Deletion against an Environment that starts at the same moment: the Environment's transaction has
// read the image's record, which the deletion removes. So it either commits first, and its volume
// is a root from then on, or finds no image.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "catalog/ids.h"
#include "catalog/keys.h"
#include "catalog/registry.h"
#include "catalog/secret_hash.h"
#include "catalog/transact.h"

namespace cairn {

using catalog::BaseImage;

namespace {

constexpr size_t kMaxNameBytes = 256;

Status CheckBaseName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("a base image's name has 1 to {} bytes, this one {}", kMaxNameBytes,
                         name.size()));
}

}  // namespace

std::string Registry::BaseNameKey(const std::string& name) const {
  return keys::BaseName(HmacSha256(hmac_key_, "base image " + name));
}

Result<std::optional<BaseImage>> Registry::FindBaseImage(CatalogTransaction& txn,
                                                         const std::string& name) const {
  const auto entry = CAIRN_TRY(GetRecord<catalog::IndexEntry>(txn, BaseNameKey(name)));
  if (!entry) return std::optional<BaseImage>();
  auto image = CAIRN_TRY(GetRecord<BaseImage>(txn, keys::BaseImage(entry->id())));
  if (!image) return Err(ErrorCode::kDataLoss, "base image " + entry->id() + " has no record");
  return image;
}

Result<BaseImage> Registry::BeginBaseImage(const std::string& name) {
  CAIRN_TRY(CheckBaseName(name));
  CAIRN_TRY(RemoveIncompleteBaseImages());
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<BaseImage> {
    if (CAIRN_TRY(FindBaseImage(txn, name))) {
      return Err(ErrorCode::kAlreadyExists,
                 "there is a base image " + name + ": delete it first, or choose another name");
    }
    BaseImage image;
    image.set_id(NewId(kBaseImagePrefix));
    image.set_name(name);
    image.set_created_ms(clock_.NowMs());
    PutRecord(txn, keys::BaseImage(image.id()), image);
    catalog::IndexEntry entry;
    entry.set_id(image.id());
    PutRecord(txn, BaseNameKey(name), entry);
    return image;
  });
}

Status Registry::UpdateBaseImage(const BaseImage& image) {
  return catalog_.Run([&](CatalogTransaction& txn) -> Status {
    const std::string key = keys::BaseImage(image.id());
    const auto now = CAIRN_TRY(GetRecord<BaseImage>(txn, key));
    if (!now || now->complete()) {
      return Err(ErrorCode::kFailedPrecondition,
                 "base image " + image.name() + " is not being imported");
    }
    PutRecord(txn, key, image);
    return {};
  });
}

Result<size_t> Registry::RemoveIncompleteBaseImages() {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<size_t> {
    std::vector<BaseImage> incomplete;
    CAIRN_TRY(ScanRecords<BaseImage>(txn, keys::Below("base"),
                                     [&](std::string_view, const BaseImage& image) {
                                       if (!image.complete()) incomplete.push_back(image);
                                       return true;
                                     }));
    for (const BaseImage& image : incomplete) {
      txn.Delete(keys::BaseImage(image.id()));
      txn.Delete(BaseNameKey(image.name()));
    }
    return incomplete.size();
  });
}

Result<BaseImage> Registry::GetBaseImage(const std::string& name) {
  const std::unique_ptr<CatalogTransaction> txn = catalog_.Begin();
  auto image = CAIRN_TRY(FindBaseImage(*txn, name));
  if (!image || !image->complete()) return NoSuch("base image", name);
  return *std::move(image);
}

Result<std::vector<BaseImage>> Registry::ListBaseImages() {
  std::vector<BaseImage> all;
  CAIRN_TRY(ScanRecords<BaseImage>(catalog_, keys::Below("base"),
                                   [&](std::string_view, const BaseImage& image) {
                                     all.push_back(image);
                                     return true;
                                   }));
  std::ranges::sort(
      all, {}, [](const BaseImage& image) { return std::pair(image.created_ms(), image.id()); });
  return all;
}

Result<BaseImage> Registry::DeleteBaseImage(const std::string& name) {
  return Transact(catalog_, [&](CatalogTransaction& txn) -> Ruled<BaseImage> {
    const auto image = CAIRN_TRY(FindBaseImage(txn, name));
    if (!image) return NoSuch("base image", name);
    if (!image->complete()) {
      return Err(ErrorCode::kFailedPrecondition, "base image " + name + " is being imported");
    }
    txn.Delete(keys::BaseImage(image->id()));
    txn.Delete(BaseNameKey(name));
    return *image;
  });
}

Status Registry::StartFromBase(CatalogTransaction& txn, const std::string& base,
                               catalog::Environment& env) const {
  if (base.empty()) return {};
  const auto image = CAIRN_TRY(FindBaseImage(txn, base));
  if (!image || !image->complete()) return NoSuch("base image", base);
  constexpr uint64_t kFirstUseInodes = 2;  // /workspace, /workspace/outputs
  const bool too_small =
      (env.quota_bytes() != 0 && env.quota_bytes() <= image->bytes()) ||
      (env.quota_inodes() != 0 && env.quota_inodes() < image->inodes() + kFirstUseInodes);
  if (too_small) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("base image {} has {} inodes and {} bytes: the quota leaves nothing",
                           base, image->inodes(), image->bytes()));
  }
  const Id128 id = Id128::Random();
  catalog::Volume volume;
  volume.set_id(std::string(id.view()));
  volume.set_env(env.id());
  volume.set_org(env.org());
  volume.set_root(image->root());
  volume.set_next_ino(image->next_ino());
  volume.set_hash_seed(image->hash_seed());
  volume.set_base_inodes(image->inodes());
  volume.set_base_bytes(image->bytes());
  PutRecord(txn, keys::Volume(id.view()), volume);
  env.set_volume(volume.id());
  env.set_base_image(image->id());
  env.set_base_image_name(image->name());
  return {};
}

}  // namespace cairn
