// GatedFileSystem: the host's files, whose reads can be held at a gate, counted and made to fail.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/base/file_system.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe. Batches are loops over ReadAt.
class GatedFileSystem final : public FileSystem {
 public:
  GatedFileSystem() : host_(HostFileSystem()) {}

  // Reads that begin from now on wait for OpenGate.
  void CloseGate();
  void OpenGate();
  // Blocks until a read waits at the gate.
  void WaitForReader();
  bool WaitForReaders(uint64_t count);  // false: a minute has passed without so many
  void FailReads(int sys_errno);        // 0: no longer
  uint64_t reads();                     // that began

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  Status Rename(const std::string& from, const std::string& to) override {
    return host_.Rename(from, to);
  }
  Status Unlink(const std::string& path) override { return host_.Unlink(path); }
  Status MakeDir(const std::string& path) override { return host_.MakeDir(path); }
  Status RemoveDir(const std::string& path) override { return host_.RemoveDir(path); }
  Result<std::vector<std::string>> List(const std::string& dir) override { return host_.List(dir); }
  Status SyncDir(const std::string& dir) override { return host_.SyncDir(dir); }
  Result<bool> Exists(const std::string& path) override { return host_.Exists(path); }
  Result<DiskSpace> Space(const std::string& dir) override { return host_.Space(dir); }

 private:
  class GatedFile;
  Status PassGate();

  FileSystem& host_;
  Mutex mutex_;
  CondVar changed_;
  bool open_ GUARDED_BY(mutex_) = true;
  int fail_errno_ GUARDED_BY(mutex_) = 0;
  uint64_t waiting_ GUARDED_BY(mutex_) = 0;
  uint64_t reads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
