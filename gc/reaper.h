// Reaper: removes roots by the lifetime rules. First a plan (pure, over records and time), then its
// execution, step by step, each idempotent: it can die anywhere and be run again, also by two at
// once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/records.pb.h"
#include "store/base/error.h"

namespace cairn {

struct PlanItem {
  std::string object_class;  // "environment", "session", "snapshot", "artifact", "turn", "point",
                             // "volume", "base_image", "operation", "idempotency_key"
  std::string id;
  bool condemned = false;
  std::string rule;  // why it goes or stays: "tombstone", "referenced_by:snap_..", "in_use", ...
  std::string key;   // catalog key
  std::string seen;  // of a condemned point: the record as planned; a changed one stays
};

struct ReapPlan {
  std::vector<PlanItem> items;
  std::vector<std::pair<std::string, uint64_t>> scanned;  // class, count
};

struct ReapReport {
  uint64_t removed = 0;
  uint64_t kept = 0;
  uint64_t failed = 0;  // will be tried again at the next run
  std::vector<std::string> failures;
};

struct ReaperHooks {
  // Revokes (unmounts, closes) and deletes the volume's journals. Idempotent.
  std::function<Status(const catalog::Environment&)> revoke_environment;
  std::function<Status(const catalog::Volume&)> remove_volume;
  // Whether an Environment is served to a kernel now: it is not condemned. Null: never.
  std::function<bool(const catalog::Environment&)> is_mounted;
  // Whether an operation in flight needs a point that no record refers to yet.
  std::function<bool(const catalog::Point&)> point_is_held;
};

class Reaper {
 public:
  Reaper(Catalog& catalog, ReaperHooks hooks, uint64_t server_epoch)
      : catalog_(catalog), hooks_(std::move(hooks)), server_epoch_(server_epoch) {}
  // Everything is listed, kept or condemned, with its rule. A listing that fails fails the plan:
  // nothing is removed.
  Result<ReapPlan> Plan(int64_t now_ms);
  // Executes the condemned items in order. Each is checked again in its own transaction: what came
  // into use since the plan stays.
  Result<ReapReport> Execute(const ReapPlan& plan, int64_t now_ms);

 private:
  Status ExecuteItem(const PlanItem& item, int64_t now_ms);

  Catalog& catalog_;
  ReaperHooks hooks_;
  uint64_t server_epoch_;
};

}  // namespace cairn
