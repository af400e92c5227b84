// Open counts and the contents of regular files.
//
// Contents have two forms: up to 2 KiB without any extent they are one inline entry; otherwise
// extents. A file goes from inline to extents in the transaction of the call that outgrows it (the
// old bytes become data), and back when it is cut to nothing. Sparse files of any size have no
// entry at all where nothing was written.
//
// Holes: a cut puts one hole from the new size to the end of all offsets, so nothing lies beyond a
// file's size and growing it again reads zeros. allocated_bytes follows from the pages that a
// call's range held before and holds after (volume/file_pages_internal.h). It is a figure for
// st_blocks and decides nothing: a seal may turn pages of zeros into holes and a page that was
// partly a hole into a whole one.
//
// Open counts are in the open table; an unlinked inode's count is also in its orphan record, and
// the last release purges the inode.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "store/base/bytes.h"
#include "volume/file_pages_internal.h"
#include "volume/volume_impl_internal.h"

namespace cairn {
namespace {

constexpr uint64_t kInlineUnitBytes =
    512;  // what one step of st_blocks is: an inline file counts as that many
constexpr uint64_t kEndOfOffsets = std::numeric_limits<uint64_t>::max();

uint64_t InlineAllocation(uint64_t size_bytes) {
  return (size_bytes + kInlineUnitBytes - 1) / kInlineUnitBytes * kInlineUnitBytes;
}

Status RequireFile(const Inode& inode) {
  if (S_ISDIR(inode.mode)) return ErrErrno(EISDIR);
  if (!S_ISREG(inode.mode)) return ErrErrno(EINVAL);
  return {};
}

// A file's allocation after `pages` more of its pages hold data and `less_pages` do not any more:
// at most its size in pages.
uint64_t AllocationOf(uint64_t allocated_bytes, uint64_t pages, uint64_t less_pages,
                      uint64_t size_bytes) {
  const uint64_t more = allocated_bytes + pages * kPageBytes;
  const uint64_t less = less_pages * kPageBytes;
  return std::min(more > less ? more - less : 0, PageCeil(size_bytes));
}

}  // namespace

void VolumeImpl::PutOrphan(Change& change, InodeNumber ino, uint32_t handles, int32_t open_change) {
  Entry entry;
  ByteWriter(entry.payload).U32(handles);
  change.tx.Put(OrphanKey(ino), std::move(entry));
  if (open_change != 0) change.tx.SetOpenCount(ino, open_change);
}

Status VolumeImpl::OpenInode(const OpContext& ctx, InodeNumber ino, bool writable) {
  Gate::Pass pass(gate_);
  if (writable) CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino});
  const Inode inode = CAIRN_TRY(View().GetInode(ino));
  if (writable && S_ISDIR(inode.mode)) return ErrErrno(EISDIR);
  if (inode.nlink == 0 && !read_only_) {
    Change change;
    change.use = SpaceUse::kFreeing;
    PutOrphan(change, ino, opens()->Get(ino).handles + 1, 1);
    CAIRN_TRY(Commit(ctx, std::move(change), {.ino = ino}));
  }
  opens()->Add(ino, writable, ctx.request);
  return {};
}

Status VolumeImpl::ReleaseInode(const OpContext& ctx, InodeNumber ino, bool writable) {
  Gate::Pass pass(gate_);
  InodeLocks::Exclusive lock(inodes_, {ino});
  const uint32_t left = opens()->Drop(ino, writable, ctx.request).handles;
  const FsView view = View();
  const Inode inode = CAIRN_TRY(view.GetInode(ino));
  if (inode.nlink > 0 || read_only_) return {};
  Change change;
  change.use = SpaceUse::kFreeing;
  if (left > 0) {
    PutOrphan(change, ino, left, -1);
  } else {
    change.tx.SetOpenCount(ino, -1);
    CAIRN_TRY(Purge(view, change, ino, inode));
  }
  return Commit(ctx, std::move(change), {.ino = ino});
}

Result<NamedInode> VolumeImpl::CreateUnnamed(const OpContext& ctx, InodeNumber dir, uint32_t mode) {
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Shared lock(inodes_, dir);
  const Inode parent = CAIRN_TRY(LoadDirectory(View(), dir));
  Change change;
  change.use = SpaceUse::kGrowing;
  NamedInode made;
  made.ino = NewInodeNumber(change);
  made.inode = MakeInode(ctx, parent, made.ino, S_IFREG | (mode & ~uint32_t{S_IFMT}));
  made.inode.nlink = 0;
  change.inodes = 1;
  PutInode(change, made.ino, made.inode);
  PutOrphan(change, made.ino, 1, 1);
  // Counted first: who takes over purges an orphan that is committed and not open.
  opens()->Add(made.ino, true, ctx.request);
  if (Status committed = Commit(ctx, std::move(change), {.ino = made.ino}); !committed) {
    opens()->UndoAdd(made.ino, true, ctx.request);
    return std::unexpected(std::move(committed).error());
  }
  return made;
}

