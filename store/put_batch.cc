// A batch is cut into parts of about half a MiB. A part goes through all steps on one core, while
// its bytes are in that core's cache, and other parts are on other cores at other steps:
//
//   address all -> look all up (what is being written, then the index, in one call) -> compress
//   what is missing -> place it in the open pack -> encrypt -> write, in one call
//
// A block may turn up between two steps, because another thread put it: the look-up under the
// pack's lock (RealmWriter::Store) decides, so a block is stored once. Or it may go, because a
// collector removed it or a write failed: then the part, or at the end the batch, goes over what it
// still lacks. The batch ends when all its blocks are whole in their packs (WaitWritten), so that
// no reference is given out for a frame above a hole.
#include "store/put_batch.h"

#include <algorithm>
#include <atomic>

#include "store/base/log.h"
#include "store/block_codec.h"
#include "store/block_reader.h"

namespace cairn {

PutBatch::PutBatch(const Deps& deps, RealmWriter& writer, const Id128& realm,
                   std::span<const PutRequest> requests)
    : deps_(deps),
      writer_(writer),
      realm_(realm),
      items_(requests.size()),
      parts_(Split(requests)) {
  for (size_t i = 0; i < requests.size(); ++i) items_[i].request = &requests[i];
}

std::vector<PutBatch::Part> PutBatch::Split(std::span<const PutRequest> requests) {
  std::vector<Part> parts;
  Part part;
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t bytes = requests[i].plain.size();
    if (part.end > part.begin &&
        (part.bytes + bytes > kPartBytes || part.end - part.begin == kPartBlocks)) {
      parts.push_back(std::exchange(part, {.begin = i, .end = i}));
    }
    part.bytes += bytes;
    part.end = i + 1;
  }
  if (part.end > part.begin) parts.push_back(part);
  return parts;
}

Status PutBatch::Run() {
  for (int round = 0; round < kMaxMoves; ++round) {
    std::vector<Status> results(parts_.size());
    std::atomic<bool> failed = false;
    deps_.pool.Run(parts_.size(), [&](size_t part) {
      if (failed.load()) return;
      results[part] = RunPart(parts_[part]);
      if (!results[part]) failed.store(true);
    });
    for (Status& result : results) {
      if (!result) return std::move(result);
    }
    if (AwaitWrites()) return {};
  }
  return Err(ErrorCode::kInternal, "blocks moved too often during a write");
}

// False: some were lost with their pack and are not done any more.
bool PutBatch::AwaitWrites() {
  bool all = true;
  for (Item& item : items_) {
    if (item.pack == nullptr || item.pack->writer->WaitWritten(item.end_offset)) continue;
    item.pack = nullptr;
    item.done = false;
    all = false;
  }
  if (!all) return false;
  for (const Item& item : items_) {
    if (item.damaged) LogWarning("block_stored_again", {{"block", item.address.ToHex()}});
  }
  return true;
}

Status PutBatch::RunPart(const Part& part) {
  const std::span<Item> items = std::span(items_).subspan(part.begin, part.end - part.begin);
  CAIRN_TRY(AddressItems(items));
  // Of equal blocks the first is put, and the others go where it goes.
  std::vector<Item*> order;
  order.reserve(items.size());
  for (Item& item : items) order.push_back(&item);
  std::ranges::sort(order, [](const Item* a, const Item* b) {
    return a->address == b->address ? a < b : a->address < b->address;
  });
  std::vector<std::pair<Item*, const Item*>> twins;
  for (size_t n = 1, first = 0; n < order.size(); ++n) {
    if (order[n]->address == order[first]->address) {
      if (!order[n]->done) twins.emplace_back(order[n], order[first]);
    } else {
      first = n;
    }
  }
  std::vector<Item*> missing;
  for (Item& item : items) {
    if (!item.done) missing.push_back(&item);
  }
  for (const auto& [twin, first] : twins) std::erase(missing, twin);

  std::optional<PutBuffers::Lease> buffers;
  for (int round = 0; round < kMaxMoves && !missing.empty(); ++round) {
    const uint64_t generation = writer_.generation();
    CAIRN_TRY(LookUp(missing));
    CAIRN_TRY(StoreAbsent(missing, generation, buffers));
    std::erase_if(missing, [](const Item* item) { return item->done; });
  }
  if (!missing.empty()) {
    return Err(ErrorCode::kInternal,
               "block " + missing.front()->address.ToHex() + " moved too often during a write");
  }
  for (const auto& [twin, first] : twins) {
    twin->pack = first->pack;
    twin->end_offset = first->end_offset;
    twin->done = true;
  }
  return {};
}

