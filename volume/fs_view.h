// FsView: the read-only half of POSIX over any layer: a live volume's head, a snapshot, a root that
// Artifacts come from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.h"
#include "volume/inode.h"
#include "volume/layer.h"
#include "volume/read_ahead.h"

namespace cairn {

struct DirEntry {
  uint64_t cookie = 0;  // stable: the position after this entry
  InodeNumber ino = 0;
  uint8_t type = 0;  // DT_*
  std::string name;
};

// Immutable handle (a layer and a hash seed) with a memory of what was read; thread-safe. All
// errors carry the errno that Linux would give.
class FsView {
 public:
  // Views that share a ReadAhead see each other's reads (a volume's, one for each operation).
  FsView(std::shared_ptr<const Layer> layer, uint64_t hash_seed,
         std::shared_ptr<ReadAhead> read_ahead = std::make_shared<ReadAhead>())
      : layer_(std::move(layer)), hash_seed_(hash_seed), read_ahead_(std::move(read_ahead)) {}

  Result<Inode> GetInode(InodeNumber ino) const;  // ENOENT
  Result<InodeNumber> Lookup(InodeNumber dir, std::string_view name)
      const;  // ENOENT, ENOTDIR, ENAMETOOLONG; knows "." and ".."
  // Entries with cookie > `after`, in cookie order, until `visit` returns false. "." and ".." are
  // not reported.
  Status ReadDir(InodeNumber dir, uint64_t after,
                 const std::function<bool(const DirEntry&)>& visit) const;
  // Bytes read: fewer than out.size() only at the end of the file. Holes read as zeros. A file that
  // is read in order is read ahead.
  Result<size_t> Read(InodeNumber ino, uint64_t offset, std::span<char> out) const;
  Result<std::string> ReadLink(InodeNumber ino) const;
  Result<std::string> GetXattr(InodeNumber ino, std::string_view name) const;  // ENODATA
  Result<std::vector<std::string>> ListXattrs(InodeNumber ino) const;
  // lseek SEEK_DATA / SEEK_HOLE. ENXIO past the end.
  Result<uint64_t> SeekData(InodeNumber ino, uint64_t offset) const;
  Result<uint64_t> SeekHole(InodeNumber ino, uint64_t offset) const;

  // Walks `path` ("/a/b", "a/b") from the root without following any symlink: ELOOP at one, also at
  // the last component if `final_link_is_error`. "..": InvalidArgument.
  Result<InodeNumber> Resolve(std::string_view path, bool final_link_is_error = false) const;
  // The path of a directory or the first path found of another inode, by search (O(tree); for
  // reports).
  Result<std::string> FindPath(InodeNumber ino) const;

  const std::shared_ptr<const Layer>& layer() const { return layer_; }
  uint64_t hash_seed() const { return hash_seed_; }

 private:
  std::shared_ptr<const Layer> layer_;
  uint64_t hash_seed_;
  std::shared_ptr<ReadAhead> read_ahead_;
};

}  // namespace cairn
