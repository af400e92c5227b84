// Check. Writers are held off meanwhile, so that packs, index and roots are of one instant; readers
// and the filesystem go on.
//
//   catalog (every record and table) -> keys of realms -> [index rebuilt when asked] ->
//   every pack, frame by frame -> index against packs -> walk from the roots (branches read, leaves
//   looked up) -> owners of what is hurt -> journals of every volume.
//
// No seal ends meanwhile, so no journal that counts goes away; but volumes are written to, opened
// and removed. A journal's damage is therefore looked at twice: what is being written is different
// the second time, what is damaged is not.
//
// A pack finds a damaged frame by reading it; the walk finds what is missing altogether. Owners
// come last, and only when something is hurt (gc/owners.h).
#include "gc/check.h"

#include <algorithm>
#include <map>
#include <set>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "gc/block_walk.h"
#include "gc/owners.h"
#include "gc/root_set.h"
#include "volume/head.h"

namespace cairn {

namespace {

constexpr int64_t kHoldTimeoutMs = 120000;

// "frame at 4096: tag" -> "frame".
std::string StructureOf(const std::string& what) {
  for (const char* known : {"pack header", "pack footer", "pack digest", "frame", "index"}) {
    if (what.starts_with(known)) return known;
  }
  return "pack";
}

bool IsDamaged(const JournalReport& journal) { return !journal.damage.empty(); }

void KeepWhatIsSaidTwice(std::vector<JournalReport>& reports,
                         const std::vector<JournalReport>& before) {
  for (JournalReport& journal : reports) {
    const bool same = std::any_of(before.begin(), before.end(), [&](const JournalReport& first) {
      return first.file == journal.file && first.damage == journal.damage;
    });
    if (!same) journal.damage.clear();
  }
}

class Checker {
 public:
  Checker(Catalog& catalog, LocalBlockStore& store, KeyRing& keys, FileSystem& fs,
          const CheckOptions& options)
      : catalog_(catalog), store_(store), keys_(keys), fs_(fs), options_(options) {}

  Result<CheckReport> Run() {
    CheckCatalog();
    CheckRealmKeys();
    if (options_.rebuild_index) {
      CAIRN_TRY(store_.SealOpenPacks());  // so that they are counted
      report_.index = CAIRN_TRY(store_.RebuildIndex([&](const auto& so_far) {
        Tell({.phase = "index",
              .done = so_far.packs,
              .total = so_far.packs_total,
              .blocks = so_far.blocks});
      }));
    }
    {
      const WritersHeld held = CAIRN_TRY(store_.HoldWriters(kHoldTimeoutMs));
      CAIRN_TRY(store_.SealOpenPacks());
      CAIRN_TRY(CheckPacks());
      CAIRN_TRY(CheckIndex());
      const auto roots = ReadRootSet(catalog_);
      if (!roots) {
        Add("catalog", "roots", roots.error().ToString());
      } else {
        report_.roots = roots->roots.size();
        Tell({.phase = "roots"});
        CAIRN_TRY(CheckRoots(*roots));
        CAIRN_TRY(CountSpace(*roots));
        NameOwners(*roots);
      }
      CheckJournalFiles();
    }
    return std::move(report_);
  }

 private:
  void Tell(const CheckProgress& progress) {
    if (options_.progress) options_.progress(progress);
  }

  Damage& Add(std::string structure, std::string where, std::string what) {
    report_.damages.push_back({std::move(structure), std::move(where), std::move(what), {}});
    hurt_.emplace_back();
    return report_.damages.back();
  }

  void CheckCatalog() {
    const Status checked = catalog_.Check([&](std::string_view key, std::string_view what) {
      Damage& damage = Add("catalog", std::string(key), std::string(what));
      const std::string_view owner = keys::OwnerOf(key);
      if (!owner.empty()) damage.owners.push_back("organization " + std::string(owner));
    });
    if (!checked) Add("catalog", "database", checked.error().ToString());
    IgnoreError(catalog_.Scan("", "\x7f",
                              [&](std::string_view, std::string_view) {
                                ++report_.records;
                                return true;
                              }),
                "an unreadable record was reported above");
  }

