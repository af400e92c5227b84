// Who is named for a node of a file tree that cannot be read: each node of a tree in turn.
#include "gc/owners.h"

#include <set>

#include "store/tree_node.h"
#include "tests/gc/collector_fixture.h"
#include "volume/fs_view.h"

namespace cairn {
namespace {

class OwnersTest : public CollectorTest {
 protected:
  struct Files {
    BlockRef root;
    TreeRoot tree;
    std::map<InodeNumber, std::string> paths;
    std::map<InodeNumber, std::string> dirent_keys;  // of their names
  };
  struct Node {
    BlockRef ref;
    std::set<std::string> keys;  // below it
  };

  // Directories /d0 .. of four files each, in nodes so small that each holds a few keys.
  Files MakeFiles(uint32_t seed, int directories) {
    Files made;
    std::vector<TreeUpdate> updates;
    InodeNumber next = kRootInode;
    const auto add = [&](InodeNumber dir, const std::string& name, uint32_t mode) {
      const InodeNumber ino = next++;
      Inode inode;
      inode.mode = mode;
      inode.uid = seed;
      inode.parent = dir;
      inode.nlink = 1;
      updates.push_back({AttributesKey(ino), Entry{inode.Encode(), {}}});
      if (ino == kRootInode) {
        made.paths[ino] = "/";
        return ino;
      }
      const std::string above = dir == kRootInode ? "" : made.paths[dir];
      made.paths[ino] = above + "/" + name;
      made.dirent_keys[ino] = DirentKey(dir, NameHash(7, name) << 8);
      const uint8_t type = S_ISDIR(mode) ? 4 : 8;
      updates.push_back({made.dirent_keys[ino],
                         Entry{Dirent{.child = ino, .type = type, .name = name}.Encode(), {}}});
      return ino;
    };
    add(kRootInode, "", 040755);
    for (int d = 0; d < directories; ++d) {
      const InodeNumber dir = add(kRootInode, "d" + std::to_string(d), 040755);
      for (int f = 0; f < 4; ++f) add(dir, "f" + std::to_string(f), 0100644);
    }
    std::ranges::sort(updates, {}, &TreeUpdate::key);
    const auto session = world_.store->BeginWrite(world_.realm_a);
    EXPECT_TRUE(session);
    const TreeReader empty(*world_.store, nodes_, world_.realm_a, TreeRoot{});
    const auto tree = MergeTree(empty, **session, updates, CountEntry, 1,
                                {.target_bytes = 1200, .max_bytes = 2000, .min_bytes = 500});
    EXPECT_TRUE(tree) << tree.error().ToString();
    FsRoot fs;
    fs.hash_seed = 7;
    fs.tree = made.tree = *tree;
    const auto ref = (*session)->Put(BlockKind::kFsRoot, fs.Encode(), Compression::kFast);
    EXPECT_TRUE(ref);
    EXPECT_TRUE((*session)->Sync());
    made.root = *ref;
    return made;
  }

  std::vector<Node> NodesOf(const Files& files) {
    NodeCache cache(1 << 20);
    const TreeReader reader(*world_.store, cache, world_.realm_a, files.tree);
    std::vector<Node> nodes;
    const std::function<std::set<std::string>(const BlockRef&)> visit = [&](const BlockRef& ref) {
      const auto node = reader.LoadNode(ref);
      EXPECT_TRUE(node);
      const size_t at = nodes.size();
      nodes.push_back({.ref = ref, .keys = {}});
      std::set<std::string> keys;
      for (const NodeItem& item : (*node)->items()) {
        if ((*node)->level() == 0) {
          keys.emplace(item.key);
        } else {
          keys.merge(visit(item.refs[0]));
        }
      }
      nodes[at].keys = keys;
      return keys;
    };
    visit(*files.tree.node);
    return nodes;
  }

