// A session is what it must make durable: which packs its puts have touched, and how far in each.
// A put that is durable on return syncs what it touched itself and what ordered puts before it did.
// The rest of a put is put_batch.cc's.
#include "store/block_writer.h"

#include <algorithm>

#include "store/base/check.h"

namespace cairn {
namespace {

// What a part of a batch needs at most: its bytes compressed, and again as frames.
constexpr uint64_t kPairBytes = 2 * kMaxBlockBytes + PutBatch::kPartBlocks * 2 * kFrameHeaderBytes;
static_assert(PutBatch::kPartBytes <= kMaxBlockBytes);

}  // namespace

class BlockWriter::Session final : public WriteSession {
 public:
  Session(BlockWriter& owner, const Id128& realm) : owner_(owner), realm_(realm) {}
  ~Session() override { owner_.gate_.Leave(realm_); }

  Status PutMany(std::span<const PutRequest> requests, std::span<BlockRef> refs,
                 Durability durability) override {
    CAIRN_CHECK(requests.size() == refs.size());
    for (const PutRequest& request : requests) {
      if (request.plain.empty() || request.plain.size() > kMaxBlockBytes) {
        return Err(ErrorCode::kInvalidArgument, "a block has 1 to 1048576 bytes");
      }
    }
    CAIRN_TRY(CheckUsable());
    PutBatch batch(owner_.batch_deps_, owner_.WriterOf(realm_), realm_, requests);
    const Status put = batch.Run();
    if (!put) {
      if (put.error().code() == ErrorCode::kInternal) Fail();
      return put;
    }
    Touch(batch.items(), durability);
    if (durability == Durability::kDurable) CAIRN_TRY(SyncTouched(true));
    for (size_t i = 0; i < requests.size(); ++i) {
      refs[i] = {.realm = realm_ == BaseRealm() ? RealmTag::kBase : RealmTag::kOwn,
                 .kind = requests[i].kind,
                 .raw_length_bytes = static_cast<uint32_t>(requests[i].plain.size()),
                 .address = batch.items()[i].address};
    }
    return {};
  }

  Status Sync() override {
    CAIRN_TRY(CheckUsable());
    return SyncTouched(false);
  }

 private:
  // Ends of frames in one pack that are not known to be durable; 0: none.
  struct Touched {
    uint64_t any_end = 0;
    uint64_t ordered_end = 0;  // of ordered puts
  };

  Status CheckUsable() {
    if (owner_.closed_.load()) return Err(ErrorCode::kUnavailable, "the block store is closed");
    MutexLock lock(mutex_);
    if (!failed_) return {};
    return Err(ErrorCode::kUnavailable, "an earlier write of this session failed: begin another");
  }

  void Fail() {
    MutexLock lock(mutex_);
    failed_ = true;
  }

  void Touch(std::span<const PutBatch::Item> items, Durability durability) {
    MutexLock lock(mutex_);
    for (const PutBatch::Item& item : items) {
      if (item.pack == nullptr) continue;
      Touched& touched = touched_[item.pack];
      touched.any_end = std::max(touched.any_end, item.end_offset);
      if (durability == Durability::kVolatile) continue;
      touched.ordered_end = std::max(touched.ordered_end, item.end_offset);
    }
  }

  Status SyncTouched(bool only_ordered) {
    std::vector<std::pair<std::shared_ptr<LivePack>, uint64_t>> ends;
    {
      MutexLock lock(mutex_);
      for (const auto& [pack, touched] : touched_) {
        const uint64_t end = only_ordered ? touched.ordered_end : touched.any_end;
        if (end != 0) ends.emplace_back(pack, end);
      }
    }
    RealmWriter& writer = owner_.WriterOf(realm_);
    for (const auto& [pack, end] : ends) {
      const Status synced = writer.Sync(pack, end);
      if (!synced) {
        Fail();
        return synced;
      }
      MutexLock lock(mutex_);
      const auto it = touched_.find(pack);
      if (it == touched_.end()) continue;
      if (it->second.ordered_end <= end) it->second.ordered_end = 0;
      if (it->second.any_end <= end) touched_.erase(it);
    }
    return {};
  }

  BlockWriter& owner_;
  const Id128 realm_;
  Mutex mutex_;
  bool failed_ GUARDED_BY(mutex_) = false;
  std::map<std::shared_ptr<LivePack>, Touched> touched_ GUARDED_BY(mutex_);
};

BlockWriter::BlockWriter(Deps deps)
    : deps_(std::move(deps)),
      pool_(deps_.threads),
      buffers_(std::max<uint64_t>(1, deps_.buffer_bytes / kPairBytes)),
      batch_deps_({.keys = deps_.keys,
                   .quarantine = deps_.quarantine,
                   .pool = pool_,
                   .buffers = buffers_,
                   .lookup = deps_.lookup,
                   .resurrect = deps_.resurrect}) {}

BlockWriter::~BlockWriter() { pool_.Stop(); }

RealmWriter& BlockWriter::WriterOf(const Id128& realm) {
  MutexLock lock(writers_mutex_);
  std::unique_ptr<RealmWriter>& writer = writers_[realm];
  if (writer == nullptr) {
    writer = std::make_unique<RealmWriter>(RealmWriter::Deps{.fs = deps_.fs,
                                                             .keys = deps_.keys,
                                                             .clock = deps_.clock,
                                                             .index = deps_.index(),
                                                             .packs = deps_.packs,
                                                             .quarantine = deps_.quarantine,
                                                             .pool = pool_,
                                                             .epoch = deps_.epoch,
                                                             .pack_bytes = deps_.pack_bytes,
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
Status BlockWriter::LocateMany(const Id128& realm, std::span<const Address> addresses,
                               std::span<std::optional<BlockLocation>> found) {
  RealmWriter* const writer = FindWriter(realm);
  std::vector<Address> rest;
  std::vector<size_t> place;
  for (size_t i = 0; i < addresses.size(); ++i) {
    std::optional<RealmWriter::Pending> pending;
    if (writer != nullptr) pending = writer->Find(addresses[i]);
    if (pending) {
      found[i] = std::move(pending->location);
    } else {
      rest.push_back(addresses[i]);
      place.push_back(i);
    }
  }
  if (rest.empty()) return {};
  std::vector<std::optional<BlockLocation>> indexed(rest.size());
  CAIRN_TRY(deps_.lookup(rest, indexed));
  for (size_t i = 0; i < rest.size(); ++i) found[place[i]] = std::move(indexed[i]);
  return {};
}

Result<std::optional<BlockLocation>> BlockWriter::Locate(const Id128& realm,
                                                         const Address& address) {
  std::optional<BlockLocation> location;
  CAIRN_TRY(LocateMany(realm, {&address, 1}, {&location, 1}));
  return location;
}

Result<std::unique_ptr<WriteSession>> BlockWriter::BeginWrite(const Id128& realm) {
  if (!deps_.keys.Has(realm)) {
    return Err(ErrorCode::kNotFound, "no keys for realm " + realm.ToHex());
  }
  CAIRN_TRY(gate_.Enter(realm));
  return std::make_unique<Session>(*this, realm);
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

Status BlockWriter::Close() {
  gate_.Close();
  if (closed_.exchange(true)) return {};
  const Status sealed = Seal();
  pool_.Stop();
  return sealed;
}

}  // namespace cairn
