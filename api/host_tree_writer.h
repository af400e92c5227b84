// HostTreeWriter: makes the files of a view in host directories, with everything that belongs to
// them.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/tree_transfer.h"
#include "store/base/unique_fd.h"
#include "volume/file_read.h"

namespace cairn {

// A host directory that is being filled.
struct HostDirectory {
  UniqueFd fd;
  InodeNumber ino = 0;
  Inode inode;
  std::string path;                      // relative to the target: "" or "a/b/"
  std::shared_ptr<HostDirectory> above;  // null: this is the target
  // What is still to come: the walk through it, its files that wait, directories in it. Who brings
  // it to zero finishes the directory.
  std::atomic<size_t> pending = 1;
};

// A name to be made in it.
struct HostFile {
  std::shared_ptr<HostDirectory> dir;
  std::string name;
  InodeNumber ino = 0;
  Inode inode;
};

// Immutable, thread-safe. Every name is made exclusively, relative to its directory's descriptor.
// Errors name the path and say what the host said.
class HostTreeWriter {
 public:
  // Regular files that together are at most this long are read and written as one batch.
  static constexpr size_t kBatchBytes = 1u << 20;

  // `view` and `root` (the target) must live longer.
  HostTreeWriter(const FsView& view, const UniqueFd& root, std::string target)
      : view_(view), root_(root), target_(std::move(target)) {}

  // Regular files: one of any size, or several of at most kBatchBytes together. `room` is
  // kBatchBytes long. Those before the first that fails are made; it is not.
  Status WriteFiles(std::span<const HostFile> files, std::span<char> room,
                    TransferCounts& counts) const;
  // A symlink, device, fifo or socket.
  Status WriteSpecial(const HostFile& file, TransferCounts& counts) const;
  // A further name of a file that was made at `first`, a path relative to the target.
  Status WriteLink(const HostFile& file, const std::string& first) const;
  // Owner, mode, extended attributes and times of an open file or directory.
  Status SetAttributes(int fd, InodeNumber ino, const Inode& inode, const std::string& path) const;

  // Of errno.
  Error HostError(std::string_view what, const std::string& path) const;

 private:
  using SetXattr = std::function<int(const std::string& name, const std::string& value)>;
  Status WriteFile(const HostFile& file, const FileRead* read, std::span<const char> data,
                   std::span<char> room, TransferCounts& counts) const;
  Status WriteData(int fd, const FileRead& read, std::span<const char> data,
                   const std::string& path, TransferCounts& counts) const;
  Status CopyLarge(int fd, const HostFile& file, std::span<char> room, const std::string& path,
                   TransferCounts& counts) const;
  Status CopyXattrs(InodeNumber ino, const std::string& path, const SetXattr& set) const;
  bool IsTooLarge(int error, size_t bytes) const;

  const FsView& view_;
  const UniqueFd& root_;
  const std::string target_;
};

}  // namespace cairn
