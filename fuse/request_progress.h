// RequestProgress: how far the threads of a mount have come with the kernel's requests, in the
// mount's memory file, where the next server finds it (docs/formats/open_table.md).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "store/base/error.h"

namespace cairn {

// Thread-safe.
class RequestProgress {
 public:
  static constexpr int kLanes = 13;                // threads of one mount, at most
  static constexpr uint64_t kIdle = ~uint64_t{0};  // bound of a thread that reads no more

  // In this process's memory alone.
  static std::unique_ptr<RequestProgress> Private();
  // In the memory file of a mount, whose first page it maps. The file stays the caller's.
  static Result<std::unique_ptr<RequestProgress>> OnFile(int file);
  ~RequestProgress();
  RequestProgress(const RequestProgress&) = delete;
  RequestProgress& operator=(const RequestProgress&) = delete;

  // The largest unique number that was delivered.
  std::atomic<uint64_t>& highest() const { return page_->highest; }
  // What the thread `lane` can still be working on: nothing below it.
  std::atomic<uint64_t>& bound(int lane) const { return page_->bounds[lane].value; }

  // What a server before this one may have taken and not answered: unique numbers from `first` to
  // `last`. As of the construction.
  struct Unanswered {
    uint64_t first = 0;
    uint64_t last = 0;  // 0: there was no such server
  };
  Unanswered left() const { return left_; }

 private:
  struct alignas(64) Bound {
    std::atomic<uint64_t> value{0};  // 0: no thread has had this lane
  };
  struct Page {
    char table[3200];
    alignas(64) std::atomic<uint64_t> highest;
    std::array<Bound, kLanes> bounds;
  };
  static_assert(sizeof(Page) == 4096);
  explicit RequestProgress(Page* page);

  Page* const page_;
  Unanswered left_;
};

}  // namespace cairn
