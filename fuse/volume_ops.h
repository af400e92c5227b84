// The low-level operations table of libfuse, bound to a VolumeServer (module-internal).
#pragma once

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>

#include <cstdint>

#include "fuse/transport.h"
#include "fuse/volume_server.h"
#include "volume/volume.h"

namespace cairn {

// A century: what the kernel takes as for ever.
inline constexpr uint64_t kForeverSeconds = uint64_t{100} * 365 * 86400;

// File handles are stateless: they say only how the inode was opened.
enum class Handle : uint64_t { kReader = 0, kWriter = 1, kBarrier = 2 };

inline bool MayWrite(uint32_t open_flags) { return (open_flags & O_ACCMODE) != O_RDONLY; }

// The request that this thread is answering.
const FuseRequest*& CurrentRequest();

struct VolumeOps {
  struct Impl;
  static const fuse_lowlevel_ops& Table(bool writeback_cache);
};

struct stat StatOf(InodeNumber ino, const Inode& inode);
OpContext ContextOf(const FuseRequest& request, const Id128& connection);

}  // namespace cairn