  std::vector<std::string> OwnersOfDamage(const BlockRef& ref) {
    const auto roots = ReadRootSet(catalog_);
    EXPECT_TRUE(roots);
    const Owners owners = OwnersOf(catalog_, *world_.store, *roots, {{ref.address}});
    EXPECT_TRUE(owners.complete);
    return owners.of_damage.at(0);
  }
  static bool Names(const std::vector<std::string>& owners, const std::string& owner) {
    return std::ranges::find(owners, owner) != owners.end();
  }
};

TEST_F(OwnersTest, FilesBelowANodeAreNamedAsFarAsTheirNamesRead) {
  const size_t count = NodesOf(MakeFiles(1000, 40)).size();
  EXPECT_GT(count, 30u);
  int interior = 0;
  int named = 0;
  int nameless = 0;
  for (size_t n = 0; n < count; ++n) {
    const Files files = MakeFiles(static_cast<uint32_t>(n), 40);
    const std::string record =
        AddEnvironment(1, {.root = files.root, .tree = {}, .data = {}, .bytes = {}});
    const Node node = NodesOf(files).at(n);
    world_.Reopen();
    Damage(node.ref);

    std::set<std::string> expected;  // those that may be named
    size_t readable = 0;
    std::set<InodeNumber> inodes;
    for (const std::string& key : node.keys) inodes.insert(ParseKey(key)->ino);
    for (const InodeNumber ino : inodes) {
      const bool reads = ino == kRootInode || !node.keys.contains(files.dirent_keys.at(ino));
      if (!reads) {
        ++nameless;
        continue;
      }
      ++readable;
      expected.insert("environment env_1 " + files.paths.at(ino));
    }
    if (n == 0) {  // nothing of the whole tree reads
      expected = {"environment env_1 /"};
      readable = 1;
    }
    std::vector<std::string> owners = OwnersOfDamage(node.ref);
    EXPECT_TRUE(Names(owners, "environment env_1"));
    EXPECT_EQ(Names(owners, "environment env_1 and more files"), readable > kMaxFilesOfRoot);
    std::erase(owners, "environment env_1");
    std::erase(owners, "environment env_1 and more files");
    EXPECT_EQ(owners.size(), std::min<size_t>(readable, kMaxFilesOfRoot)) << "node " << n;
    for (const std::string& owner : owners) {
      EXPECT_TRUE(expected.contains(owner)) << owner << " of node " << n;
    }
    named += static_cast<int>(owners.size());
    if (inodes.size() > 10) ++interior;
    Delete(record);
  }
  std::printf("%zu nodes, %d wide ones, %d files named, %d whose names are lost too\n", count,
              interior, named, nameless);
  EXPECT_GT(interior, 1);
  EXPECT_GT(named, 100);
}

TEST_F(OwnersTest, ArtifactsBelowANodeAreNamed) {
  const Files files = MakeFiles(1, 3);
  catalog::Turn turn;
  turn.set_id("turn_1");
  turn.set_org(kOrg);
  turn.set_publication_root(files.root.Encode());
  Put(keys::Turn(kOrg, "turn_1"), turn);
  for (const auto& [ino, path] : files.paths) {
    if (ino < 8) continue;  // others have no Artifact
    catalog::Artifact artifact;
    artifact.set_id("art_" + std::to_string(ino));
    artifact.set_org(kOrg);
    artifact.set_turn("turn_1");
    artifact.set_ino(ino);
    Put(keys::Artifact(kOrg, "sess_1", artifact.id()), artifact);
  }
  world_.Reopen();
  int without = 0;
  for (const Node& node : NodesOf(files)) {
    std::set<std::string> expected;
    for (const std::string& key : node.keys) {
      const InodeNumber ino = ParseKey(key)->ino;
      if (ino >= 8) expected.insert("art_" + std::to_string(ino));
    }
    const auto owners = OwnersOfDamage(node.ref);
    if (expected.empty()) {
      EXPECT_EQ(owners, std::vector<std::string>{"turn turn_1 artifacts"});
      ++without;
      continue;
    }
    const bool more = expected.size() > kMaxFilesOfRoot;
    EXPECT_EQ(owners.size(), more ? kMaxFilesOfRoot + 1 : expected.size());
    for (const std::string& owner : owners) {
      EXPECT_TRUE(owner == "turn turn_1 artifacts and more" || expected.contains(owner.substr(9)))
          << owner;
    }
  }
  EXPECT_GT(without, 0);
}

}  // namespace
}  // namespace cairn
