// Page arithmetic over segments. Ranges are walked in windows that double, so that an answer near
// the start costs little and a sparse file of terabytes takes few calls; a window's upper bound
// keeps the segments held at one time bounded.
#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "volume/file_pages_internal.h"

namespace cairn {
namespace {

constexpr uint64_t kFirstWindowBytes = uint64_t{1} << 20;
constexpr uint64_t kLastWindowBytes = uint64_t{1} << 34;

// Visits the segments of [begin, end), both page-aligned, until `visit` returns false.
Status ForEachSegment(const Layer& layer, InodeNumber ino, uint64_t begin, uint64_t end,
                      const std::function<bool(const Segment&)>& visit) {
  uint64_t window = kFirstWindowBytes;
  while (begin < end) {
    const uint64_t length = std::min(window, end - begin);
    for (const Segment& segment : CAIRN_TRY(layer.Extents(ino, begin, length))) {
      if (!visit(segment)) return {};
    }
    begin += length;
    window = std::min(window * 2, kLastWindowBytes);
  }
  return {};
}

// Counts distinct pages of ranges that come in file order.
class PageCounter {
 public:
  void Add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    const uint64_t first = std::max(begin / kPageBytes, next_page_);
    const uint64_t last = (end - 1) / kPageBytes;
    if (last < first) return;
    count_ += last - first + 1;
    next_page_ = last + 1;
  }
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
  uint64_t next_page_ = 0;
};

}  // namespace

Result<PageCount> CountDataPages(const Layer& layer, InodeNumber ino, uint64_t begin,
                                 uint64_t end) {
  PageCounter now;
  PageCounter without;
  CAIRN_TRY(ForEachSegment(layer, ino, PageFloor(begin), PageCeil(end), [&](const Segment& s) {
    if (s.source == Segment::Source::kHole) return true;
    const uint64_t s_end = s.offset + s.length_bytes;
    now.Add(s.offset, s_end);
    without.Add(s.offset, std::min(s_end, begin));
    without.Add(std::max(s.offset, end), s_end);
    return true;
  }));
  return PageCount{now.count(), without.count()};
}

Result<uint64_t> NextDataOffset(const Layer& layer, InodeNumber ino, uint64_t offset,
                                uint64_t size_bytes) {
  uint64_t found = size_bytes;
  CAIRN_TRY(
      ForEachSegment(layer, ino, PageFloor(offset), PageCeil(size_bytes), [&](const Segment& s) {
        if (s.source == Segment::Source::kHole) return true;
        found = std::min(size_bytes, std::max(offset, PageFloor(s.offset)));
        return false;
      }));
  return found;
}

Result<uint64_t> NextHoleOffset(const Layer& layer, InodeNumber ino, uint64_t offset,
                                uint64_t size_bytes) {
  uint64_t covered = PageFloor(offset);  // every page of [PageFloor(offset), covered) has data
  CAIRN_TRY(
      ForEachSegment(layer, ino, PageFloor(offset), PageCeil(size_bytes), [&](const Segment& s) {
        if (s.source == Segment::Source::kHole) return true;
        if (PageFloor(s.offset) > covered) return false;
        covered = std::max(covered, PageCeil(s.offset + s.length_bytes));
        return true;
      }));
  return std::min(size_bytes, std::max(offset, covered));
}

}  // namespace cairn
