// The walk over a Session's output directory in a frozen view: what a turn publishes and what it
// leaves out, with reasons.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/error.h"
#include "volume/fs_view.h"

namespace cairn {

struct PublicationLimits {
  uint64_t max_file_bytes = 5ull << 30;
  uint64_t max_turn_bytes = 20ull << 30;
  uint64_t max_files = 10000;
  uint64_t max_entries = 200000;  // of the directory tree that are looked at
  uint32_t max_depth = 256;
};

struct SkippedPath {
  std::string path;  // relative to the output directory
  std::string
      reason;  // symlink, hard_link_outside, device, fifo, socket, too_large, turn_too_large,
               // too_many_files, too_deep, too_many_entries, output_directory_is_not_a_directory
};

struct OutputFile {
  std::string path;  // relative to the output directory, any bytes
  InodeNumber ino = 0;
  Inode inode;
};

struct OutputWalk {
  std::vector<OutputFile> files;  // by path, bytewise
  std::vector<SkippedPath> skipped;
};

// Only regular files; no symlink is followed at any component; a file with more names than the walk
// found has one outside and is skipped. A missing output directory is an empty walk. Errors:
// DataLoss from the view.
Result<OutputWalk> WalkOutputDirectory(const FsView& view, const std::string& directory,
                                       const PublicationLimits& limits);

}  // namespace cairn
