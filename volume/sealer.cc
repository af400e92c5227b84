// SealLayer: turns one frozen delta into updates of the tree below it, merges them and writes the
// root record.
//
// Order of steps
//   1. Walk the delta in key order. Entries become updates as they are, but for long xattrs, whose
//   value becomes a block.
//      Extents become updates window by window of the 64 KiB grid (SealWindow), or range by range
//      where a hole covers whole windows (DeleteWindows). The new bytes of windows are put in
//      batches: an extent waits in pending_ for its block's reference.
//   2. Merge the updates into the base tree; a very long list is merged in parts, which have
//   disjoint key ranges.
//   3. Put the root record, sync the session, read the record back.
//
// Invariants
//   Updates come out in strictly increasing key order, because the delta does and a window is
//   sealed once, whole. After step 2 the extents of a touched window are exactly its merged view
//   (Layer::Extents), less pages of zeros. A block that the tree had is only cut (offset and length
//   in it), never copied, unless its window has become too fragmented or would keep too many dead
//   bytes. Memory: one window, and the updates.
#include "volume/sealer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "volume/extent_value.h"
#include "volume/inode.h"
#include "volume/window_ranges.h"
#include "volume/xattr_value.h"

namespace cairn {
namespace {

constexpr size_t kMaxUpdatesPerMerge =
    256 * 1024;  // a delta's 100k records fit; a huge file's deletion does not
constexpr size_t kMaxPendingBytes = 4 << 20;
constexpr uint32_t kPagesPerWindow = kGridBytes / kPageBytes;

class Sealer {
 public:
  Sealer(BlockStore& store, NodeCache& cache, WriteSession& session, const Layer& layer,
         const SealOptions& options)
      : session_(session),
        layer_(layer),
        options_(options),
        base_(layer.base_tree()),
        tree_(base_),
        store_(store),
        cache_(cache) {}

  Status TakeDelta() {
    CAIRN_TRY(layer_.ForEachDelta(
        [this](std::string_view key, const DeltaValue& value) { return Take(key, value); }));
    return Merge();
  }

  const std::shared_ptr<const TreeReader>& tree() const { return tree_; }
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  Status Take(std::string_view key, const DeltaValue& value) {
    const ParsedKey parsed = CAIRN_TRY(ParseKey(key));
    if ((parsed.kind == KeyKind::kExtent) != (value.kind == DeltaValue::Kind::kExtent)) {
      return Err(ErrorCode::kInternal, "delta has an extent key without an extent");
    }
    switch (value.kind) {
      case DeltaValue::Kind::kDelete:
        return Emit(std::string(key), std::nullopt);
      case DeltaValue::Kind::kEntry:
        if (parsed.kind == KeyKind::kXattr) return TakeXattr(key, value.entry);
        return Emit(std::string(key), value.entry);
      case DeltaValue::Kind::kExtent:
        return TakeExtent(parsed.ino, value.extent);
    }
    return Err(ErrorCode::kInternal, "delta value of unknown kind");
  }

  Status TakeXattr(std::string_view key, const Entry& entry) {
    const XattrValue value = CAIRN_TRY(DecodeXattrValue(entry));
    if (value.block != nullptr || value.size_bytes() <= kInlineLimitBytes) {
      return Emit(std::string(key), entry);
    }
    const BlockRef block =
        CAIRN_TRY(session_.Put(BlockKind::kData, value.inline_value, options_.compression));
    return Emit(std::string(key), EncodeXattrBlock(block));
  }

  // Seals the windows that `extent` touches and no earlier extent of the inode did.
  Status TakeExtent(InodeNumber ino, const Segment& extent) {
    if (ino != ino_) {
      ino_ = ino;
      next_window_ = 0;
    }
    // Offsets end at kMaxFileBytes: a hole that reaches it is without end.
    const bool endless = extent.length_bytes >= kMaxFileBytes ||
                         extent.offset + extent.length_bytes >= kMaxFileBytes;
    const uint64_t end = endless ? kMaxFileBytes : extent.offset + extent.length_bytes;
    if (extent.offset >= kMaxFileBytes && extent.source == Segment::Source::kHole) return {};
    if (endless && extent.source != Segment::Source::kHole &&
        extent.offset + extent.length_bytes > end) {
      return Err(ErrorCode::kInternal, "delta has data past the largest file");
    }
    uint64_t window = std::max(extent.offset / kGridBytes * kGridBytes, next_window_);
    while (window < end) {
      const bool covered = extent.source == Segment::Source::kHole && extent.offset <= window &&
                           end - window >= kGridBytes;
      if (covered) {
        const uint64_t covered_end = end / kGridBytes * kGridBytes;
        CAIRN_TRY(DeleteWindows(ino, window, covered_end));
        window = covered_end;
      } else {
        CAIRN_TRY(SealWindow(ino, window));
        window += kGridBytes;
      }
    }
    next_window_ = std::max(next_window_, window);
    return {};
  }