  void CheckRealmKeys() {
    const auto look = [&](std::string_view, const catalog::Organization& org) {
      if (org.deleted_ms() != 0 || org.realm().size() != sizeof(Id128)) return true;
      const Id128 realm = Id128::FromView(org.realm());
      if (keys_.Has(realm)) return true;
      Add("keys", "keys/" + realm.ToHex() + ".key",
          "is lost, damaged or wrapped by another master key: nothing of its organization is read")
          .owners.push_back("organization " + org.id());
      return true;
    };
    IgnoreError(ScanRecords<catalog::Organization>(catalog_, keys::Below("org"), look),
                "an unreadable record was reported above");
    if (keys_.Has(BaseRealm()) || store_.ListPacks(BaseRealm()).empty()) return;
    Add("keys", "keys/" + BaseRealm().ToHex() + ".key",
        "is lost, damaged or wrapped by another master key: nothing of the base realm is read")
        .owners.push_back("the base realm");
  }

  Status CheckPacks() {
    const std::map<Id128, std::string> owner_of_pack = OwnersOfPacks();
    const std::vector<Id128> packs = store_.ListAllPacks();
    for (const Id128& pack : packs) {
      Tell({.phase = "packs", .done = report_.packs, .total = packs.size()});
      ++report_.packs;
      const auto damages = CAIRN_TRY(store_.VerifyPack(pack));
      for (const StoreDamage& damage : damages) {
        AddStoreDamage(damage, StructureOf(damage.what));
        // Nothing is lost, so no root names an owner: whose pack it is.
        const auto owner = owner_of_pack.find(pack);
        if (damage.addresses.empty() && owner != owner_of_pack.end())
          report_.damages.back().owners.push_back(owner->second);
      }
    }
    return {};
  }

  std::map<Id128, std::string> OwnersOfPacks() {
    std::map<Id128, std::string> owners;
    for (const PackSummary& pack : store_.ListPacks(BaseRealm()))
      owners[pack.pack] = "the base realm";
    const auto add = [&](std::string_view, const catalog::Organization& org) {
      if (org.realm().size() != 16) return true;
      for (const PackSummary& pack : store_.ListPacks(Id128::FromView(org.realm())))
        owners[pack.pack] = "organization " + org.id();
      return true;
    };
    IgnoreError(ScanRecords<catalog::Organization>(catalog_, keys::Below("org"), add),
                "an unreadable record is reported with the catalog");
    return owners;
  }

  Status CheckIndex() {
    for (const StoreDamage& damage : CAIRN_TRY(store_.VerifyIndex()))
      AddStoreDamage(damage, "index");
    return {};
  }

  void AddStoreDamage(const StoreDamage& damage, std::string structure) {
    Add(std::move(structure), damage.where, damage.what);
    hurt_.back().insert(damage.addresses.begin(), damage.addresses.end());
  }

  Status CheckRoots(const RootSet& roots) {
    std::set<Address> known;  // reported with their pack already
    for (const auto& addresses : hurt_) known.insert(addresses.begin(), addresses.end());
    WalkCallbacks callbacks;
    callbacks.leaf = [&](const Id128& realm, const BlockRef& ref) -> Status {
      ++report_.blocks;
      if (known.contains(ref.address)) return {};
      const auto there = store_.Contains(HoldingRealm(realm, ref), ref);
      if (there && *there) return {};
      if (!there && there.error().code() != ErrorCode::kDataLoss)
        return std::unexpected(there.error());
      Add("block", ref.address.ToHex(), "referenced but missing");
      hurt_.back().insert(ref.address);
      return {};
    };
    callbacks.branch = [&](const Id128&, const BlockRef&, const std::vector<BlockRef>&) -> Status {
      ++report_.blocks;
      return {};
    };
    callbacks.unreadable = [&](const Id128&, const BlockRef& ref, const Error& error) -> Status {
      if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kNotFound)
        return std::unexpected(error);
      if (known.contains(ref.address)) return {};
      Add(std::string(BlockKindName(ref.kind)), ref.address.ToHex(), error.ToString());
      hurt_.back().insert(ref.address);
      return {};
    };
    return WalkBlocks(store_, roots.roots, callbacks, marks_);
  }

