// A read goes cache -> location -> pack; when a rewrite moved the block between the second and the
// third step, the location is asked for again; what no pack has is looked for in the trash, loudly.
// Invariant: bytes are returned only after frame checksum, GCM tag, kind and length have been
// verified against the reference; from a place in the quarantine, the address too. A place that
// does not verify goes into the quarantine before the error is returned.
#include "store/block_reader.h"

#include <algorithm>

#include "store/base/log.h"
#include "store/block_codec.h"

namespace cairn {
namespace {

Id128 OwnerOf(const Id128& realm, const BlockRef& ref) {
  return ref.realm == RealmTag::kBase ? BaseRealm() : realm;
}

std::unexpected<Error> Lost(const BlockRef& ref, std::string_view where, std::string_view what) {
  LogError("data_loss", {{"block", ref.address.ToHex()},
                         {"kind", BlockKindName(ref.kind)},
                         {"pack", where},
                         {"what", what}});
  return Err(ErrorCode::kDataLoss,
             fmt::format("block {} in {}: {}", ref.address.ToHex(), where, what));
}

}  // namespace

Result<Block> BlockReader::Get(const Id128& realm, const BlockRef& ref) {
  const Id128 owner = OwnerOf(realm, ref);
  BlockCache::Item item = cache_.Get(ref.address);
  if (item.plain != nullptr && item.realm == owner && item.kind == ref.kind &&
      item.plain->size() == ref.raw_length_bytes) {
    return item.plain;
  }
  item = {.realm = owner,
          .kind = ref.kind,
          .plain = std::make_shared<const std::string>(CAIRN_TRY(ReadPlain(owner, ref, false)))};
  cache_.Put(ref.address, item);
  return item.plain;
}

Status BlockReader::Verify(const Id128& realm, const BlockRef& ref) {
  const Id128 owner = OwnerOf(realm, ref);
  CAIRN_TRY(ReadPlain(owner, ref, /*recompute_address=*/true));
  return {};
}

Result<std::string> BlockReader::ReadPlain(const Id128& realm, const BlockRef& ref,
                                           bool recompute_address) {
  if (!deps_.keys.Has(realm)) {
    return Err(ErrorCode::kNotFound, "no keys for realm " + realm.ToHex());
  }
  if (closed_.load()) return Err(ErrorCode::kUnavailable, "the block store is closed");
  std::optional<BlockLocation> before;
  for (int move = 0; move < kMaxMoves; ++move) {
    const std::optional<BlockLocation> found = CAIRN_TRY(deps_.locate(realm, ref.address));
    if (!found) return ReadFromTrash(realm, ref);
    const BlockLocation& location = *found;
    const auto reader = deps_.packs.Reader(location.pack);
    if (!reader && reader.error().code() == ErrorCode::kNotFound && before != location) {
      before = location;
      continue;
    }
    const std::string where = deps_.packs.PathOf(realm, location.pack);
    if (!reader) {
      const ErrorCode code = reader.error().code();
      if (code != ErrorCode::kNotFound && code != ErrorCode::kDataLoss) {
        return std::unexpected(reader.error());
      }
      // Keys that were destroyed meanwhile are no damage of the pack.
      if (deps_.keys.Has(realm)) {
        Distrust(realm, location.pack, QuarantinedFrame::kWholePack, {});
      }
      if (code == ErrorCode::kNotFound) return ReadFromTrash(realm, ref);
      return Lost(ref, where, reader.error().message());
    }
    if ((*reader)->header().realm != realm) return Lost(ref, where, "pack of another realm");
    if (location.entry.kind != ref.kind || location.entry.raw_length != ref.raw_length_bytes) {
      return Lost(ref, where, "block of another kind or length than its reference");
    }
    Result<std::string> bytes = (*reader)->ReadFrame(location.entry);
    if (bytes) {
      bytes = DecodeBlock(location.entry.codec, *std::move(bytes), location.entry.raw_length);
    }
    if (bytes &&
        (recompute_address || deps_.quarantine.Holds(location.pack, location.entry.offset)) &&
        CAIRN_TRY(deps_.keys.AddressOf(realm, ref.kind, *bytes)) != ref.address) {
      bytes = Err(ErrorCode::kDataLoss, "plaintext has another address");
    }
    if (bytes || bytes.error().code() != ErrorCode::kDataLoss) return bytes;
    Distrust(realm, location.pack, location.entry.offset, ref.address);
    return Lost(ref, fmt::format("{} at {}", where, location.entry.offset),
                bytes.error().message());
  }
  return Err(ErrorCode::kUnavailable, "block moved too often during a read");
}

Result<std::string> BlockReader::ReadFromTrash(const Id128& realm, const BlockRef& ref) {
  for (const PackSet::TrashFile& file : CAIRN_TRY(deps_.packs.ListTrash())) {
    if (file.realm != realm) continue;
    const auto reader = PackReader::Open(deps_.fs, file.path, file.pack);
    if (!reader || (*reader)->header().realm != realm || !(*reader)->Unlock(deps_.keys)) continue;
    const auto listing = ListPack(**reader);
    if (!listing) continue;
    const auto entry = std::ranges::find(listing->entries, ref.address, &PackEntry::address);
    if (entry == listing->entries.end() || entry->kind != ref.kind ||
        entry->raw_length != ref.raw_length_bytes) {
      continue;
    }
    Result<std::string> bytes = (*reader)->ReadFrame(*entry);
    if (bytes) bytes = DecodeBlock(entry->codec, *std::move(bytes), entry->raw_length);
    if (!bytes || CAIRN_TRY(deps_.keys.AddressOf(realm, ref.kind, *bytes)) != ref.address) continue;
    trash_reads_.fetch_add(1);
    LogError("read_from_trash", {{"block", ref.address.ToHex()}, {"pack", file.path}});
    return bytes;
  }
  return Lost(ref, "realm " + realm.ToHex(), "block is in no pack");
}

void BlockReader::Distrust(const Id128& realm, const Id128& pack, uint64_t offset,
                           const Address& address) {
  if (deps_.quarantine.Add({.realm = realm,
                            .pack = pack,
                            .offset = offset,
                            .address = address,
                            .found_ms = deps_.clock.NowMs()})) {
    LogError("quarantined", {{"pack", deps_.packs.PathOf(realm, pack)},
                             {"offset", static_cast<int64_t>(offset)},
                             {"block", address.ToHex()}});
  }
  if (offset == QuarantinedFrame::kWholePack) {
    cache_.EraseRealm(realm);
  } else {
    cache_.Erase(address);
  }
}

}  // namespace cairn
