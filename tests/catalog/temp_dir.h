// A directory of a test's own, removed with it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "store/base/check.h"
#include "store/base/file_system.h"

namespace cairn {

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/cairn_catalog_test.XXXXXX";
    CAIRN_CHECK(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~TempDir() { IgnoreError(RemoveTree(HostFileSystem(), path_), "a test's leftovers"); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cairn
