// Trees go to a volume and back exactly.
#include "api/tree_transfer.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/support/service_world.h"

namespace cairn {
namespace {

class TreeTransferTest : public ServiceWorld {
 protected:
  void SetUp() override {
    env_ = NewEnvironment();
    ASSERT_TRUE(volumes_->EnsureInitialized(kOrg, env_));
    source_ = dir_.path() + "/source";
    target_ = dir_.path() + "/target";
    ASSERT_EQ(::mkdir(source_.c_str(), 0755), 0);
  }
  Result<TransferCounts> Import(const std::string& path = "/workspace/in") {
    const auto volume = volumes_->OpenForWrite(kOrg, env_);
    EXPECT_TRUE(volume);
    return ImportTree(source_, **volume, path);
  }
  Result<TransferCounts> Export(const std::string& path = "/workspace/in") {
    const auto view = volumes_->ViewNow(kOrg, env_);
    EXPECT_TRUE(view);
    return ExportTree(*view, path, target_);
  }
  static void WriteHost(const std::string& path, const std::string& data) {
    std::ofstream(path, std::ios::binary) << data;
  }
  static std::string ReadHost(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static struct stat Stat(const std::string& path) {
    struct stat info{};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
    return info;
  }

  std::string env_, source_, target_;
};

TEST_F(TreeTransferTest, EverythingComesBackAsItWas) {
  WriteHost(source_ + "/file", "hello");
  ASSERT_EQ(::link((source_ + "/file").c_str(), (source_ + "/second").c_str()), 0);
  ASSERT_EQ(::chmod((source_ + "/file").c_str(), 04751), 0);
  ASSERT_EQ(::setxattr((source_ + "/file").c_str(), "user.note", "v\0w", 3, 0), 0);
  ASSERT_EQ(::symlink("../../etc/passwd", (source_ + "/link").c_str()), 0);
  ASSERT_EQ(::mkfifo((source_ + "/fifo").c_str(), 0640), 0);
  ASSERT_EQ(::mkdir((source_ + "/dir").c_str(), 0700), 0);
  const std::string big(300000, 'b');
  WriteHost(source_ + "/dir/big", big);
  {
    const int fd = ::open((source_ + "/sparse").c_str(), O_WRONLY | O_CREAT, 0600);
    ASSERT_EQ(::pwrite(fd, "end", 3, 8 << 20), 3);
    ASSERT_EQ(::ftruncate(fd, 64 << 20), 0);
    ::close(fd);
  }
  const timespec times[2] = {{.tv_sec = 1000000000, .tv_nsec = 123456789},
                             {.tv_sec = -5, .tv_nsec = 7}};
  for (const char* name : {"/file", "/link", "/fifo", "/dir/big", "/dir"})
    ASSERT_EQ(::utimensat(AT_FDCWD, (source_ + name).c_str(), times, AT_SYMLINK_NOFOLLOW), 0);

  const auto imported = Import();
  ASSERT_TRUE(imported) << imported.error().ToString();
  EXPECT_EQ(imported->files, 3u);
  EXPECT_EQ(imported->links, 2u);
  EXPECT_EQ(imported->special, 1u);
  EXPECT_LT(imported->bytes, 2u << 20) << "holes were copied";
  const auto exported = Export();
  ASSERT_TRUE(exported) << exported.error().ToString();
  EXPECT_EQ(exported->bytes, imported->bytes);

  for (const char* name : {"/file", "/second", "/link", "/fifo", "/dir", "/dir/big", "/sparse"}) {
    const struct stat from = Stat(source_ + name), to = Stat(target_ + name);
    EXPECT_EQ(from.st_mode, to.st_mode) << name;
    EXPECT_EQ(from.st_uid, to.st_uid) << name;
    EXPECT_EQ(from.st_gid, to.st_gid) << name;
    if (!S_ISDIR(from.st_mode)) {
      EXPECT_EQ(from.st_size, to.st_size) << name;
    }
    EXPECT_EQ(from.st_mtim.tv_sec, to.st_mtim.tv_sec) << name;
    EXPECT_EQ(from.st_mtim.tv_nsec, to.st_mtim.tv_nsec) << name;
  }
  EXPECT_EQ(Stat(target_ + "/file").st_ino, Stat(target_ + "/second").st_ino);
  EXPECT_EQ(ReadHost(target_ + "/file"), "hello");
  EXPECT_EQ(ReadHost(target_ + "/dir/big"), big);
  EXPECT_EQ(ReadHost(target_ + "/sparse"), ReadHost(source_ + "/sparse"));
  EXPECT_LT(Stat(target_ + "/sparse").st_blocks * 512, 2 << 20);
  char value[8];
  ASSERT_EQ(::getxattr((target_ + "/file").c_str(), "user.note", value, sizeof value), 3);
  EXPECT_EQ(std::string(value, 3), std::string("v\0w", 3));
  char link[64];
  const ssize_t length = ::readlink((target_ + "/link").c_str(), link, sizeof link);
  EXPECT_EQ(std::string(link, static_cast<size_t>(std::max<ssize_t>(length, 0))),
            "../../etc/passwd");
}

TEST_F(TreeTransferTest, ImportMergesDirectoriesAndStopsAtOtherNames) {
  ASSERT_EQ(::mkdir((source_ + "/dir").c_str(), 0755), 0);
  WriteHost(source_ + "/dir/a", "a");
  ASSERT_TRUE(Import());
  ASSERT_EQ(::unlink((source_ + "/dir/a").c_str()), 0);
  WriteHost(source_ + "/dir/b", "b");
  ASSERT_TRUE(Import());
  EXPECT_EQ(ReadNow(env_, "/workspace/in/dir/a"), "a");
  EXPECT_EQ(ReadNow(env_, "/workspace/in/dir/b"), "b");
  const auto again = Import();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(ReadNow(env_, "/workspace/in/dir/b"), "b");
}

TEST_F(TreeTransferTest, LinksOnTheWayAreNotFollowed) {
  ASSERT_EQ(::symlink("/etc", (source_ + "/etc").c_str()), 0);
  const auto imported = Import();
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->files, 0u);
  // Neither inside the Environment: "etc" there is a link.
  WriteHost(source_ + "/x", "x");
  ASSERT_EQ(::unlink((source_ + "/etc").c_str()), 0);
  EXPECT_FALSE(Import("/workspace/in/etc"));
  EXPECT_FALSE(Export("/workspace/in/etc"));
  // Nor as the source itself.
  const std::string real = source_;
  source_ = dir_.path() + "/alias";
  ASSERT_EQ(::symlink(real.c_str(), source_.c_str()), 0);
  EXPECT_FALSE(Import());
}

TEST_F(TreeTransferTest, ExportWantsANewOrEmptyDirectory) {
  WriteHost(source_ + "/a", "a");
  ASSERT_TRUE(Import());
  ASSERT_EQ(::mkdir(target_.c_str(), 0700), 0);
  ASSERT_TRUE(Export());
  ASSERT_EQ(::unlink((target_ + "/a").c_str()), 0);
  WriteHost(target_ + "/somebody's", "x");
  const auto again = Export();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_NE(::access((target_ + "/a").c_str(), F_OK), 0);
}

// 60,000 bytes are more than ext4 keeps of an inode's attributes; a host that keeps them exports.
TEST_F(TreeTransferTest, AttributeThatTheHostDoesNotKeepIsNotCalledAFullDisk) {
  WriteHost(source_ + "/f", "x");
  ASSERT_TRUE(Import());
  {
    const auto volume = volumes_->OpenForWrite(kOrg, env_);
    ASSERT_TRUE(volume);
    const InodeNumber f = (*volume)->View().Resolve("/workspace/in/f").value();
    ASSERT_TRUE((*volume)->SetXattr({}, f, "user.big", std::string(60000, 'v'), 0));
  }
  const auto exported = Export();
  if (exported) GTEST_SKIP() << "this file system keeps attributes of 60,000 bytes";
  EXPECT_EQ(exported.error().code(), ErrorCode::kFailedPrecondition);
  const std::string& message = exported.error().message();
  EXPECT_NE(message.find("no extended attribute of 60000 bytes (user.big of f)"), std::string::npos)
      << message;
}

TEST_F(TreeTransferTest, AccessControlListsAreLeftOutAndCounted) {
  WriteHost(source_ + "/f", "x");
  // Version 2; owner rw, uid 1000 r, group r, mask r, others r (acl(5), linux/posix_acl_xattr.h).
  const unsigned char acl[] = {2, 0,   0,   0,   1,   0,   6,  0, 255, 255, 255, 255, 2,   0,  4,
                               0, 232, 3,   0,   0,   4,   0,  4, 0,   255, 255, 255, 255, 16, 0,
                               4, 0,   255, 255, 255, 255, 32, 0, 4,   0,   255, 255, 255, 255};
  if (::setxattr((source_ + "/f").c_str(), "system.posix_acl_access", acl, sizeof acl, 0) != 0) {
    GTEST_SKIP() << "this file system has no ACLs";
  }
  const auto imported = Import();
  ASSERT_TRUE(imported) << imported.error().ToString();
  EXPECT_EQ(imported->skipped_xattrs, 1u);
  EXPECT_EQ(ReadNow(env_, "/workspace/in/f"), "x");
}

TEST_F(TreeTransferTest, QuotaEndsTheImportAtAPath) {
  catalog::Environment env = Env(env_);
  env.set_id(NewId(kEnvironmentPrefix));
  env.clear_volume();
  env.set_state(catalog::ENV_PENDING);
  env.set_quota_bytes(65536);
  Put(keys::Environment(kOrg, env.id()), env);
  env_ = env.id();
  const auto initialized = volumes_->EnsureInitialized(kOrg, env_);
  ASSERT_TRUE(initialized) << initialized.error().ToString();
  WriteHost(source_ + "/f", std::string(1000000, 'x'));
  const auto imported = Import();
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code(), ErrorCode::kExhausted);
  EXPECT_NE(imported.error().message().find(source_ + "/f"), std::string::npos)
      << imported.error().ToString();
}

TEST_F(TreeTransferTest, DamagedNamesDoNotLeadOutOfTheTarget) {
  {
    const auto volume = volumes_->OpenForWrite(kOrg, env_);
    ASSERT_TRUE(volume);
    WriteInto(**volume, "workspace", "f", "x");
    const InodeNumber f = (*volume)->View().Resolve("/workspace/f").value();
    Transaction tx;
    tx.Put(DirentKey(kRootInode, 3 << 8), Entry{Dirent{f, DT_REG, "../escaped"}.Encode(), {}});
    ASSERT_TRUE((*volume)->head().Commit(std::move(tx)));
  }
  const auto exported = Export("/");
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(std::ifstream(dir_.path() + "/escaped").is_open());
}

// More files than a batch, of all sizes around it, in directories that are closed and old before
// their last file is written.
TEST_F(TreeTransferTest, ManyFilesAreWrittenByTheBatchAndTheirDirectoriesLast) {
  if (::geteuid() != 0) GTEST_SKIP() << "owners need root";
  const auto file_of = [](int d, int f) {
    std::string data(static_cast<size_t>(d * 997 + f * 131) % 9000,
                     static_cast<char>('a' + f % 26));
    if (f == 7) data.assign(static_cast<size_t>(d) * 100'000, 'x');
    if (f == 8) data.clear();
    return data;
  };
  for (int d = 0; d < 30; ++d) {
    const std::string dir = source_ + "/d" + std::to_string(d);
    ASSERT_EQ(::mkdir(dir.c_str(), 0755), 0);
    for (int f = 0; f < 40; ++f) {
      const std::string path = dir + "/f" + std::to_string(f);
      WriteHost(path, file_of(d, f));
      ASSERT_EQ(::chown(path.c_str(), 1000u + f % 3u, 2000u + f % 5u), 0);
      ASSERT_EQ(::chmod(path.c_str(), f % 4 == 0 ? 06511 : 0444u + f % 4u * 0100u), 0);
    }
    // Ends in a hole.
    ASSERT_EQ(::truncate((dir + "/f9").c_str(), 300'000), 0);
    ASSERT_EQ(::chmod(dir.c_str(), 0511), 0);
    const timespec times[2] = {{1000 + d, 7}, {2000 + d, 9}};
    ASSERT_EQ(::utimensat(AT_FDCWD, dir.c_str(), times, 0), 0);
  }
  ASSERT_TRUE(Import());
  // What the target gives to its files must not stay: a group, a mask.
  ASSERT_EQ(::mkdir(target_.c_str(), 0755), 0);
  ASSERT_EQ(::chown(target_.c_str(), 0, 5), 0);
  ASSERT_EQ(::chmod(target_.c_str(), 02777), 0);
  const mode_t mask = ::umask(0027);
  const auto exported = Export();
  ::umask(mask);
  ASSERT_TRUE(exported) << exported.error().ToString();
  EXPECT_EQ(exported->files, 1200u);
  EXPECT_EQ(exported->directories, 30u);
  EXPECT_EQ(Stat(target_).st_mode, Stat(source_).st_mode);
  EXPECT_EQ(Stat(target_).st_gid, Stat(source_).st_gid);
  for (int d = 0; d < 30; ++d) {
    const std::string dir = "/d" + std::to_string(d);
    EXPECT_EQ(Stat(target_ + dir).st_mode, S_IFDIR | 0511u);
    EXPECT_EQ(Stat(target_ + dir).st_mtim.tv_sec, 2000 + d);
    EXPECT_EQ(Stat(target_ + dir).st_mtim.tv_nsec, 9);
    EXPECT_EQ(Stat(target_ + dir).st_gid, Stat(source_ + dir).st_gid);
    for (int f = 0; f < 40; ++f) {
      const std::string name = dir + "/f" + std::to_string(f);
      const struct stat want = Stat(source_ + name), got = Stat(target_ + name);
      EXPECT_EQ(got.st_mode, want.st_mode) << name;
      EXPECT_EQ(got.st_uid, want.st_uid) << name;
      EXPECT_EQ(got.st_gid, want.st_gid) << name;
      EXPECT_EQ(got.st_size, want.st_size) << name;
      EXPECT_EQ(got.st_mtim.tv_sec, want.st_mtim.tv_sec) << name;
      EXPECT_EQ(got.st_mtim.tv_nsec, want.st_mtim.tv_nsec) << name;
      EXPECT_TRUE(ReadHost(target_ + name) == ReadHost(source_ + name)) << name;
    }
  }
}

TEST_F(TreeTransferTest, AFullDiskEndsTheExportAtAPath) {
  if (::geteuid() != 0) GTEST_SKIP() << "a small file system needs root";
  for (int f = 0; f < 300; ++f) {
    WriteHost(source_ + "/f" + std::to_string(f),
              std::string(5000, static_cast<char>('a' + f % 26)));
  }
  ASSERT_TRUE(Import());
  const std::string mount = dir_.path() + "/small";
  ASSERT_EQ(::mkdir(mount.c_str(), 0700), 0);
  if (::mount("none", mount.c_str(), "tmpfs", 0, "size=512k") != 0) {
    GTEST_SKIP() << "no mounts here";
  }
  target_ = mount + "/out";
  EXPECT_EQ(::mkdir(target_.c_str(), 0755), 0);
  const auto exported = Export();
  struct stat top{};
  EXPECT_EQ(::lstat(target_.c_str(), &top), 0);
  ::umount2(mount.c_str(), MNT_DETACH);
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code(), ErrorCode::kExhausted);
  EXPECT_NE(exported.error().message().find("cannot write " + target_ + "/f"), std::string::npos)
      << exported.error().message();
  EXPECT_EQ(top.st_mode, S_IFDIR | 0700u);  // half of a tree is nobody else's
}

TEST_F(TreeTransferTest, WrongPathsAreTypedErrors) {
  source_ = "relative";
  EXPECT_EQ(Import().error().code(), ErrorCode::kInvalidArgument);
  source_ = dir_.path() + "/absent";
  EXPECT_EQ(Import().error().code(), ErrorCode::kNotFound);
  source_ = dir_.path();
  EXPECT_EQ(Import("/workspace/../x").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Export("/nothing").error().code(), ErrorCode::kNotFound);
  target_ = "relative";
  EXPECT_EQ(Export("/").error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