Result<std::optional<std::string>> VolumeImpl::InlineContents(const FsView& view, InodeNumber ino,
                                                              const Inode& inode) const {
  if (inode.size_bytes == 0 || inode.size_bytes > kInlineLimitBytes) return std::nullopt;
  std::optional<Entry> entry = CAIRN_TRY(view.layer()->Get(InlineKey(ino)));
  if (!entry) return std::nullopt;
  if (entry->payload.size() != inode.size_bytes) {
    return Err(ErrorCode::kDataLoss, "inline data and size of an inode differ", EIO);
  }
  return std::move(entry->payload);
}

Result<size_t> VolumeImpl::Read(InodeNumber ino, uint64_t offset, std::span<char> out) {
  InodeLocks::Shared lock(inodes_, ino);
  return View().Read(ino, offset, out);
}

Status VolumeImpl::WriteData(const FsView& view, Change& change, InodeNumber ino, Inode& inode,
                             uint64_t offset, std::string_view data, std::string& keep) {
  const uint64_t old_size = inode.size_bytes;
  const uint64_t end = offset + data.size();
  const uint64_t size = std::max(old_size, end);
  std::optional<std::string> old = CAIRN_TRY(InlineContents(view, ino, inode));
  inode.size_bytes = size;
  bool inline_now = size <= kInlineLimitBytes;
  if (inline_now && !old && old_size > 0) {  // a small file with extents keeps them
    inline_now = CAIRN_TRY(CountDataPages(*view.layer(), ino, 0, old_size)).now == 0;
  }
  if (inline_now) {
    std::string contents = old ? std::move(*old) : std::string();
    contents.resize(size, '\0');
    contents.replace(offset, data.size(), data);
    change.tx.Put(InlineKey(ino), Entry{std::move(contents), {}});
    inode.allocated_bytes = InlineAllocation(size);
    return {};
  }
  const uint64_t pages = (PageCeil(end) - PageFloor(offset)) / kPageBytes;
  if (old) {  // outgrown: the old bytes up to where the new ones begin become data too
    keep = std::move(*old);
    change.tx.Delete(InlineKey(ino));
    const uint64_t head = std::min<uint64_t>(keep.size(), offset);
    if (head > 0) change.tx.PutData(ino, 0, std::string_view(keep).substr(0, head));
    change.tx.PutData(ino, offset, data);
    const uint64_t head_pages = head > 0 && PageFloor(offset) > 0 ? 1 : 0;
    inode.allocated_bytes = AllocationOf(0, pages + head_pages, 0, size);
    return {};
  }
  change.tx.PutData(ino, offset, data);
  uint64_t before = 0;  // pages of the range that hold data already; none does beyond the old size
  const uint64_t known_end = std::min(end, PageCeil(old_size));
  if (offset < known_end) {
    before = CAIRN_TRY(CountDataPages(*view.layer(), ino, offset, known_end)).now;
  }
  inode.allocated_bytes =
      std::max(AllocationOf(inode.allocated_bytes, pages, before, size), pages * kPageBytes);
  return {};
}

Status VolumeImpl::ResizeData(const FsView& view, Change& change, InodeNumber ino, Inode& inode,
                              uint64_t new_size, std::optional<std::string>& contents) {
  const uint64_t old_size = std::exchange(inode.size_bytes, new_size);
  if (contents) {
    if (new_size <= kInlineLimitBytes) contents->resize(new_size, '\0');
    return {};
  }
  if (new_size >= old_size) return {};
  change.tx.PutHole(ino, new_size, kEndOfOffsets - new_size);
  if (new_size == 0) {
    inode.allocated_bytes = 0;
    return {};
  }
  const Layer& layer = *view.layer();
  if (new_size <= old_size / 2) {  // count the smaller side
    const PageCount kept = CAIRN_TRY(CountDataPages(layer, ino, 0, new_size));
    // The page of the cut stays only if it has data before the cut.
    const PageCount last = CAIRN_TRY(CountDataPages(layer, ino, new_size, PageCeil(new_size)));
    inode.allocated_bytes = (kept.now - (last.now - last.without)) * kPageBytes;
    return {};
  }
  const PageCount cut = CAIRN_TRY(CountDataPages(layer, ino, new_size, PageCeil(old_size)));
  inode.allocated_bytes = AllocationOf(inode.allocated_bytes, cut.without, cut.now, new_size);
  return {};
}

Status VolumeImpl::ZeroData(const FsView& view, Change& change, InodeNumber ino, Inode& inode,
                            uint64_t offset, uint64_t length,
                            std::optional<std::string>& contents) {
  const uint64_t end = std::min(offset + length, inode.size_bytes);
  if (offset >= end) return {};
  if (contents) {
    std::fill(contents->begin() + offset, contents->begin() + end, '\0');
    return {};
  }
  change.tx.PutHole(ino, offset, end - offset);
  const PageCount count = CAIRN_TRY(CountDataPages(*view.layer(), ino, offset, end));
  inode.allocated_bytes =
      AllocationOf(inode.allocated_bytes, count.without, count.now, inode.size_bytes);
  return {};
}

