// Transact: Catalog::Run for a body that answers with a value or a Refusal.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "catalog/catalog.h"
#include "catalog/refusal.h"

namespace cairn {

// Runs `body(CatalogTransaction&) -> Ruled<T>` as Catalog::Run does (it may run several times) and
// returns its answer once the transaction is committed. A refusal commits nothing.
template <typename Body>
std::invoke_result_t<Body&, CatalogTransaction&> Transact(Catalog& catalog, Body&& body) {
  std::optional<std::invoke_result_t<Body&, CatalogTransaction&>> answer;
  Status committed = catalog.Run([&](CatalogTransaction& txn) -> Status {
    answer.emplace(body(txn));
    if (!*answer) return std::unexpected(answer->error().error());
    return {};
  });
  if (!committed && (!answer || answer->has_value())) {
    return std::unexpected(Refusal(std::move(committed).error()));
  }
  return *std::move(answer);
}

}  // namespace cairn
