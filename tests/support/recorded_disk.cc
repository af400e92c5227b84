// Recording: a change happens on the host and gets its place in the history under one lock, so that
// both have the same order. A sync counts for what was recorded before it was called: others may
// write while it runs. Replay keeps for each file its durable bytes and the changes since, and for
// the names the durable ones and the changes since.
#include "tests/support/recorded_disk.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint64_t kSectorBytes = 512;

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

class RecordedDisk::RecordedFile final : public File {
 public:
  RecordedFile(RecordedDisk& disk, std::unique_ptr<File> file, uint64_t node)
      : disk_(disk), file_(std::move(file)), node_(node) {}

  Result<size_t> ReadAt(uint64_t offset, std::span<char> out) override {
    return file_->ReadAt(offset, out);
  }
  Status WriteAt(uint64_t offset, std::string_view data) override {
    MutexLock lock(disk_.mutex_);
    CAIRN_TRY(file_->WriteAt(offset, data));
    disk_.Record({.kind = DiskChange::kWrite,
                  .path = {},
                  .to = {},
                  .node = node_,
                  .offset = offset,
                  .data = std::string(data)});
    return {};
  }
  Status Sync() override {
    const uint64_t before = disk_.position();
    MutexLock lock(disk_.mutex_);
    disk_.Record({.kind = DiskChange::kSync,
                  .path = {},
                  .to = {},
                  .node = node_,
                  .offset = before,
                  .data = {}});
    return {};
  }
  Status Truncate(uint64_t size_bytes) override {
    MutexLock lock(disk_.mutex_);
    CAIRN_TRY(file_->Truncate(size_bytes));
    disk_.Record({.kind = DiskChange::kTruncate,
                  .path = {},
                  .to = {},
                  .node = node_,
                  .offset = size_bytes,
                  .data = {}});
    return {};
  }
  Status Allocate(uint64_t offset, uint64_t length_bytes, bool keep_size) override {
    MutexLock lock(disk_.mutex_);
    CAIRN_TRY(file_->Allocate(offset, length_bytes, keep_size));
    if (keep_size) return {};
    disk_.Record({.kind = DiskChange::kExtend,
                  .path = {},
                  .to = {},
                  .node = node_,
                  .offset = offset + length_bytes,
                  .data = {}});
    return {};
  }
  Result<uint64_t> SizeBytes() override { return file_->SizeBytes(); }
  const std::string& path() const override { return file_->path(); }

 private:
  RecordedDisk& disk_;
  const std::unique_ptr<File> file_;
  const uint64_t node_;
};

uint64_t RecordedDisk::position() const {
  MutexLock lock(mutex_);
  return history_.size();
}

std::string RecordedDisk::Below(const std::string& path) const {
  CAIRN_CHECK(path.starts_with(root_));
  std::string below = path.substr(root_.size());
  while (below.starts_with('/')) below.erase(0, 1);
  while (below.ends_with('/')) below.pop_back();
  return below;
}

Result<std::unique_ptr<File>> RecordedDisk::Open(const std::string& path,
                                                 const OpenOptions& options) {
  if (!path.starts_with(root_)) return HostFileSystem().Open(path, options);
  MutexLock lock(mutex_);
  std::unique_ptr<File> file = CAIRN_TRY(HostFileSystem().Open(path, options));
  const std::string below = Below(path);
  auto [it, made] = nodes_.try_emplace(below, next_node_);
  if (made) {
    ++next_node_;
    Record({.kind = DiskChange::kCreate,
            .path = below,
            .to = {},
            .node = it->second,
            .offset = 0,
            .data = {}});
  } else if (options.truncate) {
    Record({.kind = DiskChange::kTruncate,
            .path = {},
            .to = {},
            .node = it->second,
            .offset = 0,
            .data = {}});
  }
  return std::make_unique<RecordedFile>(*this, std::move(file), it->second);
}

void RecordedDisk::Move(const std::string& from, const std::string& to) {
  std::vector<std::pair<std::string, uint64_t>> moved;
  for (auto it = nodes_.lower_bound(from); it != nodes_.end() && it->first.starts_with(from);) {
    if (it->first.size() != from.size() && it->first[from.size()] != '/') {
      ++it;
      continue;
    }
    moved.emplace_back(to + it->first.substr(from.size()), it->second);
    it = nodes_.erase(it);
  }
  for (const auto& [path, node] : moved) nodes_[path] = node;
}

