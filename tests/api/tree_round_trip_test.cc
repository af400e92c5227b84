// A host tree with everything in it goes into a volume, is sealed, and comes out again: both host
// trees must be alike to the last nanosecond. Needs root for owners, devices and trusted.*; without
// it those are left out.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "api/tree_transfer.h"
#include "store/base/check.h"
#include "store/base/random.h"
#include "store/base/unique_fd.h"
#include "tests/support/service_world.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

bool IsRoot() { return ::geteuid() == 0; }

void WriteAt(const std::string& path, uint64_t offset, std::string_view data) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  CAIRN_CHECK(fd.valid());
  CAIRN_CHECK(::pwrite(fd.get(), data.data(), data.size(), static_cast<off_t>(offset)) ==
              static_cast<ssize_t>(data.size()));
}

void SetTimes(const std::string& path, int64_t seconds, int64_t nanoseconds) {
  const timespec times[2] = {{seconds, nanoseconds}, {seconds + 1, nanoseconds / 2}};
  CAIRN_CHECK(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

// What can be seen of one host file: all of it in text, so that a difference reads well.
std::string Describe(const std::string& path, std::map<ino_t, std::string>& first_names,
                     const std::string& name) {
  struct stat st = {};
  CAIRN_CHECK(::lstat(path.c_str(), &st) == 0);
  std::string text = "mode " + std::to_string(st.st_mode) + " owner " + std::to_string(st.st_uid) +
                     ":" + std::to_string(st.st_gid) + " mtime " +
                     std::to_string(st.st_mtim.tv_sec) + "." + std::to_string(st.st_mtim.tv_nsec) +
                     " rdev " + std::to_string(st.st_rdev);
  if (!S_ISDIR(st.st_mode)) {
    text += " size " + std::to_string(st.st_size) + " nlink " + std::to_string(st.st_nlink) +
            " first " + first_names.emplace(st.st_ino, name).first->second;
  }
  // Reading a directory or a link moves its atime, on the import's way already; files are read with
  // O_NOATIME.
  if (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode)) {
    text +=
        " atime " + std::to_string(st.st_atim.tv_sec) + "." + std::to_string(st.st_atim.tv_nsec);
  }
  if (S_ISLNK(st.st_mode)) text += " -> " + stdfs::read_symlink(path).string();
  std::string names(65536, '\0');
  const ssize_t length = ::llistxattr(path.c_str(), names.data(), names.size());
  std::map<std::string, std::string> xattrs;
  for (ssize_t at = 0; at < length;) {
    const std::string key = names.c_str() + at;
    at += static_cast<ssize_t>(key.size()) + 1;
    std::string value(65536, '\0');
    const ssize_t size = ::lgetxattr(path.c_str(), key.c_str(), value.data(), value.size());
    xattrs[key] = value.substr(0, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  for (const auto& [key, value] : xattrs) text += " " + key + "=" + value;
  if (S_ISREG(st.st_mode)) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOATIME | O_CLOEXEC));
    for (off_t data = 0; (data = ::lseek(fd.get(), data, SEEK_DATA)) >= 0;) {
      const off_t hole = ::lseek(fd.get(), data, SEEK_HOLE);
      std::string bytes(static_cast<size_t>(hole - data), '\0');
      CAIRN_CHECK(::pread(fd.get(), bytes.data(), bytes.size(), data) == hole - data);
      text += " [" + std::to_string(data) + "," + std::to_string(hole) +
              "): " + std::to_string(std::hash<std::string>()(bytes));
      data = hole;
    }
  }
  return text;
}

std::map<std::string, std::string> DescribeTree(const std::string& top) {
  std::map<std::string, std::string> tree;
  std::map<ino_t, std::string> first_names;
  std::vector<std::string> names;  // below the top, whose attributes stay its own
  for (const auto& entry : stdfs::recursive_directory_iterator(top)) {
    names.push_back(entry.path().string().substr(top.size()));
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) tree[name] = Describe(top + name, first_names, name);
  return tree;
}

