// A read goes cache -> flight -> location -> pack; when a rewrite moved the block between the last
// two steps, the location is asked for again; what no pack has is looked for in the trash, loudly.
// A flight is the promise of one thread to read a block: whoever misses the same block meanwhile
// waits for its result. Several blocks go through frame_batch.h.
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

// Read-ahead may hold a sixteenth of the cache: less than the small queue, in which a block waits
// for its first reader, has room for.
BlockReader::BlockReader(Deps deps)
    : deps_(std::move(deps)),
      cache_(deps_.cache_bytes),
      pool_(deps_.threads),
      prefetcher_(deps_.cache_bytes / 16,
                  [this](const Id128& realm, std::span<const BlockRef> refs) {
                    for (const Result<Block>& block : GetMany(realm, refs, {})) {
                      IgnoreError(block, "who asks for it will see it");
                    }
                  }) {}

Block BlockReader::FindCached(const FlightKey& key) {
  const BlockCache::Item item = cache_.Get(key.ref.address);
  if (item.plain != nullptr && item.realm == key.owner && item.kind == key.ref.kind &&
      item.plain->size() == key.ref.raw_length_bytes) {
    return item.plain;
  }
  return nullptr;
}

// Put first, look second: who forgets counts first and erases second.
void BlockReader::Keep(const FlightKey& key, const Block& block, uint64_t forgets) {
  cache_.Put(key.ref.address, {.realm = key.owner, .kind = key.ref.kind, .plain = block});
  if (forgets_.load() != forgets) cache_.Erase(key.ref.address);
}

void BlockReader::ForgetRealm(const Id128& realm) {
  forgets_.fetch_add(1);
  cache_.EraseRealm(realm);
}

void BlockReader::ForgetBlock(const Address& address) {
  forgets_.fetch_add(1);
  cache_.Erase(address);
}

Result<Block> BlockReader::Get(const Id128& realm, const BlockRef& ref) {
  if (Block cached = FindCached({.owner = OwnerOf(realm, ref), .ref = ref})) return cached;
  return std::move(GetMany(realm, {&ref, 1}, {}).front());
}

std::vector<Result<Block>> BlockReader::GetMany(const Id128& realm, std::span<const BlockRef> refs,
                                                const ReadOptions& options) {
  std::vector<Result<Block>> results(refs.size());
  std::vector<Claim> claims;
  std::vector<Claim> joined;
  const uint64_t forgets = forgets_.load();
  for (size_t i = 0; i < refs.size(); ++i) {
    const FlightKey key{.owner = OwnerOf(realm, refs[i]), .ref = refs[i]};
    if (Block cached = FindCached(key)) {
      results[i] = std::move(cached);
      continue;
    }
    MutexLock lock(flights_mutex_);
    std::shared_ptr<Flight>& flight = flights_[key];
    const bool is_mine = flight == nullptr;
    if (is_mine) flight = std::make_shared<Flight>();
    (is_mine ? claims : joined).push_back({.index = i, .key = key, .flight = flight});
  }
  ReadClaims(claims, [&](const Claim& claim, Result<std::string> plain) {
    Result<Block>& result = results[claim.index];
    if (plain) {
      result = std::make_shared<const std::string>(*std::move(plain));
      if (options.keep) Keep(claim.key, *result, forgets);
    } else {
      result = std::unexpected(std::move(plain).error());
    }
    MutexLock lock(flights_mutex_);
    claim.flight->result = result;
    claim.flight->landed = true;
    flights_.erase(claim.key);
    flight_landed_.NotifyAll();
  });
  // Its own have landed, so two calls that wait for each other's do not wait for ever.
  for (const Claim& other : joined) {
    {
      MutexLock lock(flights_mutex_);
      while (!other.flight->landed) flight_landed_.Wait(flights_mutex_);
      results[other.index] = other.flight->result;
    }
    if (options.keep && results[other.index]) Keep(other.key, *results[other.index], forgets);
  }
  return results;
}

