// Read-only verification. A pack: header, footer, every frame in file order (header, checksum,
// padding; with keys also tag, codec and address), the gaps between them, and the whole-file digest
// when nothing else explains a difference. A torn tail is no damage unless the index says that
// blocks lie there. The index: its own checksums, then each pack's blocks against it, then the
// counts per pack, so that an entry that no pack backs is seen too.
#include <algorithm>
#include <map>

#include "store/base/log.h"
#include "store/block_codec.h"
#include "store/local_block_store.h"

namespace cairn {
namespace {

// Frames of a pack with a good footer. The footer says where each one is.
void VerifyFrames(const PackReader& reader, const KeyRing* keys,
                  const std::vector<PackEntry>& entries, std::vector<StoreDamage>& damage) {
  for (const PackEntry& entry : entries) {
    Status good = reader.VerifyStored(entry);
    if (good && keys != nullptr) {
      Result<std::string> bytes = reader.ReadFrame(entry);
      if (bytes) bytes = DecodeBlock(entry.codec, *std::move(bytes), entry.raw_length);
      if (!bytes) {
        good = std::unexpected(bytes.error());
      } else {
        const auto address = keys->AddressOf(reader.header().realm, entry.kind, *bytes);
        if (!address || *address != entry.address) {
          good = Err(ErrorCode::kDataLoss, "plaintext has another address");
        }
      }
    }
    if (good) continue;
    damage.push_back({.where = reader.path(),
                      .what = fmt::format("frame at {} ({}): {}", entry.offset,
                                          BlockKindName(entry.kind), good.error().message()),
                      .addresses = {entry.address}});
  }
}

}  // namespace

std::vector<Id128> LocalBlockStore::ListAllPacks() {
  std::vector<Id128> packs;
  for (const PackSet::Known& known : packs_.List(std::nullopt)) {
    packs.push_back(known.summary.pack);
  }
  return packs;
}

Result<std::vector<StoreDamage>> LocalBlockStore::VerifyPack(const Id128& pack) {
  MutexLock lock(maintenance_mutex_);
  std::vector<StoreDamage> damage;
  const auto known = packs_.Find(pack);
  if (!known) return Err(ErrorCode::kNotFound, "no pack " + pack.ToHex());
  const PackSummary& summary = known->summary;
  const std::string path = packs_.PathOf(summary.realm, pack);
  const auto indexed_here = [&]() -> Result<std::map<Address, PackEntry>> {
    std::map<Address, PackEntry> entries;
    ReaderLock gate(index_gate_);
    CAIRN_TRY(index_->ForEach([&](const BlockLocation& location) {
      if (location.pack == pack) entries[location.entry.address] = location.entry;
      return true;
    }));
    return entries;
  };

  const auto opened = PackReader::Open(options_.fs, path, pack);
  if (!opened) {
    const ErrorCode code = opened.error().code();
    if (code != ErrorCode::kDataLoss && code != ErrorCode::kNotFound) {
      return std::unexpected(opened.error());
    }
    StoreDamage whole{.where = path,
                      .what = code == ErrorCode::kNotFound
                                  ? "pack file is missing"
                                  : "pack header: " + opened.error().message()};
    if (const auto entries = indexed_here()) {
      for (const auto& [address, entry] : *entries) whole.addresses.push_back(address);
    }
    damage.push_back(std::move(whole));
    return damage;
  }
  PackReader& reader = **opened;
  if (reader.header_damaged()) {
    damage.push_back(
        {.where = path, .what = "pack header: does not verify (its copy in the footer is used)"});
  }
  const KeyRing* keys = options_.keys.Has(summary.realm) ? &options_.keys : nullptr;
  if (keys != nullptr) {
    const Status unlocked = reader.Unlock(*keys);
    if (!unlocked) {
      StoreDamage locked{.where = path,
                         .what = "pack header: data key: " + unlocked.error().message()};
      if (const auto entries = indexed_here()) {
        for (const auto& [address, entry] : *entries) locked.addresses.push_back(address);
      }
      damage.push_back(std::move(locked));
      keys = nullptr;
    }
  }

  auto footer = reader.ReadFooter();
  if (!footer && footer.error().code() != ErrorCode::kDataLoss) {
    return std::unexpected(footer.error());
  }
  const bool sealed = footer && footer->has_value();
  if (!sealed && summary.sealed) {
    damage.push_back({.where = path,
                      .what = "pack footer: " + (footer ? std::string("trailer does not verify")
                                                        : footer.error().message())});
  }
  if (sealed) {
    std::vector<PackEntry> entries = (*footer)->entries;
    std::ranges::sort(entries, {}, &PackEntry::offset);
    VerifyFrames(reader, keys, entries, damage);
    uint64_t at = kPackHeaderBytes;
    for (const PackEntry& entry : entries) {
      if (entry.offset != at) {
        damage.push_back({.where = path,
                          .what = fmt::format("bytes {} to {} are in no frame", at, entry.offset)});
      }
      at = entry.EndOffset();
    }
    if (damage.empty()) {
      const Status digest = reader.VerifyDigest(**footer);
      if (!digest && digest.error().code() != ErrorCode::kDataLoss) {
        return std::unexpected(digest.error());
      }
      if (!digest) {
        damage.push_back({.where = path, .what = "pack digest: " + digest.error().message()});
      }
    }
    return damage;
  }

  // No valid footer: walk. What the index has and the walk did not find is lost.
  const PackScan scan = CAIRN_TRY(reader.Scan(std::nullopt));
  VerifyFrames(reader, keys, scan.entries, damage);
  if (known->open) return damage;
  std::map<Address, PackEntry> lost = CAIRN_TRY(indexed_here());
  for (const PackEntry& entry : scan.entries) lost.erase(entry.address);
  for (const auto& [address, entry] : lost) {
    const Status why = reader.VerifyStored(entry);
    damage.push_back(
        {.where = path,
         .what = fmt::format("frame at {} ({}): {}", entry.offset, BlockKindName(entry.kind),
                             why ? "not found by a scan" : why.error().message()),
         .addresses = {address}});
  }
  return damage;
}

Result<std::vector<StoreDamage>> LocalBlockStore::VerifyIndex() {
  MutexLock lock(maintenance_mutex_);
  ReaderLock gate(index_gate_);
  const std::string where = options_.dir + "/index";
  std::vector<StoreDamage> damage;
  const auto add = [&](std::string what, std::vector<Address> addresses) {
    damage.push_back(
        {.where = where, .what = "index: " + std::move(what), .addresses = std::move(addresses)});
  };
  const Status checksums = index_->VerifyChecksums();
  if (!checksums) {
    if (checksums.error().code() != ErrorCode::kDataLoss) return std::unexpected(checksums.error());
    add(checksums.error().message(), {});
  }
  std::map<Id128, uint64_t> counted;  // entries of the index per pack
  const Status walked = index_->ForEach([&](const BlockLocation& location) {
    ++counted[location.pack];
    return true;
  });
  if (!walked) {
    if (walked.error().code() != ErrorCode::kDataLoss) return std::unexpected(walked.error());
    add(walked.error().message(), {});
    return damage;
  }
  for (const PackSet::Known& known : packs_.List(std::nullopt)) {
    const Id128 pack = known.summary.pack;
    if (known.open || known.damaged) continue;
    const auto reader =
        PackReader::Open(options_.fs, packs_.PathOf(known.summary.realm, pack), pack);
    const auto listing =
        reader ? ListPack(**reader) : Result<PackListing>(std::unexpected(reader.error()));
    if (!listing) {
      if (listing.error().code() != ErrorCode::kDataLoss &&
          listing.error().code() != ErrorCode::kNotFound) {
        return std::unexpected(listing.error());
      }
      counted.erase(pack);  // VerifyPack names it
      continue;
    }
    uint64_t matched = 0;
    for (const PackEntry& entry : listing->entries) {
      const auto location = index_->Get(entry.address);
      if (!location) {
        if (location.error().code() != ErrorCode::kDataLoss) {
          return std::unexpected(location.error());
        }
        add(location.error().message(), {entry.address});
      } else if (!location->has_value()) {
        add("a block of pack " + pack.ToHex() + " is not indexed", {entry.address});
      } else if ((*location)->pack == pack) {
        ++matched;
        if ((*location)->entry != entry) {
          add("an entry disagrees with pack " + pack.ToHex(), {entry.address});
        }
      } else if (!packs_.Find((*location)->pack)) {
        add("an entry names a pack that is gone", {entry.address});
      }
    }
    const uint64_t entries = counted.contains(pack) ? counted[pack] : 0;
    if (entries != matched && listing->sealed == known.summary.sealed) {
      add(fmt::format("{} entries name blocks that pack {} does not have", entries - matched,
                      pack.ToHex()),
          {});
    }
    counted.erase(pack);
  }
  for (const auto& [pack, entries] : counted) {
    const auto known = packs_.Find(pack);
    if (known && (known->open || known->damaged)) continue;
    add(fmt::format("{} entries name pack {}, which is gone", entries, pack.ToHex()), {});
  }
  return damage;
}

}  // namespace cairn
