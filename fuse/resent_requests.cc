// Requests that the kernel sends again because the server before this one was killed before it
// answered them (FUSE_NOTIFY_RESEND; bit 63 of their numbers).
//
// What changed something left a record in the journal, in the same transaction as the change: it is
// answered from that, and not done again. What left none did nothing, or nothing that doing it
// again would change, and is served like any other. Nothing is concluded from what the files look
// like now: that a name is there does not say that this request made it.
//
// A record says which inode the reply names and how much was written; attributes are those of now,
// which the kernel would learn next anyhow.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fuse/kernel_abi.h"
#include "fuse/volume_ops.h"
#include "fuse/volume_server.h"
#include "store/base/log.h"

namespace cairn {
namespace {

// The fixed part of a request's body; zeros behind its end.
template <typename T>
T BodyOf(const FuseRequest& request) {
  T body{};
  if (request.bytes.size() > sizeof(fuse_in_header)) {
    std::memcpy(&body, request.bytes.data() + sizeof(fuse_in_header),
                std::min(sizeof body, request.bytes.size() - sizeof(fuse_in_header)));
  }
  return body;
}

// The mode of what a request was to make.
uint32_t ModeOf(const FuseRequest& request) {
  switch (request.opcode) {
    case FUSE_MKDIR:
      return S_IFDIR | (BodyOf<fuse_mkdir_in>(request).mode & 07777);
    case FUSE_MKNOD:
      return BodyOf<fuse_mknod_in>(request).mode;
    case FUSE_SYMLINK:
      return S_IFLNK | 0777;
    default:
      return S_IFREG | 0600;
  }
}

}  // namespace

bool VolumeServer::AnswerFromRecord(const FuseRequest& request) {
  const auto found = records_.find(request.unique);
  {
    MutexLock lock(resends_mutex_);
    Resends& resends = resends_[request.opcode];
    ++resends.seen;
    if (found != records_.end()) ++resends.answered;
  }
  if (found == records_.end()) return false;
  const ReplyRecord& record = found->second;
  if (record.opcode != request.opcode) {
    LogError("fuse_record_of_another_request",
             {{"unique", request.unique}, {"opcode", request.opcode}, {"record", record.opcode}});
    ReplyError(request, EIO);
    return true;
  }
  ReplyFromRecord(request, record);
  return true;
}

fuse_entry_out VolumeServer::EntryFromRecord(const FuseRequest& request,
                                             const ReplyRecord& record) {
  Result<Inode> inode = volume_.GetAttributes(record.ino);
  if (inode) return EntryOut({.ino = record.ino, .inode = *std::move(inode)});
  // Another has removed it meanwhile: what the kernel is told is good for this answer alone.
  Inode gone;
  gone.mode = ModeOf(request);
  gone.uid = request.uid;
  gone.gid = request.gid;
  fuse_entry_out entry = EntryOut({.ino = record.ino, .inode = gone});
  entry.entry_valid = 0;
  entry.attr_valid = 0;
  return entry;
}

void VolumeServer::ReplyFromRecord(const FuseRequest& request, const ReplyRecord& record) {
  if (record.status != 0) return ReplyError(request, -record.status);
  const auto reply = [&](auto body) {
    const iovec part{.iov_base = &body, .iov_len = sizeof body};
    Reply(request, 0, {&part, 1});
  };
  switch (request.opcode) {
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_SYMLINK:
    case FUSE_LINK:
      return reply(EntryFromRecord(request, record));
    case FUSE_CREATE:
    case kFuseTmpFile: {
      const bool writable = MayWrite(BodyOf<fuse_create_in>(request).flags);
      volume_.CountOpen(ContextOf(request, options_.connection), record.ino, writable);
      NoteWriters();
      if (ReplyCreated(request, EntryFromRecord(request, record), writable)) return;
      IgnoreError(volume_.ReleaseInode({}, record.ino, writable), "nobody holds it");
      return NoteWriters();
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
      const bool writable = MayWrite(BodyOf<fuse_open_in>(request).flags);
      volume_.CountOpen(ContextOf(request, options_.connection), record.ino, writable);
      NoteWriters();
      fuse_open_out open{};
      open.fh = static_cast<uint64_t>(writable ? Handle::kWriter : Handle::kReader);
      open.open_flags = FOPEN_KEEP_CACHE;
      if (request.opcode == FUSE_OPENDIR) open.open_flags |= FOPEN_CACHE_DIR;
      return reply(open);
    }
    case FUSE_SETATTR: {
      const fuse_entry_out entry = EntryFromRecord(request, record);
      fuse_attr_out attributes{};
      attributes.attr_valid = entry.attr_valid;
      attributes.attr = entry.attr;
      return reply(attributes);
    }
    case FUSE_WRITE: {
      fuse_write_out written{};
      written.size = static_cast<uint32_t>(record.value);
      return reply(written);
    }
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
      NoteWriters();
      return ReplyError(request, 0);
    default:  // removals, renames, xattrs, allocations: nothing but success
      return ReplyError(request, 0);
  }
}

std::map<uint32_t, VolumeServer::Resends> VolumeServer::resends() {
  MutexLock lock(resends_mutex_);
  return resends_;
}

}  // namespace cairn
