// Catalog::Run: the retry loop of optimistic transactions. A body may run several times, so it
// keeps no effects but those in its transaction. Losers wait a little, longer each time, so that a
// crowd on one record gets through: of those that commit at once exactly one wins.
#include "catalog/catalog.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/random.h"

namespace cairn {

Status Catalog::Run(const std::function<Status(CatalogTransaction&)>& body) {
  constexpr int kAttempts = 20;
  for (int attempt = 1;; ++attempt) {
    const std::unique_ptr<CatalogTransaction> transaction = Begin();
    CAIRN_TRY(body(*transaction));
    Status committed = transaction->Commit();
    if (committed || committed.error().code() != ErrorCode::kAborted || attempt == kAttempts) {
      return committed;
    }
    uint16_t dice = 0;
    FillRandom(&dice, sizeof dice);
    std::this_thread::sleep_for(std::chrono::microseconds(dice % (200u << std::min(attempt, 9))));
  }
}

Status Catalog::ScanBackward(std::string_view begin, std::string_view end,
                             const std::function<bool(std::string_view, std::string_view)>& visit) {
  std::vector<std::pair<std::string, std::string>> all;
  CAIRN_TRY(Scan(begin, end, [&](std::string_view key, std::string_view value) {
    all.emplace_back(key, value);
    return true;
  }));
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (!visit(it->first, it->second)) break;
  }
  return {};
}

}  // namespace cairn