// What is in order goes by the batch; everything else, damage included, is read again alone, and
// what ReadPlain says counts.
void BlockReader::ReadClaims(std::span<const Claim> claims,
                             const std::function<void(const Claim&, Result<std::string>)>& done) {
  std::vector<size_t> alone;
  std::vector<Claim> together[2];  // of the reader's own realm, of the base realm
  std::vector<size_t> claim_of[2];
  for (size_t i = 0; i < claims.size(); ++i) {
    // It may have landed between the look into the cache and the claim.
    if (const Block cached = FindCached(claims[i].key)) {
      done(claims[i], *cached);
    } else if (claims.size() == 1) {
      alone.push_back(i);
    } else {
      const size_t which = claims[i].key.ref.realm == RealmTag::kBase ? 1 : 0;
      together[which].push_back(claims[i]);
      claim_of[which].push_back(i);
    }
  }
  std::vector<FrameRead> frames;
  std::vector<size_t> claim_of_frame;
  for (size_t which = 0; which < 2; ++which) {
    if (together[which].empty()) continue;
    std::vector<std::optional<FrameRead>> found(together[which].size());
    FindFrames(together[which][0].key.owner, together[which], found);
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i]) {
        alone.push_back(claim_of[which][i]);
        continue;
      }
      frames.push_back(*std::move(found[i]));
      claim_of_frame.push_back(claim_of[which][i]);
    }
  }
  Mutex alone_mutex;
  ReadFrames(deps_.fs, pool_, frames, [&](size_t f, Result<std::string> bytes) {
    const PackEntry& entry = frames[f].entry;
    if (bytes) bytes = DecodeBlock(entry.codec, *std::move(bytes), entry.raw_length);
    if (bytes) {
      done(claims[claim_of_frame[f]], std::move(bytes));
    } else {
      MutexLock lock(alone_mutex);
      alone.push_back(claim_of_frame[f]);
    }
  });
  for (const size_t i : alone) {
    done(claims[i], ReadPlain(claims[i].key.owner, claims[i].key.ref, false));
  }
}

// Leaves out whatever is not as its reference says, or is in the quarantine.
void BlockReader::FindFrames(const Id128& owner, std::span<const Claim> claims,
                             std::span<std::optional<FrameRead>> frames) {
  if (closed_.load() || !deps_.keys.Has(owner)) return;
  std::vector<Address> addresses;
  for (const Claim& claim : claims) addresses.push_back(claim.key.ref.address);
  std::vector<std::optional<BlockLocation>> found(claims.size());
  if (!deps_.locate(owner, addresses, found)) return;
  for (size_t i = 0; i < claims.size(); ++i) {
    const BlockRef& ref = claims[i].key.ref;
    if (!found[i] || found[i]->entry.kind != ref.kind ||
        found[i]->entry.raw_length != ref.raw_length_bytes ||
        deps_.quarantine.Holds(found[i]->pack, found[i]->entry.offset)) {
      continue;
    }
    auto reader = deps_.packs.Reader(found[i]->pack);
    if (!reader || (*reader)->header().realm != owner) continue;
    frames[i] = {.pack = *std::move(reader), .entry = found[i]->entry};
  }
}

void BlockReader::Prefetch(const Id128& realm, std::span<const BlockRef> refs) {
  std::vector<BlockRef> missing;
  for (const BlockRef& ref : refs) {
    if (!cache_.Contains(ref.address)) missing.push_back(ref);
  }
  prefetcher_.Add(realm, missing);
}

void BlockReader::Close() {
  closed_.store(true);
  prefetcher_.Stop();
  pool_.Stop();
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
    std::optional<BlockLocation> found;
    CAIRN_TRY(deps_.locate(realm, {&ref.address, 1}, {&found, 1}));
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
    ForgetRealm(realm);
  } else {
    ForgetBlock(address);
  }
}

}  // namespace cairn
