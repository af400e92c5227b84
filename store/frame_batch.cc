// Frames in order of pack and place; runs of neighbours; one batch of reads for each thread that
// takes part; each frame checked and decrypted as its run arrives, while the others are in flight.
// One core verifies and decrypts at about the rate of one disk, so a large batch takes two to keep
// the disk busy.
#include "store/frame_batch.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cairn {
namespace {

// Frames order[begin..end) of one pack, within one read.
struct Run {
  size_t begin = 0;
  size_t end = 0;
};

}  // namespace

void ReadFrames(FileSystem& fs, WorkerPool& pool, std::span<const FrameRead> frames,
                const FrameDone& done) {
  std::vector<size_t> order(frames.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(
      order, {}, [&](size_t i) { return std::pair(frames[i].pack.get(), frames[i].entry.offset); });
  std::vector<Run> runs;
  std::vector<ReadOp> ops;
  for (size_t at = 0; at < order.size(); ++at) {
    const ReadOp op = frames[order[at]].pack->FrameOp(frames[order[at]].entry);
    if (!ops.empty()) {
      ReadOp& last = ops.back();
      const uint64_t last_end = last.offset + last.length_bytes;
      const uint64_t end = std::max(last_end, op.offset + op.length_bytes);
      if (op.file == last.file && op.offset <= last_end + kMaxFrameGapBytes &&
          end - last.offset <= kMaxRunBytes) {
        last.length_bytes = end - last.offset;
        runs.back().end = at + 1;
        continue;
      }
    }
    ops.push_back(op);
    runs.push_back({.begin = at, .end = at + 1});
  }
  const auto read_part = [&](size_t first, size_t count) {
    fs.ReadMany(std::span(ops).subspan(first, count),
                [&](size_t r, Result<std::string_view> bytes) {
                  const Run& run = runs[first + r];
                  for (size_t at = run.begin; at < run.end; ++at) {
                    const FrameRead& frame = frames[order[at]];
                    if (bytes) {
                      const ReadOp place = frame.pack->FrameOp(frame.entry);
                      const size_t skip =
                          std::min<uint64_t>(place.offset - ops[first + r].offset, bytes->size());
                      done(order[at], frame.pack->OpenFrameBytes(
                                          frame.entry, bytes->substr(skip, place.length_bytes)));
                    } else {
                      done(order[at], std::unexpected(bytes.error()));
                    }
                  }
                });
  };
  uint64_t bytes = 0;
  for (const ReadOp& op : ops) bytes += op.length_bytes;
  const size_t parts = std::clamp<size_t>(bytes / kPartBytes, 1, pool.threads() + 1);
  pool.Run(parts, [&](size_t part) {
    const size_t first = ops.size() * part / parts;
    read_part(first, ops.size() * (part + 1) / parts - first);
  });
}

}  // namespace cairn
