// Replaces operator new in the test programs that ask (a static library's file is linked only when
// something in it is used).
#include "tests/support/allocations.h"

#include <cstdlib>
#include <new>

namespace {
thread_local uint64_t allocations = 0;
}

void* operator new(size_t bytes) {
  ++allocations;
  if (void* const p = std::malloc(bytes)) return p;
  std::abort();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace cairn {
uint64_t AllocationsOfThisThread() { return allocations; }
}  // namespace cairn
