// StagedBlock: bytes of a file that are on their way into the block store (volume/staged_head.h).
// Readers find them here until they are there.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "store/address.h"
#include "store/base/check.h"
#include "store/base/mutex.h"

namespace cairn {

// Thread-safe. Goes once from "in memory" to "stored".
class StagedBlock {
 public:
  explicit StagedBlock(std::string plain) : plain_(std::move(plain)) {}

  // For the one who stores it: valid until SetStored.
  std::string_view plain() const NO_THREAD_SAFETY_ANALYSIS { return plain_; }
  void SetStored(const BlockRef& block) {
    MutexLock lock(mutex_);
    stored_ = block;
    std::string().swap(plain_);
  }

  std::optional<BlockRef> stored() const {
    MutexLock lock(mutex_);
    return stored_;
  }
  // Copies from `offset`; false when it is stored by now.
  bool Read(uint64_t offset, std::span<char> out) const {
    MutexLock lock(mutex_);
    if (stored_) return false;
    CAIRN_CHECK(offset <= plain_.size() && out.size() <= plain_.size() - offset);
    std::copy_n(plain_.data() + offset, out.size(), out.data());
    return true;
  }

 private:
  mutable Mutex mutex_;
  std::string plain_ GUARDED_BY(mutex_);
  std::optional<BlockRef> stored_ GUARDED_BY(mutex_);
};

}  // namespace cairn
