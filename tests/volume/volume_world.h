// What a test of volumes stands on: keys, a block store in memory, a directory for journals, and
// one volume that can be closed, opened again and sealed as the daemon does it.
#pragma once

#include <cerrno>
#include <memory>
#include <string>

#include "store/base/file_system.h"
#include "store/key_ring.h"
#include "store/node_cache.h"
#include "tests/support/fake_clock.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/temp_dir.h"
#include "volume/volume.h"

namespace cairn {

// 0, the error's errno, or -1 for an error without one.
template <typename T>
int ErrnoOf(const Result<T>& result) {
  if (result) return 0;
  return result.error().sys_errno() != 0 ? result.error().sys_errno() : -1;
}

class VolumeWorld {
  TempDir temp_;  // first: the rest lives in it

 public:
  VolumeWorld();
  explicit VolumeWorld(
      const VolumeOptions& tweaks);  // quotas, limits; ids and base are the world's

  Status Open(bool read_only = false);
  void Close() { volume.reset(); }
  Status Reopen() {
    Close();
    return Open();
  }
  // Seals the oldest frozen layer and publishes its root as the catalog would. No-op when none is
  // frozen.
  Status SealOldest();

  // Shorthand; CHECKs success.
  InodeNumber Dir(InodeNumber parent, std::string_view name, uint32_t mode = 0755);
  InodeNumber File(InodeNumber parent, std::string_view name, std::string_view contents = "");
  std::string Contents(InodeNumber ino);
  Inode Attributes(InodeNumber ino);

  FileSystem* fs = &HostFileSystem();  // of the journals
  OpContext ctx{.uid = 1000, .gid = 1000, .request = {}};
  const std::string dir;
  KeyRing keys;
  MemBlockStore store{keys};
  NodeCache cache;
  FakeClock clock;
  VolumeOptions options;
  std::unique_ptr<Volume> volume;

 private:
  TreeRoot base_;
  std::optional<BlockRef> root_;
};

}  // namespace cairn
