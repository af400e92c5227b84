// Opening a volume, the commit that every operation ends in, and the states of a volume as a whole.
//
// Order of a mutating call: pass the gate -> read-only? -> lock the inodes -> read what is there ->
// decide (every errno is decided before anything changes) -> build one transaction -> quota ->
// Head::Commit (which refuses what the disk has no room for; a call that lets go of space says so
// in Change::use and is refused last). What a call changed is seen by every reader as soon as the
// commit returns, and is durable after the next Sync or Freeze.
//
// Freeze closes the gate, so the frozen generation holds exactly the transactions of calls that
// returned before.
#include "volume/volume.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "volume/volume_impl_internal.h"

namespace cairn {
namespace {

constexpr uint32_t kRootMode = S_IFDIR | 0755;

}  // namespace

Result<std::unique_ptr<Volume>> Volume::Open(FileSystem& fs, KeyRing& keys, BlockStore& store,
                                             Clock& clock, const VolumeOptions& options) {
  return OpenOn(CAIRN_TRY(Head::Open(fs, keys, store, options.head)), clock, options);
}

Result<std::unique_ptr<Volume>> Volume::OpenOn(std::unique_ptr<Head> head, Clock& clock,
                                               const VolumeOptions& options) {
  auto volume = std::make_unique<VolumeImpl>(clock, options, std::move(head));
  CAIRN_TRY(volume->Start());
  return volume;
}

VolumeImpl::VolumeImpl(Clock& clock, const VolumeOptions& options, std::unique_ptr<Head> head)
    : clock_(clock),
      options_(options),
      head_(std::move(head)),
      read_only_(options.read_only),
      opens_(options.opens != nullptr ? options.opens : OpenTable::Private()) {
  options_.head.base.reset();  // the head lets go of it when it is sealed over
  const HeadState state = head_->state();
  next_ino_ = state.next_ino;
  MutexLock lock(totals_mutex_);
  inodes_total_ = state.total_inodes;
  bytes_total_ = state.total_bytes;
}

Status VolumeImpl::Start() {
  const auto root = CAIRN_TRY(head_->current()->Get(AttributesKey(kRootInode)));
  if (root) {
    // Opens of files whose creation was never committed.
    for (const OpenTable::Listed& open : ListOpens()) {
      const auto inode = CAIRN_TRY(head_->current()->Get(AttributesKey(open.ino)));
      if (!inode) opens()->Forget(open.ino);
    }
    if (!read_only_) CAIRN_TRY(PurgeUnopenedOrphans());
    return {};
  }
  if (read_only_) {
    return Err(ErrorCode::kFailedPrecondition, "a new volume cannot be opened read-only", EROFS);
  }
  Inode inode = MakeInode({}, {}, kRootInode, kRootMode);
  inode.parent = kRootInode;
  Change change;
  change.inodes = 1;
  change.bytes = static_cast<int64_t>(inode.size_bytes);
  change.tx.SetNextInode(next_ino_);
  PutInode(change, kRootInode, inode);
  return Commit({}, std::move(change), {.ino = kRootInode});
}

Status VolumeImpl::CheckWritable() const {
  if (read_only_.load(std::memory_order_acquire)) return ErrErrno(EROFS);
  return {};
}

Status VolumeImpl::CheckQuota(int64_t inodes, int64_t bytes) const {
  if (inodes > 0 && options_.quota_inodes > 0 &&
      inodes_total_ + static_cast<uint64_t>(inodes) > options_.quota_inodes) {
    return Err(ErrorCode::kExhausted,
               fmt::format("the Environment's quota of {} inodes is used up: remove files",
                           options_.quota_inodes),
               ENOSPC);
  }
  if (bytes > 0 && options_.quota_bytes > 0 &&
      bytes_total_ + static_cast<uint64_t>(bytes) > options_.quota_bytes) {
    return Err(ErrorCode::kExhausted,
               fmt::format("the Environment's quota of {} bytes leaves no room: remove files",
                           options_.quota_bytes),
               ENOSPC);
  }
  return {};
}

Status VolumeImpl::Commit(const OpContext& ctx, Change&& change, const Answer& answer) {
  if (!ctx.request.connection.is_zero()) {
    ReplyRecord reply = ctx.request;
    reply.status = 0;
    reply.ino = answer.ino;
    reply.value = answer.value;
    change.tx.SetReply(reply);
  }
  const int64_t inodes = change.inodes;
  const int64_t bytes = change.bytes;
  change.tx.SetSpaceUse(change.use);
  change.tx.AddTotals(inodes, bytes);
  CAIRN_TRY(Reserve(inodes, bytes));
  const Status committed = head_->Commit(std::move(change.tx));
  // What shrinks gives its room free when it is committed, what grows takes it before.
  MutexLock lock(totals_mutex_);
  if (committed ? inodes < 0 : inodes > 0) {
    inodes_total_ += static_cast<uint64_t>(committed ? inodes : -inodes);
  }
  if (committed ? bytes < 0 : bytes > 0) {
    bytes_total_ += static_cast<uint64_t>(committed ? bytes : -bytes);
  }
  return committed;
}

Status VolumeImpl::Reserve(int64_t inodes, int64_t bytes) {
  MutexLock lock(totals_mutex_);
  CAIRN_TRY(CheckQuota(inodes, bytes));
  if (inodes > 0) inodes_total_ += static_cast<uint64_t>(inodes);
  if (bytes > 0) bytes_total_ += static_cast<uint64_t>(bytes);
  return {};
}

InodeNumber VolumeImpl::NewInodeNumber(Change& change) {
  const InodeNumber ino = next_ino_.fetch_add(1);
  change.tx.SetNextInode(ino + 1);
  return ino;
}

void VolumeImpl::PutInode(Change& change, InodeNumber ino, const Inode& inode) {
  change.tx.Put(AttributesKey(ino), Entry{inode.Encode(), {}});
}

Status VolumeImpl::PurgeUnopenedOrphans() {
  const std::string begin = KeyPrefix(kNoInode, KeyKind::kOrphan);
  std::vector<InodeNumber> orphans;
  CAIRN_TRY(
      head_->current()->Scan(begin, PrefixEnd(begin), [&](std::string_view key, const Entry&) {
        if (key.size() == begin.size() + 8)
          orphans.push_back(BigEndian64(key.substr(begin.size())));
        return true;
      }));
  for (const InodeNumber ino : orphans) {
    InodeLocks::Exclusive lock(inodes_, {ino});
    if (opens()->Get(ino).handles > 0) continue;
    const FsView view = View();
    const Inode inode = CAIRN_TRY(view.GetInode(ino));
    if (inode.nlink != 0) continue;  // linked again since the scan
    Change change;
    change.use = SpaceUse::kFreeing;
    CAIRN_TRY(Purge(view, change, ino, inode));
    CAIRN_TRY(Commit({}, std::move(change), {.ino = ino}));
  }
  return {};
}

Status VolumeImpl::Sync() { return head_->Sync(); }

Result<std::shared_ptr<const Layer>> VolumeImpl::Freeze() {
  Gate::Closed closed(gate_);
  return head_->Freeze();
}

void VolumeImpl::SetReadOnly(bool read_only) {
  {
    Gate::Closed closed(gate_);
    read_only_ = read_only;
  }
  if (read_only) return;
  Gate::Pass pass(gate_);
  if (CheckWritable()) IgnoreError(PurgeUnopenedOrphans(), "they stay listed for the next open");
}

VolumeStatus VolumeImpl::GetStatus() {
  VolumeStatus status;
  {
    MutexLock lock(totals_mutex_);
    status.inodes = inodes_total_;
    status.logical_bytes = bytes_total_;
  }
  status.open_handles = opens()->total().handles;
  status.quota_bytes = options_.quota_bytes;
  status.quota_inodes = options_.quota_inodes;
  status.unsealed_records = head_->active_records();
  status.unsealed_bytes = head_->active_payload_bytes();
  for (const auto& layer : head_->unsealed()) {
    status.unsealed_records += layer->delta_count();
    ++status.unsealed_generations;
  }
  status.read_only = read_only_ || head_->failed();
  if (options_.head.space != nullptr) status.disk = options_.head.space->ForWriters();
  return status;
}

std::vector<InodeNumber> VolumeImpl::WritableOpens() {
  std::vector<InodeNumber> writable;
  for (const OpenTable::Listed& open : ListOpens()) {
    if (open.opens.writable > 0) writable.push_back(open.ino);
  }
  return writable;
}

void VolumeImpl::BeginConnection(const Id128& connection, std::shared_ptr<OpenTable> opens) {
  Gate::Closed closed(gate_);
  head_->SetLiveConnection(connection);
  MutexLock lock(opens_mutex_);
  opens_ = opens != nullptr ? std::move(opens) : OpenTable::Private();
}

void VolumeImpl::CountOpen(const OpContext& ctx, InodeNumber ino, bool writable) {
  Gate::Pass pass(gate_);
  InodeLocks::Exclusive lock(inodes_, {ino});
  opens()->Add(ino, writable, ctx.request);
}

}  // namespace cairn
