// Every changing call is made on the host at once and its inverse remembered: the old bytes of each
// sector that a write or a truncate changes, the old place of each name. A sync forgets the
// inverses it makes unnecessary; a power cut applies a random part of what is left, newest first.
// Reads see what was written, as with a page cache. One lock over everything: tests want exact
// counts more than speed.
#include "tests/support/faulty_file_system.h"

#include <algorithm>
#include <cerrno>

#include "store/base/check.h"

namespace cairn {
namespace {

std::string DirOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// A directory is named with and without a slash at its end.
std::string Plain(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

class FaultyFileSystem::FaultyFile final : public File {
 public:
  FaultyFile(FaultyFileSystem& fs, std::unique_ptr<File> file, std::shared_ptr<Node> node,
             uint64_t boot)
      : fs_(fs),
        file_(std::move(file)),
        node_(std::move(node)),
        path_(file_->path()),
        boot_(boot) {}

  Result<size_t> ReadAt(uint64_t offset, std::span<char> out) override {
    {
      MutexLock lock(fs_.mutex_);
      bool after = false;
      CAIRN_TRY(Begin(Call::kRead, after));
      fs_.read_bytes_ += out.size();
    }
    return file_->ReadAt(offset, out);
  }

  Status WriteAt(uint64_t offset, std::string_view data) override {
    MutexLock lock(fs_.mutex_);
    bool after = false;
    CAIRN_TRY(Begin(Call::kWrite, after));
    CAIRN_TRY(TakeSpace(offset, data.size(), "write "));
    fs_.Remember(*node_, *file_, offset, data.size());
    CAIRN_TRY(file_->WriteAt(offset, data));
    return fs_.Leave(after);
  }

  Status Sync() override {
    MutexLock lock(fs_.mutex_);
    bool after = false;
    const Status begun = Begin(Call::kSync, after);
    if (!begun) {
      node_->lost.merge(node_->undo);
      node_->undo.clear();
      return begun;
    }
    node_->undo.clear();
    node_->durable_bytes = CAIRN_TRY(file_->SizeBytes());
    return fs_.Leave(after);
  }

  Status Truncate(uint64_t size_bytes) override {
    MutexLock lock(fs_.mutex_);
    bool after = false;
    CAIRN_TRY(Begin(Call::kTruncate, after));
    const uint64_t size = CAIRN_TRY(file_->SizeBytes());
    if (size_bytes < size) fs_.Remember(*node_, *file_, size_bytes, size - size_bytes);
    CAIRN_TRY(file_->Truncate(size_bytes));
    if (fs_.space_left_ >= 0 && size_bytes < size) {
      fs_.space_left_ += static_cast<int64_t>(size - size_bytes);
    }
    return fs_.Leave(after);
  }

  Status Allocate(uint64_t offset, uint64_t length_bytes, bool keep_size) override {
    MutexLock lock(fs_.mutex_);
    bool after = false;
    CAIRN_TRY(Begin(Call::kAllocate, after));
    if (!keep_size) CAIRN_TRY(TakeSpace(offset, length_bytes, "fallocate "));
    CAIRN_TRY(file_->Allocate(offset, length_bytes, keep_size));
    return fs_.Leave(after);
  }

  Result<uint64_t> SizeBytes() override { return file_->SizeBytes(); }
  const std::string& path() const override { return path_; }

 private:
  Status Begin(Call call, bool& after) REQUIRES(fs_.mutex_) {
    if (boot_ != fs_.boot_) return ErrErrno(EIO, path_ + " was open when the power was cut");
    return fs_.Enter(call, after);
  }

  // Only a file that becomes longer takes space.
  Status TakeSpace(uint64_t offset, uint64_t length_bytes, const char* doing) REQUIRES(fs_.mutex_) {
    const uint64_t size = CAIRN_TRY(file_->SizeBytes());
    const uint64_t end = offset + length_bytes;
    if (fs_.space_left_ < 0 || end <= size) return {};
    const auto grown = static_cast<int64_t>(end - std::max(size, std::min(offset, end)));
    if (grown > fs_.space_left_) return ErrErrno(ENOSPC, doing + path_);
    fs_.space_left_ -= grown;
    return {};
  }

  FaultyFileSystem& fs_;
  const std::unique_ptr<File> file_;
  const std::shared_ptr<Node> node_;
  const std::string path_;
  const uint64_t boot_;
};

FaultyFileSystem::FaultyFileSystem(std::string scratch)
    : host_(HostFileSystem()), scratch_(std::move(scratch)) {
  CAIRN_CHECK(host_.MakeDir(scratch_).has_value());
}

FaultyFileSystem::~FaultyFileSystem() { IgnoreError(RemoveTree(host_, scratch_), "only litter"); }

void FaultyFileSystem::FailNth(Call call, uint64_t n, int sys_errno, uint64_t times) {
  MutexLock lock(mutex_);
  const auto kind = static_cast<size_t>(call);
  faults_[kind].push_back({.at = counts_[kind] + n, .times = times, .sys_errno = sys_errno});
}

void FaultyFileSystem::SetSpaceLeft(int64_t bytes) {
  MutexLock lock(mutex_);
  space_left_ = bytes;
}

int64_t FaultyFileSystem::space_left() const {
  MutexLock lock(mutex_);
  return space_left_;
}

Result<DiskSpace> FaultyFileSystem::Space(const std::string& dir) {
  MutexLock lock(mutex_);
  if (off_) return ErrErrno(EIO, "the power is off");
  if (space_left_ < 0) return host_.Space(dir);
  return DiskSpace{.total_bytes = kDiskBytes, .free_bytes = static_cast<uint64_t>(space_left_)};
}

void FaultyFileSystem::PowerOffAfter(uint64_t n) {
  MutexLock lock(mutex_);
  off_at_ = changing_ + n;
}

bool FaultyFileSystem::off() const {
  MutexLock lock(mutex_);
  return off_;
}

uint64_t FaultyFileSystem::calls(Call call) const {
  MutexLock lock(mutex_);
  return counts_[static_cast<size_t>(call)];
}

uint64_t FaultyFileSystem::read_bytes() const {
  MutexLock lock(mutex_);
  return read_bytes_;
}

uint64_t FaultyFileSystem::changing_calls() const {
  MutexLock lock(mutex_);
  return changing_;
}

Status FaultyFileSystem::Enter(Call call, bool& after) {
  if (off_) return ErrErrno(EIO, "the power is off");
  const auto kind = static_cast<size_t>(call);
  const uint64_t number = ++counts_[kind];
  if (call != Call::kRead) after = ++changing_ == off_at_;
  for (const Fault& fault : faults_[kind]) {
    if (number >= fault.at && number < fault.at + fault.times) {
      return ErrErrno(fault.sys_errno, "injected");
    }
  }
  return {};
}

Status FaultyFileSystem::Leave(bool after) {
  if (!after) return {};
  off_ = true;
  return ErrErrno(EIO, "the power went off");
}

std::shared_ptr<FaultyFileSystem::Node> FaultyFileSystem::NodeOf(const std::string& path) {
  std::shared_ptr<Node>& node = nodes_[path];
  if (node == nullptr) {
    node = std::make_shared<Node>();
    node->path = path;
    if (const auto file = host_.Open(path, {.read_only = true})) {
      if (const auto size = (*file)->SizeBytes()) node->durable_bytes = *size;
    }
  }
  return node;
}

// Keeps the durable bytes of the sectors that are about to change.
void FaultyFileSystem::Remember(Node& node, File& file, uint64_t offset, uint64_t length_bytes) {
  if (length_bytes == 0) return;
  for (uint64_t sector = offset / kSectorBytes;
       sector <= (offset + length_bytes - 1) / kSectorBytes; ++sector) {
    if (node.undo.contains(sector)) continue;
    if (auto lost = node.lost.extract(sector)) {
      node.undo.insert(std::move(lost));
      continue;
    }
    std::string old;
    const uint64_t begin = sector * kSectorBytes;
    if (begin < node.durable_bytes) {
      old.resize(std::min(kSectorBytes, node.durable_bytes - begin));
      const auto got = file.ReadAt(begin, old);
      CAIRN_CHECK(got.has_value());
      std::fill(old.begin() + static_cast<std::ptrdiff_t>(*got), old.end(), '\0');
    }
    node.undo.emplace(sector, std::move(old));
  }
}

std::string FaultyFileSystem::Bury(const std::string& path) {
  const std::string grave = scratch_ + "/" + std::to_string(++buried_);
  CAIRN_CHECK(host_.Rename(path, grave).has_value());
  MoveNode(path, grave);
  return grave;
}

void FaultyFileSystem::MoveNode(const std::string& from, const std::string& to) {
  std::map<std::string, std::shared_ptr<Node>> moved;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const std::string& path = it->first;
    if (path == from || path.starts_with(from + "/")) {
      it->second->path = to + path.substr(from.size());
      moved[it->second->path] = it->second;
      it = nodes_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto& [path, node] : moved) nodes_[path] = node;
}

Result<std::unique_ptr<File>> FaultyFileSystem::Open(const std::string& path,
                                                     const OpenOptions& options) {
  MutexLock lock(mutex_);
  bool after = false;
  if (options.create || options.truncate) {
    CAIRN_TRY(Enter(Call::kOpen, after));
  } else if (off_) {
    return ErrErrno(EIO, "the power is off");
  }
  const bool existed = CAIRN_TRY(host_.Exists(path));
  if (existed && options.truncate && !options.exclusive) {
    const std::shared_ptr<Node> node = NodeOf(path);
    const std::unique_ptr<File> file = CAIRN_TRY(host_.Open(path, {}));
    Remember(*node, *file, 0, CAIRN_TRY(file->SizeBytes()));
  }
  std::unique_ptr<File> file = CAIRN_TRY(host_.Open(path, options));
  std::shared_ptr<Node> node = NodeOf(path);
  if (!existed) {
    node->durable_bytes = 0;
    names_.push_back({.kind = NameChange::kCreate,
                      .path = path,
                      .to = {},
                      .buried = {},
                      .unsynced_dirs = {DirOf(path)}});
  }
  CAIRN_TRY(Leave(after));
  return std::make_unique<FaultyFile>(*this, std::move(file), std::move(node), boot_);
}

Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  bool after = false;
  CAIRN_TRY(Enter(Call::kRename, after));
  NameChange change{.kind = NameChange::kRename,
                    .path = from,
                    .to = to,
                    .buried = {},
                    .unsynced_dirs = {DirOf(from)}};
  if (DirOf(to) != DirOf(from)) change.unsynced_dirs.push_back(DirOf(to));
  if (!CAIRN_TRY(host_.Exists(from))) return ErrErrno(ENOENT, "rename " + from);
  if (CAIRN_TRY(host_.Exists(to))) change.buried = Bury(to);
  CAIRN_TRY(host_.Rename(from, to));
  MoveNode(from, to);
  names_.push_back(std::move(change));
  return Leave(after);
}

Status FaultyFileSystem::Unlink(const std::string& path) {
  MutexLock lock(mutex_);
  bool after = false;
  CAIRN_TRY(Enter(Call::kUnlink, after));
  if (!CAIRN_TRY(host_.Exists(path))) return ErrErrno(ENOENT, "unlink " + path);
  if (host_.List(path)) return ErrErrno(EISDIR, "unlink " + path);
  if (space_left_ >= 0) {
    const std::unique_ptr<File> file = CAIRN_TRY(host_.Open(path, {.read_only = true}));
    space_left_ += static_cast<int64_t>(CAIRN_TRY(file->SizeBytes()));
  }
  NodeOf(path);
  names_.push_back({.kind = NameChange::kUnlink,
                    .path = path,
                    .to = {},
                    .buried = Bury(path),
                    .unsynced_dirs = {DirOf(path)}});
  return Leave(after);
}

Status FaultyFileSystem::MakeDir(const std::string& path) {
  MutexLock lock(mutex_);
  bool after = false;
  CAIRN_TRY(Enter(Call::kMakeDir, after));
  const bool existed = CAIRN_TRY(host_.Exists(path));
  CAIRN_TRY(host_.MakeDir(path));
  if (!existed) {
    names_.push_back({.kind = NameChange::kMakeDir,
                      .path = Plain(path),
                      .to = {},
                      .buried = {},
                      .unsynced_dirs = {DirOf(Plain(path))}});
  }
  return Leave(after);
}

Status FaultyFileSystem::RemoveDir(const std::string& path) {
  MutexLock lock(mutex_);
  bool after = false;
  CAIRN_TRY(Enter(Call::kRemoveDir, after));
  CAIRN_TRY(host_.RemoveDir(path));
  names_.push_back({.kind = NameChange::kRemoveDir,
                    .path = Plain(path),
                    .to = {},
                    .buried = {},
                    .unsynced_dirs = {DirOf(Plain(path))}});
  return Leave(after);
}

Result<std::vector<std::string>> FaultyFileSystem::List(const std::string& dir) {
  MutexLock lock(mutex_);
  if (off_) return ErrErrno(EIO, "the power is off");
  return host_.List(dir);
}

Status FaultyFileSystem::SyncDir(const std::string& dir) {
  MutexLock lock(mutex_);
  bool after = false;
  CAIRN_TRY(Enter(Call::kSyncDir, after));
  const std::string name = Plain(dir);
  std::deque<NameChange> left;
  for (NameChange& change : names_) {
    std::erase(change.unsynced_dirs, name);
    if (!change.unsynced_dirs.empty()) {
      left.push_back(std::move(change));
    } else if (!change.buried.empty()) {
      nodes_.erase(change.buried);
      CAIRN_TRY(host_.Unlink(change.buried));
    }
  }
  names_ = std::move(left);
  return Leave(after);
}

Result<bool> FaultyFileSystem::Exists(const std::string& path) {
  MutexLock lock(mutex_);
  if (off_) return ErrErrno(EIO, "the power is off");
  return host_.Exists(path);
}

void FaultyFileSystem::UndoName(const NameChange& change) {
  // A step fails only where an undone parent has already taken the name away.
  const auto undone = [](const Status& status) { IgnoreError(status, "its folder is gone"); };
  switch (change.kind) {
    case NameChange::kCreate:
      undone(host_.Unlink(change.path));
      nodes_.erase(change.path);
      break;
    case NameChange::kRename:
      undone(host_.Rename(change.to, change.path));
      MoveNode(change.to, change.path);
      break;
    case NameChange::kUnlink:
      break;
    case NameChange::kMakeDir:
      undone(RemoveTree(host_, change.path));
      break;
    case NameChange::kRemoveDir:
      undone(host_.MakeDir(change.path));
      break;
  }
  if (!change.buried.empty()) {
    const std::string& back = change.kind == NameChange::kRename ? change.to : change.path;
    undone(host_.Rename(change.buried, back));
    MoveNode(change.buried, back);
  }
}

void FaultyFileSystem::PowerCut(SeededRandom& random) {
  MutexLock lock(mutex_);
  for (auto& [path, node] : nodes_) {
    if (!host_.Exists(path).value_or(false)) continue;
    const auto file = host_.Open(path, {});
    CAIRN_CHECK(file.has_value());
    const uint64_t size = (*file)->SizeBytes().value();
    uint64_t kept = size;
    if (size != node->durable_bytes) {
      const uint64_t low = std::min(size, node->durable_bytes);
      const uint64_t high = std::max(size, node->durable_bytes);
      const uint64_t pick = random.Below(4);
      kept = pick == 0   ? size
             : pick == 1 ? node->durable_bytes
                         : low + random.Below(high - low + 1) / kSectorBytes * kSectorBytes;
    }
    const auto restore = [&](uint64_t begin, std::string bytes) {
      if (begin >= kept) return;
      bytes.resize(std::min(kSectorBytes, std::max(size, kept) - begin), '\0');
      CAIRN_CHECK((*file)->WriteAt(begin, bytes).has_value());
    };
    for (const auto& [sector, old] : node->undo) {
      const uint64_t begin = sector * kSectorBytes;
      // What an unsynced truncate cut off is still on the disk.
      const bool cut_off = node->durable_bytes > size && begin + kSectorBytes > size;
      if (!cut_off && random.OneIn(2)) continue;
      restore(begin, old);
    }
    for (const auto& [sector, old] : node->lost) restore(sector * kSectorBytes, old);
    CAIRN_CHECK((*file)->Truncate(kept).has_value());
  }
  const uint64_t keep_names = random.Below(names_.size() + 1);
  while (names_.size() > keep_names) {
    UndoName(names_.back());
    names_.pop_back();
  }
  names_.clear();
  nodes_.clear();
  for (auto& faults : faults_) faults.clear();
  off_ = false;
  off_at_ = 0;
  space_left_ = -1;
  ++boot_;
}

}  // namespace cairn