class TreeRoundTripTest : public ServiceWorld {
 protected:
  void MakeSource() {
    SeededRandom random(5);
    stdfs::create_directories(source_ + "/a/b/empty");
    WriteAt(source_ + "/a/small", 0, "small contents");
    WriteAt(source_ + "/a/empty-file", 0, "");
    WriteAt(source_ + "/a/big", 0, random.Bytes(3000000));
    WriteAt(source_ + "/a/sparse", 0, "start");
    WriteAt(source_ + "/a/sparse", 5 << 20, random.Bytes(8192));
    CAIRN_CHECK(::truncate((source_ + "/a/sparse").c_str(), 50 << 20) == 0);
    WriteAt(source_ + "/a/hole", 0, "");
    CAIRN_CHECK(::truncate((source_ + "/a/hole").c_str(), 1000000) == 0);
    WriteAt(source_ + "/a/b/\xff\x01 odd\nname", 0, "x");
    stdfs::create_symlink("../../outside", source_ + "/a/b/link");
    stdfs::create_hard_link(source_ + "/a/small", source_ + "/a/b/again");
    stdfs::create_hard_link(source_ + "/a/small", source_ + "/z-last");
    CAIRN_CHECK(::link((source_ + "/a/b/link").c_str(), (source_ + "/link-again").c_str()) == 0);
    CAIRN_CHECK(::mkfifo((source_ + "/fifo").c_str(), 0640) == 0);
    CAIRN_CHECK(::setxattr((source_ + "/a/small").c_str(), "user.note", "value", 5, 0) == 0);
    CAIRN_CHECK(::setxattr((source_ + "/a/b").c_str(), "user.dir", "", 0, 0) == 0);
    if (IsRoot()) {
      CAIRN_CHECK(::mknod((source_ + "/device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0);
      CAIRN_CHECK(::mknod((source_ + "/block").c_str(), S_IFBLK | 0660, makedev(7, 300)) == 0);
      CAIRN_CHECK(::setxattr((source_ + "/a/big").c_str(), "trusted.t", "1", 1, 0) == 0);
      CAIRN_CHECK(::lsetxattr((source_ + "/a/b/link").c_str(), "trusted.l", "2", 1, 0) == 0);
      CAIRN_CHECK(::lchown((source_ + "/a/b/link").c_str(), 12, 34) == 0);
      CAIRN_CHECK(::chown((source_ + "/a/small").c_str(), 56, 78) == 0);
      CAIRN_CHECK(::chmod((source_ + "/a/small").c_str(), 06755) == 0);
    }
    CAIRN_CHECK(::chmod((source_ + "/a/b").c_str(), 01777) == 0);
    int64_t n = 0;
    for (const char* name :
         {"/a/small", "/a/big", "/a/sparse", "/a/b/link", "/fifo", "/a/b/empty", "/a/b", "/a"}) {
      ++n;
      SetTimes(source_ + name, 1000000000 + n * 1000, 123456789 + n);
    }
  }

  const std::string source_ = dir_.path() + "/source";
  const std::string target_ = dir_.path() + "/target";
};

TEST_F(TreeRoundTripTest, ThereAndBackIsTheSameTree) {
  MakeSource();
  const auto before = DescribeTree(source_);
  const std::string env = NewEnvironment();
  ASSERT_TRUE(volumes_->EnsureInitialized(kOrg, env));
  {
    const auto volume = volumes_->OpenForWrite(kOrg, env);
    ASSERT_TRUE(volume);
    const auto imported = ImportTree(source_, **volume, "/in");
    ASSERT_TRUE(imported) << imported.error().ToString();
    EXPECT_EQ(imported->directories, 3u);
    EXPECT_EQ(imported->files, 6u);
    EXPECT_EQ(imported->links, 4u);
    EXPECT_EQ(imported->special, IsRoot() ? 3u : 1u);
    EXPECT_LT(imported->bytes, 4000000u);  // not the holes
    EXPECT_EQ(imported->skipped_xattrs, 0u);
  }
  EndLife(/*cleanly=*/true);  // seals
  StartLife();
  const auto view = volumes_->ViewNow(kOrg, env);
  ASSERT_TRUE(view);
  const auto exported = ExportTree(*view, "/in", target_);
  ASSERT_TRUE(exported) << exported.error().ToString();
  EXPECT_EQ(exported->files, 6u);
  EXPECT_EQ(exported->links, 4u);
  const auto after = DescribeTree(target_);
  EXPECT_EQ(before.size(), after.size());
  for (const auto& [name, text] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_EQ(after.at(name), text) << name;
  }
}

}  // namespace
}  // namespace cairn
