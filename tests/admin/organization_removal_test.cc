// Deleting an organization over real volumes and packs: its key goes first, and a power cut at any
// step leaves it whole or gone, never half.
#include "admin/organization_removal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/admin/admin_world.h"

namespace cairn {
namespace {

TEST(OrganizationRemoval, LeavesNothingOfItAndAllOfTheOthers) {
  AdminWorld w;
  w.Start();
  const AdminWorld::Made doomed = w.Make("doomed");
  const AdminWorld::Made other = w.Make("other");
  const auto deleted = w.removal->Delete(doomed.org);
  ASSERT_TRUE(deleted) << deleted.error().ToString();
  EXPECT_NE(deleted->deleted_ms(), 0);
  w.ExpectNothingLeft(doomed);
  EXPECT_EQ(w.removal->Delete(doomed.org)->SerializeAsString(), deleted->SerializeAsString());
  w.ExpectWhole(other);
  EXPECT_TRUE(w.collector->Collect({.now = true}));
  w.Kill();
  w.Start();
  w.ExpectWhole(other);
  w.ExpectNothingLeft(doomed);
}

TEST(OrganizationRemoval, AMountedEnvironmentIsDetachedAndAnOpenSessionIsWaitedFor) {
  AdminWorld w;
  w.Start();
  const AdminWorld::Made doomed = w.Make("doomed");
  ASSERT_TRUE(w.volumes->Mount(doomed.org, doomed.env, "/mnt/x", {}));
  auto session = w.store->BeginWrite(doomed.realm);
  ASSERT_TRUE(session);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_FALSE((*session)->Put(BlockKind::kData, "after the end", Compression::kFast));
    session->reset();
  });
  EXPECT_TRUE(w.removal->Delete(doomed.org));
  writer.join();
  EXPECT_EQ(w.mounts.MountedAt(doomed.volume), "");
  w.ExpectNothingLeft(doomed);
}

TEST(OrganizationRemoval, PacksWaitWhileCollectionsAreHeldOff) {
  AdminWorld w;
  w.Start();
  const AdminWorld::Made doomed = w.Make("doomed");
  {
    const auto held = w.collector->Hold();
    ASSERT_TRUE(held);
    EXPECT_EQ(w.collector->Hold().error().code(), ErrorCode::kUnavailable);
    ASSERT_TRUE(w.removal->Delete(doomed.org));
    EXPECT_TRUE(std::filesystem::exists(w.dir + "/packs/" + doomed.realm.ToHex()));
    EXPECT_EQ(w.keys->ReadRealm(doomed.realm).error().code(), ErrorCode::kFailedPrecondition);
  }
  ASSERT_TRUE(w.removal->Resume());
  w.ExpectNothingLeft(doomed);
}

TEST(OrganizationRemoval, CutOffAtAnyStepItIsWholeOrItsRemovalIsEndedByTheNextStart) {
  int whole = 0;
  int resumed = 0;
  int key_first = 0;
  for (uint64_t step = 1;; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    ASSERT_LT(step, 300u);
    AdminWorld w;
    w.Start();
    const AdminWorld::Made doomed = w.Make("doomed");
    const AdminWorld::Made other = w.Make("other");
    const std::vector<std::string> wrapped = w.WrappedKeys(doomed.realm);
    const std::set<std::string> files = w.DataFilesOf(doomed);
    ASSERT_EQ(wrapped.size(), 2u);
    ASSERT_TRUE(w.AnyFileHolds(wrapped));
    w.fs.PowerOffAfter(step);
    const bool acknowledged = w.removal->Delete(doomed.org).has_value();
    const bool off = w.fs.off();
    w.Kill();
    SeededRandom random(step);
    w.fs.PowerCut(random);
    // The key goes before anything else does, and once it went nothing brings it back.
    const bool key_is_there = w.AnyFileHolds(wrapped);
    // (Closing a volume that was spared may have begun another journal.)
    const bool all_there = std::ranges::includes(w.DataFilesOf(doomed), files);
    if (!all_there) {
      EXPECT_FALSE(key_is_there);
    }
    key_first += !key_is_there && all_there;
    w.Start();
    w.ExpectWhole(other);
    if (w.registry->GetOrganization(doomed.org)) {
      EXPECT_FALSE(acknowledged);
      w.ExpectWhole(doomed);
      ++whole;
    } else {
      w.ExpectNothingLeft(doomed);
      EXPECT_FALSE(w.AnyFileHolds(wrapped));
      ++resumed;
    }
    if (!off) break;
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(resumed, 10);
  EXPECT_GT(key_first, 0);
}

}  // namespace
}  // namespace cairn
