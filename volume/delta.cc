// Two ordered maps under one reader-writer lock. Readers hold it for a look-up or a bounded copy,
// the one writer for the application of a transaction; nobody holds it over I/O or a callback.
// After Freeze the maps never change again, so a walk of a frozen delta needs no lock at all.
//
// Cover (put a piece over [b, e)), the only place where pieces change:
//   1. a piece that begins before b and reaches past it is cut at b; what of it lies past e becomes
//   a piece of its own
//   2. pieces inside [b, e) go; one that reaches past e begins at e from now on
//   3. the new piece is inserted
#include "volume/delta.h"

#include <algorithm>

#include "store/base/check.h"
#include "volume/staged_block.h"

namespace cairn {

void Delta::Apply(std::vector<DeltaChange>& changes) {
  WriterLock lock(mutex_);
  CAIRN_CHECK(!frozen_);
  for (DeltaChange& change : changes) {
    switch (change.kind) {
      case DeltaChange::Kind::kPut:
        entries_.insert_or_assign(std::move(change.key), std::move(change.entry));
        break;
      case DeltaChange::Kind::kDelete:
        entries_.insert_or_assign(std::move(change.key), std::nullopt);
        break;
      case DeltaChange::Kind::kHole:
        Cover(change.ino, change.range, nullptr, 0);
        break;
      case DeltaChange::Kind::kData:
        Cover(change.ino, change.range, std::move(change.payload), change.source_offset);
        break;
    }
  }
}

// Walks `newer` without its lock, as ForEach does.
void Delta::Absorb(const Delta& newer) NO_THREAD_SAFETY_ANALYSIS {
  {
    ReaderLock lock(newer.mutex_);
    CAIRN_CHECK(newer.frozen_);
  }
  WriterLock lock(mutex_);
  CAIRN_CHECK(!frozen_);
  for (const auto& [key, entry] : newer.entries_) entries_.insert_or_assign(key, entry);
  for (const auto& [at, piece] : newer.pieces_) {
    Cover(at.first, {at.second, piece.end}, piece.payload, piece.source_offset);
  }
}

void Delta::Cover(InodeNumber ino, FileRange range, std::shared_ptr<const UnsealedPayload> payload,
                  uint64_t source_offset) {
  const auto [begin, end] = range;
  auto it = pieces_.lower_bound({ino, begin});
  if (it != pieces_.begin()) {
    const auto before = std::prev(it);
    Piece& piece = before->second;
    if (before->first.first == ino && piece.end > begin) {
      if (piece.end > end) {
        Piece rest = piece;
        rest.source_offset += end - before->first.second;
        it = pieces_.emplace_hint(it, PieceKey{ino, end}, std::move(rest));
      }
      piece.end = begin;
    }
  }
  while (it != pieces_.end() && it->first.first == ino && it->first.second < end) {
    if (it->second.end <= end) {
      it = pieces_.erase(it);
      continue;
    }
    auto node = pieces_.extract(it++);
    node.mapped().source_offset += end - node.key().second;
    node.key().second = end;
    it = pieces_.insert(it, std::move(node));
  }
  pieces_.emplace_hint(
      it, PieceKey{ino, begin},
      Piece{.end = end, .source_offset = source_offset, .payload = std::move(payload)});
}

bool Delta::Get(std::string_view key, std::optional<Entry>& entry) const {
  ReaderLock lock(mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return false;
  entry = it->second;
  return true;
}

void Delta::Collect(std::string_view begin, std::string_view end, size_t limit,
                    std::vector<KeyedEntry>& out) const {
  ReaderLock lock(mutex_);
  for (auto it = entries_.lower_bound(begin); it != entries_.end() && limit > 0; ++it, --limit) {
    if (!end.empty() && it->first >= end) break;
    out.emplace_back(it->first, it->second);
  }
}

Segment Delta::ToSegment(uint64_t offset, const Piece& piece) {
  Segment segment;
  segment.offset = offset;
  segment.length_bytes = piece.end - offset;
  segment.source = piece.payload ? Segment::Source::kUnsealed : Segment::Source::kHole;
  segment.source_offset = piece.payload ? piece.source_offset : 0;
  segment.payload = piece.payload;
  if (segment.payload && segment.payload->staged) {
    if (const auto block = segment.payload->staged->stored()) {
      segment.source = Segment::Source::kBlock;
      segment.block = *block;
      segment.payload = nullptr;
    }
  }
  return segment;
}

void Delta::Resolve(InodeNumber ino, std::vector<FileRange>& gaps,
                    std::vector<Segment>& out) const {
  ReaderLock lock(mutex_);
  if (pieces_.empty()) return;
  std::vector<FileRange> left;
  for (const FileRange& gap : gaps) {
    uint64_t at = gap.begin;
    auto it = pieces_.upper_bound({ino, at});
    if (it != pieces_.begin()) {
      const auto before = std::prev(it);
      if (before->first.first == ino && before->second.end > at) it = before;
    }
    for (; it != pieces_.end() && it->first.first == ino && it->first.second < gap.end; ++it) {
      const uint64_t piece_begin = it->first.second;
      const uint64_t begin = std::max(at, piece_begin);
      const uint64_t end = std::min(gap.end, it->second.end);
      if (begin > at) left.push_back({at, begin});
      Segment segment = ToSegment(piece_begin, it->second);
      if (segment.source != Segment::Source::kHole) segment.source_offset += begin - piece_begin;
      segment.offset = begin;
      segment.length_bytes = end - begin;
      out.push_back(std::move(segment));
      at = end;
    }
    if (at < gap.end) left.push_back({at, gap.end});
  }
  gaps.swap(left);
}

void Delta::Freeze() {
  WriterLock lock(mutex_);
  frozen_ = true;
}

Status Delta::ForEach(const std::function<Status(std::string_view key, const DeltaValue&)>& visit)
    const NO_THREAD_SAFETY_ANALYSIS {
  {
    ReaderLock lock(mutex_);  // orders this thread behind the last Apply
    CAIRN_CHECK(frozen_);
  }
  auto entry = entries_.begin();
  auto piece = pieces_.begin();
  while (entry != entries_.end() || piece != pieces_.end()) {
    std::string extent_key;
    if (piece != pieces_.end()) extent_key = ExtentKey(piece->first.first, piece->first.second);
    DeltaValue value;
    if (piece == pieces_.end() || (entry != entries_.end() && entry->first < extent_key)) {
      if (entry->second) {
        value.kind = DeltaValue::Kind::kEntry;
        value.entry = *entry->second;
      }
      CAIRN_TRY(visit(entry->first, value));
      ++entry;
    } else {
      value.kind = DeltaValue::Kind::kExtent;
      value.extent = ToSegment(piece->first.second, piece->second);
      CAIRN_TRY(visit(extent_key, value));
      ++piece;
    }
  }
  return {};
}

size_t Delta::count() const {
  ReaderLock lock(mutex_);
  return entries_.size() + pieces_.size();
}

}  // namespace cairn
