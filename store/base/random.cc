// Random bytes: getrandom(2) for secrets, splitmix64 for what tests replay.
#include "store/base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "store/base/check.h"

namespace cairn {

void FillRandom(void* data, size_t size_bytes) {
  auto* out = static_cast<char*>(data);
  while (size_bytes > 0) {
    const ssize_t got = getrandom(out, size_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    CAIRN_CHECK(got > 0);
    out += got;
    size_bytes -= static_cast<size_t>(got);
  }
}

std::string RandomBytes(size_t size_bytes) {
  std::string out(size_bytes, '\0');
  FillRandom(out.data(), out.size());
  return out;
}

std::string SeededRandom::Bytes(size_t size_bytes) {
  std::string out;
  out.reserve(size_bytes + 8);
  while (out.size() < size_bytes) {
    const uint64_t word = Next();
    out.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  out.resize(size_bytes);
  return out;
}

}  // namespace cairn
