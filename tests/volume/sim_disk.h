// SimDisk: a FileSystem in memory that loses power (in memory, with faults by path, because damage
// at every byte takes thousands of opens; tests/support/faulty_file_system.h is the one over host
// files). Until a file is synced, each 512-byte sector written to it may or may not be on the disk;
// until a directory is synced, a prefix of its changes is. Faults by a hook, space by a limit.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"
#include "store/base/random.h"

namespace cairn {

class SimDisk final : public FileSystem {
 public:
  enum class Op { kWrite, kSync, kAllocate, kRename, kUnlink, kOpen, kSyncDir };
  // Called before an operation with its path; an error fails it. Set it while nothing runs.
  std::function<Status(Op, const std::string& path)> hook;
  // Bytes that all files together may hold.
  uint64_t space_bytes = ~uint64_t{0};

  // What a machine finds after the power came back. Open handles of the old life must be gone.
  void LosePower(SeededRandom& random) {
    MutexLock lock(mutex_);
    const size_t kept = random.Below(changes_.size() + 1);
    for (size_t i = 0; i < kept; i++) changes_[i](durable_names_);
    changes_.clear();
    names_ = durable_names_;
    for (auto& [name, node] : names_) {
      std::string disk = node->durable;
      for (const Unsynced& write : node->unsynced) {
        for (size_t at = 0; at < write.data.size();) {
          const size_t n =
              std::min<size_t>(512 - (write.offset + at) % 512, write.data.size() - at);
          if (random.OneIn(2)) {
            if (disk.size() < write.offset + at + n) disk.resize(write.offset + at + n);
            disk.replace(write.offset + at, n, write.data, at, n);
          }
          at += n;
        }
      }
      node->durable = node->data = disk;
      node->unsynced.clear();
    }
  }

  // Puts a file there, durably.
  void Install(const std::string& path, const std::string& bytes) {
    MutexLock lock(mutex_);
    auto node = std::make_shared<Node>();
    node->data = node->durable = bytes;
    names_[path] = durable_names_[path] = node;
  }

  // The current bytes of a file, to look at or to damage.
  std::string& Bytes(const std::string& path) {
    MutexLock lock(mutex_);
    return names_.at(path)->data;
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& o) override {
    CAIRN_TRY(Ask(Op::kOpen, path));
    MutexLock lock(mutex_);
    auto it = names_.find(path);
    if (it == names_.end()) {
      if (!o.create) return ErrErrno(ENOENT, path);
      it = names_.emplace(path, std::make_shared<Node>()).first;
      changes_.push_back([path, node = it->second](Names& names) { names[path] = node; });
    } else if (o.exclusive) {
      return ErrErrno(EEXIST, path);
    } else if (o.truncate) {
      it->second->data.clear();
      it->second->durable.clear();
      it->second->unsynced.clear();
    }
    return std::make_unique<SimFile>(*this, it->second, path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    CAIRN_TRY(Ask(Op::kRename, from));
    MutexLock lock(mutex_);
    const auto move = [from, to](Names& names) {
      const auto it = names.find(from);
      if (it == names.end()) return;
      names[to] = it->second;
      names.erase(it);
    };
    move(names_);
    changes_.push_back(move);
    return {};
  }
  Status Unlink(const std::string& path) override {
    CAIRN_TRY(Ask(Op::kUnlink, path));
    MutexLock lock(mutex_);
    if (names_.erase(path) == 0) return ErrErrno(ENOENT, path);
    changes_.push_back([path](Names& names) { names.erase(path); });
    return {};
  }
  Status MakeDir(const std::string&) override { return {}; }
  Status RemoveDir(const std::string&) override { return {}; }
  Result<std::vector<std::string>> List(const std::string& dir) override {
    MutexLock lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [name, node] : names_) {
      if (name.starts_with(dir + "/")) found.push_back(name.substr(dir.size() + 1));
    }
    return found;
  }
  Status SyncDir(const std::string& dir) override {
    CAIRN_TRY(Ask(Op::kSyncDir, dir));
    MutexLock lock(mutex_);
    for (auto& change : changes_) change(durable_names_);
    changes_.clear();
    return {};
  }
  Result<bool> Exists(const std::string& path) override {
    MutexLock lock(mutex_);
    return names_.count(path) > 0;
  }
  Result<DiskSpace> Space(const std::string&) override {
    MutexLock lock(mutex_);
    uint64_t used = 0;
    for (const auto& [name, node] : names_) used += node->data.size();
    return DiskSpace{.total_bytes = space_bytes,
                     .free_bytes = space_bytes > used ? space_bytes - used : 0};
  }

 private:
  struct Unsynced {
    uint64_t offset;
    std::string data;
  };
  struct Node {
    std::string data;     // as the running machine sees it
    std::string durable;  // as of the last sync
    std::vector<Unsynced> unsynced;
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  class SimFile final : public File {
   public:
    SimFile(SimDisk& disk, std::shared_ptr<Node> node, std::string path)
        : disk_(disk), node_(std::move(node)), path_(std::move(path)) {}
    Result<size_t> ReadAt(uint64_t offset, std::span<char> out) override {
      MutexLock lock(disk_.mutex_);
      if (offset >= node_->data.size()) return size_t{0};
      const size_t n = std::min<uint64_t>(out.size(), node_->data.size() - offset);
      std::copy_n(node_->data.data() + offset, n, out.data());
      return n;
    }
    Status WriteAt(uint64_t offset, std::string_view data) override {
      CAIRN_TRY(disk_.Ask(Op::kWrite, path_));
      MutexLock lock(disk_.mutex_);
      return Put(offset, data);
    }
    Status Sync() override {
      CAIRN_TRY(disk_.Ask(Op::kSync, path_));
      MutexLock lock(disk_.mutex_);
      node_->durable = node_->data;
      node_->unsynced.clear();
      return {};
    }
    Status Truncate(uint64_t size) override {
      MutexLock lock(disk_.mutex_);
      node_->data.resize(size);
      return {};
    }
    Status Allocate(uint64_t offset, uint64_t length, bool) override {
      CAIRN_TRY(disk_.Ask(Op::kAllocate, path_));
      MutexLock lock(disk_.mutex_);
      if (offset + length <= node_->data.size()) return {};
      const uint64_t from = node_->data.size();
      return Put(from, std::string(offset + length - from, '\0'));
    }
    Result<uint64_t> SizeBytes() override {
      MutexLock lock(disk_.mutex_);
      return node_->data.size();
    }
    const std::string& path() const override { return path_; }

   private:
    Status Put(uint64_t offset, std::string_view data) REQUIRES(disk_.mutex_) {
      if (node_->data.size() < offset + data.size()) {
        uint64_t used = 0;
        for (const auto& [name, node] : disk_.names_) used += node->data.size();
        if (used + offset + data.size() - node_->data.size() > disk_.space_bytes) {
          return ErrErrno(ENOSPC, path_);
        }
        node_->data.resize(offset + data.size());
      }
      node_->data.replace(offset, data.size(), data);
      node_->unsynced.push_back({offset, std::string(data)});
      return {};
    }
    SimDisk& disk_;
    const std::shared_ptr<Node> node_;
    const std::string path_;
  };

  Status Ask(Op op, const std::string& path) { return hook ? hook(op, path) : Status{}; }

  Mutex mutex_;
  Names names_ GUARDED_BY(mutex_);
  Names durable_names_ GUARDED_BY(mutex_);
  std::vector<std::function<void(Names&)>> changes_ GUARDED_BY(mutex_);  // of names, unsynced
};

}  // namespace cairn
