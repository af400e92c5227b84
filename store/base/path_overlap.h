// Whether two directories of the host are one in the other.
#pragma once

#include <filesystem>
#include <string>

#include "store/base/error.h"

namespace cairn {

// Whether `inner` is `outer` or below it by their names alone: touches no file.
bool IsWithinByName(const std::filesystem::path& inner, const std::filesystem::path& outer);

// Whether one of two host paths is the other or lies below it: by their names, links followed as
// far as they exist, and by device and inode, which knows a bind mount of either. (One of a
// directory below either is not known.) What does not exist yet lies in its nearest ancestor that
// does. Errors: of realpath(3) and stat(2).
Result<bool> PathsOverlap(const std::string& a, const std::string& b);

}  // namespace cairn
