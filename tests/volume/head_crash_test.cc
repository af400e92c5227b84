// The power goes at every changing call of a script of commits, syncs, freezes and seals, and again
// at every call of the recovery from it. What was synced is there, what is there is a prefix of
// what was committed, no file is left over.
#include "tests/support/faulty_file_system.h"
#include "tests/volume/head_fixture.h"

namespace cairn {
namespace {

class HeadCrashTest : public HeadTest {
 protected:
  static constexpr uint64_t kCommits = 12;

  void UseNewDirectory() {
    head_.reset();
    faulty_.reset();
    IgnoreError(RemoveTree(HostFileSystem(), options_.dir), "there may be none");
    const std::string scratch = temp_.path() + "/scratch";
    IgnoreError(RemoveTree(HostFileSystem(), scratch), "there may be none");
    ASSERT_TRUE(HostFileSystem().MakeDir(scratch));
    faulty_ = std::make_unique<FaultyFileSystem>(scratch);
    fs_ = faulty_.get();
    options_.sealed_through_generation = 0;
    options_.base = TreeLayer(store_, EmptyTree(), 0);
    committed_ = synced_ = 0;
  }

  // The tree after `n` commits.
  std::shared_ptr<const TreeReader> TreeOf(uint64_t n) {
    auto session = *store_.BeginWrite(realm_);
    std::vector<TreeUpdate> updates;
    for (uint64_t i = 1; i <= n; i++) updates.push_back({AttributesKey(i), Entry{"v", {}}});
    for (uint64_t i = 1; i <= n; i++) {
      const std::string data = DataOf(i);
      const BlockRef ref = *session->Put(BlockKind::kData, data, Compression::kFast);
      std::string payload;
      ByteWriter(payload).U32(static_cast<uint32_t>(data.size()));
      ByteWriter(payload).U32(0);
      updates.push_back({ExtentKey(i, 0), Entry{payload, {ref}}});
    }
    std::sort(updates.begin(), updates.end(),
              [](const TreeUpdate& a, const TreeUpdate& b) { return a.key < b.key; });
    return Tree(*MergeTree(
        *EmptyTree(), *session, updates,
        [](std::string_view, const Entry&) { return TreeCounters{}; }, 1));
  }
  static std::string DataOf(uint64_t n) {
    return std::string(n % 3 == 0 ? 40000 : 700, static_cast<char>('a' + n));
  }

  // Commits 1 to kCommits with everything else in between; stops at the first error.
  Status RunScript() {
    CAIRN_TRY(Reopen());
    for (uint64_t n = 1; n <= kCommits; n++) {
      const std::string data = DataOf(n);
      Transaction t;
      t.Put(AttributesKey(n), Entry{"v", {}});
      t.PutData(n, 0, data);
      committed_ = n;
      CAIRN_TRY(head_->Commit(std::move(t)));
      if (n % 2 == 0) {
        CAIRN_TRY(head_->Sync());
        synced_ = n;
      }
      if (n == 3 || n == 7) {
        const auto layer = CAIRN_TRY(head_->Freeze());
        synced_ = n;
        if (n == 7) {
          // The catalog's commit, then the files go.
          options_.sealed_through_generation = 1;
          options_.base = TreeLayer(store_, TreeOf(3), 1);
          CAIRN_TRY(head_->FinishSeal(1, TreeOf(3)));
        }
      }
    }
    return {};
  }

  void ExpectPrefix(const std::string& when) {
    uint64_t n = 0;
    while (GetPayload(*head_->current(), AttributesKey(n + 1)) == "v") {
      n++;
      const std::string data = DataOf(n);
      ASSERT_EQ(ReadFile(*head_->current(), n, 0, data.size()), data) << when;
    }
    EXPECT_GE(n, synced_) << when;
    EXPECT_LE(n, committed_) << when;
    for (uint64_t later = n + 1; later <= kCommits; later++) {
      EXPECT_EQ(GetPayload(*head_->current(), AttributesKey(later)), "(absent)") << when;
    }
    const auto names = HostFileSystem().List(options_.dir);
    ASSERT_TRUE(names);
    EXPECT_EQ(names->size(), 2 * (head_->unsealed().size() + 1) + 1) << when;
  }

  std::unique_ptr<FaultyFileSystem> faulty_;
  uint64_t committed_ = 0;
  uint64_t synced_ = 0;
};

TEST_F(HeadCrashTest, PowerCutAtEveryCallKeepsWhatWasSynced) {
  ASSERT_NO_FATAL_FAILURE(UseNewDirectory());
  ASSERT_TRUE(RunScript());
  const uint64_t calls = faulty_->changing_calls();
  ASSERT_GT(calls, 40u);
  SeededRandom random(17);
  for (uint64_t at = 1; at <= calls; at++) {
    ASSERT_NO_FATAL_FAILURE(UseNewDirectory());
    faulty_->PowerOffAfter(at);
    IgnoreError(RunScript(), "the power goes at some point");
    head_.reset();
    faulty_->PowerCut(random);
    // A second cut in the middle of the recovery.
    const uint64_t during = 1 + random.Below(12);
    faulty_->PowerOffAfter(during);
    IgnoreError(Reopen(), "the power goes at some point");
    head_.reset();
    faulty_->PowerCut(random);
    const std::string when = "call " + std::to_string(at) + ", then " + std::to_string(during);
    const Status opened = Reopen();
    ASSERT_TRUE(opened) << when << ": " << opened.error().ToString();
    ASSERT_NO_FATAL_FAILURE(ExpectPrefix(when));
  }
}

}  // namespace
}  // namespace cairn
