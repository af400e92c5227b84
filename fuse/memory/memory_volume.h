// MemoryVolume: a Volume in a few maps, for tests of the FUSE side and, with its data thrown away,
// for the benchmark's server that stores nothing. One lock; no durability; Freeze and View are not
// there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "store/base/mutex.h"
#include "volume/volume.h"

namespace cairn {

struct MemoryVolumeOptions {
  bool keep_data = true;                    // false: sizes and times only; reads give zeros
  std::function<void()> before_write = {};  // called first in each Write, without the lock
  uint64_t quota_bytes = 0;
  uint64_t quota_inodes = 0;
  uint32_t rollback_epoch = 7;
};

class MemoryVolume final : public Volume {
 public:
  explicit MemoryVolume(const MemoryVolumeOptions& options);

  Result<NamedInode> Lookup(InodeNumber dir, std::string_view name) override;
  Result<Inode> GetAttributes(InodeNumber ino) override;
  Result<Inode> SetAttr(const OpContext& ctx, InodeNumber ino, const SetAttributes& set) override;
  Result<NamedInode> MakeNode(const OpContext& ctx, InodeNumber dir, std::string_view name,
                              uint32_t mode, uint64_t rdev) override;
  Result<NamedInode> MakeDir(const OpContext& ctx, InodeNumber dir, std::string_view name,
                             uint32_t mode) override;
  Result<NamedInode> Symlink(const OpContext& ctx, InodeNumber dir, std::string_view name,
                             std::string_view target) override;
  Result<NamedInode> Link(const OpContext& ctx, InodeNumber ino, InodeNumber dir,
                          std::string_view name) override;
  Status Unlink(const OpContext& ctx, InodeNumber dir, std::string_view name) override;
  Status RemoveDir(const OpContext& ctx, InodeNumber dir, std::string_view name) override;
  Status Rename(const OpContext& ctx, InodeNumber old_dir, std::string_view old_name,
                InodeNumber new_dir, std::string_view new_name, uint32_t flags) override;
  Result<std::string> ReadLink(InodeNumber ino) override;
  Status ReadDir(InodeNumber dir, uint64_t after,
                 const std::function<bool(const DirEntry&)>& visit) override;
  Status OpenInode(const OpContext& ctx, InodeNumber ino, bool writable) override;
  Status ReleaseInode(const OpContext& ctx, InodeNumber ino, bool writable) override;
  Result<NamedInode> Create(const OpContext& ctx, InodeNumber dir, std::string_view name,
                            uint32_t mode, bool writable) override;
  Result<NamedInode> CreateUnnamed(const OpContext& ctx, InodeNumber dir, uint32_t mode) override;
  Result<size_t> Read(InodeNumber ino, uint64_t offset, std::span<char> out) override;
  Result<size_t> Write(const OpContext& ctx, InodeNumber ino, uint64_t offset,
                       std::string_view data, bool kill_privileges) override;
  Status Allocate(const OpContext& ctx, InodeNumber ino, uint64_t offset, uint64_t length,
                  int mode) override;
  Result<uint64_t> SeekData(InodeNumber ino, uint64_t offset) override;
  Result<uint64_t> SeekHole(InodeNumber ino, uint64_t offset) override;
  Result<std::string> GetXattr(InodeNumber ino, std::string_view name) override;
  Status SetXattr(const OpContext& ctx, InodeNumber ino, std::string_view name,
                  std::string_view value, int flags) override;
  Result<std::vector<std::string>> ListXattrs(InodeNumber ino) override;
  Status RemoveXattr(const OpContext& ctx, InodeNumber ino, std::string_view name) override;
  Status Sync() override;
  Result<std::shared_ptr<const Layer>> Freeze() override;
  void SetReadOnly(bool read_only) override;
  VolumeStatus GetStatus() override;
  uint32_t rollback_epoch() const override { return options_.rollback_epoch; }
  uint64_t hash_seed() const override { return 0; }
  const Id128& id() const override { return id_; }
  std::vector<InodeNumber> WritableOpens() override;
  // It does not outlive its process, and no connection to it does.
  void BeginConnection(const Id128&, std::shared_ptr<OpenTable>) override {}
  std::vector<ReplyRecord> RecoveredReplies() override { return {}; }
  void EndConnection() override {}
  void CountOpen(const OpContext& ctx, InodeNumber ino, bool writable) override;
  std::vector<OpenTable::Listed> ListOpens() override;
  OpenTable::Opens OpensOf(InodeNumber ino) override;
  OpenTable::Opens AllOpens() override;
  FsView View() override { return FsView(nullptr, 0); }
  Head& head() override;

  // ---- what tests look at ----
  uint64_t syncs() const { return syncs_.load(); }
  void FailSyncs(bool fail) { fail_syncs_.store(fail); }
  void FailWrites(bool fail) { fail_writes_.store(fail); }
  uint64_t open_handles();
  // The newest change's request identity.
  ReplyRecord last_request();

 private:
  struct Node {
    Inode inode;
    std::string target;
    std::map<uint64_t, std::string> pages;  // page number -> kPageBytes of data
    std::map<uint64_t, std::pair<std::string, InodeNumber>> entries;  // cookie -> name, child
    std::map<std::string, uint64_t, std::less<>> cookies;
    uint64_t next_cookie = 1;
    std::map<std::string, std::string, std::less<>> xattrs;
    uint32_t readers = 0;
    uint32_t writers = 0;
  };

  Result<Node*> Find(InodeNumber ino) REQUIRES(mutex_);
  Result<Node*> FindDir(InodeNumber ino) REQUIRES(mutex_);
  Result<InodeNumber> FindChild(Node& dir, std::string_view name) REQUIRES(mutex_);
  Result<NamedInode> Add(const OpContext& ctx, InodeNumber dir, std::string_view name,
                         uint32_t mode, uint64_t rdev) REQUIRES(mutex_);
  void Enter(InodeNumber dir_ino, Node& dir, std::string_view name, InodeNumber child)
      REQUIRES(mutex_);
  void Leave(Node& dir, std::string_view name) REQUIRES(mutex_);
  void Drop(InodeNumber ino, Node& node) REQUIRES(mutex_);
  void CountHandle(Node& node, bool writable, int change) REQUIRES(mutex_);
  void Touch(Node& node);
  void Resize(Node& node, uint64_t size) REQUIRES(mutex_);

  const MemoryVolumeOptions options_;
  const Id128 id_ = Id128::Random();
  std::atomic<uint64_t> syncs_{0};
  std::atomic<bool> fail_syncs_{false};
  std::atomic<bool> fail_writes_{false};
  std::atomic<bool> read_only_{false};
  Mutex mutex_;
  std::unordered_map<InodeNumber, Node> nodes_ GUARDED_BY(mutex_);
  InodeNumber next_ino_ GUARDED_BY(mutex_) = kFirstFreeInode;
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  OpenTable::Opens all_opens_ GUARDED_BY(mutex_);
  ReplyRecord last_request_ GUARDED_BY(mutex_);
};

}  // namespace cairn
