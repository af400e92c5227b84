// By names, both of them resolved as far as they exist.
#include "api/host_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace cairn {
namespace {

using std::filesystem::path;

// Whether `inner` is `outer` or below it.
bool IsWithin(const path& inner, const path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

Result<path> Resolve(const std::string& name) {
  std::error_code error;
  path resolved = std::filesystem::weakly_canonical(name, error);
  if (error) return ErrErrno(error.value(), "resolve " + name);
  if (!resolved.has_filename() && resolved.has_relative_path()) resolved = resolved.parent_path();
  return resolved;
}

}  // namespace

Status RefuseDataDirectory(const std::string& path, const std::string& data_dir) {
  if (data_dir.empty()) return {};
  const auto data = CAIRN_TRY(Resolve(data_dir));
  const auto named = CAIRN_TRY(Resolve(path));
  if (!IsWithin(named, data) && !IsWithin(data, named)) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} and the data directory {} lie in each other: name another path", path,
                         data.string()));
}

}  // namespace cairn
