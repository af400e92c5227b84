// What the kernel's FUSE interface has and the packaged <linux/fuse.h> (7.38) and libfuse (3.14) do
// not: from include/uapi/linux/fuse.h, versions 7.37 to 7.45.
#pragma once

#include <linux/fuse.h>

#include <cstdint>

namespace cairn {

inline constexpr uint32_t kFuseTmpFile = 51;  // fuse_create_in + name; answered like CREATE
inline constexpr uint32_t kFuseStatx = 52;
inline constexpr int kFuseNotifyResend = 7;  // Linux 6.9

struct FuseStatxIn {
  uint32_t getattr_flags;
  uint32_t reserved;
  uint64_t fh;
  uint32_t sx_flags;
  uint32_t sx_mask;
};
static_assert(sizeof(FuseStatxIn) == 24);

struct FuseSxTime {
  int64_t seconds;
  uint32_t nanoseconds;
  int32_t reserved;
};

struct FuseStatx {
  uint32_t mask;
  uint32_t blksize;
  uint64_t attributes;
  uint32_t nlink;
  uint32_t uid;
  uint32_t gid;
  uint16_t mode;
  uint16_t spare0[1];
  uint64_t ino;
  uint64_t size;
  uint64_t blocks;
  uint64_t attributes_mask;
  FuseSxTime atime;
  FuseSxTime btime;
  FuseSxTime ctime;
  FuseSxTime mtime;
  uint32_t rdev_major;
  uint32_t rdev_minor;
  uint32_t dev_major;
  uint32_t dev_minor;
  uint64_t spare2[14];
};
static_assert(sizeof(FuseStatx) == 256);

struct FuseStatxOut {
  uint64_t attr_valid;
  uint32_t attr_valid_nsec;
  uint32_t flags;
  uint64_t spare[2];
  FuseStatx stat;
};
static_assert(sizeof(FuseStatxOut) == 288);

}  // namespace cairn