Status RecordedDisk::Rename(const std::string& from, const std::string& to) {
  if (!from.starts_with(root_)) return HostFileSystem().Rename(from, to);
  MutexLock lock(mutex_);
  CAIRN_TRY(HostFileSystem().Rename(from, to));
  Move(Below(from), Below(to));
  Record({.kind = DiskChange::kRename,
          .path = Below(from),
          .to = Below(to),
          .node = 0,
          .offset = 0,
          .data = {}});
  return {};
}

Status RecordedDisk::Unlink(const std::string& path) {
  if (!path.starts_with(root_)) return HostFileSystem().Unlink(path);
  MutexLock lock(mutex_);
  CAIRN_TRY(HostFileSystem().Unlink(path));
  nodes_.erase(Below(path));
  Record({.kind = DiskChange::kUnlink,
          .path = Below(path),
          .to = {},
          .node = 0,
          .offset = 0,
          .data = {}});
  return {};
}

Status RecordedDisk::MakeDir(const std::string& path) {
  MutexLock lock(mutex_);
  const bool there = CAIRN_TRY(HostFileSystem().Exists(path));
  CAIRN_TRY(HostFileSystem().MakeDir(path));
  if (there || !path.starts_with(root_)) return {};
  Record({.kind = DiskChange::kMakeDir,
          .path = Below(path),
          .to = {},
          .node = 0,
          .offset = 0,
          .data = {}});
  return {};
}

Status RecordedDisk::RemoveDir(const std::string& path) {
  if (!path.starts_with(root_)) return HostFileSystem().RemoveDir(path);
  MutexLock lock(mutex_);
  CAIRN_TRY(HostFileSystem().RemoveDir(path));
  Record({.kind = DiskChange::kRemoveDir,
          .path = Below(path),
          .to = {},
          .node = 0,
          .offset = 0,
          .data = {}});
  return {};
}

Result<std::vector<std::string>> RecordedDisk::List(const std::string& dir) {
  return HostFileSystem().List(dir);
}

Status RecordedDisk::SyncDir(const std::string& dir) {
  if (!dir.starts_with(root_)) return {};
  const uint64_t before = position();
  MutexLock lock(mutex_);
  Record({.kind = DiskChange::kSyncDir,
          .path = Below(dir),
          .to = {},
          .node = 0,
          .offset = before,
          .data = {}});
  return {};
}

Result<bool> RecordedDisk::Exists(const std::string& path) { return HostFileSystem().Exists(path); }

Result<DiskSpace> RecordedDisk::Space(const std::string& dir) {
  return HostFileSystem().Space(dir);
}

void DiskReplay::Apply(const DiskChange& change, Names& names) const {
  switch (change.kind) {
    case DiskChange::kCreate:
      names[change.path] = change.node;
      return;
    case DiskChange::kMakeDir:
      names[change.path] = 0;
      return;
    case DiskChange::kUnlink:
    case DiskChange::kRemoveDir:
      names.erase(change.path);
      return;
    case DiskChange::kRename: {
      std::vector<std::pair<std::string, uint64_t>> moved;
      for (auto it = names.lower_bound(change.path);
           it != names.end() && it->first.starts_with(change.path);) {
        if (it->first.size() != change.path.size() && it->first[change.path.size()] != '/') {
          ++it;
          continue;
        }
        moved.emplace_back(change.to + it->first.substr(change.path.size()), it->second);
        it = names.erase(it);
      }
      for (const auto& [path, node] : moved) names[path] = node;
      return;
    }
    default:
      return;
  }
}

void DiskReplay::ApplyBytes(const DiskChange& change, std::string& bytes) {
  if (change.kind == DiskChange::kWrite) {
    if (bytes.size() < change.offset + change.data.size()) {
      bytes.resize(change.offset + change.data.size());
    }
    bytes.replace(change.offset, change.data.size(), change.data);
  } else if (change.kind == DiskChange::kTruncate) {
    bytes.resize(change.offset);
  } else if (bytes.size() < change.offset) {
    bytes.resize(change.offset);
  }
}

