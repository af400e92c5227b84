// A write session that takes what it writes out of a budget of the SpaceGuard.
#pragma once

#include <memory>
#include <string_view>

#include "store/base/mutex.h"
#include "store/block_store.h"
#include "store/space_guard.h"

namespace cairn {

// Sets `budget.expected_bytes` aside at once, so that what does not fit is refused before anything
// is written; what a put needs beyond them is set aside then. Counts plaintext: compression and
// deduplication only make it less. Thread-safe, as its `inner`; the guard outlives it.
Result<std::unique_ptr<WriteSession>> BudgetSession(SpaceGuard& guard, const WriteBudget& budget,
                                                    std::unique_ptr<WriteSession> inner);

}  // namespace cairn
