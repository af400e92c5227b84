// The keeper's messages: every layout survives a round trip, and nothing but the layout is
// accepted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "fuse/errno_map.h"
#include "fuse/keeper/channel.h"
#include "fuse/keeper/keeper_state.h"
#include "fuse/keeper/protocol.h"

namespace cairn {
namespace {

MountRequest SomeMount() {
  MountRequest request;
  request.connection = Id128::Random();
  request.flags = MountRequest::kNoSuid | MountRequest::kAllowOther;
  request.max_read_bytes = 1 << 20;
  request.read_ahead_kib = 1024;
  request.max_dirty_bytes = uint64_t{1} << 30;
  request.dir = "/some/dir with space";
  return request;
}

TEST(KeeperProtocol, MessageSurvivesARoundTrip) {
  const Message message{.type = 2, .id = 77, .error = 5, .payload = "payload"};
  const auto decoded = Message::Decode(message.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->type, 2);
  EXPECT_EQ(decoded->id, 77u);
  EXPECT_EQ(decoded->error, 5u);
  EXPECT_EQ(decoded->payload, "payload");
}

TEST(KeeperProtocol, HeaderIsTheDocumentedOne) {
  const Message message{.type = 2, .id = 0x0102, .error = 0, .payload = "ab"};
  const std::string bytes = message.Encode();
  const std::string expected(
      "CKM1\x01\x00\x02\x00\x02\x01\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0ab", 34);
  EXPECT_EQ(bytes, expected);
}

TEST(KeeperProtocol, AnyChangedHeaderFieldOrLengthIsRefused) {
  const std::string good = Message{.type = 1, .id = 1, .error = 0, .payload = "x"}.Encode();
  ASSERT_TRUE(Message::Decode(good).has_value());
  for (const size_t offset : {0, 3, 4, 20, 24, 31}) {  // magic, version, payload length, reserved
    std::string bad = good;
    bad[offset] ^= 0x10;
    EXPECT_FALSE(Message::Decode(bad).has_value()) << offset;
  }
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(Message::Decode(good.substr(0, length)).has_value()) << length;
  }
  EXPECT_FALSE(Message::Decode(good + "y").has_value());
}

TEST(KeeperProtocol, MountRequestSurvivesARoundTripAndNoTruncation) {
  const MountRequest request = SomeMount();
  const std::string bytes = request.Encode();
  const auto decoded = MountRequest::Decode(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->connection, request.connection);
  EXPECT_EQ(decoded->flags, request.flags);
  EXPECT_EQ(decoded->max_read_bytes, request.max_read_bytes);
  EXPECT_EQ(decoded->read_ahead_kib, request.read_ahead_kib);
  EXPECT_EQ(decoded->max_dirty_bytes, request.max_dirty_bytes);
  EXPECT_EQ(decoded->dir, request.dir);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(MountRequest::Decode(bytes.substr(0, length)).has_value()) << length;
  }
  EXPECT_FALSE(MountRequest::Decode(bytes + "x").has_value());
}

TEST(KeeperProtocol, MountRequestRefusesWhatCannotBeMounted) {
  const auto refused = [](auto change) {
    MountRequest request = SomeMount();
    change(request);
    return !MountRequest::Decode(request.Encode()).has_value();
  };
  EXPECT_FALSE(refused([](MountRequest&) {}));
  EXPECT_TRUE(refused([](MountRequest& r) { r.connection = Id128{}; }));
  EXPECT_TRUE(refused([](MountRequest& r) { r.flags |= 64; }));
  EXPECT_TRUE(refused([](MountRequest& r) { r.dir = "relative"; }));
  EXPECT_TRUE(refused([](MountRequest& r) { r.dir = ""; }));
  EXPECT_TRUE(refused([](MountRequest& r) { r.dir = std::string("/a\0b", 4); }));
  EXPECT_TRUE(refused([](MountRequest& r) { r.dir = "/" + std::string(kMaxMountDirBytes, 'x'); }));
}

TEST(KeeperProtocol, BarrierRequestSurvivesARoundTripAndNoTruncation) {
  const BarrierRequest request{.device_major = 0,
                               .device_minor = 44,
                               .generation = 9,
                               .dir = "/m",
                               .inodes = {2, uint64_t{1} << 40, 7}};
  const std::string bytes = request.Encode();
  const auto decoded = BarrierRequest::Decode(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->device_minor, 44u);
  EXPECT_EQ(decoded->generation, 9u);
  EXPECT_EQ(decoded->inodes, request.inodes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(BarrierRequest::Decode(bytes.substr(0, length)).has_value()) << length;
  }
}

TEST(KeeperProtocol, BarrierRequestWithTooManyInodesIsRefused) {
  BarrierRequest request{
      .device_major = 0, .device_minor = 0, .generation = 0, .dir = "/m", .inodes = {}};
  request.inodes.assign(kMaxBarrierInodes, 1);
  const std::string most = request.Encode();
  EXPECT_TRUE(BarrierRequest::Decode(most).has_value());
  EXPECT_LE(most.size() + 32 + kMaxMountDirBytes, kMaxMessageBytes);
  request.inodes.push_back(1);
  EXPECT_FALSE(BarrierRequest::Decode(request.Encode()).has_value());
}

