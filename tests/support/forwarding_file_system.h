// ForwardingFileSystem: passes every call on. For tests that do something of their own in one of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/base/file_system.h"

namespace cairn {

// As thread-safe as what it passes calls to, which outlives it.
class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem& to) : to_(to) {}

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    return to_.Open(path, options);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return to_.Rename(from, to);
  }
  Status Unlink(const std::string& path) override { return to_.Unlink(path); }
  Status MakeDir(const std::string& path) override { return to_.MakeDir(path); }
  Status RemoveDir(const std::string& path) override { return to_.RemoveDir(path); }
  Result<std::vector<std::string>> List(const std::string& dir) override { return to_.List(dir); }
  Status SyncDir(const std::string& dir) override { return to_.SyncDir(dir); }
  Result<bool> Exists(const std::string& path) override { return to_.Exists(path); }
  Result<DiskSpace> Space(const std::string& dir) override { return to_.Space(dir); }
  void ReadMany(std::span<const ReadOp> ops, const ReadDone& done) override {
    to_.ReadMany(ops, done);
  }

 private:
  FileSystem& to_;
};

}  // namespace cairn
