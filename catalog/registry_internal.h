// What the files of Registry share.
#pragma once

#include <string>

#include "catalog/ids.h"
#include "catalog/records.h"
#include "catalog/refusal.h"

namespace cairn {

// NotFound: missing or deleted. Remembered as read: a deletion at the same time aborts the
// transaction.
inline Status RequireOrganization(CatalogTransaction& txn, const std::string& org) {
  if (!IsId(org, kOrganizationPrefix)) return NoSuch("organization", org);
  const auto record = CAIRN_TRY(GetRecord<catalog::Organization>(txn, keys::Organization(org)));
  if (!record || record->deleted_ms() != 0) return NoSuch("organization", org);
  return {};
}

}  // namespace cairn
