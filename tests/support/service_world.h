// A whole storage side without kernel and daemon: memory catalog, memory blocks, real volumes in a
// temporary directory, a mount service that only remembers. For tests of snapshot/ and artifacts/.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "catalog/ids.h"
#include "catalog/keys.h"
#include "catalog/records.h"
#include "snapshot/snapshot_service.h"
#include "snapshot/volume_manager.h"
#include "store/base/mutex.h"
#include "store/node_cache.h"
#include "tests/support/mem_block_store.h"
#include "tests/support/mem_catalog.h"
#include "tests/support/temp_dir.h"

namespace cairn {

class FakeMounts final : public MountService {
 public:
  Status Mount(Volume& volume, const std::string& dir, const MountOptions&) override {
    MutexLock lock(mutex_);
    at_[volume.id()] = dir;
    return {};
  }
  Status Unmount(const Id128& volume, bool) override {
    MutexLock lock(mutex_);
    if (at_.erase(volume) == 0) return Err(ErrorCode::kNotFound, "not mounted");
    return {};
  }
  Status Barrier(const Id128&) override {
    ++barriers;
    return fail_barrier ? Status(Err(ErrorCode::kUnavailable, "barrier timed out")) : Status();
  }
  std::string MountedAt(const Id128& volume) override {
    MutexLock lock(mutex_);
    const auto found = at_.find(volume);
    return found == at_.end() ? "" : found->second;
  }
  int barriers = 0;
  bool fail_barrier = false;

 private:
  Mutex mutex_;
  std::map<Id128, std::string> at_ GUARDED_BY(mutex_);
};

class ServiceWorld : public testing::Test {
 protected:
  ServiceWorld() : blocks_(keys_), nodes_(4 << 20) {
    realm_.bytes[0] = 1;
    keys_.Add(realm_, TestRealmKeys(1));
    catalog::Organization org;
    org.set_id(kOrg);
    org.set_realm(std::string(realm_.view()));
    Put(keys::Organization(kOrg), org);
    StartLife();
  }
  ~ServiceWorld() override { EndLife(/*cleanly=*/true); }

  void StartLife() {
    ++epoch_;
    VolumeManagerOptions options;
    options.volumes_dir = dir_.path() + "/volumes";
    options.epoch = epoch_;
    options.import_slice_records = import_slice_records_;
    ASSERT_TRUE(HostFileSystem().MakeDir(options.volumes_dir));
    volumes_ = std::make_unique<VolumeManager>(options, HostFileSystem(), keys_, blocks_, nodes_,
                                               catalog_, SystemClock(), mounts_);
    volumes_->Start();
    snapshots_ = std::make_unique<SnapshotService>(catalog_, blocks_, keys_, HostFileSystem(),
                                                   *volumes_, SystemClock(), epoch_);
  }
  // Not cleanly: nothing can be sealed any more, as after a kill.
  void EndLife(bool cleanly) {
    if (!cleanly) blocks_.FailPuts(true);
    volumes_->Stop();
    snapshots_.reset();
    volumes_.reset();
    blocks_.FailPuts(false);
  }

  template <typename Message>
  void Put(const std::string& key, const Message& message) {
    ASSERT_TRUE(catalog_.Run([&](CatalogTransaction& txn) -> Status {
      PutRecord(txn, key, message);
      return {};
    }));
  }
  template <typename Message>
  Message Read(const std::string& key) {
    const auto record = GetRecord<Message>(catalog_, key);
    EXPECT_TRUE(record && *record) << key;
    return record && *record ? **record : Message();
  }

  std::string NewEnvironment() {
    catalog::Environment env;
    env.set_id(NewId(kEnvironmentPrefix));
    env.set_org(kOrg);
    env.set_workspace_uid(1000);
    env.set_workspace_gid(1001);
    Put(keys::Environment(kOrg, env.id()), env);
    return env.id();
  }
  catalog::Environment Env(const std::string& id) {
    return Read<catalog::Environment>(keys::Environment(kOrg, id));
  }

  // Writes /workspace/<name> through the library.
  void WriteFile(const std::string& env, const std::string& name, const std::string& data) {
    const auto volume = volumes_->OpenForWrite(kOrg, env);
    ASSERT_TRUE(volume) << volume.error().ToString();
    WriteInto(**volume, "workspace", name, data);
  }
  void WriteInto(Volume& volume, const std::string& directory, const std::string& name,
                 const std::string& data) {
    const OpContext root;
    const auto parent = volume.View().Resolve(directory);
    ASSERT_TRUE(parent) << directory;
    InodeNumber ino = 0;
    const auto found = volume.Lookup(*parent, name);
    if (found) {
      ino = found->ino;
      SetAttributes empty;
      empty.size_bytes = 0;
      ASSERT_TRUE(volume.SetAttr(root, ino, empty));
    } else {
      const auto made = volume.MakeNode(root, *parent, name, S_IFREG | 0644, 0);
      ASSERT_TRUE(made) << made.error().ToString();
      ino = made->ino;
    }
    if (data.empty()) return;
    ASSERT_TRUE(volume.Write(root, ino, 0, data, false));
  }
  static std::string ReadFile(const FsView& view, const std::string& path) {
    const auto ino = view.Resolve(path);
    if (!ino) return "(" + ino.error().ToString() + ")";
    const auto inode = view.GetInode(*ino);
    EXPECT_TRUE(inode);
    std::string data(inode->size_bytes, '\0');
    const auto got = view.Read(*ino, 0, data);
    if (!got) return "(" + got.error().ToString() + ")";
    data.resize(*got);
    return data;
  }
  std::string ReadNow(const std::string& env, const std::string& path) {
    const auto view = volumes_->ViewNow(kOrg, env);
    if (!view) return "(" + view.error().ToString() + ")";
    return ReadFile(*view, path);
  }

  inline static const std::string kOrg = "org_00000000000000000000000000000001";
  TempDir dir_;
  Id128 realm_;
  KeyRing keys_;
  MemBlockStore blocks_;
  NodeCache nodes_;
  MemCatalog catalog_;
  FakeMounts mounts_;
  uint64_t epoch_ = 0;
  uint64_t import_slice_records_ = VolumeManagerOptions().import_slice_records;
  std::unique_ptr<VolumeManager> volumes_;
  std::unique_ptr<SnapshotService> snapshots_;
};

}  // namespace cairn
