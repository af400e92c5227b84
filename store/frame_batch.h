// Reading many frames of many packs at once, neighbours in one read.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "store/base/file_system.h"
#include "store/pack_reader.h"
#include "store/worker_pool.h"

namespace cairn {

struct FrameRead {
  std::shared_ptr<const PackReader> pack;  // unlocked
  PackEntry entry;
};

// Frames of a pack that lie at most this far apart are read together: reading over a gap costs less
// than another read (decision 9).
inline constexpr uint64_t kMaxFrameGapBytes = 24 << 10;
// How much is read together: enough for the disk's full rate, little enough that the first part is
// decrypted while the rest is on its way.
inline constexpr uint64_t kMaxRunBytes = 256 << 10;

// What is worth another thread: half a millisecond of decryption.
inline constexpr uint64_t kPartBytes = 1 << 20;

// As PackReader::ReadFrame of each. Calls `done` once for each, in any order, on this thread and,
// for batches of at least two kPartBytes, on idle ones of the pool at the same time. Damage is that
// frame's alone; an error of the machine goes to all that were read together: read them again one
// by one.
using FrameDone = std::function<void(size_t index, Result<std::string> bytes)>;
void ReadFrames(FileSystem& fs, WorkerPool& pool, std::span<const FrameRead> frames,
                const FrameDone& done);

}  // namespace cairn
