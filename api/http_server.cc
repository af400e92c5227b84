// HTTP/1.1 over Boost.Beast; the only file that sees it.
//
// A connection is a chain of callbacks on its strand:
//   WaitForRequest (idle deadline) -> ReadHeader (header deadline, header limit) -> [100 Continue]
//   -> ReadBody (body deadline, limit) -> handler on the pool -> Write: headers, then content chunk
//   by chunk (read on the pool, written on the strand) -> WaitForRequest | Drain.
// One request of a connection is in work at a time; bytes of the next stay in the buffer, so
// pipelining is in order by construction.
//
// Invariants: a connection costs at most one handler, one header, one body and one chunk of memory;
// every wait for the peer has a deadline; Content-Length is what was promised, and when the source
// fails in the middle the connection is reset (RFC 9112, 8: an incomplete message is recognised by
// its length). A response to a peer that may still be sending is followed by a short drain, so that
// the kernel's reset does not destroy it.
#include "api/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <map>
#include <optional>
#include <thread>

#include "store/base/id128.h"
#include "store/base/log.h"
#include "store/base/mutex.h"

namespace cairn {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using BoostError = boost::system::error_code;

constexpr size_t kFirstReadBytes = 8u << 10;
constexpr uint64_t kDrainLimitBytes = 8u << 20;
constexpr int64_t kDrainMs = 2000;

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

class Server;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Server& server);
  ~Connection();
  void Start();
  // From any thread.
  void Close();
  void CloseIfIdle(bool fresh_too);

 private:
  void Expire(int64_t ms) { stream_.expires_after(std::chrono::milliseconds(ms)); }
  void WaitForRequest();
  void ReadHeader();
  void OnHeader(const BoostError& error);
  void ReadBody();
  void OnBody(const BoostError& error);
  void Refuse(const BoostError& error);
  void RunHandler();
  void Write(HttpResponse response);
  void SendContent();
  void OnWritten(const BoostError& error);
  void Drain();
  void Reset();

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  bool head_ = false;
  bool keep_alive_ = false;
  bool served_ = false;  // a request has been answered; on the strand
  bool idle_ = false;    // between two requests; on the strand

  // The answer in the making.
  http::response<http::empty_body> header_;
  std::optional<http::response_serializer<http::empty_body>> serializer_;
  std::optional<http::response<http::string_body>> small_;
  HttpResponse response_;
  std::vector<char> chunk_;
  uint64_t sent_ = 0;
  uint64_t drained_ = 0;
};

class Server final : public HttpServer {
 public:
  Server(const HttpServerOptions& options, Handler handler, ErrorBody error_body)
      : options_(options),
        handler_(std::move(handler)),
        error_body_(std::move(error_body)),
        io_(static_cast<int>(options.io_threads)),
        acceptor_(asio::make_strand(io_)),
        retry_(acceptor_.get_executor()),
        pool_(options.handler_threads) {}
  ~Server() override { Stop(); }

  Status Open();
  uint16_t port() const override { return port_; }
  uint32_t connection_count() const override { return open_connections_.load(); }
  void Stop() override;
  void Drain(int64_t timeout_ms) override;
  int listener() const override { return listener_; }

  const HttpServerOptions& options() const { return options_; }
  const Handler& handler() const { return handler_; }
  HttpResponse ErrorAnswer(int status, const std::string& request_id) const {
    return error_body_(status, request_id);
  }
  asio::thread_pool& pool() { return pool_; }
  bool stopping() const { return stopping_.load(); }
  bool draining() const { return draining_.load(); }
  void Opened() { ++open_connections_; }
  void Gone(Connection* connection) {
    MutexLock lock(mutex_);
    connections_.erase(connection);
    if (--open_connections_ == 0) all_gone_.NotifyAll();
  }

 private:
  void Accept();

  const HttpServerOptions options_;
  const Handler handler_;
  const ErrorBody error_body_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> draining_ = false;
  int listener_ = -1;
  std::atomic<uint32_t> open_connections_ = 0;
  uint16_t port_ = 0;
  Mutex mutex_;
  CondVar all_gone_;
  std::map<Connection*, std::weak_ptr<Connection>> connections_ GUARDED_BY(mutex_);
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  asio::thread_pool pool_;
  std::vector<std::thread> threads_;
  Mutex stop_mutex_;
  bool stopped_ GUARDED_BY(stop_mutex_) = false;
};

