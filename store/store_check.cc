// Read-only verification. A pack: PackVerifier reads it; what it finds is judged here by what the
// index says lies there, so that garbage is never reported as a loss, and put into the quarantine.
// The index: its own checksums, then each pack's blocks against it, then the counts per pack, so
// that an entry that no pack backs is seen too.
#include <algorithm>
#include <map>

#include "store/base/log.h"
#include "store/block_codec.h"
#include "store/local_block_store.h"

namespace cairn {

std::vector<Id128> LocalBlockStore::ListAllPacks() {
  std::vector<Id128> packs;
  for (const PackSet::Known& known : packs_.List(std::nullopt)) {
    packs.push_back(known.summary.pack);
  }
  return packs;
}

LocalBlockStore::Verification::~Verification() = default;

uint64_t LocalBlockStore::Verification::offset() const {
  return verifier_ == nullptr ? 0 : verifier_->offset();
}

bool LocalBlockStore::Verification::locked() const {
  return verifier_ != nullptr && !verifier_->unlocked();
}

Result<std::unique_ptr<LocalBlockStore::Verification>> LocalBlockStore::BeginVerify(
    const Id128& pack, uint64_t from_offset) {
  const auto known = packs_.Find(pack);
  if (!known) return Err(ErrorCode::kNotFound, "no pack " + pack.ToHex());
  std::unique_ptr<Verification> verification(new Verification(*this, *known));
  Verification& v = *verification;
  const Id128 realm = known->summary.realm;
  auto opened = PackVerifier::Open({.fs = options_.fs,
                                    .keys = options_.keys,
                                    .path = packs_.PathOf(realm, pack),
                                    .pack = pack,
                                    .realm = realm,
                                    .sealed = known->summary.sealed,
                                    .from_offset = from_offset,
                                    .good =
                                        [&v](const PackEntry& entry) {
                                          if (v.locked()) return;
                                          v.store_.quarantine_->ReleaseFrame(v.known_.summary.pack,
                                                                             entry.offset);
                                        },
                                    .fault = [&v](const auto& fault) { v.Judge(fault); }});
  if (opened) {
    v.verifier_ = *std::move(opened);
    // It can be opened again: what is bad in it is found frame by frame.
    if (v.verifier_->unlocked() && quarantine_->HoldsPack(pack)) quarantine_->ReleasePack(pack);
    return verification;
  }
  if (opened.error().code() != ErrorCode::kNotFound) return std::unexpected(opened.error());
  // A collector takes a pack out of the set before its file leaves.
  if (!packs_.Find(pack)) return Err(ErrorCode::kNotFound, "pack " + pack.ToHex() + " is gone");
  v.Judge({.what = "pack file is missing", .entry = std::nullopt, .whole = true});
  return verification;
}

// Whether the fault is damage: only where something indexed lies.
void LocalBlockStore::Verification::Judge(const PackVerifier::Fault& fault) {
  const Id128& realm = known_.summary.realm;
  const Id128& pack = known_.summary.pack;
  StoreDamage damage{.where = store_.packs_.PathOf(realm, pack),
                     .what = fault.what,
                     .realm = realm,
                     .pack = pack,
                     .whole_pack = fault.whole};
  if (fault.entry) {
    damage.offset = fault.entry->offset;
    store_.reader_.Distrust(realm, pack, damage.offset, fault.entry->address);
    const auto here = store_.LiesAt(realm, fault.entry->address, pack, damage.offset);
    if (here && !*here) {
      ++step_.damaged_garbage;
      return;
    }
    damage.addresses.push_back(fault.entry->address);
  } else if (fault.whole) {
    store_.reader_.Distrust(realm, pack, QuarantinedFrame::kWholePack, {});
    auto addresses = store_.AddressesIn(pack, SIZE_MAX);
    if (addresses) damage.addresses = *std::move(addresses);
  }
  step_.damage.push_back(std::move(damage));
}

// A pack without a footer: what was indexed of it and no frame was found for.
Status LocalBlockStore::Verification::JudgeMissing() {
  if (!verifier_->walked() || known_.open || known_.damaged) return {};
  const std::vector<uint64_t>& found = verifier_->found();
  if (found.size() >= known_.summary.entry_count) return {};
  std::vector<PackEntry> missing;
  {
    ReaderLock gate(store_.index_gate_);
    CAIRN_TRY(store_.index_->ForEach([&](const BlockLocation& location) {
      if (location.pack == known_.summary.pack &&
          !std::ranges::binary_search(found, location.entry.offset)) {
        missing.push_back(location.entry);
      }
      return true;
    }));
  }
  const auto reader = PackReader::Open(
      store_.options_.fs, store_.packs_.PathOf(known_.summary.realm, known_.summary.pack),
      known_.summary.pack);
  for (const PackEntry& entry : missing) {
    const Status why = reader ? (*reader)->VerifyStored(entry) : std::unexpected(reader.error());
    Judge({.what = fmt::format("frame at {} ({}): {}", entry.offset, BlockKindName(entry.kind),
                               why ? "not found by a scan" : why.error().message()),
           .entry = entry});
  }
  return {};
}

Result<LocalBlockStore::Verification::Step> LocalBlockStore::Verification::Next(
    uint64_t budget_bytes) {
  if (verifier_ == nullptr) {
    step_.done = true;
  } else {
    const PackVerifier::Step read = CAIRN_TRY(verifier_->Next(budget_bytes));
    step_.bytes = read.bytes;
    step_.blocks = read.frames;
    step_.done = read.done;
    if (read.done) CAIRN_TRY(JudgeMissing());
  }
  if (!store_.packs_.Find(known_.summary.pack)) {
    store_.quarantine_->ReleasePack(known_.summary.pack);
    return Step{.bytes = step_.bytes, .damage = {}, .done = true, .gone = true};
  }
  return std::exchange(step_, {});
}

Result<std::vector<StoreDamage>> LocalBlockStore::VerifyPack(const Id128& pack) {
  const std::unique_ptr<Verification> verification = CAIRN_TRY(BeginVerify(pack, 0));
  std::vector<StoreDamage> damage;
  while (true) {
    Verification::Step step = CAIRN_TRY(verification->Next(UINT64_MAX));
    damage.insert(damage.end(), step.damage.begin(), step.damage.end());
    if (step.done) return damage;
  }
}

Status LocalBlockStore::SealPack(const Id128& pack) {
  const auto known = packs_.Find(pack);
  if (!known || !known->open) return {};
  RealmWriter* writer = writer_.FindWriter(known->summary.realm);
  return writer == nullptr ? Status() : writer->Seal();
}

Result<LocalBlockStore::QuarantineCounts> LocalBlockStore::CountQuarantine() {
  QuarantineCounts counts;
  for (const QuarantinedFrame& frame : quarantine_->List()) {
    ++counts.places;
    if (frame.offset == QuarantinedFrame::kWholePack) {
      ++counts.packs;
      continue;
    }
    if (CAIRN_TRY(LiesAt(frame.realm, frame.address, frame.pack, frame.offset))) ++counts.blocks;
  }
  return counts;
}

Result<bool> LocalBlockStore::LiesAt(const Id128& realm, const Address& address, const Id128& pack,
                                     uint64_t offset) {
  const auto found = CAIRN_TRY(writer_.Locate(realm, address));
  return found && found->pack == pack && found->entry.offset == offset;
}

Result<std::vector<Address>> LocalBlockStore::AddressesIn(const Id128& pack, size_t limit) {
  std::vector<Address> addresses;
  ReaderLock gate(index_gate_);
  CAIRN_TRY(index_->ForEach([&](const BlockLocation& location) {
    if (location.pack == pack) addresses.push_back(location.entry.address);
    return addresses.size() < limit;
  }));
  return addresses;
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
    if (checksums) add(walked.error().message(), {});  // else it was named above
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
