// A program that an upgrade must not end with: what it does stands in the file PROGRAM.mode.
//   refuses     --check-format says no
//   exits       the check is fine, then it ends before it is ready
//   hangs       the check is fine, then it never is ready
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

int main(int argc, char** argv) {
  std::string mode;
  std::ifstream(std::string(argv[0]) + ".mode") >> mode;
  const bool check = argc > 1 && std::strcmp(argv[argc - 1], "--check-format") == 0;
  if (check && mode == "refuses") {
    std::puts("the directory's format is too new");
    return 1;
  }
  if (check) {
    std::puts("stub 9.9");
    return 0;
  }
  if (mode == "hangs") ::pause();
  return 7;
}
