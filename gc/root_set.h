// Every block that something alive starts from, with an opaque label for reports.
#pragma once

#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "store/address.h"

namespace cairn {

struct Root {
  Id128 realm;
  BlockRef ref;
  std::string owner;  // "environment env_..", "snapshot snap_.. memory", "turn turn_..
                      // artifacts", "base image NAME"
};

struct RootSet {
  std::vector<Root> roots;
  std::vector<Id128> realms;       // of live organizations, and the base realm
  std::vector<Id128> dead_realms;  // of deleted ones: their packs go whole
};

// From the catalog, one consistent pass. An unreadable record is an error: nothing may be
// collected.
Result<RootSet> ReadRootSet(Catalog& catalog);

}  // namespace cairn
