// PutBuffers: the memory in which blocks are compressed and encrypted on their way into a pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/base/mutex.h"

namespace cairn {

// Uninitialised bytes that grow and are used again, so that a batch costs no page faults.
// Thread-compatible.
class PutBuffer {
 public:
  // At least `bytes` long; what a call before gave is void.
  std::span<char> Room(size_t bytes) {
    if (bytes > size_) {
      bytes_ = std::make_unique_for_overwrite<char[]>(bytes);
      size_ = bytes;
    }
    return {bytes_.get(), bytes};
  }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0;
};

// Thread-safe. There are `count` pairs of buffers; who wants one waits while all are in use. That
// is what bounds the memory of puts, however many threads put.
class PutBuffers {
 public:
  explicit PutBuffers(size_t count) : unmade_(count) {}

  struct Pair {
    PutBuffer encoded;
    PutBuffer frames;
  };
  // Gives the pair back. Move-only.
  class Lease {
   public:
    Lease(Lease&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), pair_(std::move(other.pair_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (owner_ != nullptr) owner_->GiveBack(std::move(pair_));
    }
    PutBuffer& encoded() { return pair_->encoded; }
    PutBuffer& frames() { return pair_->frames; }

   private:
    friend class PutBuffers;
    Lease(PutBuffers* owner, std::unique_ptr<Pair> pair) : owner_(owner), pair_(std::move(pair)) {}
    PutBuffers* owner_;
    std::unique_ptr<Pair> pair_;
  };
  // Its holder waits for nobody who may want one.
  Lease Take();

 private:
  void GiveBack(std::unique_ptr<Pair> pair);

  Mutex mutex_;
  CondVar given_back_;
  size_t unmade_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pair>> idle_ GUARDED_BY(mutex_);
};

}  // namespace cairn
