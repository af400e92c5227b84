// StoreWorld: a LocalBlockStore in a fresh directory on a FaultyFileSystem, with two realms and the
// base realm.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/local_block_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {

class StoreWorld {
 public:
  // Without threads of the store every call happens in the test's own, in order. With limits, a
  // SpaceGuard over `fs` decides what is written.
  explicit StoreWorld(uint64_t pack_bytes = 1 << 20, size_t put_threads = 0,
                      std::optional<SpaceLimits> limits = {});

  Id128 realm_a, realm_b;
  TempDir temp;
  const std::string dir;
  FaultyFileSystem fs;
  FakeClock clock;
  KeyRing keys;
  std::unique_ptr<SpaceGuard> space;
  std::unique_ptr<LocalBlockStore> store;

  // Open asserts success. Kill drops the store without Close.
  void Open();
  void Kill() { store.reset(); }
  void Close();
  void Reopen() {
    Close();
    Open();
  }

  // Puts and syncs in a session of its own.
  BlockRef Put(const Id128& realm, std::string_view plain, BlockKind kind = BlockKind::kData);
  std::string Read(const Id128& realm, const BlockRef& ref);  // "" and a test failure on an error

  // Paths of all pack files, sorted.
  std::vector<std::string> PackPaths() const;
  // All damage that VerifyPack and VerifyIndex report.
  std::vector<StoreDamage> Check();

 private:
  const uint64_t pack_bytes_;
  const size_t put_threads_;
  uint64_t epoch_ = 0;
};

// Changes one bit of a file on the host.
void FlipBit(const std::string& path, uint64_t offset, int bit = 0);
std::string ReadHostFile(const std::string& path);
void WriteHostFile(const std::string& path, std::string_view contents);

}  // namespace cairn
