// Routing and what all routes share. Order for one request: target -> health routes ->
// authentication -> route -> answer. A path that does not exist is only said to an authenticated
// client. Messages of errors below the catalog are logged with the request id and never sent.
#include "api/http_api.h"

#include <fmt/format.h>

#include <algorithm>

#include "catalog/ids.h"
#include "store/base/log.h"

namespace cairn {

HttpApi::HttpApi(ApiServices& services, std::function<bool()> ready)
    : services_(services), ready_(std::move(ready)) {
  const std::string sessions = "/v1/agents/sessions", session = sessions + "/{session}";
  const std::string artifacts = session + "/artifacts", artifact = artifacts + "/{artifact}";
  const std::string turns = session + "/turns", turn = turns + "/{turn}";
  const std::string environments = "/v1/agents/environments",
                    environment = environments + "/{environment}";
  router_.Add("GET", artifacts, &HttpApi::ListArtifacts);
  router_.Add("GET", artifact, &HttpApi::GetArtifact);
  router_.Add("DELETE", artifact, &HttpApi::DeleteArtifact);
  router_.Add("GET", artifact + "/content", &HttpApi::GetArtifactContent);
  router_.Add("GET", sessions, &HttpApi::ListSessions);
  router_.Add("POST", sessions, &HttpApi::CreateSession);
  router_.Add("GET", session, &HttpApi::GetSession);
  router_.Add("DELETE", session, &HttpApi::EndSession);
  router_.Add("GET", turns, &HttpApi::ListTurns);
  router_.Add("POST", turns, &HttpApi::StartTurn);
  router_.Add("GET", turn, &HttpApi::GetTurn);
  router_.Add("POST", turn + "/complete", &HttpApi::CompleteTurn);
  router_.Add("POST", turn + "/fail", &HttpApi::FailTurn);
  router_.Add("POST", turn + "/cancel", &HttpApi::CancelTurn);
  router_.Add("GET", environments, &HttpApi::ListEnvironments);
  router_.Add("POST", environments, &HttpApi::CreateEnvironment);
  router_.Add("GET", environment, &HttpApi::GetEnvironment);
  router_.Add("DELETE", environment, &HttpApi::RemoveEnvironment);
}

HttpResponse HttpApi::Handle(const HttpRequest& request) {
  HttpResponse extra;  // headers of an error answer
  Answer answer = Dispatch(request, &extra);
  HttpResponse response = answer ? *std::move(answer) : ErrorResponse(answer.error());
  for (auto& [name, value] : extra.headers) response.Set(name, value);
  const int status_class = response.status / 100;
  if (status_class < 6) requests_by_class_[status_class].fetch_add(1);
  if (response.status >= 500)
    LogWarning("http_error", {{"request", request.request_id}, {"status", response.status}});
  return response;
}

HttpApi::Answer HttpApi::Dispatch(const HttpRequest& request, HttpResponse* extra) {
  auto target = ParseTarget(request.target);
  if (!target) return std::unexpected(InvalidRequest(target.error().message()));
  const bool get = request.method == "GET" || request.method == "HEAD";
  if (target->segments.size() == 1 && get) {
    if (target->segments[0] == "healthz") return JsonResponse({{"status", "ok"}});
    if (target->segments[0] == "readyz") {
      const bool ready = ready_();
      return JsonResponse({{"status", ready ? "ready" : "starting"}}, ready ? 200 : 503);
    }
    if (target->segments[0] == "metrics") return Metrics();
  }
  std::string org = CAIRN_HTTP_TRY(Authenticate(request));
  auto match = router_.Find(request.method, target->segments);
  if (match.route == nullptr) {
    if (match.allowed.empty()) return std::unexpected(StatusError(404));
    std::string allow;
    for (const std::string& method : match.allowed) allow += (allow.empty() ? "" : ", ") + method;
    extra->Set("Allow", allow);
    return std::unexpected(StatusError(405));
  }
  const ApiCall call{.request = request,
                     .org = std::move(org),
                     .parameters = std::move(match.parameters),
                     .query = std::move(target->query)};
  return (this->**match.route)(call);
}

std::expected<std::string, HttpError> HttpApi::Authenticate(const HttpRequest& request) {
  const auto is_authorization = [](const auto& header) { return header.first == "authorization"; };
  // Two of them would leave open whose request it is.
  if (std::count_if(request.headers.begin(), request.headers.end(), is_authorization) != 1)
    return std::unexpected(Unauthorized());
  std::string_view value = request.Header("authorization");
  static constexpr std::string_view kScheme = "bearer ";
  if (value.size() <= kScheme.size()) return std::unexpected(Unauthorized());
  std::string scheme(value.substr(0, kScheme.size()));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (scheme != kScheme) return std::unexpected(Unauthorized());
  value.remove_prefix(kScheme.size());
  while (value.starts_with(' ')) value.remove_prefix(1);
  auto key = services_.registry.Authenticate(value);
  if (key) return key->org();
  const ErrorCode code = key.error().error().code();
  if (code == ErrorCode::kPermissionDenied || code == ErrorCode::kNotFound ||
      code == ErrorCode::kInvalidArgument) {
    return std::unexpected(Unauthorized());
  }
  return std::unexpected(FromError(key.error().error()));
}

HttpResponse HttpApi::Metrics() {
  const host::StatsInfo stats = services_.stats();
  std::string text;
  const auto add = [&](std::string_view name, std::string_view type, std::string_view help,
                       uint64_t value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
  };
  text +=
      "# HELP cairn_http_requests_total Answers by status class.\n# TYPE cairn_http_requests_total "
      "counter\n";
  for (int i = 2; i < 6; ++i)
    text += fmt::format("cairn_http_requests_total{{class=\"{}xx\"}} {}\n", i,
                        requests_by_class_[i].load());
  add("cairn_packs", "gauge", "Pack files.", stats.pack_count());
  add("cairn_pack_bytes", "gauge", "Bytes of pack files, trash included.", stats.pack_bytes());
  add("cairn_trash_bytes", "gauge", "Bytes of packs in the trash.", stats.trash_bytes());
  add("cairn_blocks", "gauge", "Indexed blocks.", stats.block_count());
  add("cairn_block_stored_bytes", "gauge", "Bytes of indexed blocks as stored.",
      stats.stored_bytes());
  add("cairn_block_raw_bytes", "gauge", "Bytes of indexed blocks before compression.",
      stats.raw_bytes());
  add("cairn_cache_bytes", "gauge", "Bytes of verified blocks in memory.", stats.cache_bytes());
  add("cairn_journal_bytes", "gauge", "Bytes of volume journals.", stats.journal_bytes());
  add("cairn_mounts", "gauge", "Mounted Environments.", services_.mounts().size());
  add("cairn_start_time_seconds", "gauge", "When this daemon started.",
      static_cast<uint64_t>(stats.started_ms() / 1000));
  HttpResponse response;
  response.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
  response.body = std::move(text);
  return response;
}

HttpResponse JsonResponse(const Json& body, int status) {
  HttpResponse response;
  response.status = status;
  response.Set("Content-Type", "application/json");
  response.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

HttpError FromRefusal(const Refusal& refusal) {
  HttpError error = ToHttpError(refusal.error());
  if (error.status >= 500 || error.status == 404) {
    if (error.status >= 500) LogError("request_failed", {{"error", refusal.error().ToString()}});
    return error;
  }
  const bool typed = refusal.code() != ErrorCodeName(refusal.error().code());
  if (typed) error.code = refusal.code();
  if (typed || refusal.error().code() == ErrorCode::kInvalidArgument) {
    if (!refusal.message().empty()) error.message = refusal.message();
  }
  error.blocking = refusal.blocking();
  return error;
}

HttpError FromError(const Error& error) {
  HttpError answer = ToHttpError(error);
  if (answer.status >= 500) LogError("request_failed", {{"error", error.ToString()}});
  if (answer.status != 409) return answer;
  const std::string code = error.message().substr(0, error.message().find(':'));
  for (const std::string_view known :
       {refusals::kEnvironmentInUse, refusals::kEnvironmentMounted, refusals::kEnvironmentDeleted,
        refusals::kEnvironmentExpired, refusals::kInitializationInProgress,
        refusals::kInitializationFailed, refusals::kOperationInProgress, refusals::kTurnInProgress,
        refusals::kTurnEnded, refusals::kSnapshotInUse, refusals::kSnapshotPinned,
        refusals::kIdempotencyConflict}) {
    if (code == known) answer.code = known;
  }
  return answer;
}

std::expected<Json, HttpError> ParseBody(const HttpRequest& request) {
  if (request.body.empty()) return Json::object();
  const std::string_view type = request.Header("content-type");
  if (!type.empty() && !type.starts_with("application/json"))
    return std::unexpected(StatusError(415));
  Json body = Json::parse(request.body, nullptr, false);
  if (body.is_discarded()) return std::unexpected(InvalidRequest("The body is not JSON."));
  if (!body.is_object()) return std::unexpected(InvalidRequest("The body must be a JSON object."));
  return body;
}

void BodyFields::Wrong(const std::string& name, const std::string& must) {
  if (!error_)
    error_ = InvalidRequest(fmt::format("{}{} must be {}.", prefix_, name, must), prefix_ + name);
}

Json BodyFields::Take(const std::string& name) {
  const auto found = object_.find(name);
  if (found == object_.end()) return nullptr;
  Json value = std::move(*found);
  object_.erase(found);
  return value;
}

std::string BodyFields::Text(const std::string& name, size_t max_bytes) {
  const Json value = Take(name);
  if (value.is_null()) return {};
  if (!value.is_string() || value.get_ref<const std::string&>().size() > max_bytes) {
    Wrong(name, fmt::format("a string of at most {} bytes", max_bytes));
    return {};
  }
  return value.get<std::string>();
}

uint64_t BodyFields::Number(const std::string& name, uint64_t max) {
  const Json value = Take(name);
  if (value.is_null()) return 0;
  if (!value.is_number_unsigned() || value.get<uint64_t>() > max) {
    Wrong(name, fmt::format("a whole number from 0 to {}", max));
    return 0;
  }
  return value.get<uint64_t>();
}

std::map<std::string, std::string> BodyFields::TextMap(const std::string& name) {
  const Json value = Take(name);
  std::map<std::string, std::string> map;
  if (value.is_null()) return map;
  bool good = value.is_object() && value.size() <= 16;
  if (good) {
    for (const auto& [key, item] : value.items()) {
      if (!item.is_string() || key.empty() || key.size() > 64 ||
          item.get_ref<const std::string&>().size() > 512) {
        good = false;
        break;
      }
      map[key] = item.get<std::string>();
    }
  }
  if (!good)
    Wrong(name,
          "an object of at most 16 strings, names of at most 64 bytes, values of at most 512");
  return map;
}

std::expected<void, HttpError> BodyFields::Finish() {
  if (error_) return std::unexpected(*error_);
  if (!object_.empty()) {
    const std::string name = prefix_ + object_.begin().key().substr(0, 64);
    return std::unexpected(InvalidRequest(fmt::format("There is no such field: {}.", name), name));
  }
  return {};
}

std::expected<PageQuery, HttpError> PageOf(const ApiCall& call,
                                           const std::vector<std::string>& other) {
  std::string param;
  auto page = ParsePageQuery(call.query, other, &param);
  if (!page) return std::unexpected(InvalidRequest(page.error().message(), param));
  return *page;
}

std::expected<void, HttpError> RequireNoQuery(const ApiCall& call,
                                              const std::vector<std::string>& known) {
  for (const auto& [name, value] : call.query) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return std::unexpected(
          InvalidRequest("There is no such query parameter.", name.substr(0, 64)));
    }
  }
  return {};
}

IdempotentRequest IdempotencyOf(const ApiCall& call, std::string_view operation) {
  return {.key = std::string(call.request.Header("idempotency-key")),
          .operation = operation,
          .body = call.request.target + "\n" + call.request.body};
}

}  // namespace cairn