Status PutBatch::AddressItems(std::span<Item> items) {
  for (Item& item : items) {
    if (item.done) continue;
    item.address = CAIRN_TRY(deps_.keys.AddressOf(realm_, item.request->kind, item.request->plain));
  }
  return {};
}

// Marks as done what is there already, and as absent what is not, or only in the quarantine.
// Neither is a block that was condemned anew between two steps, or whose damaged copy is in a pack
// that the index does not know yet: such a pack is sealed (it names an address once, so the good
// copy goes into another), and the block looked up once more.
Status PutBatch::LookUp(std::span<Item* const> missing) {
  std::vector<Address> addresses;
  addresses.reserve(missing.size());
  for (const Item* item : missing) addresses.push_back(item->address);
  // Pending first, index second: a block leaves pending only once the index has it.
  std::vector<std::optional<RealmWriter::Pending>> pending(missing.size());
  writer_.FindMany(addresses, pending);
  std::vector<Item*> not_pending;
  addresses.clear();
  bool seal = false;
  for (size_t i = 0; i < missing.size(); ++i) {
    Item& item = *missing[i];
    item.damaged = false;
    item.absent = !pending[i].has_value();
    if (item.absent) {
      not_pending.push_back(&item);
      addresses.push_back(item.address);
    } else if (IsHeld(pending[i]->location)) {
      seal = true;
    } else {
      item.pack = pending[i]->pack;
      item.end_offset = pending[i]->location.entry.EndOffset();
      item.done = true;
    }
  }
  if (seal) CAIRN_TRY(writer_.Seal());
  if (not_pending.empty()) return {};
  std::vector<std::optional<BlockLocation>> indexed(not_pending.size());
  CAIRN_TRY(deps_.lookup(addresses, indexed));
  for (size_t i = 0; i < not_pending.size(); ++i) {
    Item& item = *not_pending[i];
    if (!indexed[i]) continue;
    item.damaged = IsHeld(*indexed[i]);
    item.absent = item.damaged;
    if (item.damaged) continue;
    const uint64_t condemn_cycle = indexed[i]->condemn_cycle;
    item.done = condemn_cycle == 0 || CAIRN_TRY(deps_.resurrect(item.address, condemn_cycle));
  }
  return {};
}

bool PutBatch::IsHeld(const BlockLocation& location) {
  return deps_.quarantine.Holds(location.pack, location.entry.offset);
}

// Marks as done what has a place then.
Status PutBatch::StoreAbsent(std::span<Item* const> missing, uint64_t seen_generation,
                             std::optional<PutBuffers::Lease>& buffers) {
  std::vector<Item*> absent;
  size_t plain_bytes = 0;
  for (Item* item : missing) {
    if (item->done || !item->absent) continue;
    absent.push_back(item);
    plain_bytes += item->request->plain.size();
  }
  if (absent.empty()) return {};
  if (!buffers) buffers.emplace(deps_.buffers.Take());
  std::span<char> room = buffers->encoded().Room(plain_bytes);
  std::vector<RealmWriter::Block> blocks;
  blocks.reserve(absent.size());
  size_t frame_bytes = 0;
  for (const Item* item : absent) {
    const PutRequest& request = *item->request;
    const EncodedBlock encoded = EncodeBlock(request.plain, request.compression, room);
    room = room.subspan(request.plain.size());
    blocks.push_back({.frame = {.address = item->address,
                                .kind = request.kind,
                                .codec = encoded.codec,
                                .raw_length = static_cast<uint32_t>(request.plain.size()),
                                .bytes = encoded.bytes},
                      .force = item->damaged});
    frame_bytes += blocks.back().frame.FrameBytes();
  }
  CAIRN_TRY(writer_.Store(blocks, seen_generation, buffers->frames().Room(frame_bytes)));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].pack == nullptr) continue;
    absent[i]->pack = blocks[i].pack;
    absent[i]->end_offset = blocks[i].end_offset;
    absent[i]->done = true;
  }
  return {};
}

}  // namespace cairn
