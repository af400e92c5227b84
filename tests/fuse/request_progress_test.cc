// What of a server's threads the next one knows, and what it does with it where the kernel sends
// nothing again.
#include "fuse/request_progress.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "fuse/device_transport.h"
#include "tests/fuse/fake_kernel.h"
#include "volume/open_table.h"

namespace cairn {
namespace {

class RequestProgressTest : public testing::Test {
 protected:
  RequestProgressTest() : file_(::memfd_create("opens", MFD_CLOEXEC)) {
    EXPECT_TRUE(OpenTable::OnFile(UniqueFd(::dup(file_.get()))).has_value());
  }
  std::unique_ptr<RequestProgress> Open() {
    auto progress = RequestProgress::OnFile(file_.get());
    EXPECT_TRUE(progress.has_value());
    return std::move(*progress);
  }

  UniqueFd file_;
};

TEST_F(RequestProgressTest, ANewMountHasNothingUnanswered) { EXPECT_EQ(Open()->left().last, 0u); }

TEST_F(RequestProgressTest, WhatThreadsWorkedOnIsKnownToTheNextServer) {
  {
    const auto progress = Open();
    progress->highest() = 500;
    progress->bound(0) = 480;
    progress->bound(1) = RequestProgress::kIdle;
    progress->bound(12) = 490;
  }
  const auto left = Open()->left();
  EXPECT_EQ(left.first, 480u);
  EXPECT_GT(left.last, 500u);
  // Where no thread reads any more, nothing that was recorded is unanswered.
  Open()->bound(0) = RequestProgress::kIdle;
  Open()->bound(12) = RequestProgress::kIdle;
  EXPECT_EQ(Open()->left().first, 501u);
}

TEST_F(RequestProgressTest, TheOpenTableBesideItIsItsOwn) {
  {
    const auto table = OpenTable::OnFile(UniqueFd(::dup(file_.get())));
    ReplyRecord request;
    request.connection.bytes.fill(1);
    for (uint16_t lane = 0; lane < OpenTable::kLanes; ++lane) {
      request.unique = 2 + lane;
      request.lane = lane;
      (*table)->Add(7 + lane, true, request);
    }
    const auto progress = Open();
    progress->highest() = ~uint64_t{0} - 1;
    for (int lane = 0; lane < RequestProgress::kLanes; ++lane) progress->bound(lane) = 77;
  }
  const auto table = OpenTable::OnFile(UniqueFd(::dup(file_.get())));
  ASSERT_TRUE(table.has_value()) << table.error().ToString();
  EXPECT_EQ((*table)->total().handles, OpenTable::kLanes);
  EXPECT_EQ(Open()->bound(12), 77u);
}

TEST_F(RequestProgressTest, AllThatMayBeUnansweredFailsWithEio) {
  {
    const auto progress = Open();
    progress->highest() = 20;
    progress->bound(0) = 15;
  }
  FakeKernel kernel;
  DeviceTransport transport(kernel.TakeServerFd(), {.threads = 1}, Open());
  uint64_t failed = 0;
  std::thread fails([&] { failed = transport.FailUnanswered(); });
  uint64_t expected = 14;
  for (std::optional<FakeReply> reply; expected < 20 && (reply = kernel.Receive()); expected += 2) {
    EXPECT_EQ(reply->header.unique, expected);
    EXPECT_EQ(reply->header.error, -EIO);
    EXPECT_EQ(reply->header.len, 16u);
  }
  while (kernel.Receive(200)) {
  }
  fails.join();
  EXPECT_GT(failed, 3u);
}

TEST_F(RequestProgressTest, MoreThreadsThanLanesAreRefused) {
  class Nobody : public FuseRequestHandler {
    void HandleRequest(const FuseRequest&) override {}
    void HandleClosed() override {}
  } nobody;
  for (const int threads : {0, RequestProgress::kLanes + 1}) {
    FakeKernel kernel;
    DeviceTransport transport(kernel.TakeServerFd(), {.threads = threads});
    const Status started = transport.Start(nobody);
    ASSERT_FALSE(started.has_value());
    EXPECT_EQ(started.error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cairn