TEST(KeeperProtocol, SmallMessagesSurviveARoundTrip) {
  const Id128 id = Id128::Random();
  const auto unmount =
      UnmountRequest::Decode(UnmountRequest{.connection = id, .lazy = true}.Encode());
  ASSERT_TRUE(unmount.has_value());
  EXPECT_TRUE(unmount->lazy);
  EXPECT_EQ(unmount->connection, id);
  const auto init =
      SaveInitRequest::Decode(SaveInitRequest{.connection = id, .init = "abc"}.Encode());
  ASSERT_TRUE(init.has_value());
  EXPECT_EQ(init->init, "abc");
  EXPECT_FALSE(init->answered);
  MountRequest mount;
  mount.connection = id;
  mount.dir = "/m";
  mount.cookie = "cookie";
  const TakeReply take{.device_major = 1, .device_minor = 2, .init = "abc", .mount = mount};
  const auto taken = TakeReply::Decode(take.Encode());
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->init, "abc");
  EXPECT_EQ(taken->mount.dir, "/m");
  EXPECT_EQ(taken->mount.cookie, "cookie");
  EXPECT_EQ(taken->device_minor, 2u);
  for (size_t length = 0; length < take.Encode().size(); ++length) {
    EXPECT_FALSE(TakeReply::Decode(take.Encode().substr(0, length)).has_value()) << length;
  }
  mount.cookie = std::string(kMaxCookieBytes + 1, 'x');
  EXPECT_FALSE(MountRequest::Decode(mount.Encode()).has_value());
  const std::vector<Id128> connections = {id, Id128::Random()};
  EXPECT_EQ(DecodeConnections(EncodeConnections(connections)).value_or(std::vector<Id128>()),
            connections);
  EXPECT_FALSE(DecodeConnections(EncodeConnections(connections).substr(1)).has_value());
  EXPECT_EQ(DecodeConnection(EncodeConnection(id)).value_or(Id128()), id);
  EXPECT_FALSE(DecodeConnection("short").has_value());
  const auto mounted =
      MountReply::Decode(MountReply{.device_major = 1, .device_minor = 2}.Encode());
  ASSERT_TRUE(mounted.has_value());
  EXPECT_EQ(mounted->device_minor, 2u);
  EXPECT_EQ(DecodePid(EncodePid(4711)).value_or(0), 4711u);
  EXPECT_FALSE(DecodePid("12345").has_value());
}

TEST(KeeperProtocol, UpgradeMessagesSurviveARoundTripAndNoTruncation) {
  const UpgradeRequest request{.id = Id128::Random(), .ready_timeout_ms = 30000};
  const auto decoded = UpgradeRequest::Decode(request.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->id, request.id);
  EXPECT_EQ(decoded->ready_timeout_ms, 30000u);
  for (size_t length = 0; length < request.Encode().size(); ++length) {
    EXPECT_FALSE(UpgradeRequest::Decode(request.Encode().substr(0, length)).has_value());
  }
  EXPECT_FALSE(
      UpgradeRequest::Decode(UpgradeRequest{.id = {}, .ready_timeout_ms = 1}.Encode()).has_value());
  EXPECT_FALSE(
      UpgradeRequest::Decode(UpgradeRequest{.id = request.id, .ready_timeout_ms = 0}.Encode())
          .has_value());
  const UpgradeOutcome outcome{
      .id = request.id, .state = UpgradeOutcome::kFellBack, .why = "it ended"};
  const auto ended = UpgradeOutcome::Decode(outcome.Encode());
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->state, UpgradeOutcome::kFellBack);
  EXPECT_EQ(ended->why, "it ended");
  std::string unknown = outcome.Encode();
  unknown[16] = 9;
  EXPECT_FALSE(UpgradeOutcome::Decode(unknown).has_value());
  EXPECT_EQ(DecodeFileName("listen:http").value_or(""), "listen:http");
  EXPECT_FALSE(DecodeFileName("").has_value());
  EXPECT_FALSE(DecodeFileName(std::string(kMaxFileNameBytes + 1, 'x')).has_value());
}

KeeperState SomeState() {
  KeeperState state;
  state.server_command = {"/usr/bin/cairnd", "--data", "/d"};
  state.barrier_program = "/usr/bin/cairn-barrier";
  state.program = 7;
  state.server_pid = 1234;
  state.channel = 8;
  state.connected = state.ready = state.ever_ready = true;
  state.failed_starts = 3;
  state.message_id = 99;
  state.helpers = {5, 6};
  state.outcome = {.id = Id128::Random(), .state = UpgradeOutcome::kDone, .why = {}};
  state.files = {{.fd = 9, .name = "listen:host"}, {.fd = 10, .name = "listen:http"}};
  KeeperState::Mount mount;
  mount.reply = {.device_major = 0, .device_minor = 44, .init = "init", .mount = SomeMount()};
  mount.fuse = 11;
  state.mounts = {mount, mount};
  state.mounts[1].file = 12;
  return state;
}

