// Each root is walked by reference tables, depth first. A branch block below which nothing is hurt
// is remembered and skipped from then on, for this root and the others, so that roots that share
// their blocks cost little; leaves are not remembered at all, only compared. In a filesystem the
// walk ends at the leaf nodes, whose entries say which inodes refer to a hurt block. A node that is
// itself hurt takes a range of keys with it, known from its ancestors, and so a range of inodes.
// Names come from one pass over the tree's directory entries, around what is lost; Artifacts from
// one pass over their records.
#include "gc/owners.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
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
  size_t lost = 0;  // of them, those below a node: counted past kMaxFilesOfRoot by one
};

// [from, to) of a tree's keys; an empty `to` has no end.
struct KeyRange {
  std::string from, to;
};

// The keys below a node that is hurt, and the inodes [first, last] they are of.
struct Lost {
  size_t damage = 0;
  KeyRange keys;
  InodeNumber first = 0;
  InodeNumber last = std::numeric_limits<InodeNumber>::max();
};

Lost LostOf(size_t damage, KeyRange keys) {
  Lost lost{.damage = damage, .keys = std::move(keys)};
  if (const auto from = ParseKey(lost.keys.from)) lost.first = from->ino;
  if (const auto to = ParseKey(lost.keys.to)) {
    // Attributes come first: from there on an inode is whole.
    lost.last = to->kind == KeyKind::kAttributes ? to->ino - 1 : to->ino;
  }
  return lost;
}

// An inode's directory and its name there.
struct Place {
  InodeNumber directory;
  std::string name;
};
using Places = std::map<InodeNumber, Place>;

