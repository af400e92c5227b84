// Check over a real local store: what is damaged is named with whom it hurts.
#include "tests/gc/collector_fixture.h"

namespace cairn {
namespace {

TEST_F(CollectorTest, CheckNamesTheFileThatADamagedBlockHurts) {
  const Tree tree = MakeTree(11, 20);
  AddEnvironment(1, tree);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  EXPECT_EQ(Describe(Check()), "");
  Damage(tree.data[7]);
  const CheckReport report = Check();
  bool named = false;
  for (const auto& damage : report.damages) {
    named = named || (damage.structure == "frame" &&
                      std::find(damage.owners.begin(), damage.owners.end(),
                                "environment env_1 /f7") != damage.owners.end());
  }
  EXPECT_TRUE(named) << Describe(report);
}

TEST_F(CollectorTest, CheckNamesWhoseAPackIsThatLostNothing) {
  const Tree tree = MakeTree(12, 20);
  AddEnvironment(1, tree);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  for (const bool header : {true, false}) {
    const std::string path = world_.PackPaths().at(0);
    const uint64_t at = header ? 40 : std::filesystem::file_size(path) - 100;
    FlipBit(path, at);
    const CheckReport report = Check();
    ASSERT_EQ(report.damages.size(), 1u) << Describe(report);
    EXPECT_EQ(report.damages[0].structure, header ? "pack header" : "pack footer");
    EXPECT_EQ(report.damages[0].owners, std::vector<std::string>{"organization " + kOrg});
    FlipBit(path, at);
    EXPECT_EQ(Describe(Check()), "");
  }
}

TEST_F(CollectorTest, ADamagedLeafKeepsItsPackAndStopsNobodyElse) {
  const Tree damaged = MakeTree(13, 8);
  const Tree half = MakeTree(14, 8);  // garbage beside it: the pack is worth rewriting
  AddEnvironment(1, damaged);
  const std::string gone = AddEnvironment(2, half);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  const Tree dropped = MakeTree(15, 40);
  const std::string also_gone = AddEnvironment(3, dropped);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  Damage(damaged.data[3]);
  Delete(gone);
  Delete(also_gone);
  const auto report = Collect({.now = true});
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->packs_damaged, 1u);
  EXPECT_GT(report->freed_bytes, 600000u);
  for (const BlockRef& ref : dropped.data)
    EXPECT_FALSE(*world_.store->Contains(world_.realm_a, ref));
  for (size_t i = 0; i < damaged.data.size(); ++i) {
    const auto read = world_.store->Get(world_.realm_a, damaged.data[i]);
    EXPECT_EQ(read.has_value(), i != 3);
  }
}

// The host's files, with a word at each look at a volume's directory.
class WatchedFileSystem final : public FileSystem {
 public:
  WatchedFileSystem(FileSystem& real, std::function<void()> on_list)
      : real_(real), on_list_(std::move(on_list)) {}
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& o) override {
    return real_.Open(path, o);
  }
  Status Rename(const std::string& a, const std::string& b) override { return real_.Rename(a, b); }
  Status Unlink(const std::string& path) override { return real_.Unlink(path); }
  Status MakeDir(const std::string& path) override { return real_.MakeDir(path); }
  Status RemoveDir(const std::string& path) override { return real_.RemoveDir(path); }
  Result<std::vector<std::string>> List(const std::string& dir) override {
    if (dir.find("/volumes/") != std::string::npos) on_list_();
    return real_.List(dir);
  }
  Status SyncDir(const std::string& dir) override { return real_.SyncDir(dir); }
  Result<bool> Exists(const std::string& path) override { return real_.Exists(path); }
  Result<DiskSpace> Space(const std::string& dir) override { return real_.Space(dir); }

 private:
  FileSystem& real_;
  std::function<void()> on_list_;
};

TEST_F(CollectorTest, CheckTakesNoJournalThatIsBeingWrittenForADamagedOne) {
  AddEnvironment(1, MakeTree(12, 1));
  const std::string dir = world_.dir + "/volumes/" + (std::string(30, '0') + "01");
  ASSERT_TRUE(world_.fs.MakeDir(world_.dir + "/volumes"));
  {
    HeadOptions head_options;
    head_options.volume = Id128::FromView(std::string(15, '\0') + '\1');
    head_options.realm = world_.realm_a;
    head_options.dir = dir;
    head_options.base = TreeLayer(
        *world_.store,
        std::make_shared<TreeReader>(*world_.store, nodes_, world_.realm_a, TreeRoot{}), 0);
    auto head = Head::Open(world_.fs, world_.keys, *world_.store, head_options);
    ASSERT_TRUE(head) << head.error().ToString();
    for (int i = 0; i < 3; ++i) {
      Transaction transaction;
      transaction.Put(AttributesKey(static_cast<InodeNumber>(i) + 2), Entry{"value", {}});
      const auto committed = (*head)->Commit(std::move(transaction));
      ASSERT_TRUE(committed) << committed.error().ToString();
      ASSERT_TRUE((*head)->Sync());
    }
  }
  const std::string journal = dir + "/0000000000000001.journal";
  const std::string whole = ReadHostFile(journal);
  std::string early = whole;  // as seen with a record missing that others stand behind already
  ASSERT_GT(early.size(), 4096u + 64);
  early.replace(4096, 64, 64, '\0');

  CheckOptions options;
  options.volumes_dir = world_.dir + "/volumes";
  int looks = 0;
  bool held = true;
  bool comes = true;  // the record, before the second look
  WatchedFileSystem watched(world_.fs, [&] {
    held = held && !world_.store->HoldWriters(0);
    WriteHostFile(journal, comes && looks > 0 ? whole : early);
    ++looks;
  });
  auto report = CheckStore(catalog_, *world_.store, world_.keys, watched, options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(Describe(*report), "");
  EXPECT_EQ(looks, 2);
  EXPECT_TRUE(held) << "a seal that ends between catalog and directory looks like a lost journal";

  comes = false;
  looks = 0;
  report = CheckStore(catalog_, *world_.store, world_.keys, watched, options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_NE(Describe(*report).find("journal | " + journal), std::string::npos) << Describe(*report);
}

}  // namespace
}  // namespace cairn
