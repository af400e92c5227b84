// States of a volume as a whole: quotas, freeze under load, read-only, failure, and what it
// reports.
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"
#include "tests/volume/volume_world.h"

namespace cairn {
namespace {

TEST(VolumeQuota, InodesAreLimited) {
  VolumeOptions tweaks;
  tweaks.quota_inodes = 3;
  VolumeWorld world(tweaks);
  ASSERT_TRUE(world.Open());
  world.File(kRootInode, "a");
  world.Dir(kRootInode, "b");
  EXPECT_EQ(ErrnoOf(world.volume->MakeNode(world.ctx, kRootInode, "c", S_IFREG, 0)), ENOSPC);
  EXPECT_EQ(ErrnoOf(world.volume->CreateUnnamed(world.ctx, kRootInode, 0600)), ENOSPC);
  EXPECT_EQ(ErrnoOf(world.volume->Create(world.ctx, kRootInode, "c", 0600, true)), ENOSPC);
  EXPECT_EQ(
      ErrnoOf(world.volume->Rename(world.ctx, kRootInode, "a", kRootInode, "c", RENAME_WHITEOUT)),
      ENOSPC);
  EXPECT_EQ(ErrnoOf(world.volume->Lookup(kRootInode, "c")), ENOENT);
  EXPECT_EQ(world.volume->GetStatus().open_handles, 0u);
  ASSERT_TRUE(world.volume->Unlink(world.ctx, kRootInode, "a"));
  EXPECT_EQ(ErrnoOf(world.volume->MakeNode(world.ctx, kRootInode, "c", S_IFREG, 0)), 0);
  EXPECT_EQ(world.volume->GetStatus().inodes, 3u);
}

TEST(VolumeQuota, BytesAreLimitedBeforeAnythingChanges) {
  VolumeOptions tweaks;
  tweaks.quota_bytes = 4096 + 10000;  // the root directory counts as a page
  VolumeWorld world(tweaks);
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  const InodeNumber ino = world.File(kRootInode, "f", std::string(9000, 'x'));
  const Inode before = world.Attributes(ino);
  world.clock.Advance(5);
  EXPECT_EQ(ErrnoOf(volume.Write(world.ctx, ino, 9000, std::string(1001, 'y'), false)), ENOSPC);
  SetAttributes grow;
  grow.size_bytes = 10001;
  EXPECT_EQ(ErrnoOf(volume.SetAttr(world.ctx, ino, grow)), ENOSPC);
  EXPECT_EQ(ErrnoOf(volume.Allocate(world.ctx, ino, 0, 10001, 0)), ENOSPC);
  EXPECT_EQ(ErrnoOf(volume.Allocate(world.ctx, ino, 0, 10001, FALLOC_FL_KEEP_SIZE)), ENOSPC);
  EXPECT_EQ(world.Attributes(ino), before);
  EXPECT_EQ(world.Contents(ino), std::string(9000, 'x'));
  EXPECT_EQ(ErrnoOf(volume.Write(world.ctx, ino, 8000, std::string(2000, 'y'), false)), 0);
  EXPECT_EQ(ErrnoOf(volume.Write(world.ctx, ino, 0, "still possible in place", false)), 0);
  EXPECT_EQ(volume.GetStatus().logical_bytes, 14096u);
  grow.size_bytes = 0;
  EXPECT_EQ(ErrnoOf(volume.SetAttr(world.ctx, ino, grow)), 0);
  EXPECT_EQ(volume.GetStatus().logical_bytes, 4096u);
}

TEST(VolumeState, TotalsAndInodeNumbersSurviveReopening) {
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  world.File(kRootInode, "a", std::string(3000, 'x'));
  const InodeNumber gone = world.File(kRootInode, "b");
  ASSERT_TRUE(world.volume->Unlink(world.ctx, kRootInode, "b"));
  const VolumeStatus before = world.volume->GetStatus();
  ASSERT_TRUE(world.Reopen());
  EXPECT_EQ(world.volume->GetStatus().inodes, before.inodes);
  EXPECT_EQ(world.volume->GetStatus().logical_bytes, before.logical_bytes);
  EXPECT_GT(world.File(kRootInode, "c"), gone);  // a number is never used again
}

TEST(VolumeState, ReadOnlyRefusesEveryMutation) {
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  const OpContext& ctx = world.ctx;
  const InodeNumber ino = world.File(kRootInode, "f", "contents");
  world.Dir(kRootInode, "d");
  ASSERT_TRUE(volume.OpenInode(ctx, ino, true));
  volume.SetReadOnly(true);
  EXPECT_TRUE(volume.GetStatus().read_only);
  EXPECT_EQ(ErrnoOf(volume.MakeNode(ctx, kRootInode, "x", S_IFREG, 0)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.MakeDir(ctx, kRootInode, "x", 0)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Symlink(ctx, kRootInode, "x", "t")), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Create(ctx, kRootInode, "x", 0, true)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.CreateUnnamed(ctx, kRootInode, 0)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Link(ctx, ino, kRootInode, "x")), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Unlink(ctx, kRootInode, "f")), EROFS);
  EXPECT_EQ(ErrnoOf(volume.RemoveDir(ctx, kRootInode, "d")), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Rename(ctx, kRootInode, "f", kRootInode, "x", 0)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Write(ctx, ino, 0, "x", false)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Allocate(ctx, ino, 0, 100, 0)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.SetAttr(ctx, ino, {})), EROFS);
  EXPECT_EQ(ErrnoOf(volume.SetXattr(ctx, ino, "user.a", "1", 0)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.RemoveXattr(ctx, ino, "user.a")), EROFS);
  EXPECT_EQ(ErrnoOf(volume.OpenInode(ctx, ino, true)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.OpenInode(ctx, ino, false)), 0);
  EXPECT_EQ(ErrnoOf(volume.ReleaseInode(ctx, ino, false)), 0);
  EXPECT_EQ(ErrnoOf(volume.ReleaseInode(ctx, ino, true)), 0);
  EXPECT_EQ(world.Contents(ino), "contents");
  volume.SetReadOnly(false);
  EXPECT_EQ(ErrnoOf(volume.Write(ctx, ino, 0, "x", false)), 0);
}

