// Batches as loops, for file systems that have nothing better, and whole-file operations on top of
// the seam: read with a limit, replace atomically (tmp, fsync,
// rename, fsync of the directory), remove a tree.
#include "store/base/file_system.h"

#include <cerrno>

#include "store/base/uninitialized.h"

namespace cairn {
namespace {

class WritesAtOnce final : public WriteQueue {
 public:
  explicit WritesAtOnce(File& file) : file_(file) {}
  void Add(uint64_t offset, std::string_view data) override {
    if (result_) result_ = file_.WriteAt(offset, data);
  }
  Status Finish() override { return std::move(result_); }

 private:
  File& file_;
  Status result_;
};

}  // namespace

std::unique_ptr<WriteQueue> File::BeginWrites() { return std::make_unique<WritesAtOnce>(*this); }

void FileSystem::ReadMany(std::span<const ReadOp> ops, const ReadDone& done) {
  std::string buffer;
  for (size_t i = 0; i < ops.size(); ++i) {
    ResizeUninitialized(buffer, ops[i].length_bytes);
    const Result<size_t> got = ops[i].file->ReadAt(ops[i].offset, buffer);
    if (got) {
      done(i, std::string_view(buffer).substr(0, *got));
    } else {
      done(i, std::unexpected(got.error()));
    }
  }
}

Result<std::string> ReadWholeFile(FileSystem& fs, const std::string& path, uint64_t limit_bytes) {
  const std::unique_ptr<File> file = CAIRN_TRY(fs.Open(path, {.read_only = true}));
  const uint64_t size = CAIRN_TRY(file->SizeBytes());
  if (size > limit_bytes) {
    return Err(ErrorCode::kInvalidArgument, path + " has " + std::to_string(size) +
                                                " bytes, more than " + std::to_string(limit_bytes));
  }
  std::string contents(size, '\0');
  const size_t got = CAIRN_TRY(file->ReadAt(0, contents));
  contents.resize(got);
  return contents;
}

Status WriteFileAtomically(FileSystem& fs, const std::string& path, std::string_view contents) {
  const std::string tmp = path + ".tmp";
  {
    const std::unique_ptr<File> file = CAIRN_TRY(fs.Open(tmp, {.create = true, .truncate = true}));
    CAIRN_TRY(file->WriteAt(0, contents));
    CAIRN_TRY(file->Sync());
  }
  CAIRN_TRY(fs.Rename(tmp, path));
  const size_t slash = path.rfind('/');
  return fs.SyncDir(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

Status RemoveTree(FileSystem& fs, const std::string& dir) {
  const auto names = fs.List(dir);
  if (!names) {
    if (names.error().code() == ErrorCode::kNotFound) return {};
    return std::unexpected(names.error());
  }
  for (const std::string& name : *names) {
    const std::string path = dir + "/" + name;
    const Status unlinked = fs.Unlink(path);
    if (unlinked) continue;
    if (unlinked.error().sys_errno() != EISDIR && unlinked.error().sys_errno() != EPERM) {
      return unlinked;
    }
    CAIRN_TRY(RemoveTree(fs, path));
  }
  return fs.RemoveDir(dir);
}

}  // namespace cairn
