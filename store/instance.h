// What tells one serving of a data directory from another: the instance id's lock on this machine,
// and where the directory lies. docs/formats/data_directory.md, "Copies".
#pragma once

#include <optional>
#include <string>

#include "store/base/error.h"
#include "store/base/id128.h"
#include "store/base/unique_fd.h"

namespace cairn {

// Held while the descriptor is open; ends with the process however that dies. FailedPrecondition
// when another process (or this one) holds it: the message has the pid and, where it can be found
// out, the directory that it serves. Reaches as far as the network namespace.
Result<UniqueFd> LockInstance(const Id128& instance);

// Where a directory lies: "<machine> <birth>", each "-" when unknown. machine: a digest of the
// machine id; birth: when the directory was created, which no copying tool can set.
Result<std::string> HomeOf(const std::string& dir, const std::string& machine_id_file);

// Whether the two may be one place. Parts that either does not know do not count.
bool SameHome(std::string_view a, std::string_view b);

}  // namespace cairn
