// Runs a fuzz target once over every file of the directories that are named: the committed corpus
// as a test of builds without libFuzzer. Usage: <program> DIRECTORY...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> paths;
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], failed)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    if (failed) std::fprintf(stderr, "%s: %s\n", argv[i], failed.message().c_str());
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path& path : paths) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      std::printf("%s\n", path.c_str());  // the last one named is the one that crashed
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++inputs;
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0 ? 1 : 0;
}
