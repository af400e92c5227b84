// Script: a seeded history of what users do to a store, with the promises that each answer makes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "store/base/random.h"
#include "tests/power_loss/life.h"
#include "tests/support/recorded_disk.h"

namespace cairn {

// Holds from position `made` of the disk's history on, and no longer from `ends`, where its
// revocation began.
struct Promise {
  std::string what;
  uint64_t made = 0;
  uint64_t ends = ~uint64_t{0};
  std::string owner;                         // Environment with whose deletion it ends
  std::function<std::string(Life&)> broken;  // empty: it holds
  bool once = false;                         // to see it is to use it up
};

// Thread-compatible.
class Script {
 public:
  Script(Life& life, RecordedDisk& disk, std::string scratch, uint64_t seed)
      : life_(life), disk_(disk), scratch_(std::move(scratch)), random_(seed) {}

  // An error is one of the store's: nothing fails while the history is made.
  Status Run(int steps);

  const std::vector<Promise>& promises() const { return promises_; }
  // Position from which the store must open at all.
  uint64_t begun() const { return begun_; }

 private:
  using Files = std::map<std::string, std::string>;  // name in /workspace -> content
  struct Tree {
    std::string env;
    Files files;
    std::map<std::string, size_t> promised;  // name -> promise
  };
  struct Snap {
    std::string id;
    std::string env;
    Files files;
    size_t promise = 0;
  };
  struct Work {
    std::string id;
    std::string env;
    std::vector<size_t> promises;
  };

  Status Step();
  Status CreateEnvironment();
  Status WriteFiles(Tree& tree);
  Status ReplaceFile(Tree& tree);
  Status RemoveFile(Tree& tree);
  Status TakeSnapshot(Tree& tree);
  Status DeleteSnapshot();
  Status Fork(Tree& tree);
  Status PauseAndResume(Tree& tree);
  Status Publish(Tree& tree);
  Status DeleteSession();
  Status DeleteEnvironment();
  void PromiseFiles(Tree& tree);

  size_t Promised(std::string what, const std::string& owner,
                  std::function<std::string(Life&)> broken);
  void End(size_t promise) { promises_[promise].ends = disk_.position(); }
  std::string NewName() { return "f" + std::to_string(++names_); }
  std::string NewContent();

  Life& life_;
  RecordedDisk& disk_;
  const std::string scratch_;
  SeededRandom random_;
  std::string org_;
  uint64_t begun_ = 0;
  uint64_t names_ = 0;
  std::vector<Tree> trees_;
  std::vector<Snap> snaps_;
  std::vector<Work> sessions_;
  std::vector<Promise> promises_;
};

}  // namespace cairn
