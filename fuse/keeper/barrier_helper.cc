// For each inode: open_by_handle_at(2) with the handle that the kernel's fuse_encode_fh makes (type
// 0x81 FILEID_INO64_GEN: node id high word, low word, generation), then fsync(2). Not syncfs or
// sync: they do not wait for FUSE writeback; not sync_file_range: it leaves mtime and size in the
// kernel. ESTALE means that the kernel has dropped the inode and the server does not know it:
// nothing of it can be dirty.
//
// The mount fd is a real open: open_by_handle_at refuses O_PATH ones. The directory's device is
// compared first: after an unmount it would be another filesystem, where every handle is stale and
// a barrier would seem to succeed.
#include "fuse/keeper/barrier_helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "store/base/log.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr int kFileIdIno64Gen = 0x81;

struct FuseHandle {
  unsigned int handle_bytes = 3 * sizeof(uint32_t);
  int handle_type = kFileIdIno64Gen;
  uint32_t node_high = 0;
  uint32_t node_low = 0;
  uint32_t generation = 0;
};
static_assert(offsetof(FuseHandle, node_high) == sizeof(file_handle));

// 0, or an errno.
int SyncInode(int mount_fd, uint64_t ino, uint32_t generation) {
  FuseHandle handle{.node_high = static_cast<uint32_t>(ino >> 32),
                    .node_low = static_cast<uint32_t>(ino),
                    .generation = generation};
  UniqueFd fd(::open_by_handle_at(mount_fd, reinterpret_cast<file_handle*>(&handle),
                                  O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd.valid()) return errno;
  return ::fsync(fd.get()) == 0 ? 0 : errno;
}

}  // namespace

Result<BarrierResult> RunBarrier(const BarrierRequest& request) {
  UniqueFd dir(::open(request.dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid()) return ErrErrno(errno, fmt::format("barrier: open {}", request.dir));
  struct statx st{};
  if (::statx(dir.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) != 0) {
    return ErrErrno(errno, fmt::format("barrier: statx {}", request.dir));
  }
  if (st.stx_dev_major != request.device_major || st.stx_dev_minor != request.device_minor) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("barrier: {} is not the mount any more", request.dir), ENODEV);
  }
  BarrierResult result;
  for (const uint64_t ino : request.inodes) {
    const int error = SyncInode(dir.get(), ino, request.generation);
    if (error == 0) {
      ++result.synced;
    } else if (error == ESTALE || error == ENOENT) {
      ++result.gone;
    } else if (result.failed++ == 0) {
      result.first_errno = static_cast<uint32_t>(error);
      result.first_failed_inode = ino;
    }
  }
  return result;
}

int RunBarrierHelper(Channel channel) {
  while (true) {
    auto received = channel.Receive();
    if (!received) {
      LogWarning("barrier_bad_message", {{"error", received.error().ToString()}});
      if (received.error().code() == ErrorCode::kInvalidArgument) continue;
      return 1;
    }
    if (!*received) return 0;
    const Message& message = (*received)->message;
    Message reply;
    reply.type = static_cast<uint16_t>(message.type | kReplyBit);
    reply.id = message.id;
    Result<BarrierResult> result = Err(ErrorCode::kInvalidArgument, "no such message", EOPNOTSUPP);
    if (message.type == static_cast<uint16_t>(MessageType::kBarrier)) {
      auto request = BarrierRequest::Decode(message.payload);
      result = request ? RunBarrier(*request) : std::unexpected(std::move(request).error());
    }
    if (result) {
      reply.payload = result->Encode();
    } else {
      reply.error =
          static_cast<uint32_t>(result.error().sys_errno() != 0 ? result.error().sys_errno() : EIO);
      reply.payload = result.error().message();
    }
    if (!channel.Send(reply)) return 0;
  }
}

}  // namespace cairn
