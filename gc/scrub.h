// Scrubber: verifies every block of every pack in the background, at a bounded rate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/records.pb.h"
#include "gc/token_bucket.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/local_block_store.h"

namespace cairn {

struct ScrubOptions {
  uint64_t rate_bytes = 20'000'000;  // a second, when a pass does not say
  uint64_t step_bytes = 1 << 20;     // read between two waits
  int64_t save_every_ms = 10000;     // how much a kill can make it read again
  size_t max_findings = 1000;        // of one pass; the others are counted
  size_t max_hurt = 100000;          // blocks whose owners are looked for
  // Blocks of this realm that were read before may be wrong: forget what was decoded from them.
  std::function<void(const Id128& realm)> distrusted;
  // Replaces the wait for so many nanoseconds, on the scrubber's thread. For tests.
  std::function<void(int64_t ns)> wait;
};

struct ScrubReport {
  enum class State { kNever, kRunning, kStopped, kFinished };
  State state = State::kNever;
  uint64_t rate_bytes = 0;
  // The pass that runs or was stopped half-way; when there is none, the one that finished last.
  catalog::ScrubPass pass;  // its bytes: read, those read again when it went on too
  uint64_t pack_count = 0;  // of the store now
  struct Finding {
    std::string where;
    std::string what;
    std::vector<std::string> owners;  // as of OwnersOf
    bool resolved = false;  // nothing refers to the place any more: healed, rewritten or dropped
  };
  std::vector<Finding> findings;  // of `pass`
  bool owners_known = true;       // false: still being looked for, or the catalog did not read
  catalog::ScrubPass last;        // the one that finished last; number 0: none
  LocalBlockStore::QuarantineCounts quarantine;
};

// One pass at a time, on one thread of its own (lowest priorities of CPU and disk). Packs are
// verified in the order of their ids; where it has come to is a record of the catalog, saved every
// `save_every_ms` and at each stop, so that a pass goes on after a restart or a kill. What is bad
// is in the quarantine at once. A pack that a collector rewrites or drops meanwhile is left out.
// Thread-safe. Owners are not stored, since they are names: after a restart they are looked for
// again.
class Scrubber {
 public:
  // A pass that was interrupted by a restart goes on at once; one that was stopped waits. A state
  // that does not read is logged and begun anew.
  static std::unique_ptr<Scrubber> Start(Catalog& catalog, LocalBlockStore& store, Clock& clock,
                                         ScrubOptions options);
  ~Scrubber();

  // Begins a pass, or goes on with one that was stopped. `rate_bytes` 0: the default.
  // FailedPrecondition: one is running.
  Status Begin(uint64_t rate_bytes);
  // Stops the running pass where it is; it is at rest on return. Without one: nothing.
  void StopPass();
  Result<ScrubReport> Report();

  // Ends the thread; a pass goes on at the next Start. Idempotent.
  void Stop();

 private:
  Scrubber(Catalog& catalog, LocalBlockStore& store, Clock& clock, ScrubOptions options);
  void Run();
  void RunPass();
  void VerifyPack(const Id128& pack, uint64_t from_offset);
  void AddFindings(const LocalBlockStore::Verification::Step& step);
  // What something refers to and no pack has: a pack that was lost, or cut short, while nobody
  // served the directory.
  void LookForAbsentBlocks();
  void NameOwners();
  void NameOrganizations(const catalog::ScrubPass& pass,
                         std::vector<std::vector<std::string>>& owners);
  bool Pace(uint64_t bytes);
  void Wait(int64_t ns);
  bool Interrupted();
  void Save();
  Result<bool> IsResolved(const catalog::ScrubFinding& finding);

  Catalog& catalog_;
  LocalBlockStore& store_;
  Clock& clock_;
  const ScrubOptions options_;
  TokenBucket bucket_;          // the thread's
  int64_t saved_ms_ = 0;        // the thread's
  bool unnamed_ = false;        // the thread's: findings came since the last look for owners
  int64_t next_naming_ns_ = 0;  // the thread's

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool running_ GUARDED_BY(mutex_) = false;  // a pass runs, or is to run, or is being named
  bool stop_pass_ GUARDED_BY(mutex_) = false;
  catalog::ScrubState state_ GUARDED_BY(mutex_);
  std::vector<std::vector<std::string>> owners_ GUARDED_BY(mutex_);  // of the shown pass's findings
  bool owners_known_ GUARDED_BY(mutex_) = true;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace cairn
