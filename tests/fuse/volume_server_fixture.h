// VolumeServerTest: a VolumeServer on a MemoryVolume, served to a fake kernel.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <latch>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "fuse/device_transport.h"
#include "fuse/kernel_abi.h"
#include "fuse/memory/memory_volume.h"
#include "fuse/volume_server.h"
#include "tests/fuse/fake_kernel.h"

namespace cairn {

inline constexpr uint32_t kKernelFlags =
    FUSE_ASYNC_READ | FUSE_POSIX_LOCKS | FUSE_ATOMIC_O_TRUNC | FUSE_EXPORT_SUPPORT |
    FUSE_BIG_WRITES | FUSE_DONT_MASK | FUSE_FLOCK_LOCKS | FUSE_AUTO_INVAL_DATA |
    FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO | FUSE_WRITEBACK_CACHE |
    FUSE_NO_OPEN_SUPPORT | FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV | FUSE_POSIX_ACL |
    FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS | FUSE_NO_OPENDIR_SUPPORT | FUSE_EXPLICIT_INVAL_DATA |
    FUSE_HANDLE_KILLPRIV_V2 | FUSE_INIT_EXT;
inline constexpr uint64_t kForever = uint64_t{100} * 365 * 86400;

class VolumeServerTest : public testing::Test {
 protected:
  void StartWith(const MemoryVolumeOptions& volume_options, bool writeback_cache = true,
                 int threads = 2) {
    volume_ = std::make_unique<MemoryVolume>(volume_options);
    transport_ = std::make_unique<DeviceTransport>(kernel_.TakeServerFd(),
                                                   DeviceTransportOptions{.threads = threads});
    VolumeServerOptions options;
    options.connection = connection_;
    options.writeback_cache = writeback_cache;
    options.on_init = [this](std::string_view init, bool) { saved_init_ = init; };
    options.on_closed = [this] { ++closed_; };
    options.on_writers = [this](bool writers) {
      EXPECT_NE(has_writers_.exchange(writers), writers);
      ++writers_changes_;
    };
    auto server = VolumeServer::Create(*volume_, *transport_, options);
    ASSERT_TRUE(server.has_value());
    server_ = std::move(*server);
    ASSERT_TRUE(transport_->Start(*server_).has_value());
  }

  static std::string InitRequest() {
    fuse_init_in in{};
    in.major = 7;
    in.minor = 45;
    in.max_readahead = 1 << 17;
    in.flags = kKernelFlags;
    return Bytes(in);
  }

  // A server of a connection whose INIT is long over: `volume_` as the one before has left it.
  void TakeOverWith(std::vector<ReplyRecord> replies) {
    transport_ = std::make_unique<DeviceTransport>(kernel_.TakeServerFd(),
                                                   DeviceTransportOptions{.threads = 2});
    VolumeServerOptions options;
    options.connection = connection_;
    options.on_init = [this](std::string_view init, bool) { saved_init_ = init; };
    options.on_writers = [this](bool writers) { has_writers_ = writers; };
    for (ReplyRecord& reply : replies) reply.connection = connection_;
    options.replies = std::move(replies);
    auto server = VolumeServer::Create(*volume_, *transport_, options);
    ASSERT_TRUE(server.has_value());
    server_ = std::move(*server);
    fuse_in_header header{};
    header.opcode = FUSE_INIT;
    header.unique = 2;
    header.len = static_cast<uint32_t>(sizeof header + InitRequest().size());
    ASSERT_TRUE(server_->TakeOver(Bytes(header) + InitRequest()).has_value());
    ASSERT_TRUE(server_->AskForResend().has_value());
    const auto notice = kernel_.Receive();
    ASSERT_TRUE(notice.has_value()) << "and no reply to INIT before it";
    EXPECT_EQ(notice->header.len, 16u);
    EXPECT_EQ(notice->header.error, 7);
    EXPECT_EQ(notice->header.unique, 0u);
    ASSERT_TRUE(transport_->Start(*server_).has_value());
  }
  // As the kernel sends it again.
  FakeReply CallAgain(uint64_t unique, uint32_t opcode, uint64_t node, std::string_view body) {
    const uint64_t next = std::exchange(kernel_.next_unique, unique | uint64_t{1} << 63);
    FakeReply reply = kernel_.Call(opcode, node, body);
    EXPECT_EQ(reply.header.unique, unique | uint64_t{1} << 63);
    kernel_.next_unique = next;
    return reply;
  }

  fuse_init_out Init() {
    const FakeReply reply = kernel_.Call(FUSE_INIT, 0, InitRequest());
    EXPECT_EQ(reply.header.error, 0);
    EXPECT_EQ(reply.body.size(), sizeof(fuse_init_out));
    return reply.As<fuse_init_out>();
  }

  void Start() {
    StartWith(MemoryVolumeOptions{});
    Init();
  }

  FakeReply Create(std::string_view name, uint32_t flags = O_RDWR, uint32_t mode = S_IFREG | 0644) {
    fuse_create_in in{};
    in.flags = flags;
    in.mode = mode;
    return kernel_.Call(FUSE_CREATE, FUSE_ROOT_ID, Bytes(in) + Name(name));
  }

  FakeReply Write(uint64_t node, std::string_view data, uint64_t offset, uint32_t write_flags = 0) {
    fuse_write_in in{};
    in.offset = offset;
    in.size = static_cast<uint32_t>(data.size());
    in.write_flags = write_flags;
    return kernel_.Call(FUSE_WRITE, node, Bytes(in) + std::string(data));
  }

  FakeReply Fsync(uint64_t node) { return kernel_.Call(FUSE_FSYNC, node, Bytes(fuse_fsync_in{})); }

  ~VolumeServerTest() override {
    if (server_ != nullptr) server_->StopFlusher();
    if (transport_ != nullptr) transport_->Stop();
  }

  const Id128 connection_ = Id128::Random();
  FakeKernel kernel_;
  std::unique_ptr<MemoryVolume> volume_;
  std::unique_ptr<DeviceTransport> transport_;
  std::unique_ptr<VolumeServer> server_;
  std::string saved_init_;
  std::atomic<int> closed_{0};
  std::atomic<bool> has_writers_{false};
  std::atomic<int> writers_changes_{0};
};

}  // namespace cairn