TEST(VolumeState, AfterAFailedSyncMutationsAreRefusedAndReadsGoOn) {
  TempDir scratch;
  FaultyFileSystem faulty(scratch.path());
  VolumeWorld world;
  world.fs = &faulty;
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  const InodeNumber ino = world.File(kRootInode, "f", "contents");
  faulty.FailNth(FaultyFileSystem::Call::kSync, 1, EIO);
  EXPECT_EQ(ErrnoOf(volume.Sync()), EIO);
  EXPECT_EQ(ErrnoOf(volume.Write(world.ctx, ino, 0, "x", false)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.MakeDir(world.ctx, kRootInode, "d", 0755)), EROFS);
  EXPECT_EQ(ErrnoOf(volume.Unlink(world.ctx, kRootInode, "f")), EROFS);
  EXPECT_TRUE(volume.GetStatus().read_only);
  EXPECT_EQ(volume.GetStatus().inodes, 2u);
  EXPECT_EQ(world.Contents(ino), "contents");
  EXPECT_EQ(ErrnoOf(volume.Lookup(kRootInode, "d")), ENOENT);
  world.Close();
}

// A write that finds no room on the host gives ENOSPC, changes nothing, and the next one may
// succeed.
TEST(VolumeState, FullHostRefusesAndRecovers) {
  TempDir scratch;
  FaultyFileSystem faulty(scratch.path());
  VolumeWorld world;
  world.fs = &faulty;
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  const InodeNumber ino = world.File(kRootInode, "f", "contents");
  const VolumeStatus before = volume.GetStatus();
  faulty.SetSpaceLeft(100000);
  EXPECT_EQ(ErrnoOf(volume.Write(world.ctx, ino, 0, std::string(1 << 20, 'x'), false)), ENOSPC);
  EXPECT_EQ(world.Contents(ino), "contents");
  EXPECT_EQ(volume.GetStatus().logical_bytes, before.logical_bytes);
  faulty.SetSpaceLeft(-1);
  EXPECT_EQ(ErrnoOf(volume.Write(world.ctx, ino, 0, std::string(1 << 20, 'x'), false)), 0);
  EXPECT_EQ(volume.GetStatus().logical_bytes, before.logical_bytes + (1 << 20) - 8);
  world.Close();
}

TEST(VolumeState, OrphansReleasedWhileReadOnlyGoWhenItEnds) {
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  const InodeNumber ino = world.File(kRootInode, "f", "contents");
  ASSERT_TRUE(volume.OpenInode(world.ctx, ino, true));
  ASSERT_TRUE(volume.Unlink(world.ctx, kRootInode, "f"));
  volume.SetReadOnly(true);
  ASSERT_TRUE(volume.ReleaseInode(world.ctx, ino, true));
  EXPECT_EQ(world.Contents(ino), "contents");
  volume.SetReadOnly(false);
  EXPECT_EQ(ErrnoOf(volume.GetAttributes(ino)), ENOENT);
}

TEST(VolumeState, OpensOfFilesThatWereNeverCommittedAreForgotten) {
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  const InodeNumber made = world.File(kRootInode, "f");
  const UniqueFd file(::memfd_create("opens", MFD_CLOEXEC));
  const auto table = [&] { return *OpenTable::OnFile(UniqueFd(::dup(file.get()))); };
  OpContext resent = world.ctx;
  resent.request.connection.bytes.fill(5);
  resent.request.unique = 17;
  {
    // The server was killed between the count and the commit of a creation.
    const auto killed = table();
    killed->Add(made, false, {});
    killed->Add(made + 1, true, resent.request);
  }
  world.Close();
  world.options.opens = table();
  ASSERT_TRUE(world.Open());
  EXPECT_EQ(world.volume->GetStatus().open_handles, 1u);
  EXPECT_EQ(world.volume->OpensOf(made).handles, 1u);
  // Another file gets the number; then the request comes again.
  EXPECT_EQ(world.File(kRootInode, "g"), made + 1);
  EXPECT_EQ(world.volume->OpensOf(made + 1).handles, 0u);
  const auto tmp = world.volume->CreateUnnamed(resent, kRootInode, S_IFREG | 0600);
  ASSERT_TRUE(tmp) << tmp.error().ToString();
  EXPECT_EQ(world.volume->OpensOf(tmp->ino).handles, 1u);
  ASSERT_TRUE(world.volume->ReleaseInode({}, tmp->ino, true));
  EXPECT_EQ(world.volume->GetStatus().open_handles, 1u);
  EXPECT_FALSE(world.volume->GetAttributes(tmp->ino)) << "nothing held it any more";
}

