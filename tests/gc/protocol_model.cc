// Breadth-first search over packed states: a state is 72 bits, of its symmetric images (roots,
// writers, collectors renamed) the smallest stands for all, and each visited state keeps its
// predecessor, so that a counterexample is a shortest one. After every step two things are checked:
// each published root has all its blocks, entry and body; and once nobody is at work, one
// collection after a restart leaves exactly what the roots reach.
#include "tests/gc/protocol_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace cairn {
namespace {

using State = ProtocolModel::State;
using Key = unsigned __int128;

struct KeyHash {
  size_t operator()(Key key) const {
    uint64_t x =
        static_cast<uint64_t>(key) ^ (static_cast<uint64_t>(key >> 64) * 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
  }
};

constexpr int kTargets = 2;

// Blocks that a root of this target reaches: a node with its child; or that child beside a leaf.
constexpr uint8_t Closure(int target) {
  constexpr std::array<uint8_t, kTargets + 1> kClosures = {0, 0b011, 0b110};
  return kClosures[static_cast<size_t>(target)];
}

constexpr bool Has(unsigned mask, int bit) { return ((mask >> bit) & 1u) != 0; }
constexpr uint8_t Bit(int bit) { return static_cast<uint8_t>(1u << bit); }

class Packer {
 public:
  void Add(unsigned value, int bits) { key_ = (key_ << bits) | value; }
  Key key() const { return key_; }

