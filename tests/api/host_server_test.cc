// The daemon's socket with a handler of the test's: hostile peers cost nobody else anything.
#include "api/host_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "api/host_client.h"
#include "api/host_frame.h"

namespace cairn {
namespace {

class HostServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/cairn_host_XXXXXX";
    ASSERT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    options_.socket_path = dir_ + "/s";
  }
  void TearDown() override {
    server_.reset();
    ::unlink(options_.socket_path.c_str());
    ::rmdir(dir_.c_str());
  }
  void Start() {
    auto server = HostServer::Start(options_, [this](const host::HostRequest& request) {
      ++calls_;
      host::HostResponse response;
      response.mutable_organization()->set_name(request.org_create().name());
      return response;
    });
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  UniqueFd RawConnect() {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.socket_path.data(), options_.socket_path.size());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  // The error that the server answers on `fd`, then expects the connection to end.
  host::CallError ErrorThenEnd(int fd) {
    auto frame = ReadFrame(fd, {.first_byte_ms = 5000, .rest_ms = 5000});
    host::HostResponse response;
    EXPECT_TRUE(frame && response.ParseFromString(*frame));
    EXPECT_TRUE(Ended(fd));
    return response.error();
  }
  static bool Ended(int fd) {
    auto end = ReadFrame(fd, {.first_byte_ms = 5000, .rest_ms = 5000});
    return !end &&
           (end.error().code() == ErrorCode::kNotFound || end.error().sys_errno() == ECONNRESET);
  }
  std::string Echo(HostClient& client, const std::string& name) {
    host::HostRequest request;
    request.mutable_org_create()->set_name(name);
    auto response = client.Call(request);
    return response ? response->organization().name() : response.error().ToString();
  }

  std::string dir_;
  HostServerOptions options_;
  std::atomic<int> calls_ = 0;
  std::unique_ptr<HostServer> server_;
};

TEST_F(HostServerTest, OneConnectionCarriesManyCalls) {
  Start();
  auto client = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(client);
  EXPECT_EQ(Echo(**client, "a"), "a");
  EXPECT_EQ(Echo(**client, "b"), "b");
}

TEST_F(HostServerTest, SocketIsForItsOwnerOnly) {
  Start();
  struct stat info{};
  ASSERT_EQ(::stat(options_.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(HostServerTest, OtherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  Start();
  ::chmod(dir_.c_str(), 0755);
  ::chmod(options_.socket_path.c_str(), 0666);  // so that only the credentials stand in the way
  // setresuid of this thread alone (the raw system call): SO_PEERCRED is taken at connect.
  std::thread([this] {
    ASSERT_EQ(::syscall(SYS_setresuid, 65534, 65534, 65534), 0);
    UniqueFd fd = RawConnect();
    EXPECT_EQ(ErrorThenEnd(fd.get()).code(), "permission_denied");
  }).join();
  EXPECT_EQ(calls_, 0);
}

TEST_F(HostServerTest, GarbageGetsAnErrorAndTheConnectionCloses) {
  Start();
  UniqueFd fd = RawConnect();
  ASSERT_TRUE(WriteFrame(fd.get(), "\xff\xff\xff not a message", 1000));
  EXPECT_EQ(ErrorThenEnd(fd.get()).reason(), "bad_message");
}

TEST_F(HostServerTest, ImpossibleLengthGetsAnErrorAndTheConnectionCloses) {
  Start();
  UniqueFd fd = RawConnect();
  ASSERT_EQ(::send(fd.get(), "\xff\xff\xff\xff", 4, 0), 4);
  EXPECT_EQ(ErrorThenEnd(fd.get()).reason(), "bad_frame");
}

TEST_F(HostServerTest, OtherVersionAndUnknownCallAreNamed) {
  Start();
  UniqueFd fd = RawConnect();
  host::HostRequest request;
  request.set_version(99);
  request.set_request_id(7);
  ASSERT_TRUE(WriteFrame(fd.get(), request.SerializeAsString(), 1000));
  auto frame = ReadFrame(fd.get(), {.first_byte_ms = 5000, .rest_ms = 5000});
  host::HostResponse response;
  ASSERT_TRUE(frame && response.ParseFromString(*frame));
  EXPECT_EQ(response.error().reason(), "unsupported_version");
  EXPECT_EQ(response.request_id(), 7u);
  request.set_version(kHostProtocolVersion);
  ASSERT_TRUE(WriteFrame(fd.get(), request.SerializeAsString(), 1000));
  frame = ReadFrame(fd.get(), {.first_byte_ms = 5000, .rest_ms = 5000});
  ASSERT_TRUE(frame && response.ParseFromString(*frame));
  EXPECT_EQ(response.error().reason(), "unsupported_call");
  EXPECT_EQ(calls_, 0);
}

TEST_F(HostServerTest, SlowPeersDoNotDelayOthers) {
  options_.frame_ms = 60000;
  Start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(RawConnect());
    ASSERT_EQ(::send(slow.back().get(), "\x10", 1, 0), 1);
  }
  auto client = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(client);
  EXPECT_EQ(Echo(**client, "quick"), "quick");
}

TEST_F(HostServerTest, UnfinishedFrameIsClosedAtItsDeadline) {
  options_.frame_ms = 100;
  Start();
  UniqueFd fd = RawConnect();
  ASSERT_EQ(::send(fd.get(), "\x10\0\0\0abc", 7, 0), 7);
  EXPECT_TRUE(Ended(fd.get()));
}

TEST_F(HostServerTest, ConnectionsAreBounded) {
  options_.max_connections = 2;
  Start();
  auto a = HostClient::Connect(options_.socket_path);
  auto b = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(Echo(**a, "a"), "a");
  EXPECT_EQ(Echo(**b, "b"), "b");
  UniqueFd third = RawConnect();
  EXPECT_EQ(ErrorThenEnd(third.get()).reason(), "too_many_connections");
  a->reset();  // frees a place
  for (int i = 0; i < 100; ++i) {
    auto again = HostClient::Connect(options_.socket_path);
    ASSERT_TRUE(again);
    if (Echo(**again, "c") == "c") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL() << "the place of a closed connection was never free again";
}

TEST_F(HostServerTest, StaleSocketIsReplacedALivingOneIsNot) {
  Start();
  auto second =
      HostServer::Start(options_, [](const host::HostRequest&) { return host::HostResponse(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
  server_.reset();
  {
    UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options_.socket_path.data(), options_.socket_path.size());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  Start();
  auto client = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(client);
  EXPECT_EQ(Echo(**client, "x"), "x");
}

TEST_F(HostServerTest, FileThatIsNoSocketIsLeftAlone) {
  FILE* file = ::fopen(options_.socket_path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  ::fclose(file);
  auto server =
      HostServer::Start(options_, [](const host::HostRequest&) { return host::HostResponse(); });
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(::access(options_.socket_path.c_str(), F_OK), 0);
}

TEST_F(HostServerTest, LongPathIsRefused) {
  options_.socket_path = dir_ + "/" + std::string(200, 'x');
  auto server =
      HostServer::Start(options_, [](const host::HostRequest&) { return host::HostResponse(); });
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(HostServerTest, StopEndsIdleConnectionsAndRemovesTheSocket) {
  Start();
  auto client = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(client);
  EXPECT_EQ(Echo(**client, "a"), "a");
  server_->Stop();
  EXPECT_NE(::access(options_.socket_path.c_str(), F_OK), 0);
  host::HostRequest request;
  request.mutable_ping();
  EXPECT_EQ((*client)->Call(request).error().code(), ErrorCode::kUnavailable);
}

TEST_F(HostServerTest, AfterAHandOverTheNextServerAnswersWhoConnectedMeanwhile) {
  Start();
  auto before = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(before);
  EXPECT_EQ(Echo(**before, "a"), "a");
  const UniqueFd kept(::dup(server_->listener()));
  server_->HandOver();
  server_.reset();
  EXPECT_EQ(::access(options_.socket_path.c_str(), F_OK), 0);
  auto between = HostClient::Connect(options_.socket_path);  // waits in the backlog
  ASSERT_TRUE(between) << between.error().ToString();
  options_.listener = ::dup(kept.get());
  Start();
  EXPECT_EQ(Echo(**between, "b"), "b");
  EXPECT_EQ(calls_, 2);
  server_->Stop();
  EXPECT_NE(::access(options_.socket_path.c_str(), F_OK), 0);
}

TEST_F(HostServerTest, DrainWaitsForCallsThatRunAndNoLonger) {
  std::atomic<bool> inside = false, go_on = false;
  auto server = HostServer::Start(options_, [&](const host::HostRequest&) {
    inside = true;
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return host::HostResponse();
  });
  ASSERT_TRUE(server);
  bool answered = false;
  std::thread caller([&] {
    auto client = HostClient::Connect(options_.socket_path);
    host::HostRequest request;
    request.mutable_ping();
    answered = (*client)->Call(request).has_value();
  });
  while (!inside) std::this_thread::yield();
  (*server)->Drain(20);  // it gives up
  EXPECT_FALSE(answered);
  go_on = true;
  (*server)->Drain(60'000);
  caller.join();
  EXPECT_TRUE(answered);
  (*server)->HandOver();
}

TEST_F(HostServerTest, WhoHasConnectedAndNotYetAskedIsAnsweredWhileItDrains) {
  Start();
  auto fresh = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(fresh);
  auto idle = HostClient::Connect(options_.socket_path);
  ASSERT_TRUE(idle);
  EXPECT_EQ(Echo(**idle, "a"), "a");
  EXPECT_EQ(Echo(**HostClient::Connect(options_.socket_path), "b"), "b");  // all are accepted now
  std::thread drains([&] { server_->Drain(60'000); });
  host::HostRequest request;
  request.mutable_ping();
  while ((*idle)->Call(request)) {  // it is served until then
  }
  EXPECT_EQ(Echo(**fresh, "c"), "c");
  drains.join();
}

TEST_F(HostServerTest, TheServiceManagersSocketFileStays) {
  Start();
  const UniqueFd kept(::dup(server_->listener()));
  server_->HandOver();
  options_.listener = ::dup(kept.get());
  options_.removes_socket = false;
  Start();
  server_->Stop();
  EXPECT_EQ(::access(options_.socket_path.c_str(), F_OK), 0);
}

TEST(HostClient, NobodyThereNamesTheSocket) {
  auto client = HostClient::Connect("/tmp/cairn_no_such_socket");
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(client.error().message().find("/tmp/cairn_no_such_socket"), std::string::npos);
}

}  // namespace
}  // namespace cairn
