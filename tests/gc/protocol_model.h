// ProtocolModel: the concurrent collection protocol as a finite state machine, small enough that
// every reachable state is visited. It fixes what the index (epoch, condemn cycle), the
// registration of writers and the root set must offer; docs/decisions/0008-collection-protocol.md
// tells what it showed.
//
// The world: three blocks of one realm, block 0 a node whose child is block 1; two root slots; two
// writers, each a host of its own with a cache of "this block exists"; two collectors. Each step is
// one atomic action of one of them, in any order:
//
//   writer     Begin -> Put | Inherit ... -> Publish          LoseLease, Crash at any moment
//   collector  Start -> Mark -> Condemn, block by block -> Remark (when nobody is waited for)
//              -> Delete, block by block: index entry, then body         Crash at any moment
//   world      DeleteRoot, Restart (all die, the packs are indexed again, tags may be lost)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

// Each guard of the protocol. A test takes each out and expects a counterexample.
struct ProtocolGuards {
  bool wait_for_writers = true;  // Remark comes after the end of all writers that began before
                                 // condemning ended
  bool cycle_tag = true;         // Delete compares the tag with its own cycle
  bool fresh_cycle = true;       // a cycle number is never used twice
  bool fence = true;             // Publish is refused once the lease is lost
  bool cache_epoch = true;       // "exists" caches are void once condemning has ended
  bool abort_on_error = true;    // Mark ends the cycle when a node cannot be read
  bool remark = true;            // roots published since Start are marked before Delete
  bool remark_deleted = true;    // ... also those that were deleted again meanwhile
  bool resurrect = true;         // Put takes the tag off a condemned block that it finds
  bool tombstone_first = true;   // the index entry goes before the body
};

// How often each kind of step may happen in one history. Within these bounds every history is
// explored.
struct ProtocolBounds {
  uint8_t sessions = 3;     // that writers begin
  uint8_t cycles = 2;       // that collectors begin
  uint8_t deletions = 1;    // of roots
  uint8_t misfortunes = 1;  // lost leases, crashes of one, restarts of all; at most 7
};

class ProtocolModel {
 public:
  static constexpr int kBlocks = 3;
  static constexpr int kRoots = 2;
  static constexpr int kWriters = 2;
  static constexpr int kCollectors = 2;
  static constexpr int kCachedBlock = 1;  // the one that both kinds of root share

  struct Block {
    uint8_t entry = 0;   // the index has it
    uint8_t slot = 0;    // which of two bodies the entry points at
    uint8_t tag = 0;     // 0 none, 1 and 2 a collector's present cycle, 3 of a cycle that is over
    uint8_t bodies = 0;  // mask
  };
  struct Root {
    uint8_t target = 0;   // 0 none, otherwise which blocks: Closure
    uint8_t deleted = 0;  // gone for users, still seen by collections under way
  };
  struct Writer {
    uint8_t open = 0;
    uint8_t target = 0;
    uint8_t have = 0;    // mask: blocks that it put or inherited
    uint8_t fenced = 0;  // its lease is lost; it does not know
    uint8_t cached = 0;  // its host believes that kCachedBlock exists
  };
  enum Phase : uint8_t { kIdle, kCondemning, kWaiting, kDeleting };
  struct Collector {
    uint8_t phase = kIdle;
    uint8_t next = 0;       // block that Condemn or Delete is at
    uint8_t half = 0;       // Delete has done the first of its two steps
    uint8_t slot = 0;       // the body that goes in the second
    uint8_t marks = 0;      // mask of blocks
    uint8_t old_roots = 0;  // mask: the root set read at Start
    uint8_t waits = 0;      // mask of writers
  };
  struct State {
    std::array<Block, kBlocks> blocks;
    std::array<Root, kRoots> roots;
    std::array<Writer, kWriters> writers;
    std::array<Collector, kCollectors> collectors;
    ProtocolBounds left;
  };

  struct Exploration {
    uint64_t states = 0;  // up to the symmetry of roots, writers and collectors
    uint64_t steps = 0;
    bool complete = false;                    // every reachable state was visited
    std::vector<std::string> counterexample;  // steps from the empty store, then what is wrong
  };

  ProtocolModel(const ProtocolGuards& guards, const ProtocolBounds& bounds)
      : guards_(guards), bounds_(bounds) {}

  // Breadth first from the empty store until a published root misses a block, a collection of the
  // quiet store leaves garbage or takes something live, or `max_states` were visited.
  Exploration Explore(uint64_t max_states) const;

 private:
  enum class Action : uint8_t {
    kNone,
    kBegin,
    kPut,
    kInherit,
    kPublish,
    kLoseLease,
    kWriterCrash,
    kStart,
    kMark,
    kMarkUnreadable,
    kCondemn,
    kRemark,
    kDelete,
    kCollectorCrash,
    kDeleteRoot,
    kRestart,
    kRestartTagsLost,
  };
  struct Step {
    State state;
    Action action = Action::kNone;
    uint8_t who = 0;
    uint8_t what = 0;
  };
  static std::string Describe(Action action, int who, int what);

  std::vector<std::string> Faults(const State& state) const;
  void WriterSteps(const State& state, int w, std::vector<Step>& steps) const;
  void CollectorSteps(const State& state, int c, std::vector<Step>& steps) const;
  void WorldSteps(const State& state, std::vector<Step>& steps) const;
  bool Put(State& state, int w, int b) const;
  void EndCycle(State& state, int c) const;
  void DeleteStep(State& state, int c) const;

  const ProtocolGuards guards_;
  const ProtocolBounds bounds_;
};

}  // namespace cairn
