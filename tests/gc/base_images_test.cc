// The base realm in collections and checks: images and the Environments made from them are roots.
#include "tests/gc/collector_fixture.h"

namespace cairn {
namespace {

// Blocks of the base realm live as long as an image or an Environment that started from it.
TEST_F(CollectorTest, ABaseImagesBlocksStayWhileItOrAnEnvironmentRefersToThem) {
  const Tree image_tree = MakeTree(3, 5, BaseRealm());
  const Tree incomplete_tree = MakeTree(4, 5, BaseRealm());
  const BlockRef abandoned = world_.Put(BaseRealm(), "what an import left");
  catalog::BaseImage image;
  image.set_id("base_" + std::string(32, '1'));
  image.set_name("tools");
  image.set_complete(true);
  image.set_root(image_tree.root.Encode());
  Put(keys::BaseImage(image.id()), image);
  catalog::BaseImage incomplete;
  incomplete.set_id("base_" + std::string(32, '2'));
  incomplete.set_name("next");
  incomplete.set_root(incomplete_tree.root.Encode());
  Put(keys::BaseImage(incomplete.id()), incomplete);
  const std::string environment = AddEnvironment(1, image_tree);
  const auto collect = [&] {
    const auto report = Collect({.now = true});
    ASSERT_TRUE(report) << report.error().ToString();
  };
  const auto there = [&](const Tree& tree) {
    for (const BlockRef& ref : tree.data) {
      if (!*world_.store->Contains(BaseRealm(), ref)) return false;
    }
    return *world_.store->Contains(BaseRealm(), tree.root);
  };
  collect();
  EXPECT_FALSE(*world_.store->Contains(BaseRealm(), abandoned));
  ExpectWhole(image_tree);
  ExpectWhole(incomplete_tree);
  EXPECT_TRUE(Check().damages.empty()) << Describe(Check());
  Delete(keys::BaseImage(image.id()));
  Delete(keys::BaseImage(incomplete.id()));
  collect();
  ExpectWhole(image_tree);
  EXPECT_FALSE(there(incomplete_tree));
  Delete(environment);
  collect();
  EXPECT_FALSE(there(image_tree));
  EXPECT_TRUE(world_.store->ListPacks(BaseRealm()).empty());
  EXPECT_TRUE(Check().damages.empty()) << Describe(Check());
}

TEST_F(CollectorTest, ABaseImagesRootThatIsNotInTheBaseRealmStopsCollections) {
  const Tree tree = MakeTree(3, 5);
  catalog::BaseImage image;
  image.set_id("base_" + std::string(32, '1'));
  image.set_root(tree.root.Encode());
  Put(keys::BaseImage(image.id()), image);
  const auto report = Collect({.now = true});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kDataLoss);
  EXPECT_NE(report.error().message().find("is not in the base realm"), std::string::npos)
      << report.error().ToString();
  ExpectWhole(tree);
}

TEST_F(CollectorTest, DamageInTheBaseRealmNamesTheImageAndItsEnvironments) {
  const Tree tree = MakeTree(3, 5, BaseRealm());
  catalog::BaseImage image;
  image.set_id("base_" + std::string(32, '1'));
  image.set_name("tools");
  image.set_complete(true);
  image.set_root(tree.root.Encode());
  Put(keys::BaseImage(image.id()), image);
  AddEnvironment(1, tree);
  ASSERT_TRUE(world_.store->SealOpenPacks());
  Damage(tree.data[2]);
  const CheckReport report = Check();
  ASSERT_FALSE(report.damages.empty());
  EXPECT_EQ(report.damages[0].owners,
            (std::vector<std::string>{"base image tools /f2", "environment env_1 /f2"}))
      << Describe(report);
  EXPECT_GT(report.live_bytes, 0u);
}

TEST_F(CollectorTest, ALostKeyOfTheBaseRealmIsReported) {
  const Tree tree = MakeTree(3, 5, BaseRealm());
  catalog::BaseImage image;
  image.set_id("base_" + std::string(32, '1'));
  image.set_complete(true);
  image.set_root(tree.root.Encode());
  Put(keys::BaseImage(image.id()), image);
  world_.Close();
  world_.keys.Remove(BaseRealm());
  world_.Open();
  const CheckReport report = Check();
  const auto said = std::ranges::find(report.damages, "keys", &cairn::Damage::structure);
  ASSERT_NE(said, report.damages.end()) << Describe(report);
  EXPECT_EQ(said->where, "keys/" + BaseRealm().ToHex() + ".key");
  EXPECT_EQ(said->owners, std::vector<std::string>{"the base realm"});
}

}  // namespace
}  // namespace cairn
