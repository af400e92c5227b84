// Reading through a chain of deltas to the tree at its bottom.
//
// Get: the first delta that knows the key decides (a tombstone says "absent"), else the tree.
// Extents: each delta takes the ranges it covers out of the gaps, the tree fills what is left, and
// what nobody has is a hole. Scan: a merge. Of each delta a bounded batch is copied under its lock;
// keys up to the least last key of the batches that were cut off are merged with the tree's cursor
// and visited without any lock; then the next batches begin behind it.
#include <algorithm>

#include "store/base/bytes.h"
#include "store/base/check.h"
#include "volume/chain_layer.h"
#include "volume/extent_value.h"
#include "volume/log_file.h"
#include "volume/staged_block.h"

namespace cairn {
namespace {

constexpr size_t kFirstBatch = 32;  // a small directory is one batch
constexpr size_t kLargestBatch = 1024;
constexpr size_t kReadTogetherBlocks = 64;  // 4 MiB of a file's windows
constexpr int kStepsBeforeSeek = 8;         // extent keys to step over before a seek is cheaper

bool IsExtentKey(std::string_view key) {
  return key.size() > 8 && static_cast<KeyKind>(key[8]) == KeyKind::kExtent;
}

Status CopyOut(const Block& block, uint64_t from, std::span<char> out) {
  if (from > block->size() || out.size() > block->size() - from) {
    return Err(ErrorCode::kDataLoss, "block is shorter than its extent");
  }
  std::copy_n(block->data() + from, out.size(), out.data());
  return {};
}

// The tree's side of a scan: stands on the first key that is not an extent's.
class TreeSide {
 public:
  TreeSide(const TreeReader& tree, std::string_view end) : tree_(tree), end_(end) {}
  Status Start(std::string_view begin) {
    cursor_ = CAIRN_TRY(tree_.Seek(begin));
    return SkipExtents();
  }
  bool valid() const { return cursor_->valid() && (end_.empty() || cursor_->key() < end_); }
  std::string_view key() const { return cursor_->key(); }
  const Entry& entry() const { return cursor_->entry(); }
  Status Next() {
    CAIRN_TRY(cursor_->Next());
    return SkipExtents();
  }

