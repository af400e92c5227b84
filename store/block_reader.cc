// A read goes cache -> location -> pack; when a rewrite moved the block between the second and the
// third step, the location is asked for again; what no pack has is looked for in the trash, loudly.
// Invariant: bytes are returned only after frame checksum, GCM tag, kind and length have been
// verified against the reference.
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
          .plain = std::make_shared<const std::string>(CAIRN_TRY(ReadPlain(owner, ref)))};
  cache_.Put(ref.address, item);
  return item.plain;
}

Status BlockReader::Verify(const Id128& realm, const BlockRef& ref) {
  const Id128 owner = OwnerOf(realm, ref);
  const std::string plain = CAIRN_TRY(ReadPlain(owner, ref));
  if (CAIRN_TRY(deps_.keys.AddressOf(owner, ref.kind, plain)) == ref.address) return {};
  MarkDamaged(ref.address);
  return Lost(ref, "realm " + owner.ToHex(), "plaintext has another address");
}

Result<std::string> BlockReader::ReadPlain(const Id128& realm, const BlockRef& ref) {
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
      if (code == ErrorCode::kNotFound) return ReadFromTrash(realm, ref);
      if (code != ErrorCode::kDataLoss) return std::unexpected(reader.error());
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
    if (bytes) return bytes;
    if (bytes.error().code() != ErrorCode::kDataLoss) return bytes;
    MarkDamaged(ref.address);
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
    if (!bytes) continue;
    trash_reads_.fetch_add(1);
    LogError("read_from_trash", {{"block", ref.address.ToHex()}, {"pack", file.path}});
    return bytes;
  }
  MarkDamaged(ref.address);
  return Lost(ref, "realm " + realm.ToHex(), "block is in no pack");
}

bool BlockReader::IsDamaged(const Address& address) {
  MutexLock lock(damaged_mutex_);
  return damaged_.contains(address);
}

void BlockReader::MarkDamaged(const Address& address) {
  // Bounded: beyond it a damaged block is only not healed by a later write of the same bytes.
  constexpr size_t kMaxDamaged = 1 << 20;
  MutexLock lock(damaged_mutex_);
  if (damaged_.size() < kMaxDamaged) damaged_.insert(address);
}

void BlockReader::Heal(const Address& address) {
  LogWarning("block_stored_again", {{"block", address.ToHex()}});
  MutexLock lock(damaged_mutex_);
  damaged_.erase(address);
}

}  // namespace cairn
