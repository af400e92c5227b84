// Paths on the host that a client of the host protocol names.
#pragma once

#include <string>

#include "store/base/error.h"

namespace cairn {

// InvalidArgument when `path` is the data directory, in it, or a parent of it: what is read from
// there would hold keys and stored files of all organizations, what is written there would lie
// among them. `path` need not exist; symlinks are followed, so it must not be on a mount of this
// process (RefuseFusePath first). An empty `data_dir` refuses nothing.
Status RefuseDataDirectory(const std::string& path, const std::string& data_dir);

}  // namespace cairn
