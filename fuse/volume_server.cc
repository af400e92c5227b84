// One request: remember its header for this thread -> FORGET and INTERRUPT need nothing (node ids
// are stateless, no operation waits on a guest) -> TMPFILE and STATX are decoded here -> everything
// else through libfuse into fuse/volume_ops.cc, whose reply comes back through SendFromCodec.
//
// INIT: libfuse answers; SendFromCodec adds two flags. FUSE_HANDLE_KILLPRIV_V2 is not known to
// libfuse 3.14: with it the kernel asks for security.capability once per inode instead of once per
// write(2), and tells us when to clear setuid and setgid. FUSE_PARALLEL_DIROPS is known to it,
// wanted by default, and never sent. Sources: fs/fuse/inode.c (process_init_reply), fs/fuse/file.c
// (fuse_cache_write_iter), fs/fuse/dir.c (fuse_do_setattr, fuse_tmpfile).
#include "fuse/volume_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "fuse/errno_map.h"
#include "fuse/kernel_abi.h"
#include "fuse/volume_ops.h"
#include "store/base/clock.h"
#include "store/base/log.h"

namespace cairn {
namespace {

constexpr int64_t kFailureLogIntervalNs = 100'000'000;
// How long the kernel may rely on the attributes of a file that is open for writing, and the least
// number of blocks that it is told of: see Reported.
constexpr uint64_t kWriterAttributeSeconds = 1;
constexpr blkcnt_t kWriterBlocks = kPageBytes / 512;
constexpr uint32_t kFlagsThatLibfuseForgets = FUSE_HANDLE_KILLPRIV_V2 | FUSE_PARALLEL_DIROPS;

fuse_attr AttrOf(const struct stat& st) {
  fuse_attr attr{};
  attr.ino = st.st_ino;
  attr.size = static_cast<uint64_t>(st.st_size);
  attr.blocks = static_cast<uint64_t>(st.st_blocks);
  attr.atime = static_cast<uint64_t>(st.st_atim.tv_sec);
  attr.mtime = static_cast<uint64_t>(st.st_mtim.tv_sec);
  attr.ctime = static_cast<uint64_t>(st.st_ctim.tv_sec);
  attr.atimensec = static_cast<uint32_t>(st.st_atim.tv_nsec);
  attr.mtimensec = static_cast<uint32_t>(st.st_mtim.tv_nsec);
  attr.ctimensec = static_cast<uint32_t>(st.st_ctim.tv_nsec);
  attr.mode = st.st_mode;
  attr.nlink = static_cast<uint32_t>(st.st_nlink);
  attr.uid = st.st_uid;
  attr.gid = st.st_gid;
  attr.rdev = static_cast<uint32_t>(st.st_rdev);
  attr.blksize = static_cast<uint32_t>(st.st_blksize);
  return attr;
}

FuseSxTime SxTimeOf(const TimeSpec& time) {
  return {.seconds = time.seconds, .nanoseconds = time.nanoseconds, .reserved = 0};
}

}  // namespace

struct stat StatOf(InodeNumber ino, const Inode& inode) {
  struct stat st{};
  st.st_ino = ino;
  st.st_mode = inode.mode;
  st.st_nlink = inode.nlink;
  st.st_uid = inode.uid;
  st.st_gid = inode.gid;
  st.st_rdev = inode.rdev;
  st.st_size = static_cast<off_t>(inode.size_bytes);
  st.st_blksize = kPageBytes;
  st.st_blocks = static_cast<blkcnt_t>(inode.allocated_bytes / 512);
  st.st_atim = {.tv_sec = inode.atime.seconds, .tv_nsec = inode.atime.nanoseconds};
  st.st_mtim = {.tv_sec = inode.mtime.seconds, .tv_nsec = inode.mtime.nanoseconds};
  st.st_ctim = {.tv_sec = inode.ctime.seconds, .tv_nsec = inode.ctime.nanoseconds};
  return st;
}

OpContext ContextOf(const FuseRequest& request, const Id128& connection) {
  OpContext context{.uid = request.uid, .gid = request.gid, .request = {}};
  context.request.connection = connection;
  context.request.unique = request.unique;
  context.request.opcode = static_cast<uint16_t>(request.opcode);
  context.request.lane = request.lane;
  context.request.reply_floor = request.reply_floor;
  return context;
}

const FuseRequest*& CurrentRequest() {
  static thread_local const FuseRequest* current = nullptr;
  return current;
}

Result<std::unique_ptr<VolumeServer>> VolumeServer::Create(Volume& volume, Transport& transport,
                                                           const VolumeServerOptions& options) {
  std::unique_ptr<VolumeServer> server(new VolumeServer(volume, transport, options));
  char program[] = "cairn";
  char* argv[] = {program, nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, argv);
  const fuse_lowlevel_ops& ops = VolumeOps::Table(options.writeback_cache);
  server->session_ = fuse_session_new(&args, &ops, sizeof ops, server.get());
  fuse_opt_free_args(&args);
  if (server->session_ == nullptr) return Err(ErrorCode::kInternal, "fuse_session_new failed");
  // The session gets its requests from HandleRequest and wants an fd that it may close.
  const int placeholder = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (placeholder < 0) return ErrErrno(errno, "open /dev/null");
  fuse_custom_io io{};
  io.read = [](int, void*, size_t, void*) -> ssize_t {
    errno = ENODEV;
    return -1;
  };
  io.writev = [](int, struct iovec* iov, int count, void* self) -> ssize_t {
    const int error = static_cast<VolumeServer*>(self)->SendFromCodec(iov, count);
    if (error == 0) return 0;
    errno = error;
    return -1;
  };
  const int failed = fuse_session_custom_io(server->session_, &io, placeholder);
  if (failed != 0) {
    ::close(placeholder);
    return Err(ErrorCode::kInternal, "fuse_session_custom_io failed", -failed);
  }
  return server;
}

VolumeServer::~VolumeServer() {
  seek_flusher_.Stop();
  if (session_ != nullptr) fuse_session_destroy(session_);
}

void VolumeServer::HandleRequest(const FuseRequest& request) {
  CurrentRequest() = &request;
  if (request.resent && AnswerFromRecord(request)) {
    CurrentRequest() = nullptr;
    return;
  }
  switch (request.opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      break;
    case FUSE_INIT:
      HandleInit(request);
      break;
    case kFuseTmpFile:
      HandleTmpFile(request);
      break;
    case kFuseStatx:
      HandleStatx(request);
      break;
    default: {
      fuse_buf buffer{};
      buffer.size = request.bytes.size();
      buffer.mem = request.bytes.data();
      fuse_session_process_buf(session_, &buffer);
    }
  }
  CurrentRequest() = nullptr;
}

void VolumeServer::HandleClosed() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  EndWriters();
  if (options_.on_closed) options_.on_closed();
}

