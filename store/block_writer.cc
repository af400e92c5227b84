// A write looks a block up in the realm's pending blocks and in the index, and appends it to the
// realm's open pack if neither has it, or if where they say it lies is in the quarantine.
#include "store/block_writer.h"

#include <algorithm>

#include "store/base/log.h"
#include "store/block_codec.h"

namespace cairn {

// One session: which packs it has touched, and how far, is what its Sync must make durable.
class BlockWriter::Session final : public WriteSession {
 public:
  Session(BlockWriter& owner, const Id128& realm) : owner_(owner), realm_(realm) {}
  ~Session() override { owner_.gate_.Leave(realm_); }

  Result<BlockRef> Put(BlockKind kind, std::string_view plain, Compression compression) override {
    {
      MutexLock lock(mutex_);
      if (failed_) return Failed();
    }
    Result<BlockRef> ref = owner_.PutBlock(*this, realm_, kind, plain, compression);
    if (!ref && ref.error().code() == ErrorCode::kInternal) {
      MutexLock lock(mutex_);
      failed_ = true;
    }
    return ref;
  }

  Status Sync() override {
    std::map<std::shared_ptr<LivePack>, uint64_t> touched;
    {
      MutexLock lock(mutex_);
      if (failed_) return Failed();
      touched = touched_;
    }
    if (owner_.closed_.load()) return Err(ErrorCode::kUnavailable, "the block store is closed");
    RealmWriter& writer = owner_.WriterOf(realm_);
    for (const auto& [pack, through] : touched) {
      const Status synced = writer.Sync(pack, through);
      if (synced) continue;
      MutexLock lock(mutex_);
      failed_ = true;
      return synced;
    }
    MutexLock lock(mutex_);
    for (const auto& [pack, through] : touched) {
      const auto it = touched_.find(pack);
      if (it != touched_.end() && it->second == through) touched_.erase(it);
    }
    return {};
  }

  void Touch(const std::shared_ptr<LivePack>& pack, uint64_t through) {
    MutexLock lock(mutex_);
    uint64_t& end = touched_[pack];
    end = std::max(end, through);
  }

 private:
  static std::unexpected<Error> Failed() {
    return Err(ErrorCode::kUnavailable, "an earlier write of this session failed: begin another");
  }
  BlockWriter& owner_;
  const Id128 realm_;
  Mutex mutex_;
  bool failed_ GUARDED_BY(mutex_) = false;
  std::map<std::shared_ptr<LivePack>, uint64_t> touched_ GUARDED_BY(mutex_);
};

RealmWriter& BlockWriter::WriterOf(const Id128& realm) {
  MutexLock lock(writers_mutex_);
  std::unique_ptr<RealmWriter>& writer = writers_[realm];
  if (writer == nullptr) {
    writer = std::make_unique<RealmWriter>(RealmWriter::Deps{.fs = deps_.fs,
                                                             .keys = deps_.keys,
                                                             .clock = deps_.clock,
                                                             .index = deps_.index(),
                                                             .packs = deps_.packs,
                                                             .epoch = deps_.epoch,
                                                             .pack_bytes = deps_.pack_bytes,
                                                             .quarantine = deps_.quarantine,
                                                             .lookup = deps_.lookup,
                                                             .rebuild = deps_.rebuild},
                                           realm);
  }
  return *writer;
}

RealmWriter* BlockWriter::FindWriter(const Id128& realm) {
  MutexLock lock(writers_mutex_);
  const auto it = writers_.find(realm);
  return it == writers_.end() ? nullptr : it->second.get();
}

// Pending first, index second: a block leaves pending only once the index has it.
Result<std::optional<BlockWriter::Found>> BlockWriter::Locate(const Id128& realm,
                                                              const Address& address) {
  if (RealmWriter* writer = FindWriter(realm)) {
    if (const auto pending = writer->Find(address)) {
      return std::optional<Found>({.location = pending->location, .live = pending->pack});
    }
  }
  const std::optional<BlockLocation> location = CAIRN_TRY(deps_.lookup(address));
  if (!location) return std::optional<Found>();
  return std::optional<Found>({.location = *location, .live = nullptr});
}

Result<std::unique_ptr<WriteSession>> BlockWriter::BeginWrite(const Id128& realm) {
  if (!deps_.keys.Has(realm)) {
    return Err(ErrorCode::kNotFound, "no keys for realm " + realm.ToHex());
  }
  CAIRN_TRY(gate_.Enter(realm));
  return std::make_unique<Session>(*this, realm);
}

Result<BlockRef> BlockWriter::PutBlock(Session& session, const Id128& realm, BlockKind kind,
                                       std::string_view plain, Compression compression) {
  if (plain.empty() || plain.size() > kMaxBlockBytes) {
    return Err(ErrorCode::kInvalidArgument, "a block has 1 to 1048576 bytes");
  }
  if (closed_.load()) return Err(ErrorCode::kUnavailable, "the block store is closed");
  const BlockRef ref{.realm = realm == BaseRealm() ? RealmTag::kBase : RealmTag::kOwn,
                     .kind = kind,
                     .raw_length_bytes = static_cast<uint32_t>(plain.size()),
                     .address = CAIRN_TRY(deps_.keys.AddressOf(realm, kind, plain))};
  RealmWriter& writer = WriterOf(realm);
  std::optional<EncodedBlock> encoded;
  // A second round only when the block was collected, or indexed by another writer, between two
  // steps.
  for (int round = 0; round < kMaxMoves; ++round) {
    const uint64_t generation = writer.generation();
    const std::optional<Found> found = CAIRN_TRY(Locate(realm, ref.address));
    const bool damaged =
        found && deps_.quarantine.Holds(found->location.pack, found->location.entry.offset);
    if (found && !damaged) {
      if (found->live != nullptr) {
        session.Touch(found->live, found->location.entry.EndOffset());
        return ref;
      }
      if (found->location.condemn_cycle == 0) return ref;
      if (CAIRN_TRY(deps_.resurrect(ref.address, found->location.condemn_cycle))) return ref;
      continue;
    }
    // A pack names an address once: the good copy goes into the next one.
    if (damaged && found->live != nullptr) CAIRN_TRY(writer.Seal());
    if (!encoded) encoded = EncodeBlock(plain, compression);
    const std::optional<RealmWriter::Pending> stored =
        CAIRN_TRY(writer.Store({.address = ref.address,
                                .kind = kind,
                                .codec = encoded->codec,
                                .raw_length = ref.raw_length_bytes,
                                .bytes = encoded->View(plain)},
                               generation, damaged));
    if (!stored) continue;
    session.Touch(stored->pack, stored->location.entry.EndOffset());
    if (damaged) LogWarning("block_stored_again", {{"block", ref.address.ToHex()}});
    return ref;
  }
  return Err(ErrorCode::kInternal,
             "block " + ref.address.ToHex() + " moved too often during a write");
}

std::vector<RealmWriter*> BlockWriter::Writers() {
  MutexLock lock(writers_mutex_);
  std::vector<RealmWriter*> writers;
  for (const auto& [realm, writer] : writers_) writers.push_back(writer.get());
  return writers;
}

Status BlockWriter::Seal() {
  Status first;
  for (RealmWriter* writer : Writers()) {
    const Status sealed = writer->Seal();
    if (!sealed && first) first = sealed;
  }
  return first;
}

void BlockWriter::Close() {
  gate_.Close();
  closed_.store(true);
}

}  // namespace cairn
