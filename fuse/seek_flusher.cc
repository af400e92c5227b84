// FUSE_NOTIFY_INVAL_INODE -> invalidate_inode_pages2_range -> fuse_launder_folio: each dirty page
// is written and waited for (fs/fuse/inode.c, mm/truncate.c). Not fsync through the barrier helper:
// lseek(2) holds the inode's lock while it waits for us, and fsync wants it. The clean pages from
// `offset` on are dropped too: a price paid only on files that are open for writing.
#include "fuse/seek_flusher.h"

#include <linux/fuse.h>

#include <utility>

namespace cairn {
namespace {

constexpr size_t kMaxWaiting = 1024;

}  // namespace

SeekFlusher::SeekFlusher(Transport& transport)
    : transport_(transport), thread_([this] { Loop(); }) {}

SeekFlusher::~SeekFlusher() { Stop(); }

void SeekFlusher::FlushThen(uint64_t ino, uint64_t offset, std::function<void(bool)> answer) {
  {
    MutexLock lock(mutex_);
    if (!stopping_ && items_.size() < kMaxWaiting) {
      items_.push_back({.ino = ino, .offset = offset, .answer = std::move(answer)});
      changed_.NotifyOne();
      return;
    }
  }
  answer(false);
}

void SeekFlusher::Stop() {
  std::deque<Item> left;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    left.swap(items_);
    changed_.NotifyOne();
  }
  for (const Item& item : left) item.answer(false);
  if (thread_.joinable()) thread_.join();
}

void SeekFlusher::Loop() {
  while (true) {
    Item item;
    {
      MutexLock lock(mutex_);
      while (items_.empty() && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    struct {
      fuse_out_header header;
      fuse_notify_inval_inode_out body;
    } notice{};
    notice.header = {.len = sizeof notice, .error = FUSE_NOTIFY_INVAL_INODE, .unique = 0};
    notice.body.ino = item.ino;
    notice.body.off = static_cast<int64_t>(item.offset);
    const iovec iov{.iov_base = &notice, .iov_len = sizeof notice};
    // ENOENT: the kernel does not know the inode. EBUSY: a page was dirtied again after it had been
    // written. Both are fine.
    transport_.Send({&iov, 1});
    item.answer(true);
  }
}

}  // namespace cairn
