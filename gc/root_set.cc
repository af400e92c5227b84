// The root set: one pass over the catalog's records that hold block references. Any record that
// does not read fails the whole set, because a root that is missing here is a root whose blocks
// would be deleted.
#include "gc/root_set.h"

#include <map>

#include "catalog/keys.h"
#include "catalog/records.h"

namespace cairn {

namespace {

struct Collecting {
  std::map<std::string, Id128> realm_of_org;  // live organizations
  RootSet set;

  // Adds `encoded` (40 bytes, or empty for none). A deleted organization's roots are nobody's.
  Status Add(const std::string& org, std::string_view encoded, std::string owner) {
    if (encoded.empty()) return {};
    const auto realm = realm_of_org.find(org);
    if (realm == realm_of_org.end()) return {};
    return AddTo(realm->second, encoded, std::move(owner));
  }

  // Of the base realm. The Environments that start from it read its references as theirs, so they
  // have to say so.
  Status AddBase(std::string_view encoded, std::string owner) {
    if (encoded.empty()) return {};
    CAIRN_TRY(AddTo(BaseRealm(), encoded, std::move(owner)));
    const Root& root = set.roots.back();
    if (root.ref.realm == RealmTag::kBase) return {};
    return Err(ErrorCode::kDataLoss, "root of " + root.owner + " is not in the base realm");
  }

  Status AddTo(const Id128& realm, std::string_view encoded, std::string owner) {
    auto ref = BlockRef::Decode(encoded);
    if (!ref) return std::unexpected(std::move(ref).error().WithContext("root of " + owner));
    set.roots.push_back({realm, *ref, std::move(owner)});
    return {};
  }
};

// Runs `add` on every record of a range and stops at its first error.
template <typename Message, typename Add>
Status ForEach(CatalogTransaction& catalog, const keys::Range& range, Add&& add) {
  Status status;
  CAIRN_TRY(ScanRecords<Message>(catalog, range, [&](std::string_view key, const Message& message) {
    status = add(key, message);
    return status.has_value();
  }));
  return status;
}

}  // namespace

Result<RootSet> ReadRootSet(Catalog& all) {
  const std::unique_ptr<CatalogTransaction> instant = all.Begin();  // reads at one instant
  CatalogTransaction& catalog = *instant;
  Collecting c;
  CAIRN_TRY(ForEach<catalog::Organization>(
      catalog, keys::Below("org"),
      [&](std::string_view key, const catalog::Organization& org) -> Status {
        if (org.realm().size() != 16)
          return Err(ErrorCode::kDataLoss, "record " + std::string(key) + " has no realm");
        const Id128 realm = Id128::FromView(org.realm());
        if (org.deleted_ms() != 0) {
          c.set.dead_realms.push_back(realm);
        } else {
          c.realm_of_org[org.id()] = realm;
          c.set.realms.push_back(realm);
        }
        return {};
      }));
  c.set.realms.push_back(BaseRealm());
  CAIRN_TRY(ForEach<catalog::BaseImage>(
      catalog, keys::Below("base"), [&](std::string_view, const catalog::BaseImage& image) {
        return c.AddBase(image.root(), "base image " + image.name() +
                                           (image.complete() ? "" : " (being imported)"));
      }));
  std::map<std::string, std::string> point_owner;  // for reports only
  auto own = [&](const catalog::Point& point, const std::string& owner) {
    point_owner.emplace(keys::Point(point.volume(), point.generation()), owner);
  };
  CAIRN_TRY(ForEach<catalog::Volume>(
      catalog, keys::Below("volume"), [&](std::string_view, const catalog::Volume& volume) {
        if (volume.has_base_point())
          own(volume.base_point(), "environment " + volume.env() + " (fork)");
        return c.Add(volume.org(), volume.root(), "environment " + volume.env());
      }));
  CAIRN_TRY(ForEach<catalog::Snapshot>(catalog, keys::Below("snapshot"),
                                       [&](std::string_view, const catalog::Snapshot& snapshot) {
                                         if (snapshot.has_point())
                                           own(snapshot.point(), "snapshot " + snapshot.id());
                                         return c.Add(snapshot.org(), snapshot.memory_image(),
                                                      "snapshot " + snapshot.id() + " memory");
                                       }));
  CAIRN_TRY(ForEach<catalog::Turn>(
      catalog, keys::Below("turn"), [&](std::string_view, const catalog::Turn& turn) {
        if (turn.has_point()) own(turn.point(), "turn " + turn.id());
        return c.Add(turn.org(), turn.publication_root(), "turn " + turn.id() + " artifacts");
      }));
  CAIRN_TRY(ForEach<catalog::PointRecord>(
      catalog, keys::Below("point"), [&](std::string_view key, const catalog::PointRecord& point) {
        const auto owner = point_owner.find(std::string(key));
        return c.Add(
            point.org(), point.root(),
            owner == point_owner.end() ? "unreferenced " + std::string(key) : owner->second);
      }));
  return std::move(c.set);
}

}  // namespace cairn
