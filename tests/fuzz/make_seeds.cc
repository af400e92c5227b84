// Writes the seed inputs of the fuzz targets: small whole files and blocks made by the project's
// own encoders, in the form that each target takes (plaintext in place of ciphertext; the target's
// repairs encrypt it and set the checksums). Deterministic: run it again after a change of a format
// and commit what it writes. Usage: fuzz_seeds tests/fuzz/corpus
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/seeds.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  size_t bytes = 0;
  size_t files = 0;
  for (const cairn::Seed& seed : cairn::AllSeeds()) {
    const std::filesystem::path dir = std::filesystem::path(argv[1]) / seed.target;
    std::filesystem::create_directories(dir);
    std::ofstream file(dir / ("seed-" + seed.name), std::ios::binary | std::ios::trunc);
    file << seed.bytes;
    file.close();
    if (!file) {
      std::fprintf(stderr, "cannot write seed-%s in %s\n", seed.name.c_str(), dir.c_str());
      return 1;
    }
    bytes += seed.bytes.size();
    ++files;
  }
  std::printf("%zu seeds, %zu bytes\n", files, bytes);
  return 0;
}
