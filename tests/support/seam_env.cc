// Everything that changes files goes through the seam; the rest is RocksDB's own default. Files are
// only ever appended to, so a writer keeps its end itself.
#include "tests/support/seam_env.h"

#include <rocksdb/file_system.h>

namespace cairn {
namespace {

using rocksdb::IOOptions;
using rocksdb::IOStatus;
using Debug = rocksdb::IODebugContext;

IOStatus Translate(const Status& status) {
  if (status) return IOStatus::OK();
  const std::string message = status.error().ToString();
  switch (status.error().code()) {
    case ErrorCode::kNotFound:
      return IOStatus::PathNotFound(message);
    case ErrorCode::kExhausted:
      return IOStatus::NoSpace(message);
    default:
      return IOStatus::IOError(message);
  }
}

class SeamFile final : public rocksdb::FSWritableFile {
 public:
  SeamFile(std::unique_ptr<File> file, uint64_t end) : file_(std::move(file)), end_(end) {}

  using rocksdb::FSWritableFile::Append;
  IOStatus Append(const rocksdb::Slice& data, const IOOptions&, Debug*) override {
    const Status written = file_->WriteAt(end_, {data.data(), data.size()});
    if (written) end_ += data.size();
    return Translate(written);
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, Debug*) override {
    const Status cut = file_->Truncate(size);
    if (cut) end_ = size;
    return Translate(cut);
  }
  IOStatus Close(const IOOptions&, Debug*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, Debug*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, Debug*) override { return Translate(file_->Sync()); }
  IOStatus Fsync(const IOOptions&, Debug*) override { return Translate(file_->Sync()); }
  bool IsSyncThreadSafe() const override { return true; }
  uint64_t GetFileSize(const IOOptions&, Debug*) override { return end_; }

 private:
  const std::unique_ptr<File> file_;
  uint64_t end_;
};

class SeamDirectory final : public rocksdb::FSDirectory {
 public:
  SeamDirectory(FileSystem& fs, std::string dir) : fs_(fs), dir_(std::move(dir)) {}
  IOStatus Fsync(const IOOptions&, Debug*) override { return Translate(fs_.SyncDir(dir_)); }

 private:
  FileSystem& fs_;
  const std::string dir_;
};

class SeamFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit SeamFiles(cairn::FileSystem& fs)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), fs_(fs) {}
  const char* Name() const override { return "SeamFiles"; }

  IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* file, Debug*) override {
    return Open(path, {.create = true, .truncate = true}, file);
  }
  IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions&,
                              std::unique_ptr<rocksdb::FSWritableFile>* file, Debug*) override {
    return Open(path, {.create = true}, file);
  }
  IOStatus ReuseWritableFile(const std::string&, const std::string&, const rocksdb::FileOptions&,
                             std::unique_ptr<rocksdb::FSWritableFile>*, Debug*) override {
    return IOStatus::NotSupported("recycled logs");
  }
  IOStatus NewDirectory(const std::string& path, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* directory, Debug*) override {
    *directory = std::make_unique<SeamDirectory>(fs_, path);
    return IOStatus::OK();
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions&, Debug*) override {
    return Translate(fs_.Unlink(path));
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      Debug*) override {
    return Translate(fs_.Rename(from, to));
  }
  IOStatus LinkFile(const std::string&, const std::string&, const IOOptions&, Debug*) override {
    return IOStatus::NotSupported("hard links");
  }
  IOStatus CreateDir(const std::string& path, const IOOptions&, Debug*) override {
    return Translate(fs_.MakeDir(path));
  }
  IOStatus CreateDirIfMissing(const std::string& path, const IOOptions&, Debug*) override {
    return Translate(fs_.MakeDir(path));
  }
  IOStatus DeleteDir(const std::string& path, const IOOptions&, Debug*) override {
    return Translate(fs_.RemoveDir(path));
  }

 private:
  IOStatus Open(const std::string& path, const OpenOptions& options,
                std::unique_ptr<rocksdb::FSWritableFile>* file) {
    Result<std::unique_ptr<File>> opened = fs_.Open(path, options);
    if (!opened) return Translate(std::unexpected(opened.error()));
    const Result<uint64_t> end = (*opened)->SizeBytes();
    if (!end) return Translate(std::unexpected(end.error()));
    *file = std::make_unique<SeamFile>(*std::move(opened), *end);
    return IOStatus::OK();
  }

  cairn::FileSystem& fs_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> NewSeamEnv(FileSystem& fs) {
  return rocksdb::NewCompositeEnv(std::make_shared<SeamFiles>(fs));
}

}  // namespace cairn