Connection::Connection(tcp::socket socket, Server& server)
    : server_(server),
      stream_(std::move(socket)),
      // The parser's limit counts a request's headers; the buffer may also hold the start of the
      // next ones.
      buffer_(server.options().max_header_bytes + kFirstReadBytes + (64u << 10)) {
  server_.Opened();
}

Connection::~Connection() { server_.Gone(this); }

void Connection::Start() {
  asio::dispatch(stream_.get_executor(), [self = shared_from_this()] { self->WaitForRequest(); });
}

void Connection::Close() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->stream_.close(); });
}

// Nothing has come that is not answered. Who has just been accepted is about to ask.
void Connection::CloseIfIdle(bool fresh_too) {
  asio::post(stream_.get_executor(), [self = shared_from_this(), fresh_too] {
    BoostError ignored;
    if (self->idle_ && (fresh_too || self->served_) &&
        self->stream_.socket().available(ignored) == 0)
      self->stream_.close();
  });
}

void Connection::WaitForRequest() {
  if (server_.stopping()) return;
  if (buffer_.size() > 0) return ReadHeader();
  Expire(server_.options().idle_ms);
  idle_ = true;
  stream_.async_read_some(buffer_.prepare(kFirstReadBytes),
                          [self = shared_from_this()](const BoostError& error, size_t n) {
                            self->idle_ = false;
                            if (error) return;
                            self->buffer_.commit(n);
                            self->ReadHeader();
                          });
}

void Connection::ReadHeader() {
  parser_.emplace();
  parser_->header_limit(server_.options().max_header_bytes);
  parser_->body_limit(server_.options().max_body_bytes);
  Expire(server_.options().header_ms);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const BoostError& error, size_t) { self->OnHeader(error); });
}

void Connection::OnHeader(const BoostError& error) {
  request_ = {};
  request_.request_id = "req_" + Id128::Random().ToHex();
  if (error) return Refuse(error);
  // RFC 9112, 3.2: none in HTTP/1.1, or several, is an error.
  const size_t hosts = parser_->get().count(http::field::host);
  if (hosts > 1 || (hosts == 0 && parser_->get().version() > 10)) {
    return Refuse(http::error::bad_field);
  }
  // Beast takes a body in a coding that it does not know for none, and its bytes for the next
  // request (RFC 9112, 6.1 and 6.3: the length cannot be told, so the connection ends).
  const auto coding = parser_->get()[http::field::transfer_encoding];
  if (!coding.empty() && !beast::iequals(coding, "chunked")) {
    return Refuse(http::error::bad_transfer_encoding);
  }
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue") && !parser_->is_done()) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    Expire(server_.options().write_ms);
    return asio::async_write(stream_, asio::buffer(kContinue),
                             [self = shared_from_this()](const BoostError& failed, size_t) {
                               if (!failed) self->ReadBody();
                             });
  }
  ReadBody();
}

void Connection::ReadBody() {
  Expire(server_.options().body_ms);
  http::async_read(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const BoostError& error, size_t) { self->OnBody(error); });
}

void Connection::OnBody(const BoostError& error) {
  if (error) return Refuse(error);
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  head_ = message.method() == http::verb::head;
  keep_alive_ = message.keep_alive();
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  for (const auto& field : message) {
    request_.headers.emplace_back(
        LowerCase({field.name_string().data(), field.name_string().size()}),
        std::string(field.value()));
  }
  request_.body = std::move(message.body());
  RunHandler();
}

// What could not be read as a request: an answer where there is somebody to read it, then the end.
void Connection::Refuse(const BoostError& error) {
  int status = 400;
  if (error == http::error::end_of_stream || error == beast::error::timeout ||
      error == asio::error::operation_aborted ||
      error.category() != make_error_code(http::error::bad_method).category()) {
    return;  // nobody there, or too slow to deserve a thread's work: the socket closes with this
             // object
  }
  if (error == http::error::partial_message) return;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) status = 431;
  if (error == http::error::body_limit) status = 413;
  head_ = false;
  keep_alive_ = false;
  Write(server_.ErrorAnswer(status, request_.request_id));
}

