// Random bytes for keys and identifiers, and a seeded generator for everything that a test replays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cairn {

// From getrandom(2); aborts if the kernel has none. Blocks only at early boot.
void FillRandom(void* data, size_t size_bytes);
std::string RandomBytes(size_t size_bytes);

// xoshiro-class generator (splitmix64 stream): the same seed gives the same sequence for ever. Not
// for secrets. Thread-compatible.
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // In [0, bound); bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::string Bytes(size_t size_bytes);

 private:
  uint64_t state_;
};

}  // namespace cairn
