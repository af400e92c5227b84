// Base images over a whole data directory: what is shared and what is not, what a collection, a
// deletion, a crash, a rotation and a backup do to them.
#include "snapshot/base_images.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "gc/reaper.h"
#include "store/base/random.h"
#include "store/manifest/backup_verify.h"
#include "tests/admin/admin_world.h"
#include "volume/fs_root.h"

namespace cairn {
namespace {

using Files = std::map<std::string, std::string>;  // in the root directory

Files SomeFiles(uint64_t seed, int count, size_t bytes) {
  SeededRandom random(seed);
  Files files;
  for (int i = 0; i < count; ++i) files["f" + std::to_string(i)] = random.Bytes(bytes);
  return files;
}

Status WriteInto(Volume& volume, InodeNumber dir, const std::string& name,
                 const std::string& data) {
  const auto made = CAIRN_TRY(volume.MakeNode({}, dir, name, S_IFREG | 0644, 0));
  CAIRN_TRY(volume.Write({}, made.ino, 0, data, false));
  return {};
}

std::function<Status(Volume&)> Filling(const Files& files) {
  return [&files](Volume& volume) -> Status {
    for (const auto& [name, data] : files) CAIRN_TRY(WriteInto(volume, kRootInode, name, data));
    return {};
  };
}

class BaseImageTest : public testing::Test {
 protected:
  BaseImageTest() { w_.Start(); }

  std::string NewOrganization(const std::string& name) {
    const auto secrets = w_.registry->CreateOrganization(name);
    EXPECT_TRUE(secrets);
    w_.AddKeys(*secrets);
    return secrets->org;
  }
  AdminWorld::Made StartFrom(const std::string& org, const std::string& base) {
    AdminWorld::Made made;
    made.org = org;
    const auto env = w_.registry->CreateEnvironment(org, {.name = "e", .base = base});
    EXPECT_TRUE(env) << env.error().message();
    made.env = env->record.id();
    made.volume = Id128::FromView(env->record.volume());
    made.realm = Id128::FromView(w_.registry->GetOrganization(org)->realm());
    return made;
  }
  void ExpectFiles(const AdminWorld::Made& made, const Files& files) {
    const auto view = w_.volumes->ViewNow(made.org, made.env);
    ASSERT_TRUE(view) << view.error().ToString();
    for (const auto& [name, data] : files) {
      const auto ino = view->Resolve(name);
      ASSERT_TRUE(ino) << name << " " << ino.error().ToString();
      std::string got(data.size() + 1, '\0');
      const auto read = view->Read(*ino, 0, got);
      ASSERT_TRUE(read) << name << " " << read.error().ToString();
      got.resize(*read);
      EXPECT_TRUE(got == data) << name;
    }
    EXPECT_TRUE(view->Resolve("workspace/outputs"));
  }
  void MustSeal(const AdminWorld::Made& made) {
    const auto point = w_.Freeze(made);
    ASSERT_TRUE(point) << point.error().ToString();
    ASSERT_TRUE(w_.volumes->WaitSealed(point->point(), 60000));
  }
  // Frames in the packs of a realm.
  uint64_t Frames(const Id128& realm) {
    EXPECT_TRUE(w_.store->SealOpenPacks());
    uint64_t frames = 0;
    for (const PackSummary& pack : w_.store->ListPacks(realm)) frames += pack.entry_count;
    return frames;
  }
  uint64_t DataFrames(const Id128& realm) {
    EXPECT_TRUE(w_.store->SealOpenPacks());
    uint64_t frames = 0;
    for (const PackSummary& pack : w_.store->ListPacks(realm)) {
      const auto blocks = w_.store->ListBlocks(pack.pack);
      EXPECT_TRUE(blocks);
      for (const auto& block : *blocks) frames += block.entry.kind == BlockKind::kData ? 1 : 0;
    }
    return frames;
  }
  void Collect() {
    const auto collected = w_.collector->Collect({.now = true});
    ASSERT_TRUE(collected) << collected.error().ToString();
  }
  void Reap() {
    ReaperHooks hooks;
    hooks.revoke_environment = [this](const catalog::Environment& env) {
      return w_.volumes->Revoke(env.org(), env.id());
    };
    hooks.remove_volume = [this](const catalog::Volume& volume) {
      return w_.volumes->RemoveVolume(volume);
    };
    Reaper reaper(*w_.catalog, hooks, w_.registry->epoch());
    const auto plan = reaper.Plan(w_.clock.NowMs());
    ASSERT_TRUE(plan);
    for (const PlanItem& item : plan->items) {
      EXPECT_FALSE(item.condemned && item.object_class == "base_image");
    }
    const auto reaped = reaper.Execute(*plan, w_.clock.NowMs());
    ASSERT_TRUE(reaped);
    EXPECT_EQ(reaped->failed, 0u);
  }
  void DeleteEnvironment(const AdminWorld::Made& made) {
    ASSERT_TRUE(w_.registry->DeleteEnvironment(made.org, made.env));
    Reap();
  }
  void Restart() {
    w_.Kill();
    w_.Start();
  }

