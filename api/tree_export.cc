// Export: a walk over a view with one stack of open host directories makes directories, links and
// devices itself and hands regular files, in batches, to threads that write them. Every host name
// is made exclusively, relative to its directory's descriptor, in a tree that was empty and is
// closed to others until it is done; so nothing that a guest wrote (a link, a "..") can lead
// elsewhere. A directory gets its owner, mode and times when all below it is made: the target last.
//
//   walk --batch--> queue (kMaxQueued) --> kThreads x WriteFiles --> last one of a directory:
//   Finish
//
// The first error ends it: the walk stops, and what waits is dropped.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "api/host_tree_writer.h"
#include "api/tree_transfer.h"
#include "store/base/mutex.h"
#include "store/base/unique_fd.h"

namespace cairn {
namespace {

constexpr size_t kMaxDepth = 1024;
constexpr size_t kBatchFiles = 64;
constexpr size_t kMaxQueued = 4;
// Making a file is mostly the kernel's work, and the next batch is read meanwhile.
constexpr size_t kThreads = 3;

class Exporter {
 public:
  Exporter(const FsView& view, std::string target)
      : view_(view), target_(std::move(target)), writer_(view_, root_, target_) {}

  Result<TransferCounts> Run(const std::string& path) {
    auto found = view_.Resolve(path, true);
    if (!found) {
      return std::unexpected(
          std::move(found).error().WithContext(fmt::format("{} inside the Environment", path)));
    }
    const InodeNumber top = *found;
    const Inode inode = CAIRN_TRY(view_.GetInode(top));
    if (!S_ISDIR(inode.mode))
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} is not a directory inside the Environment", path));
    if (::mkdir(target_.c_str(), 0700) != 0 && errno != EEXIST)
      return std::unexpected(writer_.HostError("cannot make", ""));
    root_ = UniqueFd(::open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root_.valid()) return std::unexpected(writer_.HostError("cannot open the directory", ""));
    CAIRN_TRY(RequireEmpty());
    if (::fchmod(root_.get(), 0700) != 0)
      return std::unexpected(writer_.HostError("cannot close to others", ""));
    UniqueFd fd(::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return std::unexpected(writer_.HostError("cannot open the directory", ""));

    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([this] { WriteQueued(); });
    const Status walked = Walk(std::move(fd), top, inode);
    {
      MutexLock lock(mutex_);
      walked_ = true;
      if (!walked) Fail(walked.error());
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads) thread.join();
    MutexLock lock(mutex_);
    if (!status_) return std::unexpected(status_.error());
    own_counts_.files += counts_.files;
    own_counts_.bytes += counts_.bytes;
    return own_counts_;
  }

 private:
  struct Level {
    std::shared_ptr<HostDirectory> dir;
    std::vector<DirEntry> entries;
    size_t next = 0;
  };
  using Batch = std::vector<HostFile>;

  Status RequireEmpty() {
    const int listing = ::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* dir = listing < 0 ? nullptr : ::fdopendir(listing);
    if (dir == nullptr) {
      const Error error = writer_.HostError("cannot list", "");
      if (listing >= 0) ::close(listing);
      return std::unexpected(error);
    }
    bool empty = true;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") empty = false;
    }
    ::closedir(dir);
    if (!empty)
      return Err(ErrorCode::kAlreadyExists,
                 fmt::format("{} is not empty: name a new or an empty directory", target_));
    return {};
  }

  // ---- the walk's thread ----

  Status Walk(UniqueFd fd, InodeNumber top, const Inode& inode) {
    auto dir = std::make_shared<HostDirectory>();
    dir->fd = std::move(fd);
    dir->ino = top;
    dir->inode = inode;
    CAIRN_TRY(Enter(std::move(dir)));
    while (!stack_.empty()) {
      if (stack_.back().next == stack_.back().entries.size()) {
        const std::shared_ptr<HostDirectory> done = std::move(stack_.back().dir);
        stack_.pop_back();
        CAIRN_TRY(Leave(done.get()));
      } else {
        const DirEntry entry = stack_.back().entries[stack_.back().next++];
        CAIRN_TRY(CopyEntry(entry));
      }
    }
    return Queue();
  }

  Status Enter(std::shared_ptr<HostDirectory> dir) {
    if (stack_.size() >= kMaxDepth)
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("the tree is deeper than {} directories", kMaxDepth));
    Level level{.dir = std::move(dir), .entries = {}, .next = 0};
    CAIRN_TRY(view_.ReadDir(level.dir->ino, 0, [&](const DirEntry& entry) {
      level.entries.push_back(entry);
      return true;
    }));
    // A tree that was imported or unpacked has its inodes and its blocks in that order, not in the
    // directory's, which is that of hashes.
    std::ranges::sort(level.entries, {}, &DirEntry::ino);
    stack_.push_back(std::move(level));
    return {};
  }