  // No extent of the base tree in [begin, end), which a hole covers, stays.
  Status DeleteWindows(InodeNumber ino, uint64_t begin, uint64_t end) {
    return ForEachBaseExtent(ino, begin, end, [this](std::string_view key) {
      return Emit(std::string(key), std::nullopt);
    });
  }

  Status ForEachBaseExtent(InodeNumber ino, uint64_t begin, uint64_t end,
                           const std::function<Status(std::string_view key)>& visit) {
    const std::string last = ExtentKey(ino, end);
    auto cursor = CAIRN_TRY(base_->Seek(ExtentKey(ino, begin)));
    while (cursor->valid() && cursor->key() < last) {
      CAIRN_TRY(visit(cursor->key()));
      CAIRN_TRY(cursor->Next());
    }
    return {};
  }

  Status SealWindow(InodeNumber ino, uint64_t window) {
    buffer_.fill('\0');
    std::vector<WindowRange> fresh;  // new bytes, in buffer_
    std::vector<Segment> kept;       // pieces of old blocks
    for (const Segment& piece : CAIRN_TRY(layer_.Extents(ino, window, kGridBytes))) {
      if (piece.offset < window || piece.length_bytes > kGridBytes ||
          piece.offset + piece.length_bytes > window + kGridBytes) {
        return Err(ErrorCode::kInternal, "layer gave an extent outside its range");
      }
      if (piece.source == Segment::Source::kUnsealed) {
        CAIRN_TRY(ReadIntoBuffer(window, piece));
        data_bytes_ += piece.length_bytes;
        AddRange(fresh, piece.offset - window, piece.length_bytes);
      } else if (piece.source == Segment::Source::kBlock) {
        AddKept(kept, piece);
      }
    }
    std::vector<WindowRange> stored = DropZeroPages({buffer_.data(), buffer_.size()}, fresh);
    if (kept.empty() || stored.size() + kept.size() > kMaxWindowSegments ||
        PinnedBytes(stored, kept) > kMaxWindowPinnedBytes) {
      // The whole window is written anew.
      CAIRN_TRY(layer_.ReadMany(kept, window, buffer_, {.keep = false}));
      for (const Segment& piece : kept) {
        fresh.push_back({static_cast<uint32_t>(piece.offset - window),
                         static_cast<uint32_t>(piece.offset - window + piece.length_bytes)});
      }
      kept.clear();
      stored = NonZeroPages(fresh);
    }
    CAIRN_TRY(EmitWindow(ino, window, kept, stored));
    return pending_bytes_ >= kMaxPendingBytes ? PutPending() : Status();
  }

  // Bytes of all blocks that the window would reference, dead ones included. What a block has more
  // than a window's bytes belongs to other windows.
  static uint64_t PinnedBytes(const std::vector<WindowRange>& stored,
                              const std::vector<Segment>& kept) {
    uint64_t bytes = 0;
    for (const WindowRange& range : stored) bytes += range.end - range.begin;
    std::set<Address> blocks;
    for (const Segment& piece : kept) {
      if (blocks.insert(piece.block.address).second) {
        bytes += std::min<uint64_t>(piece.block.raw_length_bytes, kGridBytes);
      }
    }
    return bytes;
  }

  Status ReadIntoBuffer(uint64_t window, const Segment& piece) {
    return layer_.Read(piece, 0,
                       std::span<char>(buffer_).subspan(piece.offset - window, piece.length_bytes));
  }

  static void AddKept(std::vector<Segment>& kept, const Segment& piece) {
    if (!kept.empty()) {
      Segment& last = kept.back();
      if (last.block == piece.block && last.offset + last.length_bytes == piece.offset &&
          last.source_offset + last.length_bytes == piece.source_offset) {
        last.length_bytes += piece.length_bytes;
        return;
      }
    }
    kept.push_back(piece);
  }

  // The pages of the buffer that are not zero, cut at the end of the last of `data`. At most 8
  // ranges of 16 pages.
  std::vector<WindowRange> NonZeroPages(const std::vector<WindowRange>& data) const {
    uint32_t data_end = 0;
    for (const WindowRange& range : data) data_end = std::max(data_end, range.end);
    std::vector<WindowRange> out;
    for (uint32_t page = 0; page < kPagesPerWindow; ++page) {
      const uint32_t begin = page * kPageBytes;
      const uint32_t end = std::min(begin + kPageBytes, data_end);
      if (begin < end && !IsZero(Bytes(begin, end))) AddRange(out, begin, end - begin);
    }
    return out;
  }

  std::string_view Bytes(uint32_t begin, uint32_t end) const {
    return std::string_view(buffer_.data() + begin, end - begin);
  }

