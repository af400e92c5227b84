// The comparison walks the model, so that an inode which the view has in excess shows by the totals
// (the caller's) or by a directory's names.
#include "tests/volume/model_compare.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <string>

namespace cairn {
namespace {

constexpr uint64_t kWholeReadBytes = 2 << 20;  // larger files are sparse: their pages are read

int64_t SeekAnswer(const Result<uint64_t>& found) {
  if (found) return static_cast<int64_t>(*found);
  return found.error().sys_errno() == ENXIO ? -1 : -2;
}

void CompareFile(const FsView& view, const PosixModel& model, InodeNumber ino,
                 const PosixModel::Node& node, bool exact_holes) {
  if (node.size <= kWholeReadBytes) {
    std::string out(node.size, '?');
    const auto n = view.Read(ino, 0, out);
    ASSERT_TRUE(n) << n.error().ToString();
    EXPECT_EQ(*n, node.size);
    EXPECT_TRUE(out == node.Read(0, node.size)) << "contents differ";
  }
  for (const auto& [index, page] : node.pages) {
    const uint64_t offset = index * kPageBytes;
    if (node.size > kWholeReadBytes) {
      std::string out(kPageBytes, '?');
      const auto n = view.Read(ino, offset, out);
      ASSERT_TRUE(n) << n.error().ToString();
      EXPECT_TRUE(out.substr(0, *n) == node.Read(offset, kPageBytes)) << "page " << index;
    }
    if (page.bytes.find_first_not_of('\0') != std::string::npos) {
      EXPECT_EQ(view.SeekData(ino, offset).value_or(0), offset);
    }
  }
  if (!exact_holes) return;
  for (const uint64_t from : {uint64_t{0}, uint64_t{5000}, uint64_t{70000}, node.size / 2,
                              node.size - std::min<uint64_t>(node.size, 1), node.size}) {
    EXPECT_EQ(SeekAnswer(view.SeekData(ino, from)), model.Seek(ino, from, true)) << from;
    EXPECT_EQ(SeekAnswer(view.SeekHole(ino, from)), model.Seek(ino, from, false)) << from;
  }
}

void CompareDirectory(const FsView& view, const PosixModel& model, InodeNumber ino,
                      const PosixModel::Node& node) {
  std::map<std::string, InodeNumber> names;
  EXPECT_TRUE(view.ReadDir(ino, 0, [&](const DirEntry& entry) {
    EXPECT_TRUE(names.emplace(entry.name, entry.ino).second) << entry.name << " twice";
    const PosixModel::Node* child = model.Find(entry.ino);
    EXPECT_TRUE(child != nullptr && entry.type == (child->mode & S_IFMT) >> 12) << entry.name;
    return true;
  }));
  EXPECT_EQ(names, node.names);
  for (const auto& [name, child] : node.names) {
    EXPECT_EQ(view.Lookup(ino, name).value_or(kNoInode), child) << name;
  }
}

void CompareXattrs(const FsView& view, InodeNumber ino, const PosixModel::Node& node) {
  std::map<std::string, std::string> xattrs;
  const auto names = view.ListXattrs(ino);
  ASSERT_TRUE(names) << names.error().ToString();
  for (const std::string& name : *names) {
    xattrs[name] = view.GetXattr(ino, name).value_or("unreadable");
  }
  EXPECT_TRUE(xattrs == node.xattrs) << "xattrs differ";
}

bool SameFields(const Inode& inode, const PosixModel::Node& node) {
  return inode.mode == node.mode && inode.uid == node.uid && inode.gid == node.gid &&
         inode.nlink == node.nlink && inode.size_bytes == node.size && inode.rdev == node.rdev &&
         inode.atime == node.atime && inode.mtime == node.mtime && inode.ctime == node.ctime &&
         inode.parent == node.parent;
}

}  // namespace

void CompareAttributes(const FsView& view, InodeNumber ino, const PosixModel::Node& node,
                       bool exact_holes) {
  const auto inode = view.GetInode(ino);
  ASSERT_TRUE(inode) << inode.error().ToString();
  EXPECT_EQ(inode->mode, node.mode);
  EXPECT_EQ(inode->uid, node.uid);
  EXPECT_EQ(inode->gid, node.gid);
  EXPECT_EQ(inode->nlink, node.nlink);
  EXPECT_EQ(inode->size_bytes, node.size);
  EXPECT_EQ(inode->rdev, node.rdev);
  EXPECT_EQ(inode->atime, node.atime);
  EXPECT_EQ(inode->mtime, node.mtime);
  EXPECT_EQ(inode->ctime, node.ctime);
  EXPECT_EQ(inode->parent, node.parent);
  EXPECT_EQ(inode->birth_sequence, ino);
  if (exact_holes || !S_ISREG(node.mode)) {
    EXPECT_EQ(inode->allocated_bytes, node.allocated_bytes());
  } else {
    EXPECT_LE(inode->allocated_bytes, (node.size + kPageBytes - 1) / kPageBytes * kPageBytes);
  }
}

void CompareWithModel(const FsView& view, const PosixModel& model, bool exact_holes) {
  for (const auto& [ino, node] : model.nodes()) {
    SCOPED_TRACE(testing::Message() << "inode " << ino);
    CompareAttributes(view, ino, node, exact_holes);
    if (node.is_dir()) CompareDirectory(view, model, ino, node);
    if (S_ISLNK(node.mode)) {
      EXPECT_EQ(view.ReadLink(ino).value_or(""), node.target);
    }
    if (S_ISREG(node.mode)) CompareFile(view, model, ino, node, exact_holes);
    CompareXattrs(view, ino, node);
    if (testing::Test::HasFailure()) return;
  }
}

bool HasSameAttributes(const FsView& view, const PosixModel& model) {
  for (const auto& [ino, node] : model.nodes()) {
    const auto inode = view.GetInode(ino);
    if (!inode || !SameFields(*inode, node)) return false;
  }
  return true;
}

}  // namespace cairn
