// The parts are laid out as one file, whose segments are read at once. Inline files have none: they
// are copied from their entries.
#include "volume/file_read.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "store/base/check.h"

namespace cairn {

Status ReadTogether(const FsView& view, std::span<FileRead> reads, std::span<char> out) {
  const Layer& layer = *view.layer();
  std::vector<Segment> together;
  uint64_t at = 0;
  for (FileRead& read : reads) {
    CAIRN_CHECK(read.length_bytes <= out.size() - at);
    read.data.clear();
    if (read.length_bytes == 0) continue;
    const std::span<char> part = out.subspan(at, read.length_bytes);
    std::optional<Entry> inlined;
    if (read.file_bytes <= kInlineLimitBytes) inlined = CAIRN_TRY(layer.Get(InlineKey(read.ino)));
    if (inlined) {
      const std::string_view data = inlined->payload;
      const size_t have =
          read.offset < data.size() ? std::min(part.size(), data.size() - read.offset) : 0;
      if (have > 0) std::memcpy(part.data(), data.data() + read.offset, have);
      std::fill(part.begin() + static_cast<ptrdiff_t>(have), part.end(), '\0');
      read.data.push_back({read.offset, read.offset + read.length_bytes});
    } else {
      std::vector<Segment> segments =
          CAIRN_TRY(layer.Extents(read.ino, read.offset, read.length_bytes));
      for (Segment& segment : segments) {
        if (segment.source == Segment::Source::kHole) continue;
        const uint64_t end = segment.offset + segment.length_bytes;
        if (!read.data.empty() && read.data.back().end == segment.offset) {
          read.data.back().end = end;
        } else {
          read.data.push_back({segment.offset, end});
        }
        segment.offset = at + (segment.offset - read.offset);
        together.push_back(std::move(segment));
      }
    }
    at += read.length_bytes;
  }
  return layer.ReadMany(together, 0, out, {.keep = false});
}

}  // namespace cairn
