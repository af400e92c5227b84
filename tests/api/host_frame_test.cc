// Frames over a socket pair: what is whole arrives, everything else is a typed error within its
// deadline.
#include "api/host_frame.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "store/base/unique_fd.h"

namespace cairn {
namespace {

struct Pair {
  UniqueFd near, far;
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    near = UniqueFd(fds[0]);
    far = UniqueFd(fds[1]);
  }
  void Send(std::string_view bytes) {
    ASSERT_EQ(::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
};

constexpr FrameDeadlines kShort{.first_byte_ms = 5000, .rest_ms = 100};

TEST(HostFrame, RoundTripOfLargeMessage) {
  Pair pair;
  const std::string message(5 << 20, 'x');
  std::thread writer([&] { EXPECT_TRUE(WriteFrame(pair.far.get(), message, 10000)); });
  auto read = ReadFrame(pair.near.get(), {.first_byte_ms = 5000, .rest_ms = 10000});
  writer.join();
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(*read, message);
}

TEST(HostFrame, EndBetweenFramesIsNotFound) {
  Pair pair;
  pair.far.Reset();
  auto read = ReadFrame(pair.near.get(), kShort);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kNotFound);
}

TEST(HostFrame, EndInsideIsUnavailable) {
  for (const std::string& part : {std::string("\x05\0", 2), std::string("\x05\0\0\0ab", 6)}) {
    Pair pair;
    pair.Send(part);
    pair.far.Reset();
    auto read = ReadFrame(pair.near.get(), kShort);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kUnavailable);
  }
}

TEST(HostFrame, ZeroAndHugeLengthsAreInvalid) {
  for (const std::string& header : {std::string("\0\0\0\0", 4), std::string("\x01\0\0\x01", 4),
                                    std::string("\xff\xff\xff\xff", 4)}) {
    Pair pair;
    pair.Send(header);
    auto read = ReadFrame(pair.near.get(), kShort);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(HostFrame, UnfinishedMessageRunsIntoItsDeadline) {
  Pair pair;
  pair.Send(std::string("\x05\0\0\0ab", 6));
  auto read = ReadFrame(pair.near.get(), kShort);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kUnavailable);
}

TEST(HostFrame, DrippingBytesDoNotExtendTheDeadline) {
  Pair pair;
  pair.Send(std::string("\x40\0\0\0", 4));
  std::thread dripper([&] {
    for (int i = 0; i < 64; ++i) {
      if (::send(pair.far.get(), "x", 1, MSG_NOSIGNAL) != 1) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  auto read = ReadFrame(pair.near.get(), kShort);
  pair.near.Reset();
  dripper.join();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kUnavailable);
}

TEST(HostFrame, WriterGivesUpOnPeerThatDoesNotRead) {
  Pair pair;
  auto written = WriteFrame(pair.near.get(), std::string(8 << 20, 'x'), 100);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable);
}

TEST(HostFrame, OversizedMessageIsNotSent) {
  Pair pair;
  auto written = WriteFrame(pair.near.get(), std::string(kMaxHostFrameBytes + 1, 'x'), 100);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument);
  char byte;
  EXPECT_EQ(::recv(pair.far.get(), &byte, 1, MSG_DONTWAIT), -1);
}

}  // namespace
}  // namespace cairn