Status VolumeServer::TakeOver(std::string_view init) {
  std::string bytes(init);
  fuse_in_header header;
  if (bytes.size() < sizeof header) return Err(ErrorCode::kInternal, "no INIT to take over");
  std::memcpy(&header, bytes.data(), sizeof header);
  const FuseRequest request{.unique = header.unique, .opcode = FUSE_INIT, .bytes = bytes};
  CurrentRequest() = &request;
  taken_init_unique_ = header.unique;
  taking_over_ = true;
  fuse_buf buffer{};
  buffer.size = bytes.size();
  buffer.mem = bytes.data();
  fuse_session_process_buf(session_, &buffer);
  taking_over_ = false;
  CurrentRequest() = nullptr;
  if (taken_init_reply_.empty()) return Err(ErrorCode::kInternal, "INIT was refused");
  NoteWriters();
  MutexLock lock(mutex_);
  initialized_ = true;
  return {};
}

Status VolumeServer::AskForResend() {
  fuse_out_header notice{.len = sizeof notice, .error = kFuseNotifyResend, .unique = 0};
  const iovec iov{.iov_base = &notice, .iov_len = sizeof notice};
  const int error = transport_.Send({&iov, 1});
  if (error == 0) return {};
  return Err(ErrorCode::kUnavailable, "this kernel does not send requests again", error);
}

void VolumeServer::AnswerTakenInit() {
  if (taken_init_reply_.empty()) return;
  fuse_out_header header{.len = static_cast<uint32_t>(sizeof header + taken_init_reply_.size()),
                         .error = 0,
                         .unique = taken_init_unique_};
  const iovec iov[] = {{.iov_base = &header, .iov_len = sizeof header},
                       {.iov_base = taken_init_reply_.data(), .iov_len = taken_init_reply_.size()}};
  transport_.Send(iov);  // ENOENT: it has been answered
}

void VolumeServer::HandleInit(const FuseRequest& request) {
  if (!taken_init_reply_.empty()) {  // the server before this one was killed before it answered
    const iovec body{.iov_base = taken_init_reply_.data(), .iov_len = taken_init_reply_.size()};
    Reply(request, 0, {&body, 1});
    return;
  }
  const std::string init(request.bytes.data(), request.bytes.size());
  if (options_.on_init) options_.on_init(init, false);
  fuse_buf buffer{};
  buffer.size = request.bytes.size();
  buffer.mem = request.bytes.data();
  fuse_session_process_buf(session_, &buffer);
  {
    MutexLock lock(mutex_);
    if (initialized_) return;
    initialized_ = true;
    changed_.NotifyAll();
  }
  if (options_.on_init) options_.on_init(init, true);
}