 private:
  Key key_ = 0;
};

Key Pack(const State& state) {
  Packer pack;
  for (const auto& block : state.blocks) {
    pack.Add(block.entry, 1);
    pack.Add(block.slot, 1);
    pack.Add(block.tag, 2);
    pack.Add(block.bodies, 2);
  }
  for (const auto& root : state.roots) {
    pack.Add(root.target, 2);
    pack.Add(root.deleted, 1);
  }
  for (const auto& writer : state.writers) {
    pack.Add(writer.open, 1);
    pack.Add(writer.target, 2);
    pack.Add(writer.have, 3);
    pack.Add(writer.fenced, 1);
    pack.Add(writer.cached, 1);
  }
  for (const auto& collector : state.collectors) {
    pack.Add(collector.phase, 3);
    pack.Add(collector.next, 2);
    pack.Add(collector.half, 1);
    pack.Add(collector.slot, 1);
    pack.Add(collector.marks, 3);
    pack.Add(collector.old_roots, ProtocolModel::kRoots);
    pack.Add(collector.waits, ProtocolModel::kWriters);
  }
  pack.Add(state.left.sessions, 3);
  pack.Add(state.left.cycles, 3);
  pack.Add(state.left.deletions, 3);
  pack.Add(state.left.misfortunes, 3);
  return pack.key();
}

State SwapWriters(State state) {
  std::swap(state.writers[0], state.writers[1]);
  for (auto& collector : state.collectors) {
    collector.waits = static_cast<uint8_t>(((collector.waits & 1) << 1) | (collector.waits >> 1));
  }
  return state;
}

State SwapCollectors(State state) {
  std::swap(state.collectors[0], state.collectors[1]);
  for (auto& block : state.blocks) {
    if (block.tag == 1 || block.tag == 2) block.tag = static_cast<uint8_t>(3 - block.tag);
  }
  return state;
}

State SwapRoots(State state) {
  std::swap(state.roots[0], state.roots[1]);
  for (auto& collector : state.collectors) {
    collector.old_roots =
        static_cast<uint8_t>(((collector.old_roots & 1) << 1) | (collector.old_roots >> 1));
  }
  return state;
}

// Which of the two slots a body lies in means nothing.
State SlotsNamed(State state) {
  for (int b = 0; b < ProtocolModel::kBlocks; ++b) {
    auto& block = state.blocks[static_cast<size_t>(b)];
    bool pending = false;
    for (const auto& collector : state.collectors) {
      pending = pending || (collector.half != 0 && collector.next == b);
    }
    if (pending || block.bodies == 3) continue;
    if (block.bodies == 2) block.bodies = 1;
    block.slot = 0;
  }
  return state;
}

// Renames roots, writers and collectors so that their descriptions ascend. Two roots (writers) with
// equal descriptions, collectors' masks included, are the same; of collectors that agree in all but
// the masks and tags that name others, both orders are tried.
State Canonical(const State& original) {
  const auto sorted = [](State state) {
    const auto mask_bits = [&state](auto member, int i) {
      unsigned bits = 0;
      for (const auto& collector : state.collectors)
        bits = bits << 1 | ((collector.*member >> i) & 1u);
      return bits;
    };
    const auto root_key = [&](int r) {
      const auto& root = state.roots[static_cast<size_t>(r)];
      return std::tuple(root.target, root.deleted,
                        mask_bits(&ProtocolModel::Collector::old_roots, r));
    };
    if (root_key(1) < root_key(0)) state = SwapRoots(state);
    const auto writer_key = [&](int w) {
      const auto& writer = state.writers[static_cast<size_t>(w)];
      return std::tuple(writer.open, writer.target, writer.have, writer.fenced, writer.cached,
                        mask_bits(&ProtocolModel::Collector::waits, w));
    };
    if (writer_key(1) < writer_key(0)) state = SwapWriters(state);
    return state;
  };
  const State state = SlotsNamed(original);
  const auto collector_key = [&](int c) {
    const auto& own = state.collectors[static_cast<size_t>(c)];
    return std::tuple(own.phase, own.next, own.half, own.slot, own.marks);
  };
  const auto first = collector_key(0);
  const auto second = collector_key(1);
  if (first < second) return sorted(state);
  if (second < first) return sorted(SwapCollectors(state));
  const State one = sorted(state);
  const State other = sorted(SwapCollectors(state));
  return Pack(one) < Pack(other) ? one : other;
}

uint8_t LiveClosure(const State& state) {
  uint8_t live = 0;
  for (const auto& root : state.roots) {
    if (root.deleted == 0) live |= Closure(root.target);
  }
  return live;
}

bool Readable(const ProtocolModel::Block& block) {
  return block.entry != 0 && Has(block.bodies, block.slot);
}

bool MarksUnderWay(const State& state) {
  return std::ranges::any_of(state.collectors, [](const auto& collector) {
    return collector.phase == ProtocolModel::kCondemning ||
           collector.phase == ProtocolModel::kWaiting;
  });
}

void ForgetDeletedRoots(State& state) {
  if (MarksUnderWay(state)) return;
  for (auto& root : state.roots) {
    if (root.deleted != 0) root = {};
  }
}

State Restarted(State state, bool tags_lost) {
  state.writers = {};
  state.collectors = {};
  ForgetDeletedRoots(state);
  for (auto& block : state.blocks) {
    if (block.tag != 0) block.tag = tags_lost ? 0 : 3;
    if (block.entry == 0 && block.bodies != 0) {
      block.entry = 1;
      block.slot = Has(block.bodies, 0) ? 0 : 1;
    }
    // The other copy is garbage of its pack, and goes with the pack's next rewrite.
    if (block.entry != 0 && Has(block.bodies, block.slot)) block.bodies = Bit(block.slot);
  }
  return state;
}

}  // namespace

std::string ProtocolModel::Describe(Action action, int who, int what) {
  switch (action) {
    case Action::kNone:
      return "the empty store";
    case Action::kBegin:
      return fmt::format("writer {} begins, for blocks {:03b}", who, Closure(what));
    case Action::kPut:
      return fmt::format("writer {} puts block {}", who, what);
    case Action::kInherit:
      return fmt::format("writer {} inherits from root {}", who, what);
    case Action::kPublish:
      return fmt::format("writer {} publishes root {}", who, what);
    case Action::kLoseLease:
      return fmt::format("writer {} loses its lease", who);
    case Action::kWriterCrash:
      return fmt::format("writer {} crashes", who);
    case Action::kStart:
      return fmt::format("collector {} reads the root set", who);
    case Action::kMark:
      return fmt::format("collector {} has marked, passes block 0, condemning", who);
    case Action::kMarkUnreadable:
      return fmt::format("collector {} cannot read the node that it marks", who);
    case Action::kCondemn:
      return fmt::format("collector {} passes block {}, condemning", who, what);
    case Action::kRemark:
      return fmt::format("collector {} marks the new roots", who);
    case Action::kDelete:
      return fmt::format("collector {} passes block {}, deleting", who, what);
    case Action::kCollectorCrash:
      return fmt::format("collector {} crashes", who);
    case Action::kDeleteRoot:
      return fmt::format("root {} is deleted", what);
    case Action::kRestart:
      return "all restart";
    case Action::kRestartTagsLost:
      return "all restart, the tags are lost";
  }
  return "";
}

bool ProtocolModel::Put(State& state, int w, int b) const {
  Writer& writer = state.writers[static_cast<size_t>(w)];
  Block& block = state.blocks[static_cast<size_t>(b)];
  if (b == kCachedBlock && writer.cached != 0) {
    writer.have |= Bit(b);
    return true;
  }
  if (block.entry == 0) {
    if (block.bodies == 3) return false;  // the world has no third place
    block.slot = Has(block.bodies, 0) ? 1 : 0;
    block.bodies |= Bit(block.slot);
    block.entry = 1;
    block.tag = 0;
  } else if (block.tag != 0 && guards_.resurrect) {
    block.tag = 0;
  }
  writer.have |= Bit(b);
  if (b == kCachedBlock) writer.cached = 1;
  return true;
}

void ProtocolModel::WriterSteps(const State& state, int w, std::vector<Step>& steps) const {
  const Writer& writer = state.writers[static_cast<size_t>(w)];
  const auto emit = [&](Action action, int what, auto&& change) {
    State next = state;
    change(next, next.writers[static_cast<size_t>(w)]);
    steps.push_back({next, action, static_cast<uint8_t>(w), static_cast<uint8_t>(what)});
  };
  const auto unwait = [w](State& next) {
    for (Collector& collector : next.collectors) {
      collector.waits &= static_cast<uint8_t>(~Bit(w));
    }
  };
  if (writer.open == 0) {
    if (state.left.sessions == 0) return;
    for (int target = 1; target <= kTargets; ++target) {
      emit(Action::kBegin, target, [&](State& next, Writer& own) {
        --next.left.sessions;
        own.open = 1;
        own.target = static_cast<uint8_t>(target);
        own.have = 0;
        own.fenced = 0;
      });
    }
    return;
  }
  const auto end = [&](State& next, Writer& own) {
    own = {.cached = own.cached};
    unwait(next);
  };
  for (int b = 0; b < kBlocks; ++b) {
    if (!Has(Closure(writer.target), b) || Has(writer.have, b)) continue;
    // Children first.
    if (b != kCachedBlock && !Has(writer.have, kCachedBlock)) continue;
    State next = state;
    if (Put(next, w, b)) {
      steps.push_back({next, Action::kPut, static_cast<uint8_t>(w), static_cast<uint8_t>(b)});
    }
  }
  for (int r = 0; r < kRoots; ++r) {
    const Root& root = state.roots[static_cast<size_t>(r)];
    if (root.target == 0 || root.deleted != 0) continue;
    const uint8_t gain = Closure(root.target) & Closure(writer.target);
    if ((gain & ~writer.have) == 0) continue;
    emit(Action::kInherit, r, [&](State&, Writer& own) { own.have |= gain; });
  }
  if (writer.have == Closure(writer.target)) {
    for (int r = 0; r < kRoots; ++r) {
      if (state.roots[static_cast<size_t>(r)].target != 0) continue;
      emit(Action::kPublish, r, [&](State& next, Writer& own) {
        if (own.fenced == 0 || !guards_.fence) {
          next.roots[static_cast<size_t>(r)] = {.target = own.target};
        }
        end(next, own);
      });
      break;  // the other empty slot is the same up to symmetry
    }
  }
  if (state.left.misfortunes == 0) return;
  if (writer.fenced == 0) {
    emit(Action::kLoseLease, 0, [&](State& next, Writer& own) {
      --next.left.misfortunes;
      own.fenced = 1;
      unwait(next);
    });
  }
  emit(Action::kWriterCrash, 0, [&](State& next, Writer& own) {
    --next.left.misfortunes;
    own = {};
    unwait(next);
  });
}

void ProtocolModel::EndCycle(State& state, int c) const {
  state.collectors[static_cast<size_t>(c)] = {};
  if (guards_.fresh_cycle) {
    for (Block& block : state.blocks) {
      if (block.tag == c + 1) block.tag = 3;
    }
  }
  ForgetDeletedRoots(state);
}

void ProtocolModel::DeleteStep(State& state, int c) const {
  Collector& own = state.collectors[static_cast<size_t>(c)];
  Block& block = state.blocks[own.next];
  if (own.half != 0) {
    if (guards_.tombstone_first) {
      block.bodies &= static_cast<uint8_t>(~Bit(own.slot));
    } else if (block.entry != 0 && block.slot == own.slot) {
      block.entry = 0;
      block.tag = 0;
      block.slot = 0;
    }
    own.half = 0;
  } else if (block.entry != 0 && (guards_.cycle_tag ? block.tag == c + 1 : block.tag != 0)) {
    own.half = 1;
    own.slot = block.slot;
    if (guards_.tombstone_first) {
      block.entry = 0;
      block.tag = 0;
      block.slot = 0;
    } else {
      block.bodies &= static_cast<uint8_t>(~Bit(own.slot));
    }
    return;
  }
  own.slot = 0;
  if (++own.next == kBlocks) EndCycle(state, c);
}

void ProtocolModel::CollectorSteps(const State& state, int c, std::vector<Step>& steps) const {
  const Collector& collector = state.collectors[static_cast<size_t>(c)];
  const auto emit = [&](Action action, int what, auto&& change) {
    State next = state;
    change(next, next.collectors[static_cast<size_t>(c)]);
    steps.push_back({next, action, static_cast<uint8_t>(c), static_cast<uint8_t>(what)});
  };
  switch (collector.phase) {
    case kIdle:
      if (state.left.cycles == 0) return;
      emit(Action::kStart, 0, [&](State& next, Collector& own) {
        --next.left.cycles;
        own.phase = kCondemning;
        own.marks = LiveClosure(next);
        for (int r = 0; r < kRoots; ++r) {
          const Root& root = next.roots[static_cast<size_t>(r)];
          if (root.target != 0 && root.deleted == 0) own.old_roots |= Bit(r);
        }
      });
      return;
    case kCondemning: {
      const auto condemn = [&](State& next, Collector& own) {
        Block& block = next.blocks[own.next];
        if (block.entry != 0 && !Has(own.marks, own.next)) {
          block.tag = static_cast<uint8_t>(c + 1);
        }
        if (++own.next < kBlocks) return;
        own = {.phase = kWaiting, .old_roots = own.old_roots};
        for (int w = 0; w < kWriters; ++w) {
          Writer& writer = next.writers[static_cast<size_t>(w)];
          if (writer.open != 0 && writer.fenced == 0) own.waits |= Bit(w);
          if (guards_.cache_epoch) writer.cached = 0;
        }
      };
      if (collector.next != 0) {
        emit(Action::kCondemn, collector.next, condemn);
        break;
      }
      // What the root set reached at Start may have been deleted by the other collector meanwhile.
      bool whole = true;
      for (int b = 0; b < kBlocks; ++b) {
        whole =
            whole && (!Has(collector.marks, b) || Readable(state.blocks[static_cast<size_t>(b)]));
      }
      if (whole) emit(Action::kMark, 0, condemn);
      if (!whole || Has(collector.marks, 0)) {
        emit(Action::kMarkUnreadable, 0, [&](State& next, Collector& own) {
          if (guards_.abort_on_error) {
            EndCycle(next, c);
          } else {  // the node's child is not seen
            own.marks &= static_cast<uint8_t>(~Bit(1));
            condemn(next, own);
          }
        });
      }
      break;
    }
    case kWaiting:
      if (collector.waits != 0 && guards_.wait_for_writers) break;
      emit(Action::kRemark, 0, [&](State& next, Collector& own) {
        uint8_t marks = 0;
        for (int r = 0; r < kRoots; ++r) {
          if (!Has(own.old_roots, r)) marks |= Closure(next.roots[static_cast<size_t>(r)].target);
        }
        for (int b = 0; guards_.remark && b < kBlocks; ++b) {
          Block& block = next.blocks[static_cast<size_t>(b)];
          if (Has(marks, b) && block.tag == c + 1) block.tag = 0;
        }
        own = {.phase = kDeleting};
        ForgetDeletedRoots(next);
      });
      break;
    case kDeleting:
      emit(Action::kDelete, collector.next, [&](State& next, Collector&) { DeleteStep(next, c); });
      break;
  }
  if (state.left.misfortunes == 0) return;
  emit(Action::kCollectorCrash, 0, [&](State& next, Collector&) {
    --next.left.misfortunes;
    EndCycle(next, c);
  });
}

void ProtocolModel::WorldSteps(const State& state, std::vector<Step>& steps) const {
  for (int r = 0; r < kRoots; ++r) {
    const Root& root = state.roots[static_cast<size_t>(r)];
    if (root.target == 0 || root.deleted != 0 || state.left.deletions == 0) continue;
    State next = state;
    --next.left.deletions;
    if (guards_.remark_deleted) {
      next.roots[static_cast<size_t>(r)].deleted = 1;
      ForgetDeletedRoots(next);
    } else {
      next.roots[static_cast<size_t>(r)] = {};
    }
    for (Collector& collector : next.collectors) {
      if (next.roots[static_cast<size_t>(r)].target == 0) {
        collector.old_roots &= static_cast<uint8_t>(~Bit(r));
      }
    }
    steps.push_back({next, Action::kDeleteRoot, 0, static_cast<uint8_t>(r)});
  }
  if (state.left.misfortunes == 0) return;
  for (const bool tags_lost : {false, true}) {
    Step step{.state = Restarted(state, tags_lost),
              .action = tags_lost ? Action::kRestartTagsLost : Action::kRestart};
    --step.state.left.misfortunes;
    steps.push_back(step);
  }
}

std::vector<std::string> ProtocolModel::Faults(const State& state) const {
  std::vector<std::string> faults;
  const uint8_t live = LiveClosure(state);
  for (int b = 0; b < kBlocks; ++b) {
    if (Has(live, b) && !Readable(state.blocks[static_cast<size_t>(b)])) {
      faults.push_back(fmt::format("a published root misses block {}", b));
    }
  }
  if (!faults.empty()) return faults;
  const bool quiet = std::ranges::all_of(
      state.collectors, [](const auto& collector) { return collector.phase == kIdle; });
  if (!quiet) return faults;
  State alone = Restarted(state, false);
  alone.left = {.cycles = 1};
  std::vector<Step> steps;
  do {
    steps.clear();
    CollectorSteps(alone, 0, steps);
    alone = steps.front().state;
  } while (alone.collectors[0].phase != kIdle);
  for (int b = 0; b < kBlocks; ++b) {
    const Block& block = alone.blocks[static_cast<size_t>(b)];
    if (!Has(live, b) && (block.entry != 0 || block.bodies != 0)) {
      faults.push_back(fmt::format("a collection of the quiet store leaves block {}", b));
    }
    if (Has(live, b) && !Readable(block)) {
      faults.push_back(fmt::format("a collection of the quiet store takes live block {}", b));
    }
  }
  return faults;
}

ProtocolModel::Exploration ProtocolModel::Explore(uint64_t max_states) const {
  struct Visit {
    State state;
    uint32_t before = 0;
    Action action = Action::kNone;
    uint8_t who = 0;
    uint8_t what = 0;
  };
  std::vector<Visit> visits;
  std::unordered_map<Key, uint32_t, KeyHash> seen;
  State begin;
  begin.left = bounds_;
  const State empty = Canonical(begin);
  visits.push_back({.state = empty});
  seen.emplace(Pack(empty), 0);

  Exploration result;
  std::vector<Step> steps;
  for (size_t at = 0; at < visits.size(); ++at) {
    steps.clear();
    const State state = visits[at].state;
    for (int w = 0; w < kWriters; ++w) WriterSteps(state, w, steps);
    for (int c = 0; c < kCollectors; ++c) CollectorSteps(state, c, steps);
    WorldSteps(state, steps);
    result.steps += steps.size();
    for (const Step& step : steps) {
      const State next = Canonical(step.state);
      if (!seen.emplace(Pack(next), static_cast<uint32_t>(visits.size())).second) continue;
      visits.push_back({next, static_cast<uint32_t>(at), step.action, step.who, step.what});
      std::vector<std::string> faults = Faults(next);
      if (!faults.empty()) {
        for (size_t i = visits.size() - 1; i != 0; i = visits[i].before) {
          faults.insert(faults.begin(), Describe(visits[i].action, visits[i].who, visits[i].what));
        }
        result.counterexample = std::move(faults);
        result.states = visits.size();
        return result;
      }
      if (visits.size() >= max_states) {
        result.states = visits.size();
        return result;
      }
    }
  }
  result.states = visits.size();
  result.complete = true;
  return result;
}

}  // namespace cairn
