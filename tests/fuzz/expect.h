// What a fuzz target asserts of a decoder's errors.
#pragma once

#include <algorithm>
#include <cstdio>
#include <initializer_list>

#include "store/base/check.h"
#include "store/base/error.h"

namespace cairn {

// Bytes that are not valid are DataLoss, of a newer version FailedPrecondition; `allowed` names
// what a decoder's contract says besides.
inline void ExpectRefusal(const Error& error, std::initializer_list<ErrorCode> allowed = {}) {
  const ErrorCode code = error.code();
  if (code == ErrorCode::kDataLoss || code == ErrorCode::kFailedPrecondition ||
      std::find(allowed.begin(), allowed.end(), code) != allowed.end()) {
    return;
  }
  std::fprintf(stderr, "unexpected error: %s\n", error.ToString().c_str());
  CAIRN_CHECK(!"a decoder refuses with another error than its contract says");
}

}  // namespace cairn