bool VolumeServer::WaitForInit(int64_t timeout_ms) {
  const int64_t deadline_ms = SystemClock().MonotonicNs() / 1'000'000 + timeout_ms;
  MutexLock lock(mutex_);
  while (!initialized_ && !closed_) {
    const int64_t left_ms = deadline_ms - SystemClock().MonotonicNs() / 1'000'000;
    if (left_ms <= 0) return false;
    changed_.WaitFor(mutex_, left_ms);
  }
  return initialized_;
}

int VolumeServer::SendFromCodec(struct iovec* iov, int count) {
  const FuseRequest* request = CurrentRequest();
  if (request != nullptr && request->opcode == FUSE_INIT && count == 2 &&
      iov[1].iov_len == sizeof(fuse_init_out) &&
      request->bytes.size() >= sizeof(fuse_in_header) + offsetof(fuse_init_in, unused)) {
    fuse_init_in asked{};
    std::memcpy(&asked, request->bytes.data() + sizeof(fuse_in_header),
                std::min(sizeof asked, request->bytes.size() - sizeof(fuse_in_header)));
    auto* answer = static_cast<fuse_init_out*>(iov[1].iov_base);
    answer->flags |= asked.flags & kFlagsThatLibfuseForgets;
    if (taking_over_) {
      taken_init_reply_.assign(static_cast<const char*>(iov[1].iov_base), iov[1].iov_len);
      return 0;
    }
  }
  const int error = transport_.Send({iov, static_cast<size_t>(count)});
  if (error != 0 && error != ENOENT && error != ENODEV) {
    LogError("fuse_reply_failed",
             {{"errno", error}, {"opcode", request != nullptr ? request->opcode : 0}});
  }
  return error == 0 || error == ENOENT ? error : ENOENT;  // libfuse prints others to stderr
}

int VolumeServer::Reply(const FuseRequest& request, int error, std::span<const iovec> body) {
  fuse_out_header header{
      .len = sizeof(fuse_out_header), .error = -error, .unique = request.reply_unique()};
  std::vector<iovec> all = {{.iov_base = &header, .iov_len = sizeof header}};
  for (const iovec& part : body) {
    header.len += static_cast<uint32_t>(part.iov_len);
    all.push_back(part);
  }
  return transport_.Send(all);
}

void VolumeServer::ReplyError(const FuseRequest& request, int error) { Reply(request, error, {}); }

fuse_entry_out VolumeServer::EntryOut(const NamedInode& named) {
  const Reported told = Report(named.ino, named.inode);
  fuse_entry_out entry{};
  entry.nodeid = named.ino;
  entry.generation = volume_.rollback_epoch();
  entry.entry_valid = kForeverSeconds;
  entry.attr_valid = told.valid_seconds;
  entry.attr = AttrOf(told.stat);
  return entry;
}

bool VolumeServer::ReplyCreated(const FuseRequest& request, const fuse_entry_out& entry,
                                bool writable) {
  fuse_entry_out entry_part = entry;
  fuse_open_out open{};
  open.fh = static_cast<uint64_t>(writable ? Handle::kWriter : Handle::kReader);
  open.open_flags = FOPEN_KEEP_CACHE;
  const iovec body[] = {{.iov_base = &entry_part, .iov_len = sizeof entry_part},
                        {.iov_base = &open, .iov_len = sizeof open}};
  return Reply(request, 0, body) == 0;
}

// O_TMPFILE: fuse_create_in and a name that means nothing; the reply is CREATE's.
void VolumeServer::HandleTmpFile(const FuseRequest& request) {
  fuse_create_in in;
  if (request.bytes.size() < sizeof(fuse_in_header) + sizeof in) return ReplyError(request, EINVAL);
  std::memcpy(&in, request.bytes.data() + sizeof(fuse_in_header), sizeof in);
  const OpContext context = ContextOf(request, options_.connection);
  const uint32_t mode = S_IFREG | (in.mode & 07777);
  AddWriter();  // O_TMPFILE demands write access
  const Result<NamedInode> made = volume_.CreateUnnamed(context, request.node, mode);
  DropWriter();
  if (!made) return ReplyError(request, Failed(made.error()));
  if (ReplyCreated(request, EntryOut(*made), true)) return;
  IgnoreError(volume_.ReleaseInode({}, made->ino, true), "nobody holds what was not answered");
  NoteWriters();
}