  // Pieces of old blocks (`kept`), and one new block with all of `stored`, replace the extents that
  // the base tree has in the window.
  Status EmitWindow(InodeNumber ino, uint64_t window, const std::vector<Segment>& kept,
                    const std::vector<WindowRange>& stored) {
    struct Change {
      std::optional<Entry> entry;
      std::optional<Segment> fresh;  // whose entry waits for the block
    };
    std::map<std::string, Change> changes;
    CAIRN_TRY(
        ForEachBaseExtent(ino, window, window + kGridBytes, [&](std::string_view key) -> Status {
          changes[std::string(key)] = {};
          return {};
        }));
    for (const Segment& piece : kept) {
      changes[ExtentKey(ino, piece.offset)].entry = EncodeExtent(piece);
    }
    std::string plain;
    for (const WindowRange& range : stored) {
      Segment piece;
      piece.source = Segment::Source::kBlock;
      piece.offset = window + range.begin;
      piece.length_bytes = range.end - range.begin;
      piece.source_offset = plain.size();
      changes[ExtentKey(ino, piece.offset)].fresh = piece;
      plain.append(Bytes(range.begin, range.end));
    }
    if (updates_.size() + changes.size() > kMaxUpdatesPerMerge) CAIRN_TRY(Merge());
    for (auto& [key, change] : changes) {
      if (change.fresh) {
        pending_.push_back(
            {.update = updates_.size(), .block = plains_.size(), .piece = *change.fresh});
      }
      CAIRN_TRY(Emit(key, std::move(change.entry)));
    }
    if (plain.empty()) return {};
    pending_bytes_ += plain.size();
    plains_.push_back(std::move(plain));
    return {};
  }

  Status PutPending() {
    std::vector<PutRequest> requests;
    for (const std::string& plain : plains_) {
      requests.push_back(
          {.kind = BlockKind::kData, .plain = plain, .compression = options_.compression});
    }
    std::vector<BlockRef> refs(requests.size());
    CAIRN_TRY(session_.PutMany(requests, refs, Durability::kVolatile));
    for (PendingExtent& extent : pending_) {
      extent.piece.block = refs[extent.block];
      updates_[extent.update].entry = EncodeExtent(extent.piece);
    }
    plains_.clear();
    pending_.clear();
    pending_bytes_ = 0;
    return {};
  }

  Status Emit(std::string key, std::optional<Entry> entry) {
    if (updates_.size() == kMaxUpdatesPerMerge) CAIRN_TRY(Merge());
    updates_.push_back({std::move(key), std::move(entry)});
    return {};
  }

  Status Merge() {
    CAIRN_TRY(PutPending());
    const TreeRoot root =
        CAIRN_TRY(MergeTree(*tree_, session_, updates_, CountEntry, options_.epoch, options_.tree));
    tree_ = std::make_shared<const TreeReader>(store_, cache_, options_.realm, root);
    updates_.clear();
    return {};
  }

  WriteSession& session_;
  const Layer& layer_;
  const SealOptions& options_;
  const std::shared_ptr<const TreeReader> base_;
  std::shared_ptr<const TreeReader> tree_;  // base with the updates merged so far
  BlockStore& store_;
  NodeCache& cache_;
  // An extent of a block that is not put yet: plains_[block].
  struct PendingExtent {
    size_t update = 0;  // its place in updates_
    size_t block = 0;
    Segment piece;
  };

  std::vector<TreeUpdate> updates_;
  std::vector<std::string> plains_;
  std::vector<PendingExtent> pending_;
  size_t pending_bytes_ = 0;
  std::array<char, kGridBytes> buffer_{};
  uint64_t data_bytes_ = 0;
  InodeNumber ino_ = kNoInode;
  uint64_t next_window_ = 0;  // windows of ino_ below it are done
};

Result<bool> HasOrphans(const TreeReader& tree) {
  const std::string prefix = KeyPrefix(kNoInode, KeyKind::kOrphan);
  const auto cursor = CAIRN_TRY(tree.Seek(prefix));
  return cursor->valid() && cursor->key().starts_with(prefix);
}

}  // namespace

Result<SealResult> SealLayer(BlockStore& store, NodeCache& cache, WriteSession& session,
                             const Layer& layer, const SealOptions& options) {
  if (!layer.frozen() || layer.below() != nullptr || layer.base_tree() == nullptr) {
    return Err(ErrorCode::kFailedPrecondition, "seal a frozen layer that lies on a tree");
  }
  if (layer.base_tree()->realm() != options.realm) {
    return Err(ErrorCode::kInvalidArgument, "layer is of another realm");
  }
  Sealer sealer(store, cache, session, layer, options);
  CAIRN_TRY(sealer.TakeDelta());

  SealResult result;
  result.record.volume = options.volume;
  result.record.parent = options.parent;
  result.record.generation = layer.generation();
  result.record.hash_seed = options.hash_seed;
  result.record.tree = sealer.tree()->root();
  result.record.next_ino = options.next_ino;
  result.record.has_orphans = CAIRN_TRY(HasOrphans(*sealer.tree()));
  result.record.sealed_at = options.now;
  result.root =
      CAIRN_TRY(session.Put(BlockKind::kFsRoot, result.record.Encode(), Compression::kBackground));
  CAIRN_TRY(session.Sync());
  CAIRN_TRY(LoadFsRoot(store, options.realm, result.root));
  result.tree = sealer.tree();
  result.data_bytes = sealer.data_bytes();
  return result;
}

}  // namespace cairn
