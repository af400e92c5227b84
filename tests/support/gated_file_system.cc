// Everything but reading passes through.
#include "tests/support/gated_file_system.h"

namespace cairn {

class GatedFileSystem::GatedFile final : public File {
 public:
  GatedFile(GatedFileSystem& fs, std::unique_ptr<File> file) : fs_(fs), file_(std::move(file)) {}
  Result<size_t> ReadAt(uint64_t offset, std::span<char> out) override {
    CAIRN_TRY(fs_.PassGate());
    return file_->ReadAt(offset, out);
  }
  Status WriteAt(uint64_t offset, std::string_view data) override {
    return file_->WriteAt(offset, data);
  }
  Status Sync() override { return file_->Sync(); }
  Status Truncate(uint64_t size_bytes) override { return file_->Truncate(size_bytes); }
  Status Allocate(uint64_t offset, uint64_t length_bytes, bool keep_size) override {
    return file_->Allocate(offset, length_bytes, keep_size);
  }
  Result<uint64_t> SizeBytes() override { return file_->SizeBytes(); }
  const std::string& path() const override { return file_->path(); }

 private:
  GatedFileSystem& fs_;
  const std::unique_ptr<File> file_;
};

Status GatedFileSystem::PassGate() {
  MutexLock lock(mutex_);
  ++reads_;
  ++waiting_;
  changed_.NotifyAll();
  while (!open_) changed_.Wait(mutex_);
  --waiting_;
  if (fail_errno_ != 0) return ErrErrno(fail_errno_, "injected");
  return {};
}

void GatedFileSystem::CloseGate() {
  MutexLock lock(mutex_);
  open_ = false;
}

void GatedFileSystem::OpenGate() {
  MutexLock lock(mutex_);
  open_ = true;
  changed_.NotifyAll();
}

void GatedFileSystem::WaitForReader() {
  MutexLock lock(mutex_);
  while (waiting_ == 0) changed_.Wait(mutex_);
}

bool GatedFileSystem::WaitForReaders(uint64_t count) {
  MutexLock lock(mutex_);
  for (int i = 0; i < 600 && waiting_ < count; ++i) changed_.WaitFor(mutex_, 100);
  return waiting_ >= count;
}

void GatedFileSystem::FailReads(int sys_errno) {
  MutexLock lock(mutex_);
  fail_errno_ = sys_errno;
}

uint64_t GatedFileSystem::reads() {
  MutexLock lock(mutex_);
  return reads_;
}

Result<std::unique_ptr<File>> GatedFileSystem::Open(const std::string& path,
                                                    const OpenOptions& options) {
  std::unique_ptr<File> file = CAIRN_TRY(host_.Open(path, options));
  return std::make_unique<GatedFile>(*this, std::move(file));
}

}  // namespace cairn