  Status CopyEntry(const DirEntry& entry) {
    const std::shared_ptr<HostDirectory>& dir = stack_.back().dir;
    // The view's names were checked when they were made; a damaged tree must still not lead out of
    // the target.
    if (entry.name.empty() || entry.name == "." || entry.name == ".." ||
        entry.name.find('/') != std::string::npos || entry.name.find('\0') != std::string::npos) {
      return Err(ErrorCode::kDataLoss, "a directory holds an impossible name");
    }
    HostFile file{.dir = dir,
                  .name = entry.name,
                  .ino = entry.ino,
                  .inode = CAIRN_TRY(view_.GetInode(entry.ino))};
    const std::string path = dir->path + entry.name;
    if (S_ISDIR(file.inode.mode)) return MakeDirectory(file, path);
    if (file.inode.nlink > 1) {
      const auto [known, fresh] = linked_.emplace(entry.ino, path);
      if (!fresh) {
        CAIRN_TRY(writer_.WriteLink(file, known->second));
        ++own_counts_.links;
        return {};
      }
    }
    if (!S_ISREG(file.inode.mode)) return writer_.WriteSpecial(file, own_counts_);
    // Its further names need it.
    if (file.inode.nlink > 1) return writer_.WriteFiles({&file, 1}, own_room_, own_counts_);
    const uint64_t size = file.inode.size_bytes;
    if (batch_.size() == kBatchFiles || batch_bytes_ + size > HostTreeWriter::kBatchBytes) {
      CAIRN_TRY(Queue());
    }
    dir->pending.fetch_add(1);
    batch_.push_back(std::move(file));
    batch_bytes_ += size;
    return {};
  }

  Status MakeDirectory(const HostFile& file, const std::string& path) {
    const int above = file.dir->fd.get();
    if (::mkdirat(above, file.name.c_str(), 0700) != 0)
      return std::unexpected(writer_.HostError("cannot make", path));
    auto dir = std::make_shared<HostDirectory>();
    dir->fd = UniqueFd(
        ::openat(above, file.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!dir->fd.valid()) return std::unexpected(writer_.HostError("cannot open", path));
    dir->ino = file.ino;
    dir->inode = file.inode;
    dir->path = path + "/";
    dir->above = file.dir;
    file.dir->pending.fetch_add(1);
    ++own_counts_.directories;
    return Enter(std::move(dir));
  }

  // Hands over the batch that was gathered. Waits for room; the error that ended the export.
  Status Queue() {
    if (batch_.empty()) return {};
    Batch batch;
    batch.swap(batch_);
    batch_bytes_ = 0;
    MutexLock lock(mutex_);
    while (status_ && queue_.size() >= kMaxQueued) changed_.Wait(mutex_);
    if (!status_) return status_;
    queue_.push_back(std::move(batch));
    changed_.NotifyAll();
    return {};
  }

  // ---- any thread ----

  // One thing less to come in `dir`. Finishes it with the last one, and so on upwards.
  Status Leave(HostDirectory* dir) {
    while (dir != nullptr && dir->pending.fetch_sub(1) == 1) {
      CAIRN_TRY(writer_.SetAttributes(dir->fd.get(), dir->ino, dir->inode, dir->path));
      dir = dir->above.get();
    }
    return {};
  }

  void WriteQueued() {
    std::vector<char> room(HostTreeWriter::kBatchBytes);
    TransferCounts counts;
    while (true) {
      Batch batch;
      {
        MutexLock lock(mutex_);
        while (status_ && queue_.empty() && !walked_) changed_.Wait(mutex_);
        if (!status_ || queue_.empty()) break;
        batch = std::move(queue_.front());
        queue_.pop_front();
        changed_.NotifyAll();
      }
      Status status = writer_.WriteFiles(batch, room, counts);
      for (const HostFile& file : batch) {
        if (status) status = Leave(file.dir.get());
      }
      if (status) continue;
      MutexLock lock(mutex_);
      Fail(status.error());
    }
    MutexLock lock(mutex_);
    counts_.files += counts.files;
    counts_.bytes += counts.bytes;
  }

  // The first one counts.
  void Fail(const Error& error) REQUIRES(mutex_) {
    if (status_) status_ = std::unexpected(error);
    changed_.NotifyAll();
  }

  const FsView& view_;
  const std::string target_;
  UniqueFd root_;
  const HostTreeWriter writer_;

  // The walk's.
  std::vector<Level> stack_;
  std::map<InodeNumber, std::string> linked_;
  Batch batch_;
  uint64_t batch_bytes_ = 0;
  std::vector<char> own_room_ = std::vector<char>(HostTreeWriter::kBatchBytes);
  TransferCounts own_counts_;

  Mutex mutex_;  // never held over I/O
  CondVar changed_;
  std::deque<Batch> queue_ GUARDED_BY(mutex_);  // at most kMaxQueued
  bool walked_ GUARDED_BY(mutex_) = false;
  Status status_ GUARDED_BY(mutex_);
  TransferCounts counts_ GUARDED_BY(mutex_);  // of the threads that ended
};

}  // namespace

Result<TransferCounts> ExportTree(const FsView& view, const std::string& path,
                                  const std::string& target) {
  CAIRN_TRY(RefuseFusePath(target));
  return Exporter(view, target).Run(path);
}

}  // namespace cairn
