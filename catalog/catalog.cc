// Catalog::Run: the retry loop of optimistic transactions. A body may run several times, so it
// keeps no effects but those in its transaction.
#include "catalog/catalog.h"

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
  }
}

}  // namespace cairn
