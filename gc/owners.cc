// Each root is walked by reference tables, depth first. A branch block below which nothing is hurt
// is remembered and skipped from then on, for this root and the others, so that roots that share
// their blocks cost little; leaves are not remembered at all, only compared. In a filesystem the
// walk ends at the leaf nodes, whose entries say which inodes refer to a hurt block. Their names
// come from one pass over the tree's directory entries, Artifacts from one pass over their records.
#include "gc/owners.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "catalog/keys.h"
#include "catalog/records.h"
#include "store/node_cache.h"
#include "store/reference_table.h"
#include "store/tree_node.h"
#include "volume/fs_root.h"
#include "volume/fs_view.h"

namespace cairn {

namespace {

constexpr std::string_view kTurn = "turn ";

// What a pass over entries counts as: about 64 bytes each.
constexpr uint64_t kPacedEntries = 1024;
constexpr uint64_t kPacedBytes = kPacedEntries * 64;

// What one root has to do with one damage.
struct Hit {
  bool whole = false;  // not by a file's entry: a node, a memory image, ...
  std::set<InodeNumber> inodes;
};

class OwnerSearch {
 public:
  OwnerSearch(Catalog& catalog, LocalBlockStore& store,
              const std::vector<std::vector<Address>>& hurt, const OwnersOptions& options)
      : catalog_(catalog), store_(store), options_(options) {
    owners_.of_damage.resize(hurt.size());
    for (size_t damage = 0; damage < hurt.size(); ++damage) {
      for (const Address& address : hurt[damage]) hurt_[address].push_back(damage);
    }
  }

  Owners Run(const RootSet& roots) {
    for (const Root& root : roots.roots) {
      if (stopped_ || hurt_.empty()) break;
      hits_.clear();
      Walk(root);
      if (!stopped_) NameHits(root);
    }
    NameArtifacts();
    owners_.complete = !stopped_;
    return std::move(owners_);
  }

 private:
  // A branch block on the way down, with what is left to look at below it.
  struct Level {
    Address address;
    std::vector<BlockRef> refs;
    size_t next = 0;
    bool hurt = false;  // something at or below it
  };

  void Walk(const Root& root) {
    std::vector<Level> path;
    Enter(root, root.ref, path);
    while (!path.empty() && !stopped_) {
      Level& level = path.back();
      if (level.next < level.refs.size()) {
        const BlockRef ref = level.refs[level.next++];
        if (hurt_.contains(ref.address)) level.hurt = true;
        Enter(root, ref, path);  // `level` may have moved
        continue;
      }
      const bool hurt = level.hurt;
      if (!hurt) Remember(level.address);
      path.pop_back();
      if (!path.empty()) path.back().hurt |= hurt;
    }
  }

  void Remember(const Address& address) {
    if (clean_.size() >= options_.remembered_nodes) clean_.clear();
    clean_.insert(address);
  }

  void HitWhole(const Address& address) {
    const auto hurt = hurt_.find(address);
    if (hurt == hurt_.end()) return;
    for (const size_t damage : hurt->second) hits_[damage].whole = true;
  }

  // Pushes `ref` when it is a branch that has to be looked into.
  void Enter(const Root& root, const BlockRef& ref, std::vector<Level>& path) {
    const bool in_tree = !path.empty() && ref.kind == BlockKind::kData;
    if (!in_tree) HitWhole(ref.address);  // an entry's block: its inode is named instead
    if (!IsBranch(ref.kind) || clean_.contains(ref.address)) return;
    const auto block = store_.Get(root.realm, ref);
    if (options_.pace && !options_.pace(ref.raw_length_bytes)) stopped_ = true;
    if (!block) return;  // when it is one of those that are hurt, it was hit above
    auto branch = DecodeBranch(ref.kind, **block);
    if (!branch) return;
    if (ref.kind == BlockKind::kTreeNode) HitEntries(**block, branch->refs);
    path.push_back({.address = ref.address, .refs = std::move(branch->refs)});
  }

  // The inodes of a leaf node whose entries refer to something hurt.
  void HitEntries(std::string_view plain, const std::vector<BlockRef>& refs) {
    const bool any = std::ranges::any_of(refs, [&](const BlockRef& ref) {
      return ref.kind == BlockKind::kData && hurt_.contains(ref.address);
    });
    if (!any) return;
    const auto node = TreeNode::Decode(plain);
    if (!node || (*node)->level() != 0) return;
    for (const NodeItem& item : (*node)->items()) {
      for (const BlockRef& ref : item.refs) {
        const auto hurt = hurt_.find(ref.address);
        if (hurt == hurt_.end()) continue;
        const auto key = ParseKey(item.key);
        if (!key) continue;
        for (const size_t damage : hurt->second) {
          std::set<InodeNumber>& inodes = hits_[damage].inodes;
          if (inodes.size() <= kMaxOwners) inodes.insert(key->ino);
        }
      }
    }
  }