void VolumeServer::HandleStatx(const FuseRequest& request) {
  const Result<Inode> inode = volume_.GetAttributes(request.node);
  if (!inode) return ReplyError(request, Failed(inode.error()));
  struct {
    fuse_out_header header;
    FuseStatxOut body;
  } reply{};
  reply.header = {.len = sizeof reply, .error = 0, .unique = request.reply_unique()};
  const Reported told = Report(request.node, *inode);
  reply.body.attr_valid = told.valid_seconds;
  FuseStatx& stat = reply.body.stat;
  stat.mask = STATX_BASIC_STATS | STATX_BTIME;
  stat.blksize = kPageBytes;
  stat.nlink = inode->nlink;
  stat.uid = inode->uid;
  stat.gid = inode->gid;
  stat.mode = static_cast<uint16_t>(inode->mode);
  stat.ino = request.node;
  stat.size = inode->size_bytes;
  stat.blocks = static_cast<uint64_t>(told.stat.st_blocks);
  stat.atime = SxTimeOf(inode->atime);
  stat.btime = SxTimeOf(inode->btime);
  stat.ctime = SxTimeOf(inode->ctime);
  stat.mtime = SxTimeOf(inode->mtime);
  stat.rdev_major = gnu_dev_major(inode->rdev);
  stat.rdev_minor = gnu_dev_minor(inode->rdev);
  const iovec iov{.iov_base = &reply, .iov_len = sizeof reply};
  transport_.Send({&iov, 1});
}

void VolumeServer::AddWriter() {
  MutexLock lock(writers_mutex_);
  ++opening_;
  TellWriters();
}

void VolumeServer::DropWriter() {
  MutexLock lock(writers_mutex_);
  --opening_;
  TellWriters();
}

void VolumeServer::NoteWriters() {
  MutexLock lock(writers_mutex_);
  TellWriters();
}

void VolumeServer::TellWriters() {
  const bool writers = !writers_ended_ && (opening_ > 0 || volume_.AllOpens().writable > 0);
  if (std::exchange(told_writers_, writers) != writers && options_.on_writers) {
    options_.on_writers(writers);
  }
}

void VolumeServer::EndWriters() {
  MutexLock lock(writers_mutex_);
  writers_ended_ = true;
  TellWriters();
}

bool VolumeServer::MayBeDirty(InodeNumber ino) {
  return options_.writeback_cache && volume_.OpensOf(ino).writable > 0;
}

VolumeServer::Reported VolumeServer::Report(InodeNumber ino, const Inode& inode) {
  Reported told{.stat = StatOf(ino, inode), .valid_seconds = kForeverSeconds};
  if (S_ISREG(inode.mode) && MayBeDirty(ino)) {
    told.stat.st_blocks = std::max(told.stat.st_blocks, kWriterBlocks);
    told.valid_seconds = kWriterAttributeSeconds;
  }
  return told;
}

void VolumeServer::ForgetAttributes(InodeNumber ino) {
  struct {
    fuse_out_header header;
    fuse_notify_inval_inode_out body;
  } notice{};
  notice.header = {.len = sizeof notice, .error = FUSE_NOTIFY_INVAL_INODE, .unique = 0};
  notice.body.ino = ino;
  notice.body.off = -1;  // attributes alone: touches no page and waits for nothing
  const iovec iov{.iov_base = &notice, .iov_len = sizeof notice};
  transport_.Send({&iov, 1});  // ENOENT: the kernel holds none
}

void VolumeServer::ReleaseLeftOpens() {
  EndWriters();
  for (const auto& [ino, opens] : volume_.ListOpens()) {
    for (uint32_t i = 0; i < opens.handles; ++i) {
      const Status released = volume_.ReleaseInode({}, ino, i < opens.writable);
      if (!released) LogWarning("fuse_release_failed", {{"error", released.error().ToString()}});
    }
  }
}

int VolumeServer::Failed(const Error& error) {
  if (error.code() == ErrorCode::kDataLoss ||
      (error.code() == ErrorCode::kInternal && !error.message().empty())) {
    const int64_t now_ns = SystemClock().MonotonicNs();
    int64_t last_ns = last_failure_log_ns_.load();
    if (now_ns - last_ns >= kFailureLogIntervalNs &&
        last_failure_log_ns_.compare_exchange_strong(last_ns, now_ns)) {
      const FuseRequest* request = CurrentRequest();
      LogError("fuse_operation_failed", {{"volume", volume_.id().ToHex()},
                                         {"opcode", request != nullptr ? request->opcode : 0},
                                         {"inode", request != nullptr ? request->node : 0},
                                         {"error", error.ToString()}});
    }
  }
  return ErrnoOf(error);
}

}  // namespace cairn
