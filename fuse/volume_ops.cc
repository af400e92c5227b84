// The operations, in the order of a file's life: names, attributes, files, directories, xattrs, the
// rest. Each does one Volume call and one reply. Every change carries the request's identity
// (OpContext), so that its journal record can answer a resend.
//
// Left out on purpose (libfuse says ENOSYS, and the kernel does it itself from then on): FLUSH
// (close(2) has written the data back before it asks, and nothing is left to do), ACCESS
// (default_permissions), COPY_FILE_RANGE (the kernel copies), POLL, BMAP, GETLK, SETLK (locks are
// the kernel's).
#include "fuse/volume_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace cairn {

struct VolumeOps::Impl {
  static constexpr uint64_t kDotCookie = 1;
  static constexpr uint64_t kDotDotCookie = 2;
  static constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 44;  // statfs without a quota
  static constexpr uint64_t kUnlimitedInodes = uint64_t{1} << 32;
  static constexpr unsigned kMaxBackground = 64;  // writeback and readahead requests in flight
  static constexpr double kForever = static_cast<double>(kForeverSeconds);

  static VolumeServer& Self(fuse_req_t req) {
    return *static_cast<VolumeServer*>(fuse_req_userdata(req));
  }
  static Volume& VolumeOf(fuse_req_t req) { return Self(req).volume_; }
  static OpContext Context(fuse_req_t req) {
    return ContextOf(*CurrentRequest(), Self(req).options_.connection);
  }
  static TimeSpec TimeOf(const timespec& time) {
    return {.seconds = time.tv_sec, .nanoseconds = static_cast<uint32_t>(time.tv_nsec)};
  }
  static bool FromBarrier(fuse_req_t req) {
    const uint32_t pid = Self(req).barrier_pid_.load();
    return pid != 0 && CurrentRequest()->pid == pid;
  }

  // ---- replies ----
  static void ReplyError(fuse_req_t req, const Error& error) {
    fuse_reply_err(req, Self(req).Failed(error));
  }
  static void ReplyStatus(fuse_req_t req, const Status& status) {
    if (!status) return ReplyError(req, status.error());
    fuse_reply_err(req, 0);
  }
  static fuse_entry_param EntryOf(fuse_req_t req, const NamedInode& named) {
    fuse_entry_param entry{};
    entry.ino = named.ino;
    entry.generation = VolumeOf(req).rollback_epoch();
    const VolumeServer::Reported told = Self(req).Report(named.ino, named.inode);
    entry.attr = told.stat;
    entry.attr_timeout = static_cast<double>(told.valid_seconds);
    entry.entry_timeout = kForever;
    return entry;
  }
  static void ReplyEntry(fuse_req_t req, const Result<NamedInode>& named) {
    if (!named) return ReplyError(req, named.error());
    const fuse_entry_param entry = EntryOf(req, *named);
    fuse_reply_entry(req, &entry);
  }
  static void ReplyAttributes(fuse_req_t req, InodeNumber ino, const Result<Inode>& inode) {
    if (!inode) return ReplyError(req, inode.error());
    const VolumeServer::Reported told = Self(req).Report(ino, *inode);
    fuse_reply_attr(req, &told.stat, static_cast<double>(told.valid_seconds));
  }

  // ---- connection ----
  template <bool kWritebackCache>
  static void Init(void* self, fuse_conn_info* conn) {
    const uint32_t max_bytes = static_cast<VolumeServer*>(self)->transport_.max_payload_bytes();
    const auto want = [conn](unsigned capability, bool wanted) {
      conn->want &= ~capability;
      if (wanted) conn->want |= conn->capable & capability;
    };
    want(FUSE_CAP_EXPORT_SUPPORT, true);  // the barrier opens by handle
    want(FUSE_CAP_WRITEBACK_CACHE, kWritebackCache);
    want(FUSE_CAP_CACHE_SYMLINKS, true);
    want(FUSE_CAP_EXPLICIT_INVAL_DATA, true);  // nobody else changes files
    want(FUSE_CAP_AUTO_INVAL_DATA, false);
    want(FUSE_CAP_ATOMIC_O_TRUNC, false);  // O_TRUNC is a SETATTR of its own
    want(FUSE_CAP_SPLICE_READ, false);
    want(FUSE_CAP_POSIX_LOCKS, false);
    want(FUSE_CAP_FLOCK_LOCKS, false);
    want(FUSE_CAP_POSIX_ACL, false);
    conn->max_write = max_bytes;
    conn->max_readahead = max_bytes;
    conn->max_background = kMaxBackground;
    conn->time_gran = 1;
  }