  // It has owners enough.
  void Forget(size_t damage) {
    for (auto it = hurt_.begin(); it != hurt_.end();) {
      std::erase(it->second, damage);
      it = it->second.empty() ? hurt_.erase(it) : std::next(it);
    }
  }

  void Add(size_t damage, std::string owner) {
    std::vector<std::string>& owners = owners_.of_damage[damage];
    if (std::ranges::find(owners, owner) != owners.end()) return;
    if (owners.size() < kMaxOwners) {
      owners.push_back(std::move(owner));
    } else if (owners.size() == kMaxOwners) {
      owners.push_back("and more");
      Forget(damage);
    }
  }

  void NameHits(const Root& root) {
    std::set<InodeNumber> inodes;
    for (const auto& [damage, hit] : hits_) inodes.insert(hit.inodes.begin(), hit.inodes.end());
    std::map<InodeNumber, std::string> names;
    std::string turn;
    if (root.owner.starts_with(kTurn)) {
      turn = root.owner.substr(kTurn.size(), root.owner.find(' ', kTurn.size()) - kTurn.size());
    } else if (!inodes.empty()) {
      names = PathsOf(root, inodes);
    }
    for (const auto& [damage, hit] : hits_) {
      if (hit.whole) Add(damage, root.owner);
      for (const InodeNumber ino : hit.inodes) {
        if (!turn.empty()) {
          turns_[turn][ino].push_back({damage, root.owner});
          continue;
        }
        const auto name = names.find(ino);
        Add(damage, root.owner + (name == names.end() ? " inode " + std::to_string(ino)
                                                      : " " + name->second));
      }
    }
  }

  // One name of each inode; without those that have none or whose directory does not read.
  std::map<InodeNumber, std::string> PathsOf(const Root& root,
                                             const std::set<InodeNumber>& inodes) {
    std::map<InodeNumber, std::string> paths;
    const auto fs = LoadFsRoot(store_, root.realm, root.ref);
    if (!fs) return paths;
    const auto tree = std::make_shared<TreeReader>(store_, nodes_, root.realm, fs->tree);
    const FsView view(TreeLayer(store_, tree, fs->generation), fs->hash_seed);
    std::map<InodeNumber, std::pair<InodeNumber, std::string>> places;  // inode -> directory, name
    auto cursor = tree->Seek("");
    uint64_t entries = 0;
    while (cursor && (*cursor)->valid() && places.size() < inodes.size() && !stopped_) {
      const auto key = ParseKey((*cursor)->key());
      if (key && key->kind == KeyKind::kDirent) {
        const auto dirent = Dirent::Decode((*cursor)->entry().payload);
        if (dirent && inodes.contains(dirent->child)) {
          places.emplace(dirent->child, std::pair(key->ino, dirent->name));
        }
      }
      if (++entries % kPacedEntries == 0 && options_.pace && !options_.pace(kPacedBytes)) {
        stopped_ = true;
      }
      if (!(*cursor)->Next()) break;
    }
    for (const auto& [ino, place] : places) {
      const auto directory = view.FindPath(place.first);
      if (directory) {
        paths[ino] = (*directory == "/" ? "" : *directory) + "/" + place.second;
      }
    }
    return paths;
  }

  void NameArtifacts() {
    if (turns_.empty() || stopped_) return;
    IgnoreError(
        ScanRecords<catalog::Artifact>(catalog_, keys::Below("artifact"),
                                       [&](std::string_view, const catalog::Artifact& artifact) {
                                         const auto turn = turns_.find(artifact.turn());
                                         if (turn == turns_.end()) return true;
                                         const auto found = turn->second.find(artifact.ino());
                                         if (found == turn->second.end()) return true;
                                         for (const auto& [damage, owner] : found->second) {
                                           Add(damage, "artifact " + artifact.id());
                                         }
                                         turn->second.erase(found);
                                         return true;
                                       }),
        "the turns are named instead");
    for (const auto& [turn, inodes] : turns_) {
      for (const auto& [ino, damages] : inodes) {
        for (const auto& [damage, owner] : damages) Add(damage, owner);
      }
    }
  }

  Catalog& catalog_;
  LocalBlockStore& store_;
  const OwnersOptions& options_;
  NodeCache nodes_{8 << 20};
  std::unordered_map<Address, std::vector<size_t>, AddressHash> hurt_;
  std::unordered_set<Address, AddressHash> clean_;
  std::map<size_t, Hit> hits_;  // of the root that is walked
  struct Unnamed {
    size_t damage;
    std::string owner;
  };
  std::map<std::string, std::map<InodeNumber, std::vector<Unnamed>>> turns_;
  Owners owners_;
  bool stopped_ = false;
};

}  // namespace

Owners OwnersOf(Catalog& catalog, LocalBlockStore& store, const RootSet& roots,
                const std::vector<std::vector<Address>>& hurt, const OwnersOptions& options) {
  return OwnerSearch(catalog, store, hurt, options).Run(roots);
}

}  // namespace cairn
