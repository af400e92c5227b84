// Collector: frees blocks that no root reaches. This version holds writers off while it runs (mark,
// then rewrite packs); the index's epoch and condemn-cycle fields are set as the concurrent
// protocol will need them.
//
// Any unreadable or missing branch block, or a missing leaf, aborts with DataLoss and nothing is
// deleted.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "catalog/catalog.h"
#include "store/local_block_store.h"

namespace cairn {

struct CollectOptions {
  bool now =
      false;  // packs do not pass through the trash, and every garbage byte goes (live ratio 1.0)
  bool dry_run = false;
  double min_live_ratio = 0.6;  // a pack below it is rewritten
  int64_t trash_ms = 24 * 3600 * 1000;
};

struct CollectReport {
  uint64_t marked_blocks = 0;
  uint64_t live_bytes = 0;  // stored bytes of marked blocks
  uint64_t garbage_blocks = 0;
  uint64_t garbage_bytes = 0;  // found (dry run: would be freed)
  uint64_t packs_scanned = 0;
  uint64_t packs_rewritten = 0;
  uint64_t packs_removed = 0;
  uint64_t packs_damaged = 0;       // left as they are, with their garbage: a live block is damaged
  uint64_t packs_without_room = 0;  // left as they are: no space for the copy of what lives in them
  uint64_t freed_bytes = 0;         // of the disk, or on its way through the trash
  uint64_t trash_bytes = 0;
};

class Collector {
 public:
  Collector(Catalog& catalog, LocalBlockStore& store) : catalog_(catalog), store_(store) {}
  // One at a time (Unavailable while another runs, or collections are held off).
  Result<CollectReport> Collect(const CollectOptions& options);

  // No collection runs, and so no pack and nothing in the trash goes, while the result lives.
  // Unavailable while one runs.
  class Held {
   public:
    explicit Held(std::atomic<bool>& running) : running_(&running) {}
    Held(Held&& other) noexcept : running_(std::exchange(other.running_, nullptr)) {}
    Held& operator=(Held&&) = delete;
    ~Held() {
      if (running_ != nullptr) *running_ = false;
    }

   private:
    std::atomic<bool>* running_;
  };
  Result<Held> Hold();

 private:
  struct Candidate {
    Id128 realm;
    Id128 pack;
    uint64_t live_bytes = 0;
    uint64_t garbage_bytes = 0;
    bool rewrite = false;  // otherwise its garbage is condemned and stays
  };
  static bool FreesSooner(const Candidate& a, const Candidate& b);
  Status Sweep(const Candidate& candidate, const LocalBlockStore::AddressSet& live, uint64_t cycle,
               bool now, CollectReport& report);

  Catalog& catalog_;
  LocalBlockStore& store_;
  std::atomic<bool> running_ = false;
};

}  // namespace cairn
