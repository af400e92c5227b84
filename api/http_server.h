// HttpServer: HTTP/1.1 on a TCP port. Transport only: connections, limits, deadlines, streaming;
// what a request means is the handler's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "api/http_message.h"
#include "store/base/error.h"

namespace cairn {

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // numeric
  uint16_t port = 0;                  // 0: any free one
  int listener = -1;                  // a listening socket, which the server owns: in their place
  uint32_t io_threads = 2;
  uint32_t handler_threads = 16;   // requests that run at once; they may block on disk
  uint32_t max_connections = 512;  // one more is closed at once
  uint32_t max_header_bytes = 16u << 10;
  uint32_t max_body_bytes = 1u << 20;
  uint32_t content_chunk_bytes = 256u << 10;
  int64_t idle_ms = 60000;    // between two requests
  int64_t header_ms = 10000;  // from the first byte of a request to the end of its headers
  int64_t body_ms = 30000;    // then to the end of its body
  int64_t write_ms = 30000;   // for each part of an answer
};

// "127.0.0.1:7070", "[::1]:7070". InvalidArgument says what is wrong. `loopback` tells whether the
// address is this machine alone.
struct ListenAddress {
  std::string address;
  uint16_t port = 0;
  bool loopback = false;
};
Result<ListenAddress> ParseListenAddress(const std::string& text);

// Thread-safe. Start once; Stop (or destruction) joins every thread.
class HttpServer {
 public:
  // Called on handler threads, several at a time. HEAD requests reach it as such: the server sends
  // the headers alone.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // What the server itself answers: 400, 413, 431 and the like.
  using ErrorBody = std::function<HttpResponse(int status, const std::string& request_id)>;

  // AlreadyExists: the port is taken. PermissionDenied, InvalidArgument: as bind(2) says.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   Handler handler, ErrorBody error_body);
  virtual ~HttpServer() = default;
  virtual uint16_t port() const = 0;
  virtual uint32_t connection_count() const = 0;
  // No new connections, open ones are closed (answers in the making are dropped), handlers that run
  // are waited for. Idempotent.
  virtual void Stop() = 0;
  // Before Stop, when another server goes on with the listening socket: accepts no more, closes
  // idle connections (those that have not sent anything yet after a second), and lets the answers
  // in the making be taken, for `timeout_ms` at most.
  virtual void Drain(int64_t timeout_ms) = 0;
  virtual int listener() const = 0;
};

}  // namespace cairn
