// PosixModel: what a POSIX filesystem does, in memory and with nothing but maps: the reference that
// a Volume is compared with. Every call returns 0 or the errno that Linux gives. Inode numbers are
// the caller's (those that the volume under test chose).
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "store/base/clock.h"
#include "volume/inode.h"

namespace cairn {

// Value type: a copy is a snapshot. Not thread-safe.
class PosixModel {
 public:
  struct Page {
    std::string bytes = std::string(kPageBytes, '\0');
    std::bitset<kPageBytes> written;  // the rest is hole
  };
  struct Node {
    uint32_t mode = 0, uid = 0, gid = 0, nlink = 0;
    uint64_t size = 0, rdev = 0;
    TimeSpec atime, mtime, ctime;
    InodeNumber parent = 0;                    // of directories
    std::map<std::string, InodeNumber> names;  // of directories
    std::map<std::string, std::string> xattrs;
    std::string target;              // of symlinks
    std::map<uint64_t, Page> pages;  // of files
    bool is_inline = false;          // stored whole: counts in 512 bytes, no holes
    uint32_t handles = 0;

    bool is_dir() const;
    uint64_t allocated_bytes() const;
    std::string Read(uint64_t offset, uint64_t length) const;  // short at the end
  };
  struct Who {
    uint32_t uid = 0, gid = 0;
  };
  struct Name {
    InodeNumber dir = 0;
    std::string name;
  };
  struct Times {
    bool set_atime = false, set_mtime = false;
    TimeSpec atime, mtime;
  };

  explicit PosixModel(TimeSpec now);

  void SetTime(TimeSpec now) { now_ = now; }
  const std::map<InodeNumber, Node>& nodes() const { return nodes_; }
  const Node* Find(InodeNumber ino) const;
  uint64_t TotalBytes() const;

  // `mode` with type bits; `ino` is the number the new inode has.
  int Make(const Who& who, const Name& at, uint32_t mode, uint64_t rdev, InodeNumber ino);
  int Symlink(const Who& who, const Name& at, std::string_view target, InodeNumber ino);
  int MakeUnnamed(const Who& who, InodeNumber dir, uint32_t mode, InodeNumber ino);  // opened
  int Link(InodeNumber ino, const Name& at);
  int Unlink(const Name& at);
  int RemoveDir(const Name& at);
  int Rename(const Who& who, const Name& from, const Name& to, uint32_t flags,
             InodeNumber whiteout_ino);
  int Open(InodeNumber ino);
  int Release(InodeNumber ino);
  int Write(InodeNumber ino, uint64_t offset, std::string_view data);
  int Truncate(InodeNumber ino, uint64_t size);
  int Allocate(InodeNumber ino, uint64_t offset, uint64_t length, int mode);
  int Chmod(InodeNumber ino, uint32_t mode);
  int Chown(InodeNumber ino, const Who& who, bool kill_privileges);
  int SetTimes(InodeNumber ino, const Times& times);
  int SetXattr(InodeNumber ino, const std::string& name, std::string_view value, int flags);
  int RemoveXattr(InodeNumber ino, const std::string& name);
  // The first offset >= `offset` with (or without) data; -1: none (ENXIO).
  int64_t Seek(InodeNumber ino, uint64_t offset, bool data) const;

  // A restart: no handle is left, unlinked inodes go.
  void CloseAll();

 private:
  int CheckDir(InodeNumber dir) const;
  bool IsAncestor(InodeNumber ino, InodeNumber dir) const;
  Node NewNode(const Who& who, const Node& dir, uint32_t mode) const;
  void AddName(const Name& at, InodeNumber ino);
  void DropLink(InodeNumber ino);
  void Touch(InodeNumber dir);
  static void Cut(Node& node, uint64_t begin, uint64_t end);
  static void Resize(Node& node, uint64_t size);

  TimeSpec now_;
  std::map<InodeNumber, Node> nodes_;
};

}  // namespace cairn
