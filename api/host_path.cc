// A call that names a path in the data directory, or one that the data directory is in, would read
// or write what only the store may.
#include "api/host_path.h"

#include <fmt/format.h>

#include "store/base/path_overlap.h"

namespace cairn {

Status RefuseDataDirectory(const std::string& path, const std::string& data_dir) {
  if (data_dir.empty() || !CAIRN_TRY(PathsOverlap(path, data_dir))) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} and the data directory {} lie in each other: name another path", path,
                         data_dir));
}

}  // namespace cairn