  // ---- names ----
  static void Lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
    // "." and ".." come from open_by_handle_at for inodes that the kernel has forgotten.
    if (std::strcmp(name, ".") == 0) return LookupInode(req, parent);
    if (std::strcmp(name, "..") == 0) {
      const Result<Inode> inode = VolumeOf(req).GetAttributes(parent);
      if (!inode) return ReplyError(req, inode.error());
      return LookupInode(req, inode->parent == kNoInode ? kRootInode : inode->parent);
    }
    const Result<NamedInode> found = VolumeOf(req).Lookup(parent, name);
    if (!found && found.error().code() == ErrorCode::kNotFound) {
      fuse_entry_param negative{};
      negative.entry_timeout = kForever;
      fuse_reply_entry(req, &negative);
      return;
    }
    ReplyEntry(req, found);
  }
  static void LookupInode(fuse_req_t req, InodeNumber ino) {
    Result<Inode> inode = VolumeOf(req).GetAttributes(ino);
    if (!inode) return ReplyError(req, inode.error());
    ReplyEntry(req, NamedInode{.ino = ino, .inode = std::move(*inode)});
  }
  static void MakeNode(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode,
                       dev_t rdev) {
    ReplyEntry(req, VolumeOf(req).MakeNode(Context(req), parent, name, mode, rdev));
  }
  static void MakeDir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
    ReplyEntry(req, VolumeOf(req).MakeDir(Context(req), parent, name, mode & 07777));
  }
  static void Symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
    ReplyEntry(req, VolumeOf(req).Symlink(Context(req), parent, name, target));
  }
  static void Link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char* name) {
    ReplyEntry(req, VolumeOf(req).Link(Context(req), ino, parent, name));
  }
  static void Unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
    ReplyStatus(req, VolumeOf(req).Unlink(Context(req), parent, name));
  }
  static void RemoveDir(fuse_req_t req, fuse_ino_t parent, const char* name) {
    ReplyStatus(req, VolumeOf(req).RemoveDir(Context(req), parent, name));
  }
  static void Rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
                     const char* new_name, unsigned flags) {
    ReplyStatus(req, VolumeOf(req).Rename(Context(req), parent, name, new_parent, new_name, flags));
  }
  static void ReadLink(fuse_req_t req, fuse_ino_t ino) {
    const Result<std::string> target = VolumeOf(req).ReadLink(ino);
    if (!target) return ReplyError(req, target.error());
    fuse_reply_readlink(req, target->c_str());
  }

  // ---- attributes ----
  static void GetAttributes(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
    ReplyAttributes(req, ino, VolumeOf(req).GetAttributes(ino));
  }
  static void SetAttributes(fuse_req_t req, fuse_ino_t ino, struct stat* st, int valid,
                            fuse_file_info*) {
    cairn::SetAttributes set;
    if ((valid & FUSE_SET_ATTR_MODE) != 0) set.mode = st->st_mode & 07777;
    if ((valid & FUSE_SET_ATTR_UID) != 0) set.uid = st->st_uid;
    if ((valid & FUSE_SET_ATTR_GID) != 0) set.gid = st->st_gid;
    if ((valid & FUSE_SET_ATTR_SIZE) != 0) set.size_bytes = static_cast<uint64_t>(st->st_size);
    set.atime_now = (valid & FUSE_SET_ATTR_ATIME_NOW) != 0;
    set.mtime_now = (valid & FUSE_SET_ATTR_MTIME_NOW) != 0;
    if ((valid & FUSE_SET_ATTR_ATIME) != 0 && !set.atime_now) set.atime = TimeOf(st->st_atim);
    if ((valid & FUSE_SET_ATTR_MTIME) != 0 && !set.mtime_now) set.mtime = TimeOf(st->st_mtim);
    if ((valid & FUSE_SET_ATTR_CTIME) != 0) set.ctime = TimeOf(st->st_ctim);
    // libfuse's name for bit 11 is older; the kernel's is FATTR_KILL_SUIDGID.
    static_assert(FUSE_SET_ATTR_KILL_SUID == FATTR_KILL_SUIDGID);
    set.kill_privileges = (valid & FATTR_KILL_SUIDGID) != 0;
    const Result<Inode> inode = VolumeOf(req).SetAttr(Context(req), ino, set);
    // With its writeback cache the kernel sends the times of a file after it has removed its last
    // link and closed it. It reads no answer but an error, which it would tell to the next
    // syncfs(2). A caller cannot name such a file.
    if (!inode && inode.error().code() == ErrorCode::kNotFound &&
        (valid & ~(FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_CTIME)) == 0) {
      struct stat gone{};
      gone.st_ino = ino;
      gone.st_mtim = st->st_mtim;
      gone.st_ctim = st->st_ctim;
      fuse_reply_attr(req, &gone, 0);
      return;
    }
    ReplyAttributes(req, ino, inode);
  }

  // ---- files ----
  static void Create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode,
                     fuse_file_info* file) {
    const bool writable = MayWrite(static_cast<uint32_t>(file->flags));
    VolumeServer& self = Self(req);
    if (writable) self.AddWriter();
    const Result<NamedInode> made =
        VolumeOf(req).Create(Context(req), parent, name, S_IFREG | (mode & 07777), writable);
    if (writable) self.DropWriter();
    if (!made) return ReplyError(req, made.error());
    FillOpened(*file, writable);
    const fuse_entry_param entry = EntryOf(req, *made);
    if (fuse_reply_create(req, &entry, file) == -ENOENT) DropOpen(self, made->ino, writable);
  }
  static void Open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* file) {
    OpenAny(req, ino, file, MayWrite(static_cast<uint32_t>(file->flags)));
  }
  static void OpenDir(fuse_req_t req, fuse_ino_t ino, fuse_file_info* file) {
    file->cache_readdir = 1;
    OpenAny(req, ino, file, false);
  }
  static void OpenAny(fuse_req_t req, fuse_ino_t ino, fuse_file_info* file, bool writable) {
    FillOpened(*file, writable);
    if (FromBarrier(req)) {
      file->fh = static_cast<uint64_t>(Handle::kBarrier);
      fuse_reply_open(req, file);
      return;
    }
    VolumeServer& self = Self(req);
    if (writable) self.AddWriter();
    const Status opened = VolumeOf(req).OpenInode(Context(req), ino, writable);
    if (writable) self.DropWriter();
    if (!opened) return ReplyError(req, opened.error());
    // What the kernel was told before it had a writer is good for ever, or so it thinks.
    if (writable && self.options_.writeback_cache) self.ForgetAttributes(ino);
    // The opener may be gone: then no RELEASE follows.
    if (fuse_reply_open(req, file) == -ENOENT) DropOpen(self, ino, writable);
  }
  static void FillOpened(fuse_file_info& file, bool writable) {
    file.fh = static_cast<uint64_t>(writable ? Handle::kWriter : Handle::kReader);
    file.keep_cache = 1;
  }
  static void DropOpen(VolumeServer& self, InodeNumber ino, bool writable) {
    IgnoreError(self.volume_.ReleaseInode({}, ino, writable), "nobody holds it");
    if (writable) self.NoteWriters();
  }
  static void Release(fuse_req_t req, fuse_ino_t ino, fuse_file_info* file) {
    const auto handle = static_cast<Handle>(file->fh);
    if (handle == Handle::kBarrier) {
      fuse_reply_err(req, 0);
      return;
    }
    const bool writable = handle == Handle::kWriter;
    const Status released = VolumeOf(req).ReleaseInode(Context(req), ino, writable);
    if (writable) Self(req).NoteWriters();
    ReplyStatus(req, released);
  }
  static void Read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
    const std::span<char> scratch = CurrentRequest()->scratch;
    const std::span<char> out = scratch.first(std::min(size, scratch.size()));
    const Result<size_t> count = VolumeOf(req).Read(ino, static_cast<uint64_t>(offset), out);
    if (!count) return ReplyError(req, count.error());
    fuse_reply_buf(req, out.data(), *count);
  }
  static void Write(fuse_req_t req, fuse_ino_t ino, const char* data, size_t size, off_t offset,
                    fuse_file_info*) {
    const std::span<char> bytes = CurrentRequest()->bytes;
    constexpr size_t kFixedBytes = sizeof(fuse_in_header) + sizeof(fuse_write_in);
    if (bytes.size() < kFixedBytes || bytes.size() - kFixedBytes < size) {
      fuse_reply_err(req, EIO);
      return;
    }
    fuse_write_in in;
    std::memcpy(&in, bytes.data() + sizeof(fuse_in_header), sizeof in);
    const bool kill = (in.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0;
    const Result<size_t> count = VolumeOf(req).Write(
        Context(req), ino, static_cast<uint64_t>(offset), std::string_view(data, size), kill);
    if (!count) return ReplyError(req, count.error());
    fuse_reply_write(req, *count);
  }
  static void Sync(fuse_req_t req, fuse_ino_t, int, fuse_file_info*) {
    if (FromBarrier(req)) {  // the freeze that follows flushes once for all
      fuse_reply_err(req, 0);
      return;
    }
    ReplyStatus(req, VolumeOf(req).Sync());
  }
  static void Allocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                       fuse_file_info*) {
    ReplyStatus(req, VolumeOf(req).Allocate(Context(req), ino, static_cast<uint64_t>(offset),
                                            static_cast<uint64_t>(length), mode));
  }
  static void Seek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, fuse_file_info*) {
    if (offset < 0 || (whence != SEEK_DATA && whence != SEEK_HOLE)) {
      fuse_reply_err(req, offset < 0 ? ENXIO : EINVAL);
      return;
    }
    const auto from = static_cast<uint64_t>(offset);
    if (!Self(req).MayBeDirty(ino)) return SeekNow(req, ino, from, whence);
    Self(req).seek_flusher_.FlushThen(ino, from, [req, ino, from, whence](bool flushed) {
      if (flushed) return SeekNow(req, ino, from, whence);
      fuse_reply_err(req, EIO);
    });
  }
  static void SeekNow(fuse_req_t req, InodeNumber ino, uint64_t from, int whence) {
    const Result<uint64_t> found =
        whence == SEEK_DATA ? VolumeOf(req).SeekData(ino, from) : VolumeOf(req).SeekHole(ino, from);
    if (!found) return ReplyError(req, found.error());
    fuse_reply_lseek(req, static_cast<off_t>(*found));
  }

  // ---- directories ----
  struct Listed {
    uint64_t cookie = 0;
    InodeNumber ino = 0;
    uint8_t type = 0;
    std::string name;
  };

  // Entries after `offset`, with "." and "..", as many as can fit `size` bytes when each takes
  // `fixed_bytes` and its name.
  static Result<std::vector<Listed>> List(Volume& volume, InodeNumber dir, uint64_t offset,
                                          size_t size, size_t fixed_bytes) {
    std::vector<Listed> listed;
    const Inode self = CAIRN_TRY(volume.GetAttributes(dir));
    if (self.nlink == 0) return listed;  // removed but open: empty
    if (offset < kDotCookie) listed.push_back({kDotCookie, dir, DT_DIR, "."});
    if (offset < kDotDotCookie) {
      const InodeNumber parent = self.parent == kNoInode ? dir : self.parent;
      listed.push_back({kDotDotCookie, parent, DT_DIR, ".."});
    }
    size_t used = 0;
    CAIRN_TRY(volume.ReadDir(dir, offset <= kDotDotCookie ? 0 : offset, [&](const DirEntry& entry) {
      used += fixed_bytes + entry.name.size();
      if (used > size) return false;
      listed.push_back({entry.cookie, entry.ino, entry.type, entry.name});
      return true;
    }));
    return listed;
  }

  static void ReadDir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
    const std::span<char> scratch = CurrentRequest()->scratch;
    size = std::min(size, scratch.size());
    const auto listed =
        List(VolumeOf(req), ino, static_cast<uint64_t>(offset), size, FUSE_NAME_OFFSET);
    if (!listed) return ReplyError(req, listed.error());
    size_t used = 0;
    for (const Listed& entry : *listed) {
      struct stat st{};
      st.st_ino = entry.ino;
      st.st_mode = DTTOIF(entry.type);
      const size_t needed =
          fuse_add_direntry(req, scratch.data() + used, size - used, entry.name.c_str(), &st,
                            static_cast<off_t>(entry.cookie));
      if (needed > size - used) break;
      used += needed;
    }
    fuse_reply_buf(req, scratch.data(), used);
  }

  static void ReadDirPlus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                          fuse_file_info*) {
    const std::span<char> scratch = CurrentRequest()->scratch;
    size = std::min(size, scratch.size());
    Volume& volume = VolumeOf(req);
    const auto listed =
        List(volume, ino, static_cast<uint64_t>(offset), size, FUSE_NAME_OFFSET_DIRENTPLUS);
    if (!listed) return ReplyError(req, listed.error());
    size_t used = 0;
    for (const Listed& entry : *listed) {
      // Node id 0 tells the kernel that only the name is given: right for the dots and for what has
      // just gone.
      fuse_entry_param param{};
      const bool is_dot = entry.cookie <= kDotDotCookie;
      if (!is_dot) {
        Result<Inode> inode = volume.GetAttributes(entry.ino);
        if (inode) param = EntryOf(req, {.ino = entry.ino, .inode = std::move(*inode)});
      }
      if (param.ino == 0) {
        param.attr.st_ino = entry.ino;
        param.attr.st_mode = DTTOIF(entry.type);
      }
      const size_t needed =
          fuse_add_direntry_plus(req, scratch.data() + used, size - used, entry.name.c_str(),
                                 &param, static_cast<off_t>(entry.cookie));
      if (needed > size - used) break;
      used += needed;
    }
    fuse_reply_buf(req, scratch.data(), used);
  }

  // ---- xattrs ----
  static void SetXattr(fuse_req_t req, fuse_ino_t ino, const char* name, const char* value,
                       size_t size, int flags) {
    ReplyStatus(
        req, VolumeOf(req).SetXattr(Context(req), ino, name, std::string_view(value, size), flags));
  }
  static void GetXattr(fuse_req_t req, fuse_ino_t ino, const char* name, size_t size) {
    const Result<std::string> value = VolumeOf(req).GetXattr(ino, name);
    if (!value) return ReplyError(req, value.error());
    ReplyXattr(req, *value, size);
  }
  static void ListXattrs(fuse_req_t req, fuse_ino_t ino, size_t size) {
    const Result<std::vector<std::string>> names = VolumeOf(req).ListXattrs(ino);
    if (!names) return ReplyError(req, names.error());
    std::string list;
    for (const std::string& name : *names) list.append(name).push_back('\0');
    ReplyXattr(req, list, size);
  }
  static void ReplyXattr(fuse_req_t req, const std::string& value, size_t size) {
    if (size == 0) {
      fuse_reply_xattr(req, value.size());
    } else if (value.size() > size) {
      fuse_reply_err(req, ERANGE);
    } else {
      fuse_reply_buf(req, value.data(), value.size());
    }
  }
  static void RemoveXattr(fuse_req_t req, fuse_ino_t ino, const char* name) {
    ReplyStatus(req, VolumeOf(req).RemoveXattr(Context(req), ino, name));
  }

  // ---- the rest ----
  static void StatFs(fuse_req_t req, fuse_ino_t) {
    const VolumeStatus status = VolumeOf(req).GetStatus();
    const auto rest = [](uint64_t all, uint64_t used) { return all > used ? all - used : 0; };
    uint64_t bytes = status.quota_bytes != 0 ? status.quota_bytes : kUnlimitedBytes;
    if (status.disk) {
      bytes = std::min(bytes, status.logical_bytes + status.disk->available_bytes);
    }
    const uint64_t inodes = status.quota_inodes != 0 ? status.quota_inodes : kUnlimitedInodes;
    struct statvfs st{};
    st.f_bsize = kPageBytes;
    st.f_frsize = kPageBytes;
    st.f_blocks = bytes / kPageBytes;
    st.f_bfree = st.f_bavail = rest(bytes, status.logical_bytes) / kPageBytes;
    st.f_files = inodes;
    st.f_ffree = st.f_favail = rest(inodes, status.inodes);
    st.f_namemax = kMaxNameBytes;
    fuse_reply_statfs(req, &st);
  }
  static void Ioctl(fuse_req_t req, fuse_ino_t, unsigned, void*, fuse_file_info*, unsigned,
                    const void*, size_t, size_t) {
    fuse_reply_err(req, ENOTTY);
  }

  template <bool kWritebackCache>
  static fuse_lowlevel_ops Make() {
    fuse_lowlevel_ops ops{};
    ops.init = Init<kWritebackCache>;
    ops.lookup = Lookup;
    ops.mknod = MakeNode;
    ops.mkdir = MakeDir;
    ops.symlink = Symlink;
    ops.link = Link;
    ops.unlink = Unlink;
    ops.rmdir = RemoveDir;
    ops.rename = Rename;
    ops.readlink = ReadLink;
    ops.getattr = GetAttributes;
    ops.setattr = SetAttributes;
    ops.create = Create;
    ops.open = Open;
    ops.release = Release;
    ops.read = Read;
    ops.write = Write;
    ops.fsync = Sync;
    ops.fallocate = Allocate;
    ops.lseek = Seek;
    ops.opendir = OpenDir;
    ops.readdir = ReadDir;
    ops.readdirplus = ReadDirPlus;
    ops.releasedir = Release;
    ops.fsyncdir = Sync;
    ops.setxattr = SetXattr;
    ops.getxattr = GetXattr;
    ops.listxattr = ListXattrs;
    ops.removexattr = RemoveXattr;
    ops.statfs = StatFs;
    ops.ioctl = Ioctl;
    return ops;
  }
};

const fuse_lowlevel_ops& VolumeOps::Table(bool writeback_cache) {
  static const fuse_lowlevel_ops with = Impl::Make<true>();
  static const fuse_lowlevel_ops without = Impl::Make<false>();
  return writeback_cache ? with : without;
}

}  // namespace cairn