void VolumeImpl::StoreInline(Change& change, InodeNumber ino, Inode& inode,
                             std::optional<std::string>& contents) {
  if (!contents) return;
  if (inode.size_bytes == 0) {
    change.tx.Delete(InlineKey(ino));
    inode.allocated_bytes = 0;
  } else if (inode.size_bytes <= kInlineLimitBytes) {
    change.tx.Put(InlineKey(ino), Entry{*contents, {}});
    inode.allocated_bytes = InlineAllocation(inode.size_bytes);
  } else {
    change.tx.Delete(InlineKey(ino));
    change.tx.PutData(ino, 0, *contents);
    inode.allocated_bytes = kPageBytes;
  }
}

Result<size_t> VolumeImpl::Write(const OpContext& ctx, InodeNumber ino, uint64_t offset,
                                 std::string_view data, bool kill_privileges) {
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino});
  const FsView view = View();
  Inode inode = CAIRN_TRY(view.GetInode(ino));
  CAIRN_TRY(RequireFile(inode));
  if (data.empty()) return size_t{0};
  if (offset > kMaxFileBytes || data.size() > kMaxFileBytes - offset) return ErrErrno(EFBIG);

  Change change;
  std::string keep;
  const uint64_t old_size = inode.size_bytes;
  CAIRN_TRY(WriteData(view, change, ino, inode, offset, data, keep));
  if (kill_privileges) CAIRN_TRY(KillPrivileges(view, change, ino, inode));
  inode.mtime = inode.ctime = clock_.Now();
  ++inode.change_counter;
  change.bytes = static_cast<int64_t>(inode.size_bytes - old_size);
  PutInode(change, ino, inode);
  CAIRN_TRY(Commit(ctx, std::move(change), {.ino = ino, .value = data.size()}));
  return data.size();
}

Status VolumeImpl::Allocate(const OpContext& ctx, InodeNumber ino, uint64_t offset, uint64_t length,
                            int mode) {
  constexpr int kKnown = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
  const bool keep_size = mode & FALLOC_FL_KEEP_SIZE;
  const bool punch = mode & FALLOC_FL_PUNCH_HOLE;
  const bool zero = mode & FALLOC_FL_ZERO_RANGE;
  if ((mode & ~kKnown) || (punch && (zero || !keep_size))) return ErrErrno(EOPNOTSUPP);
  if (length == 0) return ErrErrno(EINVAL);
  Gate::Pass pass(gate_);
  CAIRN_TRY(CheckWritable());
  InodeLocks::Exclusive lock(inodes_, {ino});
  const FsView view = View();
  Inode inode = CAIRN_TRY(view.GetInode(ino));
  if (S_ISDIR(inode.mode)) return ErrErrno(EISDIR);
  if (!S_ISREG(inode.mode)) return ErrErrno(S_ISFIFO(inode.mode) ? ESPIPE : ENODEV);
  if (offset > kMaxFileBytes || length > kMaxFileBytes - offset) return ErrErrno(EFBIG);

  Change change;
  const uint64_t old_size = inode.size_bytes;
  const uint64_t end = offset + length;
  if (punch) change.use = SpaceUse::kFreeing;
  if (end > old_size && !punch) {
    MutexLock totals(totals_mutex_);
    CAIRN_TRY(CheckQuota(0, static_cast<int64_t>(end - old_size)));
  }
  if (end > old_size && !punch) {
    CAIRN_TRY(head_->CheckRoom(SpaceUse::kGrowing, end - old_size));
  }
  const bool grows = end > old_size && !keep_size;
  std::optional<std::string> contents = CAIRN_TRY(InlineContents(view, ino, inode));
  if (punch || zero) CAIRN_TRY(ZeroData(view, change, ino, inode, offset, length, contents));
  if (grows) CAIRN_TRY(ResizeData(view, change, ino, inode, end, contents));
  if (punch || zero || grows) StoreInline(change, ino, inode, contents);
  const TimeSpec now = clock_.Now();
  inode.ctime = now;
  if (punch || zero || grows) inode.mtime = now;
  ++inode.change_counter;
  change.bytes = static_cast<int64_t>(inode.size_bytes - old_size);
  PutInode(change, ino, inode);
  return Commit(ctx, std::move(change), {.ino = ino});
}

Result<uint64_t> VolumeImpl::SeekData(InodeNumber ino, uint64_t offset) {
  InodeLocks::Shared lock(inodes_, ino);
  return View().SeekData(ino, offset);
}

Result<uint64_t> VolumeImpl::SeekHole(InodeNumber ino, uint64_t offset) {
  InodeLocks::Shared lock(inodes_, ino);
  return View().SeekHole(ino, offset);
}

}  // namespace cairn
