// Both paths are resolved as far as they exist. Then either one's names begin with the other's, or
// one of the directories above it is the other by stat(2).
#include "store/base/path_overlap.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

namespace cairn {
namespace {

using std::filesystem::path;

Result<path> Resolve(const std::string& name) {
  std::error_code error;
  path resolved = std::filesystem::weakly_canonical(name, error);
  if (error) return ErrErrno(error.value(), "resolve " + name);
  if (!resolved.has_filename() && resolved.has_relative_path()) resolved = resolved.parent_path();
  return resolved;
}

// nullopt: it does not exist.
using Identity = std::pair<dev_t, ino_t>;
Result<std::optional<Identity>> IdentityOf(const path& p) {
  struct stat st{};
  if (stat(p.c_str(), &st) == 0) return std::optional<Identity>({st.st_dev, st.st_ino});
  if (errno == ENOENT || errno == ENOTDIR) return std::optional<Identity>();
  return ErrErrno(errno, "stat " + p.string());
}

Result<bool> IsWithin(const path& inner, const path& outer) {
  if (IsWithinByName(inner, outer)) return true;
  const std::optional<Identity> wanted = CAIRN_TRY(IdentityOf(outer));
  if (!wanted) return false;
  for (path at = inner;; at = at.parent_path()) {
    if (CAIRN_TRY(IdentityOf(at)) == wanted) return true;
    if (!at.has_relative_path()) return false;
  }
}

}  // namespace

bool IsWithinByName(const path& inner, const path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

Result<bool> PathsOverlap(const std::string& a, const std::string& b) {
  const path first = CAIRN_TRY(Resolve(a));
  const path second = CAIRN_TRY(Resolve(b));
  return CAIRN_TRY(IsWithin(first, second)) || CAIRN_TRY(IsWithin(second, first));
}

}  // namespace cairn
