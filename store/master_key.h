// The master key: where it comes from. A file of its own, or a command that prints it (a key
// service's client). It is never logged, and no error message holds any of it.
#pragma once

#include <cstdint>
#include <string>

#include "store/base/aead.h"
#include "store/base/error.h"
#include "store/base/file_system.h"

namespace cairn {

struct MasterKeySource {
  std::string
      file;  // 64 hex digits and at most a newline; a regular file of this user, 0600 or 0400
  std::string
      command;  // not empty: /bin/sh -c prints the same on its standard output; `file` is unused
  int64_t timeout_ms = 30000;  // of the command, after which its process group is killed
};

// Errors: FailedPrecondition (the file is missing, another user's, or others may read it; the
// command ended with another status than 0), InvalidArgument (not 64 hex digits), Unavailable (the
// command took too long), Internal. Messages name the file or the command and what was wrong, never
// what was read.
Result<Key256> ReadMasterKey(const MasterKeySource& source);

// The file's contents for a key: 64 hex digits and a newline. Wipe it after use.
std::string EncodeMasterKey(const Key256& key);

// Writes a key file atomically, mode 0600; durable on return.
Status WriteMasterKeyFile(FileSystem& fs, const std::string& path, const Key256& key);
// Overwrites the file's bytes in place and unlinks it. An absent one is fine.
Status DestroyMasterKeyFile(FileSystem& fs, const std::string& path);

}  // namespace cairn
