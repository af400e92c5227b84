// The name in the file system of a listening unix socket, for whoever closes it last.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace cairn {

// A file that is known again: a later one of the same name has another inode or time.
struct SocketFile {
  std::string path;
  uint64_t inode = 0;
  int64_t changed_ns = 0;
};

// Nothing: `fd` is no unix socket with a name, or its file is not there.
std::optional<SocketFile> SocketFileOf(int fd);
// Removes it unless it has gone or is another one's by now.
void RemoveSocketFile(const SocketFile& file);

}  // namespace cairn
