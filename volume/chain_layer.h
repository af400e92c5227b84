// ChainLayer: the one implementation of Layer. A link of the chain is either a delta over the link
// below it, or a tree (born as one, or a delta that was sealed).
//
//   active --Freeze--> frozen --BecomeSealed--> tree
#pragma once

#include <memory>

#include "store/base/mutex.h"
#include "store/block_store.h"
#include "volume/delta.h"
#include "volume/layer.h"

namespace cairn {

// Thread-safe. A reader takes each link's state as it comes to it: whether it meets a delta or the
// tree that replaced it and all below, the content is the same. What it holds stays alive until it
// is done.
class ChainLayer final : public Layer {
 public:
  // A tree.
  ChainLayer(BlockStore& store, std::shared_ptr<const TreeReader> tree, uint64_t generation);
  // A delta over `below` (a ChainLayer: CHECKed).
  ChainLayer(BlockStore& store, const Id128& realm, uint64_t generation,
             std::shared_ptr<Delta> delta, std::shared_ptr<const Layer> below);

  Result<std::optional<Entry>> Get(std::string_view key) const override;
  Status Scan(std::string_view begin, std::string_view end,
              const std::function<bool(std::string_view key, const Entry&)>& visit) const override;
  Result<std::vector<Segment>> Extents(InodeNumber ino, uint64_t offset,
                                       uint64_t length_bytes) const override;
  Status Read(const Segment& segment, uint64_t within, std::span<char> out) const override;
  Status ReadMany(std::span<const Segment> segments, uint64_t offset, std::span<char> out,
                  const ReadOptions& options) const override;
  void Prefetch(std::span<const Segment> segments) const override;

  uint64_t generation() const override { return generation_; }
  Status ForEachDelta(
      const std::function<Status(std::string_view key, const DeltaValue&)>& visit) const override;
  size_t delta_count() const override;
  bool frozen() const override;
  std::shared_ptr<const Layer> below() const override;
  std::shared_ptr<const TreeReader> base_tree() const override;
  void BecomeSealed(std::shared_ptr<const TreeReader> tree) override;

  void Freeze();

  static Result<std::shared_ptr<const Layer>> Merge(
      BlockStore& store, const std::vector<std::shared_ptr<const Layer>>& oldest_first);

 private:
  struct State {
    std::shared_ptr<Delta> delta;             // null in a tree
    std::shared_ptr<const ChainLayer> below;  // of a delta
    std::shared_ptr<const TreeReader> tree;   // of a tree
    bool frozen = false;
  };
  // The chain from here down, top first.
  struct Chain {
    std::vector<std::shared_ptr<const Delta>> deltas;
    std::shared_ptr<const TreeReader> tree;
  };
  State GetState() const;
  Chain GetChain() const;
  Status TreeExtents(const TreeReader& tree, InodeNumber ino, const FileRange& gap,
                     std::vector<Segment>& out) const;

  BlockStore& store_;
  const Id128 realm_;
  const uint64_t generation_;
  mutable SharedMutex mutex_;
  State state_ GUARDED_BY(mutex_);
};

}  // namespace cairn