void Connection::RunHandler() {
  asio::post(server_.pool(), [self = shared_from_this()] {
    auto response = std::make_shared<HttpResponse>(self->server_.handler()(self->request_));
    asio::post(self->stream_.get_executor(),
               [self, response] { self->Write(std::move(*response)); });
  });
}

void Connection::Write(HttpResponse response) {
  response_ = std::move(response);
  if (server_.draining()) keep_alive_ = false;
  const auto fill = [this](auto& message, uint64_t length) {
    message.version(11);
    message.result(static_cast<unsigned>(response_.status));
    for (const auto& [name, value] : response_.headers) message.insert(name, value);
    message.set("X-Request-Id", request_.request_id);
    message.keep_alive(keep_alive_);
    // 304 and 204 have no body and no length of their own.
    if (response_.status != 304 && response_.status != 204) message.content_length(length);
  };
  Expire(server_.options().write_ms);
  if (response_.content == nullptr && !head_) {
    small_.emplace();
    const uint64_t length = response_.body.size();
    small_->body() = std::move(response_.body);
    fill(*small_, length);
    return http::async_write(
        stream_, *small_,
        [self = shared_from_this()](const BoostError& error, size_t) { self->OnWritten(error); });
  }
  header_ = {};
  fill(header_, response_.content != nullptr ? response_.content_length : response_.body.size());
  serializer_.emplace(header_);
  http::async_write_header(stream_, *serializer_,
                           [self = shared_from_this()](const BoostError& error, size_t) {
                             if (error) return;
                             if (self->head_ || self->response_.content == nullptr)
                               return self->OnWritten(error);
                             self->sent_ = 0;
                             self->SendContent();
                           });
}

void Connection::SendContent() {
  if (sent_ == response_.content_length) {
    chunk_ = {};
    return OnWritten({});
  }
  asio::post(server_.pool(), [self = shared_from_this()] {
    const uint64_t length = std::min<uint64_t>(self->server_.options().content_chunk_bytes,
                                               self->response_.content_length - self->sent_);
    self->chunk_.resize(length);
    auto read =
        self->response_.content->Read(self->response_.content_offset + self->sent_, self->chunk_);
    if (!read) {
      LogError("http_content_failed",
               {{"request", self->request_.request_id}, {"error", read.error().ToString()}});
      return asio::post(self->stream_.get_executor(), [self] { self->Reset(); });
    }
    asio::post(self->stream_.get_executor(), [self] {
      if (self->server_.stopping()) return self->Reset();
      self->Expire(self->server_.options().write_ms);
      asio::async_write(self->stream_, asio::buffer(self->chunk_),
                        [self](const BoostError& error, size_t n) {
                          if (error) return;
                          self->sent_ += n;
                          self->SendContent();
                        });
    });
  });
}

void Connection::OnWritten(const BoostError& error) {
  small_.reset();
  serializer_.reset();
  response_ = {};
  served_ = true;
  if (error) return;
  if (keep_alive_) return WaitForRequest();
  BoostError ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  Expire(kDrainMs);
  Drain();
}

void Connection::Drain() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kFirstReadBytes),
                          [self = shared_from_this()](const BoostError& error, size_t n) {
                            if (error) return;
                            self->drained_ += n;
                            if (self->drained_ < kDrainLimitBytes) self->Drain();
                          });
}

void Connection::Reset() {
  BoostError ignored;
  stream_.socket().set_option(asio::socket_base::linger(true, 0), ignored);
  stream_.socket().close(ignored);
}