void DiskReplay::PlayTo(uint64_t position) {
  CAIRN_CHECK(position >= position_ && position <= history_.size());
  for (; position_ < position; ++position_) {
    const DiskChange& change = history_[position_];
    switch (change.kind) {
      case DiskChange::kWrite:
      case DiskChange::kTruncate:
      case DiskChange::kExtend:
        nodes_[change.node].pending.push_back(position_);
        break;
      case DiskChange::kSync: {
        Node& node = nodes_[change.node];
        while (!node.pending.empty() && node.pending.front() < change.offset) {
          ApplyBytes(history_[node.pending.front()], node.durable);
          node.pending.pop_front();
        }
        break;
      }
      case DiskChange::kSyncDir:
        for (NameChange& name : names_) {
          if (name.at < change.offset) std::erase(name.unsynced_dirs, change.path);
        }
        while (!names_.empty() && names_.front().unsynced_dirs.empty()) {
          Apply(history_[names_.front().at], durable_names_);
          names_.pop_front();
        }
        break;
      default: {
        NameChange name{.at = position_, .unsynced_dirs = {ParentOf(change.path)}};
        if (change.kind == DiskChange::kRename && ParentOf(change.to) != ParentOf(change.path)) {
          name.unsynced_dirs.push_back(ParentOf(change.to));
        }
        names_.push_back(std::move(name));
      }
    }
  }
}

std::string DiskReplay::Torn(const Node& node, SeededRandom& random) const {
  std::string bytes = node.durable;
  for (const uint64_t at : node.pending) {
    const DiskChange& change = history_[at];
    if (change.kind != DiskChange::kWrite) {
      if (random.OneIn(2)) ApplyBytes(change, bytes);
      continue;
    }
    for (uint64_t done = 0; done < change.data.size();) {
      const uint64_t offset = change.offset + done;
      const uint64_t length =
          std::min(kSectorBytes - offset % kSectorBytes, change.data.size() - done);
      if (random.OneIn(2)) {
        if (bytes.size() < offset + length) bytes.resize(offset + length);
        bytes.replace(offset, length, change.data, done, length);
      }
      done += length;
    }
  }
  return bytes;
}

Status DiskReplay::Materialize(const std::string& dir, Unsynced unsynced,
                               SeededRandom& random) const {
  const auto undurable = static_cast<uint64_t>(std::ranges::count_if(
      names_, [](const NameChange& name) { return !name.unsynced_dirs.empty(); }));
  uint64_t kept = unsynced == Unsynced::kLost   ? 0
                  : unsynced == Unsynced::kKept ? undurable
                                                : random.Below(undurable + 1);
  Names names = durable_names_;
  for (const NameChange& name : names_) {
    if (!name.unsynced_dirs.empty()) {
      if (kept == 0) continue;
      --kept;
    }
    Apply(history_[name.at], names);
  }
  FileSystem& host = HostFileSystem();
  CAIRN_TRY(host.MakeDir(dir));
  for (const auto& [path, number] : names) {
    // A name in a directory that is not there itself is lost with it.
    const std::string parent = ParentOf(path);
    if (!parent.empty() && !CAIRN_TRY(host.Exists(dir + "/" + parent))) continue;
    if (number == 0) {
      CAIRN_TRY(host.MakeDir(dir + "/" + path));
      continue;
    }
    const auto it = nodes_.find(number);
    std::string bytes;
    if (it != nodes_.end()) {
      bytes = it->second.durable;
      if (unsynced == Unsynced::kTorn) bytes = Torn(it->second, random);
      if (unsynced == Unsynced::kKept) {
        for (const uint64_t at : it->second.pending) ApplyBytes(history_[at], bytes);
      }
    }
    const std::unique_ptr<File> file =
        CAIRN_TRY(host.Open(dir + "/" + path, {.create = true, .truncate = true}));
    CAIRN_TRY(file->Truncate(bytes.size()));
    constexpr uint64_t kPiece = 65536;  // preallocated files are zeros for the most part
    for (uint64_t at = 0; at < bytes.size(); at += kPiece) {
      const std::string_view piece = std::string_view(bytes).substr(at, kPiece);
      if (piece.find_first_not_of('\0') != std::string_view::npos) {
        CAIRN_TRY(file->WriteAt(at, piece));
      }
    }
  }
  return {};
}

}  // namespace cairn
