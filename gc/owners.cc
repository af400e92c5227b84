// Each root is walked on its own (two roots may share the hurt block), by reference tables first;
// only a filesystem root that reaches a hurt block is read entry by entry to name its files.
#include "gc/owners.h"

#include <algorithm>
#include <map>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "gc/block_walk.h"
#include "store/node_cache.h"
#include "volume/fs_root.h"
#include "volume/fs_view.h"

namespace cairn {

namespace {

bool Reaches(LocalBlockStore& store, const Root& root, const std::set<Address>& hurt) {
  bool reaches = hurt.contains(root.ref.address);
  WalkCallbacks callbacks;
  callbacks.leaf = [&](const Id128&, const BlockRef& ref) -> Status {
    reaches = reaches || hurt.contains(ref.address);
    return {};
  };
  callbacks.branch = [&](const Id128&, const BlockRef& ref,
                         const std::vector<BlockRef>&) -> Status {
    reaches = reaches || hurt.contains(ref.address);
    return {};
  };
  callbacks.unreadable = [&](const Id128&, const BlockRef& ref, const Error&) -> Status {
    reaches = reaches || hurt.contains(ref.address);
    return {};
  };
  MarkSet marks;
  IgnoreError(WalkBlocks(store, {root}, callbacks, marks), "these callbacks return no error");
  return reaches;
}

// Inodes of a filesystem whose entries refer to a hurt block. Ends early where the tree itself does
// not read.
std::set<InodeNumber> HurtInodes(LocalBlockStore& store, NodeCache& nodes, const Root& root,
                                 const FsRoot& fs, const std::set<Address>& hurt) {
  std::set<InodeNumber> inodes;
  const TreeReader tree(store, nodes, root.realm, fs.tree);
  auto cursor = tree.Seek("");
  while (cursor && (*cursor)->valid() && inodes.size() < kMaxOwners) {
    for (const BlockRef& ref : (*cursor)->entry().refs) {
      if (!hurt.contains(ref.address)) continue;
      const auto key = ParseKey((*cursor)->key());
      if (key) inodes.insert(key->ino);
    }
    if (!(*cursor)->Next()) break;
  }
  return inodes;
}

std::map<uint64_t, std::string> ArtifactsOfTurn(Catalog& catalog, const std::string& turn) {
  std::map<uint64_t, std::string> by_inode;
  IgnoreError(
      ScanRecords<catalog::Artifact>(catalog, keys::Below("artifact"),
                                     [&](std::string_view, const catalog::Artifact& artifact) {
                                       if (artifact.turn() == turn)
                                         by_inode[artifact.ino()] = artifact.id();
                                       return true;
                                     }),
      "only names are lost");
  return by_inode;
}

}  // namespace

std::vector<std::string> OwnersOf(Catalog& catalog, LocalBlockStore& store, const RootSet& roots,
                                  const std::set<Address>& hurt) {
  std::vector<std::string> owners;
  NodeCache nodes(8 << 20);
  auto add = [&](std::string owner) {
    if (std::find(owners.begin(), owners.end(), owner) != owners.end()) return;
    if (owners.size() < kMaxOwners) {
      owners.push_back(std::move(owner));
    } else if (owners.size() == kMaxOwners) {
      owners.push_back("and more");
    }
  };
  for (const Root& root : roots.roots) {
    if (owners.size() > kMaxOwners) break;
    if (!Reaches(store, root, hurt)) continue;
    if (root.ref.kind != BlockKind::kFsRoot) {
      add(root.owner);
      continue;
    }
    const auto fs = LoadFsRoot(store, root.realm, root.ref);
    std::set<InodeNumber> inodes;
    if (fs) inodes = HurtInodes(store, nodes, root, *fs, hurt);
    if (inodes.empty()) {
      add(root.owner);
      continue;
    }
    constexpr std::string_view kTurn = "turn ";
    if (root.owner.starts_with(kTurn)) {
      const std::string turn =
          root.owner.substr(kTurn.size(), root.owner.find(' ', kTurn.size()) - kTurn.size());
      const auto artifacts = ArtifactsOfTurn(catalog, turn);
      for (const InodeNumber ino : inodes) {
        const auto artifact = artifacts.find(ino);
        add(artifact == artifacts.end() ? root.owner : "artifact " + artifact->second);
      }
      continue;
    }
    const FsView view(
        TreeLayer(store, std::make_shared<TreeReader>(store, nodes, root.realm, fs->tree),
                  fs->generation),
        fs->hash_seed);
    for (const InodeNumber ino : inodes) {
      const auto path = view.FindPath(ino);
      add(root.owner + (path ? " " + *path : " inode " + std::to_string(ino)));
    }
  }
  return owners;
}

}  // namespace cairn