  AdminWorld w_;
};

TEST_F(BaseImageTest, OrganizationsShareItsBlocksAndWriteIntoTheirOwnRealms) {
  const Files files = SomeFiles(1, 40, 150000);
  const auto image = w_.base_images->Import("tools", Filling(files));
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_TRUE(image->complete());
  EXPECT_EQ(image->inodes(), 41u);
  const uint64_t base_frames = Frames(BaseRealm());
  EXPECT_GE(base_frames, 40u);
  const auto a = StartFrom(NewOrganization("a"), "tools");
  const auto b = StartFrom(NewOrganization("b"), "tools");
  ExpectFiles(a, files);
  ExpectFiles(b, files);
  EXPECT_EQ(Frames(a.realm), 0u) << "nothing is copied";
  MustSeal(a);
  MustSeal(b);
  EXPECT_EQ(DataFrames(a.realm), 0u) << "nor by a seal";
  EXPECT_LT(Frames(a.realm), 12u) << "the path to /workspace";

  // The same bytes again, which the base realm has, and each other's.
  w_.Write(a, "copy", files.at("f1"));
  w_.Write(b, "copy", files.at("f1"));
  {
    const auto volume = w_.volumes->OpenForWrite(a.org, a.env);
    ASSERT_TRUE(volume);
    const InodeNumber changed = *(*volume)->View().Resolve("f2");
    ASSERT_TRUE((*volume)->Write({}, changed, 70000, "changed by a", false));
    ASSERT_TRUE((*volume)->Unlink({}, kRootInode, "f3"));
  }
  MustSeal(a);
  MustSeal(b);
  EXPECT_GE(DataFrames(a.realm), 4u) << "three of the copy, one of the change";
  EXPECT_EQ(DataFrames(b.realm), 3u) << "neither shared with a nor found in the base realm";
  EXPECT_EQ(Frames(BaseRealm()), base_frames) << "no organization writes there";
  EXPECT_FALSE(w_.volumes->ViewNow(a.org, a.env)->Resolve("f3"));
  ExpectFiles(b, files);
  const auto c = StartFrom(a.org, "tools");
  ExpectFiles(c, files);
  Restart();
  Files of_a = files;
  of_a["f2"].replace(70000, 12, "changed by a");
  of_a.erase("f3");
  ExpectFiles(a, of_a);
  ExpectFiles(b, files);
  w_.ExpectCheckIsClean();
}

TEST_F(BaseImageTest, ADeletedOneLivesOnInItsEnvironmentsAndThenGoes) {
  const Files files = SomeFiles(2, 10, 100000);
  ASSERT_TRUE(w_.base_images->Import("used", Filling(files)));
  const Files others = SomeFiles(3, 10, 100000);
  ASSERT_TRUE(w_.base_images->Import("unused", Filling(others)));
  const std::string org = NewOrganization("a");
  const auto sealed = StartFrom(org, "used");
  const auto never_used = StartFrom(org, "used");
  ExpectFiles(sealed, files);
  MustSeal(sealed);
  const uint64_t before = DataFrames(BaseRealm());
  ASSERT_TRUE(w_.registry->DeleteBaseImage("unused"));
  Reap();
  Collect();
  const uint64_t of_used = DataFrames(BaseRealm());
  EXPECT_EQ(before, 2 * of_used) << "no user: gone";
  ASSERT_TRUE(w_.registry->DeleteBaseImage("used"));
  Collect();
  EXPECT_EQ(DataFrames(BaseRealm()), of_used);
  ExpectFiles(sealed, files);
  DeleteEnvironment(sealed);
  Collect();
  EXPECT_EQ(DataFrames(BaseRealm()), of_used);
  ExpectFiles(never_used, files);
  Restart();
  ExpectFiles(never_used, files);
  DeleteEnvironment(never_used);
  Collect();
  EXPECT_EQ(Frames(BaseRealm()), 0u);
  EXPECT_EQ(Frames(sealed.realm), 0u);
  w_.ExpectCheckIsClean();
  ASSERT_TRUE(w_.base_images->Import("used", Filling(files))) << "the name is free";
  ExpectFiles(StartFrom(org, "used"), files);
}

TEST_F(BaseImageTest, ANeverUsedEnvironmentIsReadSnapshotAndForkedWithItsFiles) {
  const Files files = SomeFiles(4, 3, 5000);
  ASSERT_TRUE(w_.base_images->Import("tools", Filling(files)));
  const std::string org = NewOrganization("a");
  const auto made = StartFrom(org, "tools");
  Restart();
  const auto point = w_.Freeze(made);
  ASSERT_TRUE(point) << point.error().ToString();
  const auto view = w_.volumes->ViewOf(point->point());
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->Resolve("f1"));
  EXPECT_TRUE(view->Resolve("workspace/outputs"));
  w_.Write(made, "x", "writable");
  EXPECT_EQ(w_.Read(made, "x"), "writable");
}

TEST_F(BaseImageTest, ACollectionBetweenTwoSlicesTakesNothingOfAnImport) {
  w_.Kill();
  w_.base_slice_records = 20;
  w_.Start();
  const Files files = SomeFiles(5, 60, 80000);
  int collections = 0;
  const auto image = w_.base_images->Import("slices", [&](Volume& volume) -> Status {
    int written = 0;
    for (const auto& [name, data] : files) {
      CAIRN_TRY(WriteInto(volume, kRootInode, name, data));
      if (++written % 13 != 0) continue;
      CAIRN_TRY(w_.collector->Collect({.now = true}));
      ++collections;
    }
    return {};
  });
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_EQ(collections, 4);
  Collect();
  ExpectFiles(StartFrom(NewOrganization("a"), "slices"), files);
  w_.ExpectCheckIsClean();
}

TEST_F(BaseImageTest, AFailedOneLeavesNoImageAndItsBlocksAreGarbage) {
  w_.Kill();
  w_.base_slice_records = 20;
  w_.Start();
  const Files files = SomeFiles(6, 60, 80000);
  const auto failed = w_.base_images->Import("half", [&](Volume& volume) -> Status {
    CAIRN_TRY(Filling(files)(volume));
    EXPECT_EQ(w_.registry->ListBaseImages()->at(0).complete(), false);
    return Err(ErrorCode::kNotFound, "the source went away");
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "the source went away");
  EXPECT_TRUE(w_.registry->ListBaseImages()->empty());
  EXPECT_GT(Frames(BaseRealm()), 0u);
  Collect();
  EXPECT_EQ(Frames(BaseRealm()), 0u);
  ASSERT_TRUE(w_.base_images->Import("half", Filling(files)));
}

TEST_F(BaseImageTest, WhatAKilledImportLeftIsRemovedByTheNextStart) {
  {
    const auto session = *w_.store->BeginBaseWrite();
    const auto root = session->Put(BlockKind::kFsRoot, FsRoot().Encode(), Compression::kFast);
    ASSERT_TRUE(root && session->Sync());
    auto image = w_.registry->BeginBaseImage("killed");
    ASSERT_TRUE(image);
    image->set_root(root->Encode());
    ASSERT_TRUE(w_.registry->UpdateBaseImage(*image));
  }
  Collect();
  EXPECT_EQ(Frames(BaseRealm()), 1u) << "it may be an import's that runs";
  Restart();
  EXPECT_TRUE(w_.registry->ListBaseImages()->empty());
  Collect();
  EXPECT_EQ(Frames(BaseRealm()), 0u);
}

TEST_F(BaseImageTest, OneImportAtATimeAndNoneWhileTheServerStops) {
  const Files files = SomeFiles(7, 2, 1000);
  const auto outer = w_.base_images->Import("outer", [&](Volume& volume) -> Status {
    EXPECT_EQ(w_.base_images->Import("inner", Filling(files)).error().code(),
              ErrorCode::kUnavailable);
    return Filling(files)(volume);
  });
  ASSERT_TRUE(outer) << "the refused one has not removed its record: " << outer.error().ToString();
  w_.base_images->EndImports();
  EXPECT_EQ(w_.base_images->Import("late", Filling(files)).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(w_.registry->ListBaseImages()->size(), 1u);
}

TEST_F(BaseImageTest, AFileAtWorkspaceIsRefused) {
  const auto file = w_.base_images->Import(
      "file", [](Volume& volume) { return WriteInto(volume, kRootInode, "workspace", "a file"); });
  EXPECT_EQ(file.error().code(), ErrorCode::kInvalidArgument);
  const auto outputs = w_.base_images->Import("outputs", [](Volume& volume) -> Status {
    const auto dir = CAIRN_TRY(volume.MakeDir({}, kRootInode, "workspace", 0755));
    CAIRN_TRY(volume.Symlink({}, dir.ino, "outputs", "/"));
    return {};
  });
  EXPECT_EQ(outputs.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(w_.registry->ListBaseImages()->empty());
  const auto with_workspace = w_.base_images->Import("directory", [](Volume& volume) -> Status {
    const auto dir = CAIRN_TRY(volume.MakeDir({}, kRootInode, "workspace", 0755));
    return WriteInto(volume, dir.ino, "inside", "of the image");
  });
  ASSERT_TRUE(with_workspace);
  EXPECT_EQ(w_.Read(StartFrom(NewOrganization("a"), "directory"), "inside"), "of the image");
}

TEST_F(BaseImageTest, DeletingAnOrganizationTakesNothingOfTheBaseRealm) {
  const Files files = SomeFiles(8, 5, 100000);
  ASSERT_TRUE(w_.base_images->Import("tools", Filling(files)));
  const auto doomed = StartFrom(NewOrganization("doomed"), "tools");
  const auto other = StartFrom(NewOrganization("other"), "tools");
  ExpectFiles(doomed, files);
  w_.Write(doomed, "own", files.at("f1"));
  MustSeal(doomed);
  const uint64_t base_frames = Frames(BaseRealm());
  const auto base_keys = w_.WrappedKeys(BaseRealm());
  ASSERT_TRUE(w_.removal->Delete(doomed.org));
  Collect();
  EXPECT_FALSE(std::filesystem::exists(w_.dir + "/packs/" + doomed.realm.ToHex()));
  EXPECT_EQ(Frames(BaseRealm()), base_frames);
  EXPECT_EQ(w_.WrappedKeys(BaseRealm()), base_keys);
  ExpectFiles(other, files);
  Restart();
  EXPECT_EQ(w_.WrappedKeys(BaseRealm()), base_keys);
  ExpectFiles(other, files);
  w_.ExpectCheckIsClean();
}

TEST_F(BaseImageTest, ARotationOfTheMasterKeyTakesTheBaseRealmsKeyAlong) {
  const Files files = SomeFiles(9, 3, 10000);
  ASSERT_TRUE(w_.base_images->Import("tools", Filling(files)));
  const auto made = StartFrom(NewOrganization("a"), "tools");
  const auto before = w_.WrappedKeys(BaseRealm());
  ASSERT_FALSE(before.empty());
  EXPECT_TRUE(w_.AnyFileHolds(before));
  const auto rotated = w_.rotation->Rotate("");
  ASSERT_TRUE(rotated) << rotated.error().ToString();
  EXPECT_EQ(*rotated, MasterRotation::Outcome::kRotated);
  EXPECT_FALSE(w_.AnyFileHolds(before)) << "wrapped by the old master key";
  Restart();
  ExpectFiles(made, files);
  ASSERT_TRUE(w_.base_images->Import("more", Filling(files)));
}

TEST_F(BaseImageTest, ABackupHasThem) {
  const Files files = SomeFiles(10, 3, 100000);
  ASSERT_TRUE(w_.base_images->Import("tools", Filling(files)));
  const auto made = StartFrom(NewOrganization("a"), "tools");
  ExpectFiles(made, files);
  TempDir temp;
  const auto report = w_.backup->Run({.destination = temp / "backups", .with_master_key = true});
  ASSERT_TRUE(report) << report.error().ToString();
  std::filesystem::copy(report->path, temp / "restored", std::filesystem::copy_options::recursive);
  AdminWorld restored(temp / "restored");
  restored.Start();
  EXPECT_EQ(restored.registry->ListBaseImages()->size(), 1u);
  const auto view = restored.volumes->ViewNow(made.org, made.env);
  ASSERT_TRUE(view) << view.error().ToString();
  const InodeNumber ino = *view->Resolve("f2");
  std::string got(files.at("f2").size(), '\0');
  ASSERT_TRUE(view->Read(ino, 0, got));
  EXPECT_EQ(got, files.at("f2"));
  restored.ExpectCheckIsClean();
}

TEST(BaseImageCrash, CutOffAtAnyStepThereIsTheWholeImageOrNone) {
  const uint64_t seed = 20;
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Files files = SomeFiles(seed, 30, 30000);
  int whole = 0;
  int none = 0;
  for (uint64_t step = 1; whole < 2; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    ASSERT_LT(step, 400u);
    AdminWorld w;
    w.base_slice_records = 25;
    w.Start();
    const auto secrets = w.registry->CreateOrganization("a");
    w.fs.PowerOffAfter(step);
    const auto imported = w.base_images->Import("tools", Filling(files));
    w.Kill();
    SeededRandom random(seed + step);
    w.fs.PowerCut(random);
    w.Start();
    const auto images = w.registry->ListBaseImages();
    ASSERT_TRUE(images);
    const auto collected = w.collector->Collect({.now = true});
    ASSERT_TRUE(collected) << collected.error().ToString();
    if (images->empty()) {
      ++none;
      EXPECT_FALSE(imported) << "acknowledged and gone";
      EXPECT_TRUE(w.store->ListPacks(BaseRealm()).empty()) << "its blocks leak";
    } else {
      ++whole;
      ASSERT_TRUE(images->at(0).complete());
      const auto env = w.registry->CreateEnvironment(secrets->org, {.base = "tools"});
      ASSERT_TRUE(env);
      const auto view = w.volumes->ViewNow(secrets->org, env->record.id());
      ASSERT_TRUE(view) << view.error().ToString();
      for (const auto& [name, data] : files) {
        std::string got(data.size(), '\0');
        ASSERT_TRUE(view->Read(*view->Resolve(name), 0, got)) << name;
        EXPECT_TRUE(got == data) << name;
      }
    }
    w.ExpectCheckIsClean();
    if (whole + none > 60) step += 7;  // the later steps are many and alike
  }
  EXPECT_GT(none, 5);
}

}  // namespace
}  // namespace cairn