 private:
  Status SkipExtents() {
    for (int steps = 0; valid() && IsExtentKey(cursor_->key()); steps++) {
      if (steps < kStepsBeforeSeek) {
        CAIRN_TRY(cursor_->Next());
      } else {
        const std::string past = PrefixEnd(cursor_->key().substr(0, 9));
        cursor_ = CAIRN_TRY(tree_.Seek(past));
      }
    }
    return {};
  }
  const TreeReader& tree_;
  const std::string_view end_;
  std::unique_ptr<TreeReader::Cursor> cursor_;
};

// One delta's side of a scan: a batch, and how far into it the merge is.
struct DeltaSide {
  std::vector<Delta::KeyedEntry> batch;
  size_t next = 0;
  bool cut_off = false;  // there may be more behind the last key
};

}  // namespace

ChainLayer::ChainLayer(BlockStore& store, std::shared_ptr<const TreeReader> tree,
                       uint64_t generation)
    : store_(store), realm_(tree->realm()), generation_(generation) {
  state_ = {.delta = nullptr, .below = nullptr, .tree = std::move(tree), .frozen = true};
}

ChainLayer::ChainLayer(BlockStore& store, const Id128& realm, uint64_t generation,
                       std::shared_ptr<Delta> delta, std::shared_ptr<const Layer> below)
    : store_(store), realm_(realm), generation_(generation) {
  auto link = std::dynamic_pointer_cast<const ChainLayer>(std::move(below));
  CAIRN_CHECK(link != nullptr);
  state_ = {.delta = std::move(delta), .below = std::move(link), .tree = nullptr, .frozen = false};
}

ChainLayer::State ChainLayer::GetState() const {
  ReaderLock lock(mutex_);
  return state_;
}

ChainLayer::Chain ChainLayer::GetChain() const {
  Chain chain;
  State state = GetState();
  while (state.delta) {
    chain.deltas.push_back(state.delta);
    const std::shared_ptr<const ChainLayer> below = state.below;
    state = below->GetState();
  }
  chain.tree = std::move(state.tree);
  return chain;
}

Result<std::optional<Entry>> ChainLayer::Get(std::string_view key) const {
  if (IsExtentKey(key)) return Err(ErrorCode::kInvalidArgument, "extents are read by range");
  State state = GetState();
  while (state.delta) {
    std::optional<Entry> entry;
    if (state.delta->Get(key, entry)) return entry;
    const std::shared_ptr<const ChainLayer> below = state.below;
    state = below->GetState();
  }
  return state.tree->Get(key);
}

Status ChainLayer::Scan(
    std::string_view begin, std::string_view end,
    const std::function<bool(std::string_view key, const Entry&)>& visit) const {
  if (!end.empty() && begin >= end) return {};
  const Chain chain = GetChain();
  TreeSide tree(*chain.tree, end);
  CAIRN_TRY(tree.Start(begin));
  std::vector<DeltaSide> sides(chain.deltas.size());
  std::string from(begin);
  size_t limit = kFirstBatch;
  while (true) {
    std::optional<std::string> horizon;  // merge keys up to here; none: all there is
    for (size_t i = 0; i < sides.size(); i++) {
      DeltaSide& side = sides[i];
      side.batch.clear();
      side.next = 0;
      chain.deltas[i]->Collect(from, end, limit, side.batch);
      side.cut_off = side.batch.size() == limit;
      if (side.cut_off && (!horizon || side.batch.back().first < *horizon)) {
        horizon = side.batch.back().first;
      }
    }
    while (true) {
      const std::string* least = nullptr;
      for (const DeltaSide& side : sides) {
        if (side.next == side.batch.size()) continue;
        const std::string& key = side.batch[side.next].first;
        if (least == nullptr || key < *least) least = &key;
      }
      const bool tree_first = tree.valid() && (least == nullptr || tree.key() < *least);
      if (!tree_first && least == nullptr) break;
      const std::string_view key = tree_first ? tree.key() : std::string_view(*least);
      if (horizon && key > *horizon) break;
      if (tree_first) {
        if (!visit(key, tree.entry())) return {};
        CAIRN_TRY(tree.Next());
        continue;
      }
      if (tree.valid() && tree.key() == key) CAIRN_TRY(tree.Next());
      const std::optional<Entry>* top = nullptr;
      for (DeltaSide& side : sides) {  // the topmost delta decides; all step past the key
        if (side.next == side.batch.size() || side.batch[side.next].first != key) continue;
        if (top == nullptr) top = &side.batch[side.next].second;
        side.next++;
      }
      if (*top && !visit(key, **top)) return {};
    }
    if (!horizon) return {};
    from = *horizon;
    from.push_back('\0');  // the first key behind it
    limit = std::min(limit * 4, kLargestBatch);
  }
}

Result<std::vector<Segment>> ChainLayer::Extents(InodeNumber ino, uint64_t offset,
                                                 uint64_t length_bytes) const {
  std::vector<Segment> segments;
  if (length_bytes == 0) return segments;
  const uint64_t end = length_bytes > ~uint64_t{0} - offset ? ~uint64_t{0} : offset + length_bytes;
  std::vector<FileRange> gaps = {{offset, end}};
  State state = GetState();
  while (state.delta && !gaps.empty()) {
    state.delta->Resolve(ino, gaps, segments);
    const std::shared_ptr<const ChainLayer> below = state.below;
    state = below->GetState();
  }
  if (!gaps.empty()) {
    for (const FileRange& gap : gaps) CAIRN_TRY(TreeExtents(*state.tree, ino, gap, segments));
  }
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  // Neighbouring holes of different layers are one hole to the reader.
  size_t kept = 0;
  for (Segment& segment : segments) {
    if (kept > 0 && segment.source == Segment::Source::kHole &&
        segments[kept - 1].source == Segment::Source::kHole) {
      segments[kept - 1].length_bytes += segment.length_bytes;
      continue;
    }
    if (&segments[kept] != &segment) segments[kept] = std::move(segment);
    kept++;
  }
  segments.resize(kept);
  return segments;
}

Status ChainLayer::TreeExtents(const TreeReader& tree, InodeNumber ino, const FileRange& gap,
                               std::vector<Segment>& out) const {
  const auto hole = [&](uint64_t begin, uint64_t end) {
    Segment segment;
    segment.offset = begin;
    segment.length_bytes = end - begin;
    out.push_back(std::move(segment));
  };
  // Extents stay within a window of the grid, so one that reaches into the gap begins in its first
  // window.
  uint64_t at = gap.begin;
  if (tree.root().node) {
    const std::string prefix = KeyPrefix(ino, KeyKind::kExtent);
    auto cursor = CAIRN_TRY(tree.Seek(ExtentKey(ino, at / kGridBytes * kGridBytes)));
    while (cursor->valid() && cursor->key().starts_with(prefix)) {
      Segment segment = CAIRN_TRY(
          DecodeExtent(BigEndian64(cursor->key().substr(prefix.size())), cursor->entry()));
      if (segment.offset >= gap.end) break;
      const uint64_t segment_end = segment.offset + segment.length_bytes;
      if (segment_end > at) {
        const uint64_t begin = std::max(segment.offset, at);
        if (begin > at) hole(at, begin);
        segment.source_offset += begin - segment.offset;
        segment.offset = begin;
        segment.length_bytes = std::min(segment_end, gap.end) - begin;
        at = begin + segment.length_bytes;
        out.push_back(std::move(segment));
      }
      CAIRN_TRY(cursor->Next());
    }
  }
  if (at < gap.end) hole(at, gap.end);
  return {};
}

Status ChainLayer::Read(const Segment& segment, uint64_t within, std::span<char> out) const {
  CAIRN_CHECK(within <= segment.length_bytes && out.size() <= segment.length_bytes - within);
  switch (segment.source) {
    case Segment::Source::kHole:
      std::fill(out.begin(), out.end(), '\0');
      return {};
    case Segment::Source::kUnsealed:
      if (const auto& staged = segment.payload->staged) {
        if (staged->Read(segment.source_offset + within, out)) return {};
        Segment stored = segment;
        stored.source = Segment::Source::kBlock;
        stored.block = *staged->stored();
        return Read(stored, within, out);
      }
      return segment.payload->log->ReadPayload(*segment.payload, segment.source_offset + within,
                                               out);
    case Segment::Source::kBlock:
      return CopyOut(CAIRN_TRY(store_.Get(realm_, segment.block)), segment.source_offset + within,
                     out);
  }
  return Err(ErrorCode::kInternal, "segment of unknown source");
}

Status ChainLayer::ReadMany(std::span<const Segment> segments, uint64_t offset, std::span<char> out,
                            const ReadOptions& options) const {
  for (size_t begin = 0; begin < segments.size();) {
    std::vector<BlockRef> refs;
    size_t end = begin;
    for (; end < segments.size(); ++end) {
      if (segments[end].source != Segment::Source::kBlock) continue;
      if (!refs.empty() && refs.back() == segments[end].block) continue;
      if (refs.size() == kReadTogetherBlocks) break;
      refs.push_back(segments[end].block);
    }
    std::vector<Result<Block>> blocks;
    if (!refs.empty()) blocks = store_.GetMany(realm_, refs, options);
    size_t at = 0;
    for (const Segment& segment : segments.subspan(begin, end - begin)) {
      CAIRN_CHECK(segment.offset >= offset && segment.length_bytes <= out.size() &&
                  segment.offset - offset <= out.size() - segment.length_bytes);
      const std::span<char> piece = out.subspan(segment.offset - offset, segment.length_bytes);
      if (segment.source != Segment::Source::kBlock) {
        CAIRN_TRY(Read(segment, 0, piece));
        continue;
      }
      if (segment.block != refs[at]) ++at;
      if (!blocks[at]) return std::unexpected(blocks[at].error());
      CAIRN_TRY(CopyOut(*blocks[at], segment.source_offset, piece));
    }
    begin = end;
  }
  return {};
}

void ChainLayer::Prefetch(std::span<const Segment> segments) const {
  std::vector<BlockRef> refs;
  for (const Segment& segment : segments) {
    if (segment.source != Segment::Source::kBlock) continue;
    if (refs.empty() || refs.back() != segment.block) refs.push_back(segment.block);
  }
  if (!refs.empty()) store_.Prefetch(realm_, refs);
}

Status ChainLayer::ForEachDelta(
    const std::function<Status(std::string_view key, const DeltaValue&)>& visit) const {
  const State state = GetState();
  if (!state.delta || !state.frozen) {
    return Err(ErrorCode::kFailedPrecondition, "only a frozen, unsealed layer lists its delta");
  }
  return state.delta->ForEach(visit);
}

size_t ChainLayer::delta_count() const {
  const State state = GetState();
  return state.delta ? state.delta->count() : 0;
}

bool ChainLayer::frozen() const { return GetState().frozen; }

std::shared_ptr<const Layer> ChainLayer::below() const {
  const State state = GetState();
  if (!state.below || !state.below->GetState().delta) return nullptr;
  return state.below;
}

std::shared_ptr<const TreeReader> ChainLayer::base_tree() const { return GetChain().tree; }

void ChainLayer::BecomeSealed(std::shared_ptr<const TreeReader> tree) {
  CAIRN_CHECK(tree != nullptr);
  State sealed{.delta = nullptr, .below = nullptr, .tree = std::move(tree), .frozen = true};
  {
    WriterLock lock(mutex_);
    CAIRN_CHECK(state_.frozen);
    std::swap(state_, sealed);
  }
  // The old state goes here, outside the lock, or with its last reader.
}

void ChainLayer::Freeze() {
  WriterLock lock(mutex_);
  if (state_.delta) state_.delta->Freeze();
  state_.frozen = true;
}

Result<std::shared_ptr<const Layer>> ChainLayer::Merge(
    BlockStore& store, const std::vector<std::shared_ptr<const Layer>>& oldest_first) {
  const auto refuse = [] {
    return Err(ErrorCode::kFailedPrecondition, "only frozen neighbours over a tree are merged");
  };
  auto merged = std::make_shared<Delta>();
  std::shared_ptr<const ChainLayer> below;
  std::shared_ptr<const ChainLayer> newest;
  Id128 realm;
  for (const auto& layer : oldest_first) {
    const auto link = std::dynamic_pointer_cast<const ChainLayer>(layer);
    CAIRN_CHECK(link != nullptr);
    const State state = link->GetState();
    if (!state.delta || !state.frozen) return refuse();
    if (newest == nullptr) {
      if (state.below->GetState().delta) return refuse();
      below = state.below;
      realm = link->realm_;
    } else if (state.below != newest) {
      return refuse();
    }
    merged->Absorb(*state.delta);
    newest = link;
  }
  if (newest == nullptr) return refuse();
  auto made = std::make_shared<ChainLayer>(store, realm, newest->generation(), std::move(merged),
                                           std::move(below));
  made->Freeze();
  return made;
}

Result<std::shared_ptr<const Layer>> MergeLayers(
    BlockStore& store, const std::vector<std::shared_ptr<const Layer>>& oldest_first) {
  return ChainLayer::Merge(store, oldest_first);
}

std::shared_ptr<const Layer> TreeLayer(BlockStore& store, std::shared_ptr<const TreeReader> tree,
                                       uint64_t generation) {
  return std::make_shared<ChainLayer>(store, std::move(tree), generation);
}

}  // namespace cairn