// Through directories that are lost too, where `places` has them. nullopt: one does not read.
std::optional<std::string> PathOf(const FsView& view, const Places& places, InodeNumber ino) {
  std::string path;
  for (size_t steps = 0; ino != kRootInode; ++steps) {
    const auto place = places.find(ino);
    if (place == places.end()) {
      const auto rest = view.FindPath(ino);
      if (!rest) return std::nullopt;
      return *rest + path;
    }
    if (steps > places.size()) return std::nullopt;  // a loop: damage that nobody noticed
    path = "/" + place->second.name + path;
    ino = place->second.directory;
  }
  return path.empty() ? "/" : path;
}

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
      lost_.clear();
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
    std::vector<std::string> first_keys;  // of each child, in an interior node of a tree
    std::string end;                      // the key that ends it; empty: none does
    size_t next = 0;
    bool hurt = false;  // something at or below it

    // Of the child that is entered.
    KeyRange ChildKeys() const {
      if (first_keys.empty()) return {};
      return {.from = first_keys[next - 1],
              .to = next < first_keys.size() ? first_keys[next] : end};
    }
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

  void HitWhole(const BlockRef& ref, const KeyRange& keys) {
    const auto hurt = hurt_.find(ref.address);
    if (hurt == hurt_.end()) return;
    for (const size_t damage : hurt->second) {
      hits_[damage].whole = true;
      const bool of_files = ref.kind == BlockKind::kTreeNode || ref.kind == BlockKind::kFsRoot;
      if (of_files) lost_.push_back(LostOf(damage, keys));
    }
  }

  // Pushes `ref` when it is a branch that has to be looked into.
  void Enter(const Root& root, const BlockRef& ref, std::vector<Level>& path) {
    const bool in_tree = !path.empty() && ref.kind == BlockKind::kData;
    KeyRange keys = path.empty() ? KeyRange{} : path.back().ChildKeys();
    if (!in_tree) HitWhole(ref, keys);  // an entry's block: its inode is named instead
    if (!IsBranch(ref.kind) || clean_.contains(ref.address)) return;
    const auto block = store_.Get(root.realm, ref);
    if (options_.pace && !options_.pace(ref.raw_length_bytes)) stopped_ = true;
    if (!block) return;  // when it is one of those that are hurt, it was hit above
    auto branch = DecodeBranch(ref.kind, **block);
    if (!branch) return;
    Level level;
    level.address = ref.address;
    level.refs = std::move(branch->refs);
    level.end = std::move(keys.to);
    if (ref.kind == BlockKind::kTreeNode) HitEntries(**block, level);
    path.push_back(std::move(level));
  }

  // The first keys of an interior node; the inodes of a leaf whose entries refer to something hurt.
  void HitEntries(std::string_view plain, Level& level) {
    const bool any = std::ranges::any_of(level.refs, [&](const BlockRef& ref) {
      return ref.kind == BlockKind::kTreeNode || hurt_.contains(ref.address);
    });
    if (!any) return;
    const auto node = TreeNode::Decode(plain);
    if (!node) return;
    if ((*node)->level() != 0) {
      for (const NodeItem& item : (*node)->items()) level.first_keys.emplace_back(item.key);
      return;
    }
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

  // The damages that take something of `ino` with them. lost_ is in the order of keys.
  std::vector<size_t> DamagesOf(InodeNumber ino) const {
    std::vector<size_t> damages;
    for (auto lost = std::ranges::lower_bound(lost_, ino, {}, &Lost::last);
         lost != lost_.end() && lost->first <= ino; ++lost) {
      damages.push_back(lost->damage);
    }
    return damages;
  }

  void NameHits(const Root& root) {
    if (root.owner.starts_with(kTurn)) {
      NameInTurn(root);
      return;
    }
    const std::map<InodeNumber, std::string> names = PathsOf(root);  // adds what is lost to hits_
    for (const auto& [damage, hit] : hits_) {
      if (hit.whole) Add(damage, root.owner);
      for (const InodeNumber ino : hit.inodes) {
        const auto name = names.find(ino);
        Add(damage, root.owner + (name == names.end() ? " inode " + std::to_string(ino)
                                                      : " " + name->second));
      }
      if (hit.lost > kMaxFilesOfRoot) Add(damage, root.owner + " and more files");
    }
  }

  // By its Artifacts, later.
  void NameInTurn(const Root& root) {
    const std::string id =
        root.owner.substr(kTurn.size(), root.owner.find(' ', kTurn.size()) - kTurn.size());
    Turn& turn = turns_[id];
    for (const auto& [damage, hit] : hits_) {
      for (const InodeNumber ino : hit.inodes) {
        turn.hurt.push_back({.damage = damage, .owner = root.owner, .first = ino, .last = ino});
      }
    }
    for (const Lost& lost : lost_) {
      turn.hurt.push_back(
          {.damage = lost.damage, .owner = root.owner, .first = lost.first, .last = lost.last});
    }
  }

  // One name of each inode that is hit, without those that have none or whose directory does not
  // read; those that are lost are hit when their name is met.
  std::map<InodeNumber, std::string> PathsOf(const Root& root) {
    std::map<InodeNumber, std::string> paths;
    std::set<InodeNumber> wanted;
    for (const auto& [damage, hit] : hits_) wanted.insert(hit.inodes.begin(), hit.inodes.end());
    if (wanted.empty() && lost_.empty()) return paths;
    const auto fs = LoadFsRoot(store_, root.realm, root.ref);
    if (!fs) return paths;
    const auto tree = std::make_shared<TreeReader>(store_, nodes_, root.realm, fs->tree);
    const FsView view(TreeLayer(store_, tree, fs->generation), fs->hash_seed);
    for (const size_t damage : DamagesOf(kRootInode)) hits_[damage].inodes.insert(kRootInode);
    Places places;
    uint64_t entries = 0;
    // Each stretch between what is lost. False: all that is named has been met.
    const auto read = [&](const KeyRange& stretch) {
      auto cursor = tree->Seek(stretch.from);
      while (cursor && (*cursor)->valid() && !stopped_) {
        if (!stretch.to.empty() && (*cursor)->key() >= stretch.to) break;
        const auto key = ParseKey((*cursor)->key());
        if (key && key->kind == KeyKind::kDirent) {
          const auto dirent = Dirent::Decode((*cursor)->entry().payload);
          if (dirent && Wants(dirent->child, wanted)) {
            places.emplace(dirent->child, Place{.directory = key->ino, .name = dirent->name});
            if (lost_.empty() && places.size() == wanted.size()) return false;
          }
        }
        if (++entries % kPacedEntries == 0 && options_.pace && !options_.pace(kPacedBytes)) {
          stopped_ = true;
        }
        if (!(*cursor)->Next()) break;
      }
      return !stopped_;
    };
    KeyRange stretch;
    bool more = true;
    for (const Lost& lost : lost_) {
      if (!more) break;
      stretch.to = lost.keys.from;
      if (stretch.from < stretch.to) more = read(stretch);
      stretch.from = lost.keys.to;
      if (stretch.from.empty()) more = false;
    }
    stretch.to.clear();
    if (more) read(stretch);
    for (const auto& [damage, hit] : hits_) {
      for (const InodeNumber ino : hit.inodes) {
        if (auto path = PathOf(view, places, ino)) paths.emplace(ino, *std::move(path));
      }
    }
    return paths;
  }

  // Whether the name of `ino` is needed; hits it when it is lost.
  bool Wants(InodeNumber ino, const std::set<InodeNumber>& wanted) {
    bool wants = wanted.contains(ino);
    for (const size_t damage : DamagesOf(ino)) {
      Hit& hit = hits_[damage];
      if (hit.lost > kMaxFilesOfRoot || hit.inodes.contains(ino)) continue;
      if (++hit.lost > kMaxFilesOfRoot) continue;
      hit.inodes.insert(ino);
      wants = true;
    }
    return wants;
  }

  void NameArtifacts() {
    if (turns_.empty() || stopped_) return;
    IgnoreError(
        ScanRecords<catalog::Artifact>(catalog_, keys::Below("artifact"),
                                       [&](std::string_view, const catalog::Artifact& artifact) {
                                         const auto turn = turns_.find(artifact.turn());
                                         if (turn != turns_.end()) {
                                           turn->second.Name(*this, artifact);
                                         }
                                         return true;
                                       }),
        "the turns are named instead");
    for (const auto& [id, turn] : turns_) {
      for (const Turn::Hurt& hurt : turn.hurt) {
        if (hurt.named == 0) Add(hurt.damage, hurt.owner);
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
  std::vector<Lost> lost_;      // of it too, in the order of keys
  // What of a turn's publication is hurt.
  struct Turn {
    struct Hurt {
      size_t damage;
      std::string owner;
      InodeNumber first, last;
      size_t named = 0;  // Artifacts of it
    };
    std::vector<Hurt> hurt;

    void Name(OwnerSearch& search, const catalog::Artifact& artifact) {
      for (Hurt& one : hurt) {
        if (artifact.ino() < one.first || artifact.ino() > one.last) continue;
        search.Add(one.damage, one.named < kMaxFilesOfRoot ? "artifact " + artifact.id()
                                                           : one.owner + " and more");
        ++one.named;
      }
    }
  };
  std::map<std::string, Turn> turns_;
  Owners owners_;
  bool stopped_ = false;
};

}  // namespace

Owners OwnersOf(Catalog& catalog, LocalBlockStore& store, const RootSet& roots,
                const std::vector<std::vector<Address>>& hurt, const OwnersOptions& options) {
  return OwnerSearch(catalog, store, hurt, options).Run(roots);
}

}  // namespace cairn
