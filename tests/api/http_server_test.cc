// The HTTP transport over real sockets, with a handler of the test's.
#include "api/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "store/base/unique_fd.h"

namespace cairn {
namespace {

// The byte at each offset, failing at and beyond `fail_at`.
class Pattern : public ContentSource {
 public:
  explicit Pattern(uint64_t fail_at) : fail_at_(fail_at) {}
  static char At(uint64_t offset) { return static_cast<char>('a' + offset % 23); }
  Status Read(uint64_t offset, std::span<char> out) override {
    for (size_t i = 0; i < out.size(); ++i) {
      if (offset + i >= fail_at_) return Err(ErrorCode::kDataLoss, "bad block");
      out[i] = At(offset + i);
    }
    return {};
  }

 private:
  uint64_t fail_at_;
};

constexpr uint64_t kContentBytes = 3u << 20;

class HttpServerTest : public testing::Test {
 protected:
  void Start() {
    auto server = HttpServer::Start(
        options_,
        [this](const HttpRequest& request) {
          ++calls_;
          HttpResponse response;
          if (request.target.starts_with("/content")) {
            response.content = std::make_unique<Pattern>(
                request.target == "/content/broken" ? 1u << 20 : UINT64_MAX);
            response.content_length = kContentBytes;
            if (request.target == "/content/large") response.content_length = 64u << 20;
            if (request.target == "/content/part") {
              response.content_offset = 1000;
              response.content_length = 50;
            }
          } else if (request.target == "/slow") {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            response.body = "slow";
          } else if (request.target == "/none") {
            response.status = 304;
          } else {
            response.body = request.method + " " + request.target + " " + request.body +
                            std::string(request.Header("x-test"));
          }
          return response;
        },
        [](int status, const std::string&) {
          HttpResponse response;
          response.status = status;
          response.body = "refused";
          return response;
        });
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  UniqueFd Connect() {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  static void Send(const UniqueFd& fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Everything until the peer closes; `*error` is the errno of the last read.
  static std::string ReadAll(const UniqueFd& fd, int* error = nullptr) {
    std::string all;
    char part[65536];
    while (true) {
      const ssize_t n = ::recv(fd.get(), part, sizeof part, 0);
      if (error != nullptr) *error = n < 0 ? errno : 0;
      if (n <= 0) return all;
      all.append(part, static_cast<size_t>(n));
    }
  }
  std::string Ask(const std::string& request) {
    UniqueFd fd = Connect();
    Send(fd, request);
    return ReadAll(fd);
  }

  HttpServerOptions options_;
  std::atomic<int> calls_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithLengthAndRequestId) {
  Start();
  const std::string answer =
      Ask("GET /a?b=1 HTTP/1.1\r\nHost: x\r\nX-Test: 7\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Length: 12\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("X-Request-Id: req_"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\nGET /a?b=1 7")) << answer;
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  std::string requests;
  requests += "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
  requests += "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nxyz";
  requests += "GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  const std::string answer = Ask(requests);
  const size_t slow = answer.find("slow"), b = answer.find("POST /b xyz"),
               c = answer.find("GET /c");
  ASSERT_NE(slow, std::string::npos);
  ASSERT_NE(b, std::string::npos);
  ASSERT_NE(c, std::string::npos);
  EXPECT_LT(slow, b);
  EXPECT_LT(b, c);
  EXPECT_EQ(calls_, 3);
}

TEST_F(HttpServerTest, HeadHasTheLengthAndNoBody) {
  Start();
  const std::string answer = Ask("HEAD /content HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 3145728\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
  const std::string small = Ask("HEAD /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(small.find("Content-Length: 8\r\n"), std::string::npos) << small;
  EXPECT_TRUE(small.ends_with("\r\n\r\n"));
}

TEST_F(HttpServerTest, NotModifiedHasNoBodyAndKeepsTheConnection) {
  Start();
  const std::string answer =
      Ask("GET /none HTTP/1.1\r\nHost: x\r\n\r\nGET /after HTTP/1.1\r\nHost: x\r\nConnection: "
          "close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 304")) << answer;
  EXPECT_NE(answer.find("GET /after"), std::string::npos);
}

TEST_F(HttpServerTest, ContentIsStreamedWholeAndTheConnectionStays) {
  Start();
  const std::string answer =
      Ask("GET /content HTTP/1.1\r\nHost: x\r\n\r\nGET /content/part HTTP/1.1\r\nHost: "
          "x\r\nConnection: close\r\n\r\n");
  const size_t begin = answer.find("\r\n\r\n") + 4;
  ASSERT_GT(answer.size(), begin + kContentBytes);
  for (uint64_t i = 0; i < kContentBytes; ++i) ASSERT_EQ(answer[begin + i], Pattern::At(i)) << i;
  const std::string second = answer.substr(begin + kContentBytes);
  EXPECT_TRUE(second.starts_with("HTTP/1.1 200 OK\r\n"));
  const std::string part = second.substr(second.find("\r\n\r\n") + 4);
  ASSERT_EQ(part.size(), 50u);
  EXPECT_EQ(part[0], Pattern::At(1000));
}

TEST_F(HttpServerTest, FailingSourceResetsTheConnectionInsteadOfEndingIt) {
  Start();
  UniqueFd fd = Connect();
  Send(fd, "GET /content/broken HTTP/1.1\r\nHost: x\r\n\r\n");
  int error = 0;
  const std::string answer = ReadAll(fd, &error);
  EXPECT_NE(answer.find("Content-Length: 3145728\r\n"), std::string::npos);
  EXPECT_LT(answer.size(), kContentBytes);
  EXPECT_EQ(error, ECONNRESET);
}

TEST_F(HttpServerTest, GarbageGets400AndTheEnd) {
  Start();
  for (const std::string& garbage :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\r\n\r\n", 14),
        std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("G@T / HTTP/1.1\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nbad header\r\n\r\n")}) {
    const std::string answer = Ask(garbage);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << garbage << " -> " << answer;
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, OneHostIsAskedForByHttp11) {
  Start();
  for (const std::string request :
       {"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"}) {
    const std::string answer = Ask(request);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << request << " -> " << answer;
  }
  EXPECT_EQ(calls_, 0);
  EXPECT_TRUE(Ask("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
}

// Its bytes would be the next request to us and a body to the proxy before us.
TEST_F(HttpServerTest, BodyInAnUnknownCodingIsRefusedWithTheConnection) {
  Start();
  for (const std::string coding :
       {"gzip", "identity", "chunked, gzip", "gzip, chunked", "xchunked"}) {
    const std::string answer = Ask("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + coding +
                                   "\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << coding << " -> " << answer;
    EXPECT_EQ(answer.find("HTTP/1.1 200"), std::string::npos) << coding << " -> " << answer;
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, LargeHeadersGet431) {
  Start();
  const std::string answer =
      Ask("GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(40000, 'a') + "\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 431")) << answer.substr(0, 80);
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, LargeBodiesGet413DeclaredOrChunked) {
  Start();
  const std::string declared = Ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n" +
                                   std::string(2000000, 'a'));
  EXPECT_TRUE(declared.starts_with("HTTP/1.1 413")) << declared.substr(0, 80);
  std::string chunks = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40; ++i) chunks += "10000\r\n" + std::string(0x10000, 'b') + "\r\n";
  const std::string chunked = Ask(chunks + "0\r\n\r\n");
  EXPECT_TRUE(chunked.starts_with("HTTP/1.1 413")) << chunked.substr(0, 80);
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, ExpectedContinueIsSentBeforeTheBody) {
  Start();
  UniqueFd fd = Connect();
  Send(fd,
       "POST /e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: "
       "close\r\n\r\n");
  char first[25];
  ASSERT_EQ(::recv(fd.get(), first, sizeof first, MSG_WAITALL), 25);
  EXPECT_EQ(std::string(first, 25), "HTTP/1.1 100 Continue\r\n\r\n");
  Send(fd, "ok");
  EXPECT_TRUE(ReadAll(fd).ends_with("POST /e ok"));
}

TEST_F(HttpServerTest, SlowHeadersAreCutAndDelayNobody) {
  options_.header_ms = 300;
  options_.handler_threads = 2;
  Start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 64; ++i) {
    slow.push_back(Connect());
    Send(slow.back(), "GET / HTTP/1.1\r\nHost: x\r\nX-Drip: ");
  }
  EXPECT_TRUE(
      Ask("GET /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ends_with("GET /quick "));
  // Dripping does not move the deadline.
  std::atomic<bool> over = false;
  std::thread dripper([&] {
    while (!over) {
      Send(slow[0], "a");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  for (const UniqueFd& fd : slow) {
    int error = 0;
    EXPECT_EQ(ReadAll(fd, &error), "");
    EXPECT_NE(error, EAGAIN) << "the connection was not closed";
  }
  over = true;
  dripper.join();
  EXPECT_EQ(calls_, 1);
}

TEST_F(HttpServerTest, SlowBodiesAreCut) {
  options_.body_ms = 200;
  Start();
  UniqueFd fd = Connect();
  Send(fd, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  int error = 0;
  ReadAll(fd, &error);
  EXPECT_NE(error, EAGAIN);
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, ReaderThatStopsReadingIsCut) {
  options_.write_ms = 300;
  Start();
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(Connect());
    for (int n = 0; n < 8; ++n) Send(idle.back(), "GET /content HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  EXPECT_TRUE(
      Ask("GET /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ends_with("GET /quick "));
  for (int i = 0; i < 500 && server_->connection_count() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(server_->connection_count(), 0u);
}

TEST_F(HttpServerTest, AbruptCloseInTheMiddleOfADownloadIsSurvived) {
  Start();
  for (int i = 0; i < 20; ++i) {
    UniqueFd fd = Connect();
    Send(fd, "GET /content HTTP/1.1\r\nHost: x\r\n\r\n");
    char part[1000];
    ASSERT_GT(::recv(fd.get(), part, sizeof part, 0), 0);
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  EXPECT_TRUE(
      Ask("GET /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ends_with("GET /quick "));
}

TEST_F(HttpServerTest, ConnectionsAreBounded) {
  options_.max_connections = 4;
  Start();
  std::vector<UniqueFd> open;
  for (int i = 0; i < 4; ++i) {
    open.push_back(Connect());
    Send(open.back(), "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    char part[8];
    ASSERT_GT(::recv(open.back().get(), part, sizeof part, 0), 0);
  }
  EXPECT_EQ(Ask("GET /y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "");
  EXPECT_EQ(calls_, 4);
  open.clear();
  for (int i = 0; i < 100; ++i) {
    if (Ask("GET /z HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") != "") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL() << "places of closed connections were never free again";
}

TEST_F(HttpServerTest, StopEndsIdleAndBusyConnections) {
  Start();
  UniqueFd idle = Connect();
  UniqueFd busy = Connect();
  Send(busy, "GET /content HTTP/1.1\r\nHost: x\r\n\r\n");
  UniqueFd slow = Connect();
  Send(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  while (calls_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->Stop();
  EXPECT_EQ(server_->connection_count(), 0u);
}

TEST_F(HttpServerTest, DrainLetsAnswersBeTakenAndClosesIdleConnections) {
  Start();
  const UniqueFd kept(::dup(server_->listener()));
  const uint16_t port = server_->port();
  UniqueFd idle = Connect();
  Send(idle, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  char part[4096];
  ASSERT_GT(::recv(idle.get(), part, sizeof part, 0), 0);
  UniqueFd busy = Connect();
  Send(busy, "GET /content HTTP/1.1\r\nHost: x\r\n\r\n");
  UniqueFd slow = Connect();
  Send(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  UniqueFd fresh = Connect();
  while (calls_ < 3 || server_->connection_count() < 4) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::thread asks_late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Send(fresh, "GET /late HTTP/1.1\r\nHost: x\r\n\r\n");
  });
  std::string content, answer;
  std::thread reads_content([&] { content = ReadAll(busy); });
  std::thread reads_answer([&] { answer = ReadAll(slow); });
  server_->Drain(20'000);
  EXPECT_EQ(server_->connection_count(), 0u);
  reads_content.join();
  reads_answer.join();
  asks_late.join();
  EXPECT_TRUE(ReadAll(fresh).ends_with("GET /late "));
  EXPECT_EQ(ReadAll(idle), "");
  EXPECT_GT(content.size(), kContentBytes);
  EXPECT_TRUE(answer.ends_with("\r\n\r\nslow")) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
  // Nobody is refused meanwhile: the next server answers.
  UniqueFd between = Connect();
  Send(between, "GET /y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  server_.reset();
  options_.listener = ::dup(kept.get());
  Start();
  EXPECT_EQ(server_->port(), port);
  EXPECT_TRUE(ReadAll(between).ends_with("GET /y "));
}

TEST_F(HttpServerTest, DrainGivesUpOnWhoTakesNothing) {
  Start();
  UniqueFd busy(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int small = 4096;  // before connect(2): the window is agreed there
  ::setsockopt(busy.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(busy.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  // More than the sockets' buffers take.
  Send(busy, "GET /content/large HTTP/1.1\r\nHost: x\r\n\r\n");
  while (calls_ < 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->Drain(50);
  EXPECT_EQ(server_->connection_count(), 1u);
  server_->Stop();
  EXPECT_EQ(server_->connection_count(), 0u);
}

TEST_F(HttpServerTest, TakenPortIsNamed) {
  Start();
  HttpServerOptions same;
  same.port = server_->port();
  auto second = HttpServer::Start(
      same, [](const HttpRequest&) { return HttpResponse(); },
      [](int, const std::string&) { return HttpResponse(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_NE(second.error().message().find(std::to_string(same.port)), std::string::npos);
}

TEST(ParseListenAddress, TakesNumericAddressesOnly) {
  EXPECT_EQ(ParseListenAddress("127.0.0.1:7070")->port, 7070);
  EXPECT_TRUE(ParseListenAddress("127.0.0.1:7070")->loopback);
  EXPECT_TRUE(ParseListenAddress("[::1]:0")->loopback);
  EXPECT_FALSE(ParseListenAddress("0.0.0.0:80")->loopback);
  for (const char* bad : {"", "7070", ":7070", "localhost:7070", "127.0.0.1:", "127.0.0.1:65536",
                          "127.0.0.1:x", "1.2.3:80"}) {
    EXPECT_FALSE(ParseListenAddress(bad)) << bad;
  }
}

}  // namespace
}  // namespace cairn