TEST(VolumeState, NewVolumeCannotBeOpenedReadOnly) {
  VolumeWorld world;
  EXPECT_EQ(ErrnoOf(world.Open(/*read_only=*/true)), EROFS);
}

TEST(VolumeState, FrozenLayerStaysAsItWas) {
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  const InodeNumber ino = world.File(kRootInode, "f", "before");
  const auto frozen = volume.Freeze();
  ASSERT_TRUE(frozen);
  ASSERT_TRUE(volume.Write(world.ctx, ino, 0, "after!", false));
  ASSERT_TRUE(volume.Unlink(world.ctx, kRootInode, "f"));
  world.File(kRootInode, "g");
  const FsView view(*frozen, volume.hash_seed());
  std::string out(6, '?');
  EXPECT_EQ(view.Read(view.Lookup(kRootInode, "f").value(), 0, out).value(), 6u);
  EXPECT_EQ(out, "before");
  EXPECT_EQ(ErrnoOf(view.Lookup(kRootInode, "g")), ENOENT);
  const VolumeStatus status = volume.GetStatus();
  EXPECT_EQ(status.unsealed_generations, 1u);
  EXPECT_GT(status.unsealed_records, 0u);
}

// Each writer appends to its own file and counts what returned. A freeze gets in although they
// never pause, holds everything that had returned when it was called, and nothing that began after
// it returned.
TEST(VolumeState, FreezeCutsBetweenCallsUnderLoad) {
  constexpr int kWriters = 4;
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  Volume& volume = *world.volume;
  std::vector<InodeNumber> files;
  std::vector<std::atomic<uint64_t>> begun(kWriters);
  std::vector<std::atomic<uint64_t>> returned(kWriters);
  for (int t = 0; t < kWriters; ++t) files.push_back(world.File(kRootInode, std::to_string(t)));
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < kWriters; ++t) {
    writers.emplace_back([&, t] {
      for (uint64_t n = 0; !stop; ++n) {
        begun[t] = n + 1;
        if (!volume.Write(world.ctx, files[t], n, "x", false)) {
          ADD_FAILURE() << "write " << n;
          return;
        }
        returned[t] = n + 1;
      }
    });
  }
  for (int round = 0; round < 10; ++round) {
    std::vector<uint64_t> low;
    for (int t = 0; t < kWriters; ++t) low.push_back(returned[t]);
    const auto frozen = volume.Freeze();
    std::vector<uint64_t> high;
    for (int t = 0; t < kWriters; ++t) high.push_back(begun[t]);
    ASSERT_TRUE(frozen);
    const FsView view(*frozen, volume.hash_seed());
    for (int t = 0; t < kWriters; ++t) {
      const uint64_t size = view.GetInode(files[t]).value().size_bytes;
      EXPECT_GE(size, low[t]);
      EXPECT_LE(size, high[t]);
    }
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

// Many threads, one volume: the totals are exactly what is there in the end, now and after a
// reopening.
TEST(VolumeState, TotalsStayExactUnderConcurrentOperations) {
  VolumeWorld world;
  ASSERT_TRUE(world.Open());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Volume& volume = *world.volume;
      for (int i = 0; i < 200; ++i) {
        const std::string name = std::to_string((t * 7 + i) % 20);
        const auto made = volume.Create(world.ctx, kRootInode, name, 0600, true);
        if (!made) {
          IgnoreError(volume.Unlink(world.ctx, kRootInode, name), "another thread was first");
          continue;
        }
        EXPECT_TRUE(volume.Write(world.ctx, made->ino, 0, std::string(10 + i * 20, 'x'), false));
        EXPECT_TRUE(volume.ReleaseInode(world.ctx, made->ino, true));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int life = 0; life < 2; ++life) {
    uint64_t inodes = 1;
    uint64_t bytes = world.Attributes(kRootInode).size_bytes;
    ASSERT_TRUE(world.volume->ReadDir(kRootInode, 0, [&](const DirEntry& entry) {
      ++inodes;
      bytes += world.Attributes(entry.ino).size_bytes;
      return true;
    }));
    EXPECT_EQ(world.volume->GetStatus().inodes, inodes);
    EXPECT_EQ(world.volume->GetStatus().logical_bytes, bytes);
    EXPECT_EQ(world.volume->GetStatus().open_handles, 0u);
    ASSERT_TRUE(world.Reopen());
  }
}

}  // namespace
}  // namespace cairn
