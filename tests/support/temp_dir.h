// TempDir: a fresh directory that is removed at the end of a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "store/base/file_system.h"

namespace cairn {

// Not for mount points. Thread-compatible.
class TempDir {
 public:
  TempDir() {
    const char* tmp = std::getenv("TMPDIR");
    path_ = std::string(tmp != nullptr ? tmp : "/tmp") + "/cairn_test.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { IgnoreError(RemoveTree(HostFileSystem(), path_), "only litter"); }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace cairn
