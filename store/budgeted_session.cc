// Put: set aside -> write -> count as written. The order is what keeps ENOSPC out of the middle of
// a pack.
#include "store/budgeted_session.h"

#include <utility>

namespace cairn {
namespace {

// Frame header and tag, footer entry, index entry: 64 + 16 + 64 + 110 and padding.
constexpr uint64_t kBlockOverheadBytes = 320;

class BudgetedSession final : public WriteSession {
 public:
  BudgetedSession(std::string what, SpaceReservation reservation,
                  std::unique_ptr<WriteSession> inner)
      : what_(std::move(what)), inner_(std::move(inner)), left_(std::move(reservation)) {}

  Status PutMany(std::span<const PutRequest> requests, std::span<BlockRef> refs,
                 Durability durability) override {
    uint64_t bytes = 0;
    for (const PutRequest& request : requests) bytes += request.plain.size() + kBlockOverheadBytes;
    {
      MutexLock lock(mutex_);
      CAIRN_TRY(left_.Cover(under_way_ + bytes, what_));
      under_way_ += bytes;
    }
    const Status put = inner_->PutMany(requests, refs, durability);
    MutexLock lock(mutex_);
    under_way_ -= bytes;
    if (put) left_.Use(bytes);
    return put;
  }

  Status Sync() override { return inner_->Sync(); }

 private:
  const std::string what_;
  const std::unique_ptr<WriteSession> inner_;
  Mutex mutex_;
  SpaceReservation left_ GUARDED_BY(mutex_);
  uint64_t under_way_ GUARDED_BY(mutex_) = 0;  // <= left_.bytes()
};

}  // namespace

Result<std::unique_ptr<WriteSession>> BudgetSession(SpaceGuard& guard, const WriteBudget& budget,
                                                    std::unique_ptr<WriteSession> inner) {
  SpaceReservation reservation =
      CAIRN_TRY(guard.Reserve(budget.use, budget.expected_bytes, budget.what));
  return std::make_unique<BudgetedSession>(std::string(budget.what), std::move(reservation),
                                           std::move(inner));
}

}  // namespace cairn