  Status CountSpace(const RootSet& roots) {
    for (const Id128& realm : roots.realms) {
      const auto found = marks_.find(realm);
      for (const PackSummary& pack : store_.ListPacks(realm)) {
        const auto blocks = store_.ListBlocks(pack.pack);
        if (!blocks) continue;  // its damage is reported
        for (const auto& block : *blocks) {
          const bool live = block.indexed_here && found != marks_.end() &&
                            found->second.contains(block.entry.address);
          (live ? report_.live_bytes : report_.garbage_bytes) += block.entry.stored_length;
          report_.bytes += block.entry.stored_length;
        }
      }
    }
    return {};
  }

  void NameOwners(const RootSet& roots) {
    std::vector<std::vector<Address>> hurt;
    for (const auto& addresses : hurt_) hurt.emplace_back(addresses.begin(), addresses.end());
    Owners owners = OwnersOf(catalog_, store_, roots, hurt);
    for (size_t i = 0; i < report_.damages.size(); ++i) {
      for (std::string& owner : owners.of_damage[i]) {
        report_.damages[i].owners.push_back(std::move(owner));
      }
    }
  }

  void CheckJournalFiles() {
    std::vector<catalog::Volume> volumes;
    const Status scanned = ScanRecords<catalog::Volume>(
        catalog_, keys::Below("volume"), [&](std::string_view, const catalog::Volume& volume) {
          volumes.push_back(volume);
          return true;
        });
    if (!scanned) return;  // reported with the catalog
    for (const catalog::Volume& volume : volumes) {
      const auto org = GetRecord<catalog::Organization>(catalog_, keys::Organization(volume.org()));
      if (!org || !*org || (*org)->deleted_ms() != 0 || volume.id().size() != 16) continue;
      const Id128 id = Id128::FromView(volume.id());
      const auto look = [&] {
        return CheckJournals(fs_, keys_, Id128::FromView((*org)->realm()), id,
                             options_.volumes_dir + "/" + id.ToHex(),
                             volume.sealed_through_generation());
      };
      auto reports = look();
      if (!reports || std::any_of(reports->begin(), reports->end(), IsDamaged)) {
        auto again = look();
        const auto now = GetRecord<catalog::Volume>(catalog_, keys::Volume(volume.id()));
        if (now && (!*now || NobodyNeedsJournalsOf(**now))) continue;  // removed meanwhile
        if (reports && again) KeepWhatIsSaidTwice(*again, *reports);
        reports = std::move(again);
      }
      if (!reports) {
        if (reports.error().code() == ErrorCode::kNotFound) continue;  // never opened
        Add("journal", options_.volumes_dir + "/" + id.ToHex(), reports.error().ToString())
            .owners.push_back("environment " + volume.env());
        continue;
      }
      for (const JournalReport& journal : *reports) {
        ++report_.journals;
        if (journal.damage.empty()) continue;
        Add("journal", journal.file, journal.damage)
            .owners.push_back("environment " + volume.env());
      }
    }
  }

  // A deleted Environment's volume whose frozen states have their trees: its files are being
  // removed, or will be by the next reap if that was interrupted.
  bool NobodyNeedsJournalsOf(const catalog::Volume& volume) {
    const auto env =
        GetRecord<catalog::Environment>(catalog_, keys::Environment(volume.org(), volume.env()));
    if (!env || !*env || (*env)->state() != catalog::ENV_DELETED) return false;
    bool unsealed = false;
    const Status scanned = ScanRecords<catalog::PointRecord>(
        catalog_, keys::Below("point", Id128::FromView(volume.id()).ToHex()),
        [&](std::string_view, const catalog::PointRecord& point) {
          unsealed = unsealed || point.root().empty();
          return true;
        });
    return scanned && !unsealed;
  }

  Catalog& catalog_;
  LocalBlockStore& store_;
  KeyRing& keys_;
  FileSystem& fs_;
  const CheckOptions& options_;
  CheckReport report_;
  std::vector<std::set<Address>> hurt_;  // one per damage: blocks that cannot be read because of it
  MarkSet marks_;
};

}  // namespace

Result<CheckReport> CheckStore(Catalog& catalog, LocalBlockStore& store, KeyRing& keys,
                               FileSystem& fs, const CheckOptions& options) {
  return Checker(catalog, store, keys, fs, options).Run();
}

}  // namespace cairn