TEST(KeeperState, SurvivesARoundTripAndNoTruncation) {
  const KeeperState state = SomeState();
  const std::string bytes = state.Encode();
  const auto decoded = KeeperState::Decode(bytes);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().ToString();
  EXPECT_EQ(decoded->Encode(), bytes);
  EXPECT_EQ(decoded->server_command, state.server_command);
  EXPECT_EQ(decoded->server_pid, 1234);
  EXPECT_TRUE(decoded->ever_ready);
  EXPECT_FALSE(decoded->stopping);
  EXPECT_EQ(decoded->mounts[0].file, -1);
  EXPECT_EQ(decoded->mounts[1].reply.mount.dir, state.mounts[1].reply.mount.dir);
  EXPECT_EQ(decoded->Descriptors(), (std::vector<int>{7, 8, 9, 10, 11, 11, 12}));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(KeeperState::Decode(bytes.substr(0, length)).has_value()) << length;
  }
  EXPECT_FALSE(KeeperState::Decode(bytes + "x").has_value());
}

TEST(KeeperState, OfAnotherVersionIsRefused) {
  std::string bytes = SomeState().Encode();
  bytes[4] = 2;
  const auto decoded = KeeperState::Decode(bytes);
  ASSERT_FALSE(decoded.has_value());
  EXPECT_EQ(decoded.error().sys_errno(), EPROTO);
}

TEST(Channel, CarriesAnFdAndClosesItOnExec) {
  auto pair = Channel::MakePair();
  ASSERT_TRUE(pair.has_value());
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  UniqueFd read_end(pipe_fds[0]);
  UniqueFd write_end(pipe_fds[1]);
  const Message message{.type = 1, .id = 1, .error = 0, .payload = {}};
  ASSERT_TRUE(pair->first.Send(message, write_end.get()).has_value());
  auto received = pair->second.Receive(10'000);
  ASSERT_TRUE(received.has_value() && received->has_value());
  const UniqueFd fd = std::move((*received)->fd);
  ASSERT_TRUE(fd.valid());
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(fd.get(), "z", 1), 1);
  char byte = 0;
  ASSERT_EQ(::read(read_end.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'z');
}

TEST(Channel, MalformedDatagramIsReportedAndTheNextIsFine) {
  auto pair = Channel::MakePair();
  ASSERT_TRUE(pair.has_value());
  ASSERT_EQ(::send(pair->first.fd(), "junk", 4, 0), 4);
  auto received = pair->second.Receive(10'000);
  ASSERT_FALSE(received.has_value());
  EXPECT_EQ(received.error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(pair->first.Send(Message{.type = 3, .id = 4, .error = 0, .payload = {}}).has_value());
  received = pair->second.Receive(10'000);
  ASSERT_TRUE(received.has_value() && received->has_value());
  EXPECT_EQ((*received)->message.type, 3);
}

TEST(Channel, EndOfStreamAndTimeAreTold) {
  auto pair = Channel::MakePair();
  ASSERT_TRUE(pair.has_value());
  const auto late = pair->second.Receive(1);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable);
  pair->first = Channel();
  const auto ended = pair->second.Receive(10'000);
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->has_value());
  const Status sent = pair->second.Send(Message{.type = 1, .id = 1, .error = 0, .payload = {}});
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code(), ErrorCode::kUnavailable);
}

TEST(ErrnoMap, EveryCodeHasAnErrnoThatUserSpaceMaySee) {
  const struct {
    ErrorCode code;
    int sys_errno;
  } table[] = {
      {ErrorCode::kNotFound, ENOENT},
      {ErrorCode::kAlreadyExists, EEXIST},
      {ErrorCode::kExhausted, ENOSPC},
      {ErrorCode::kUnavailable, EIO},
      {ErrorCode::kAborted, EIO},
      {ErrorCode::kFailedPrecondition, EIO},
      {ErrorCode::kPermissionDenied, EPERM},
      {ErrorCode::kInvalidArgument, EINVAL},
      {ErrorCode::kDataLoss, EIO},
      {ErrorCode::kInternal, EIO},
  };
  for (const auto& row : table) EXPECT_EQ(ErrnoOf(Error(row.code)), row.sys_errno);
}

TEST(ErrnoMap, AnErrnoInTheErrorWinsUnlessItIsTheKernelsOwn) {
  EXPECT_EQ(ErrnoOf(Error::Posix(ENOTEMPTY)), ENOTEMPTY);
  EXPECT_EQ(ErrnoOf(Error(ErrorCode::kInternal, "", EROFS)), EROFS);
  EXPECT_EQ(ErrnoOf(Error(ErrorCode::kInternal, "", 512)), EIO);
}

}  // namespace
}  // namespace cairn
