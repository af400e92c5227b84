// HttpApi: the routes of the HTTP API (docs/API.md). Authentication, routing, JSON in and out; no
// sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/http_error.h"
#include "api/http_message.h"
#include "api/page.h"
#include "api/resource_json.h"
#include "api/router.h"
#include "api/services.h"

namespace cairn {

// One request on its way through a route.
struct ApiCall {
  const HttpRequest& request;
  std::string org;                                // of the API key
  std::map<std::string, std::string> parameters;  // of the path
  std::map<std::string, std::string> query;
};

// Thread-safe. Requests may block as long as their work takes.
class HttpApi {
 public:
  // `ready`: does the daemon serve everything by now (/readyz)?
  HttpApi(ApiServices& services, std::function<bool()> ready);

  // Never fails: errors are answers.
  HttpResponse Handle(const HttpRequest& request);

 private:
  using Answer = std::expected<HttpResponse, HttpError>;
  using Route = Answer (HttpApi::*)(const ApiCall&);

  Answer Dispatch(const HttpRequest& request, HttpResponse* extra);
  std::expected<std::string, HttpError> Authenticate(const HttpRequest& request);
  HttpResponse Metrics();

  // http_artifact_routes.cc
  Answer ListArtifacts(const ApiCall& call);
  Answer GetArtifact(const ApiCall& call);
  Answer GetArtifactContent(const ApiCall& call);
  Answer DeleteArtifact(const ApiCall& call);
  // http_session_routes.cc
  Answer ListSessions(const ApiCall& call);
  Answer CreateSession(const ApiCall& call);
  Answer GetSession(const ApiCall& call);
  Answer EndSession(const ApiCall& call);
  Answer ListTurns(const ApiCall& call);
  Answer StartTurn(const ApiCall& call);
  Answer GetTurn(const ApiCall& call);
  Answer CompleteTurn(const ApiCall& call);
  Answer FailTurn(const ApiCall& call);
  Answer CancelTurn(const ApiCall& call);
  std::expected<catalog::Turn, HttpError> TurnOfSession(const ApiCall& call);
  Answer EndTurn(const ApiCall& call, catalog::TurnStatus status);
  // http_environment_routes.cc
  Answer ListEnvironments(const ApiCall& call);
  Answer CreateEnvironment(const ApiCall& call);
  Answer GetEnvironment(const ApiCall& call);
  Answer RemoveEnvironment(const ApiCall& call);

  ApiServices& services_;
  const std::function<bool()> ready_;
  Router<Route> router_;
  std::atomic<uint64_t> requests_by_class_[6] = {};  // [2]: 2xx, ...
};

// ---- what the routes share (http_api.cc) ----

HttpResponse JsonResponse(const Json& body, int status = 200);
// A refusal of the registry or of a rule: its own code and, because the catalog knows no host, its
// message.
HttpError FromRefusal(const Refusal& refusal);
// Any other layer's: the code alone, and the refusal code that its message begins with.
HttpError FromError(const Error& error);

// The body as a JSON object; {} when it is empty. Errors: not JSON, not an object, another content
// type.
std::expected<Json, HttpError> ParseBody(const HttpRequest& request);
// Takes fields out of a body; Finish names one that nobody took.
class BodyFields {
 public:
  // `prefix`: of names in messages ("environment.").
  explicit BodyFields(Json object, std::string prefix = {})
      : object_(std::move(object)), prefix_(std::move(prefix)) {}
  // Absent and null are the same: the default.
  std::string Text(const std::string& name, size_t max_bytes = 1024);
  uint64_t Number(const std::string& name, uint64_t max);
  std::map<std::string, std::string> TextMap(const std::string& name);
  Json Take(const std::string& name);
  bool Has(const std::string& name) const {
    return object_.contains(name) && !object_[name].is_null();
  }
  // The first thing that was wrong, or a field that is not known.
  std::expected<void, HttpError> Finish();

 private:
  void Wrong(const std::string& name, const std::string& must);

  Json object_;
  const std::string prefix_;
  std::optional<HttpError> error_;
};

// A registry call's Result as its Refusal: the message of an invalid argument may be shown.
template <typename T>
Ruled<T> ToRuled(Result<T> result) {
  if (!result) return std::unexpected(Refusal(std::move(result).error()));
  return *std::move(result);
}

std::expected<PageQuery, HttpError> PageOf(const ApiCall& call,
                                           const std::vector<std::string>& other = {});
std::expected<void, HttpError> RequireNoQuery(const ApiCall& call,
                                              const std::vector<std::string>& known = {});
IdempotentRequest IdempotencyOf(const ApiCall& call, std::string_view operation);

}  // namespace cairn

// Evaluates to the value of an expected whose error is an HttpError, Refusal or Error, or returns
// that error as an HttpError.
#define CAIRN_HTTP_TRY(...)                                                                  \
  ({                                                                                         \
    auto cairn_http_result_ = (__VA_ARGS__);                                                 \
    if (!cairn_http_result_) {                                                               \
      return std::unexpected(::cairn::ToAnswerError(std::move(cairn_http_result_).error())); \
    }                                                                                        \
    std::move(cairn_http_result_).operator*();                                               \
  })

namespace cairn {
inline HttpError ToAnswerError(HttpError error) { return error; }
inline HttpError ToAnswerError(const Refusal& refusal) { return FromRefusal(refusal); }
inline HttpError ToAnswerError(const Error& error) { return FromError(error); }
}  // namespace cairn
