// Walks the output directory depth first with a stack of its own (the tree is the guest's: no
// recursion on it). Names are taken from directory entries of a frozen view, so nothing can be
// swapped underneath; links are recorded as skipped, never read.
//
// Order of the decisions on a file: type -> names outside the directory -> size -> the turn's
// totals. Files are taken in path order, so which ones a limit leaves out does not depend on
// directory order.
#include "artifacts/output_walk.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

namespace cairn {

namespace {

const char* SkipReason(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFLNK:
      return "symlink";
    case S_IFCHR:
    case S_IFBLK:
      return "device";
    case S_IFIFO:
      return "fifo";
    case S_IFSOCK:
      return "socket";
    default:
      return nullptr;
  }
}

struct PendingDirectory {
  InodeNumber ino;
  std::string path;  // "" or "a/b/"
  uint32_t depth;
};

void ApplyLimits(const PublicationLimits& limits, const std::map<InodeNumber, uint32_t>& names,
                 std::vector<OutputFile>& candidates, OutputWalk& walk) {
  std::sort(candidates.begin(), candidates.end(),
            [](const OutputFile& a, const OutputFile& b) { return a.path < b.path; });
  uint64_t total_bytes = 0;
  for (OutputFile& file : candidates) {
    const char* reason = nullptr;
    if (file.inode.nlink > names.at(file.ino)) {
      reason = "hard_link_outside";
    } else if (file.inode.size_bytes > limits.max_file_bytes) {
      reason = "too_large";
    } else if (walk.files.size() >= limits.max_files) {
      reason = "too_many_files";
    } else if (file.inode.size_bytes > limits.max_turn_bytes - total_bytes) {
      reason = "turn_too_large";
    }
    if (reason != nullptr) {
      walk.skipped.push_back({file.path, reason});
      continue;
    }
    total_bytes += file.inode.size_bytes;
    walk.files.push_back(std::move(file));
  }
}

}  // namespace

Result<OutputWalk> WalkOutputDirectory(const FsView& view, const std::string& directory,
                                       const PublicationLimits& limits) {
  OutputWalk walk;
  const auto top = view.Resolve(directory, /*final_link_is_error=*/true);
  if (!top) {
    if (top.error().code() == ErrorCode::kDataLoss) return std::unexpected(top.error());
    if (top.error().code() == ErrorCode::kNotFound) return walk;
    walk.skipped.push_back({"", "output_directory_is_not_a_directory"});
    return walk;
  }
  const Inode top_inode = CAIRN_TRY(view.GetInode(*top));
  if (!S_ISDIR(top_inode.mode)) {
    walk.skipped.push_back({"", "output_directory_is_not_a_directory"});
    return walk;
  }

  std::vector<OutputFile> candidates;
  std::map<InodeNumber, uint32_t> names;  // names of each file inside the directory
  std::vector<PendingDirectory> pending{{*top, "", 0}};
  uint64_t entries = 0;
  while (!pending.empty()) {
    const PendingDirectory dir = std::move(pending.back());
    pending.pop_back();
    std::vector<DirEntry> children;
    bool too_many = false;
    CAIRN_TRY(view.ReadDir(dir.ino, 0, [&](const DirEntry& entry) {
      if (++entries > limits.max_entries) {
        too_many = true;
        return false;
      }
      children.push_back(entry);
      return true;
    }));
    if (too_many) walk.skipped.push_back({dir.path, "too_many_entries"});
    for (const DirEntry& child : children) {
      const Inode inode = CAIRN_TRY(view.GetInode(child.ino));
      const std::string path = dir.path + child.name;
      if (S_ISDIR(inode.mode)) {
        if (dir.depth + 1 > limits.max_depth) {
          walk.skipped.push_back({path, "too_deep"});
        } else {
          pending.push_back({child.ino, path + "/", dir.depth + 1});
        }
        continue;
      }
      if (const char* reason = SkipReason(inode.mode)) {
        walk.skipped.push_back({path, reason});
        continue;
      }
      ++names[child.ino];
      candidates.push_back({path, child.ino, inode});
    }
    if (too_many) break;
  }
  ApplyLimits(limits, names, candidates, walk);
  std::sort(walk.skipped.begin(), walk.skipped.end(),
            [](const SkippedPath& a, const SkippedPath& b) { return a.path < b.path; });
  return walk;
}

}  // namespace cairn