Status Server::Open() {
  BoostError error;
  const auto fail = [&](const char* what) {
    const ErrorCode code = error == asio::error::address_in_use  ? ErrorCode::kAlreadyExists
                           : error == asio::error::access_denied ? ErrorCode::kPermissionDenied
                                                                 : ErrorCode::kInvalidArgument;
    return Err(
        code,
        fmt::format("cannot {} {} port {}: {}. Free it, or name another address with --listen",
                    what, options_.address, options_.port, error.message()),
        error.value());
  };
  const auto address = asio::ip::make_address(options_.address, error);
  if (error) return fail("read the address");
  const tcp::endpoint endpoint(address, options_.port);
  if (options_.listener >= 0) {
    acceptor_.assign(endpoint.protocol(), options_.listener, error);
    if (error) return fail("take over the socket of");
  } else {
    acceptor_.open(endpoint.protocol(), error);
    if (error) return fail("open a socket for");
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    acceptor_.bind(endpoint, error);
    if (error) return fail("bind");
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return fail("listen on");
  }
  listener_ = acceptor_.native_handle();
  port_ = acceptor_.local_endpoint(error).port();
  Accept();
  for (uint32_t i = 0; i < options_.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  return {};
}

void Server::Accept() {
  acceptor_.async_accept(
      asio::make_strand(io_), [this](const BoostError& error, tcp::socket socket) {
        if (stopping()) return;
        if (error) {
          if (error == asio::error::operation_aborted) return;
          // Out of descriptors and the like: connections wait in the backlog meanwhile.
          LogWarning("http_accept_failed", {{"error", error.message()}});
          retry_.expires_after(std::chrono::milliseconds(100));
          retry_.async_wait([this](const BoostError& waited) {
            if (!waited && !stopping()) Accept();
          });
          return;
        }
        if (open_connections_.load() < options_.max_connections) {
          BoostError ignored;
          socket.set_option(tcp::no_delay(true), ignored);
          auto connection = std::make_shared<Connection>(std::move(socket), *this);
          {
            MutexLock lock(mutex_);
            connections_[connection.get()] = connection;
          }
          connection->Start();
        }
        if (!draining()) Accept();
      });
}

void Server::Drain(int64_t timeout_ms) {
  draining_ = true;
  asio::post(acceptor_.get_executor(), [this] {
    BoostError ignored;
    acceptor_.cancel(ignored);
    retry_.cancel();
  });
  constexpr auto kFirstRequest = std::chrono::milliseconds(1000);
  const auto began = std::chrono::steady_clock::now();
  const auto until = began + std::chrono::milliseconds(timeout_ms);
  while (std::chrono::steady_clock::now() < until) {
    std::vector<std::shared_ptr<Connection>> connections;
    {
      MutexLock lock(mutex_);
      for (auto& [raw, weak] : connections_) {
        if (auto connection = weak.lock()) connections.push_back(std::move(connection));
      }
    }
    for (const auto& connection : connections)
      connection->CloseIfIdle(std::chrono::steady_clock::now() > began + kFirstRequest);
    connections.clear();  // not under the lock: the last owner of one takes it
    constexpr int64_t kStepMs = 10;
    MutexLock lock(mutex_);
    if (open_connections_.load() == 0) return;
    all_gone_.WaitFor(mutex_, kStepMs);
  }
}

void Server::Stop() {
  {
    MutexLock lock(stop_mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  stopping_ = true;
  asio::post(acceptor_.get_executor(), [this] {
    BoostError ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  });
  std::vector<std::shared_ptr<Connection>> connections;
  {
    MutexLock lock(mutex_);
    for (auto& [raw, weak] : connections_) {
      if (auto connection = weak.lock()) connections.push_back(std::move(connection));
    }
  }
  for (auto& connection : connections) connection->Close();
  connections.clear();
  {
    // A connection's next step may be on the pool or on the strand: both run until the last one is
    // gone.
    MutexLock lock(mutex_);
    while (open_connections_.load() > 0) all_gone_.Wait(mutex_);
  }
  pool_.join();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace

Result<ListenAddress> ParseListenAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  const auto wrong = [&] {
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{}: must be ADDRESS:PORT with a numeric address, as 127.0.0.1:7070 or [::1]:7070",
            text));
  };
  if (colon == std::string::npos || colon + 1 == text.size()) return wrong();
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  uint32_t port = 0;
  for (const char c : text.substr(colon + 1)) {
    if (c < '0' || c > '9') return wrong();
    port = port * 10 + static_cast<uint32_t>(c - '0');
    if (port > 65535) return wrong();
  }
  BoostError error;
  const auto address = asio::ip::make_address(host, error);
  if (error) return wrong();
  return ListenAddress{
      .address = host, .port = static_cast<uint16_t>(port), .loopback = address.is_loopback()};
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      Handler handler, ErrorBody error_body) {
  auto server = std::make_unique<Server>(options, std::move(handler), std::move(error_body));
  CAIRN_TRY(server->Open());
  return server;
}

}  // namespace cairn
