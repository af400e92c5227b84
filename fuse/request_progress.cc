// Invariant: a request that a thread has read and not answered is not below its bound, since the
// kernel hands numbers out in ascending order (fuse/device_transport.h). A thread that was killed
// between read(2) and the store of what it read has a number above `highest`, by no more than what
// the other threads read meanwhile.
#include "fuse/request_progress.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "store/base/check.h"

namespace cairn {
namespace {

constexpr uint64_t kUnrecorded = 4096;  // numbers above `highest`, generously

}  // namespace

RequestProgress::RequestProgress(Page* page) : page_(page) {
  uint64_t first = kIdle;
  bool used = false;
  for (const Bound& bound : page_->bounds) {
    const uint64_t value = bound.value.load();
    if (value == 0) continue;
    used = true;
    first = std::min(first, value);
  }
  if (!used) return;
  const uint64_t highest = page_->highest.load();
  left_ = {.first = std::min(first, highest + 1), .last = highest + kUnrecorded};
}

RequestProgress::~RequestProgress() { ::munmap(page_, sizeof(Page)); }

std::unique_ptr<RequestProgress> RequestProgress::Private() {
  void* const page = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CAIRN_CHECK(page != MAP_FAILED);
  return std::unique_ptr<RequestProgress>(new RequestProgress(static_cast<Page*>(page)));
}

Result<std::unique_ptr<RequestProgress>> RequestProgress::OnFile(int file) {
  void* const page =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (page == MAP_FAILED) return ErrErrno(errno, "mmap of the mount's memory file");
  return std::unique_ptr<RequestProgress>(new RequestProgress(static_cast<Page*>(page)));
}

}  // namespace cairn
