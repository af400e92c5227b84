// How often a thread has allocated, for tests of paths that must not.
#pragma once

#include <cstdint>

namespace cairn {

// By operator new, since the thread began.
uint64_t AllocationsOfThisThread();

}  // namespace cairn
