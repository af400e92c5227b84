// Sessions and turns over HTTP.
#include <fmt/format.h>

#include "api/control.h"
#include "api/http_api.h"

namespace cairn {
namespace {

// "environment" of a new Session: absent or an object without an id (one of its own), an id as
// text, or an object that names one.
std::expected<void, HttpError> ReadEnvironment(const Json& value, SessionSpec* spec) {
  if (value.is_null()) return {};
  if (value.is_string()) {
    spec->attach_to = value.get<std::string>();
    if (spec->attach_to.empty() || spec->attach_to.size() > 64)
      return std::unexpected(
          InvalidRequest("environment must be an Environment's id.", "environment"));
    return {};
  }
  if (!value.is_object())
    return std::unexpected(
        InvalidRequest("environment must be an object or an Environment's id.", "environment"));
  BodyFields fields(value, "environment.");
  const std::string type = fields.Text("type");
  if (!type.empty() && type != "openai_hosted")
    return std::unexpected(
        InvalidRequest("environment.type must be openai_hosted.", "environment.type"));
  const std::string id = fields.Text("environment_id", 64);
  const std::string plain_id = fields.Text("id", 64);
  if (!id.empty() && !plain_id.empty())
    return std::unexpected(InvalidRequest(
        "environment.id and environment.environment_id are the same field.", "environment.id"));
  spec->attach_to = id.empty() ? plain_id : id;
  if (spec->attach_to.empty()) {
    spec->environment.name = fields.Text("name", 256);
    spec->environment.workspace_uid =
        static_cast<uint32_t>(fields.Number("workspace_uid", 0xfffffffe));
    spec->environment.workspace_gid =
        static_cast<uint32_t>(fields.Number("workspace_gid", 0xfffffffe));
    spec->environment.quota_bytes = fields.Number("quota_bytes", uint64_t{1} << 62);
    spec->environment.quota_inodes = fields.Number("quota_inodes", uint64_t{1} << 62);
    spec->environment.base = fields.Text("base", 256);
  }
  return fields.Finish();
}

}  // namespace

HttpApi::Answer HttpApi::ListSessions(const ApiCall& call) {
  const PageQuery query = CAIRN_HTTP_TRY(PageOf(call));
  const auto page = CAIRN_HTTP_TRY(ToRuled(services_.registry.ListSessions(
      call.org, {.limit = query.limit, .after = query.after, .ascending = query.ascending})));
  std::vector<Json> data;
  for (const auto& session : page.items) data.push_back(SessionResource(session));
  return JsonResponse(ListResource(std::move(data), page.has_more));
}

HttpApi::Answer HttpApi::CreateSession(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  BodyFields fields(CAIRN_HTTP_TRY(ParseBody(call.request)));
  SessionSpec spec;
  const Json environment = fields.Take("environment");
  spec.metadata = fields.TextMap("metadata");
  CAIRN_HTTP_TRY(fields.Finish());
  CAIRN_HTTP_TRY(ReadEnvironment(environment, &spec));
  const auto created = CAIRN_HTTP_TRY(
      services_.registry.CreateSession(call.org, spec, IdempotencyOf(call, "session.create")));
  return JsonResponse(SessionResource(created.record), created.replayed ? 200 : 201);
}

HttpApi::Answer HttpApi::GetSession(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  return JsonResponse(SessionResource(
      CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, call.parameters.at("session")))));
}

HttpApi::Answer HttpApi::EndSession(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  const auto receipt =
      CAIRN_HTTP_TRY(DeleteSession(services_, call.org, call.parameters.at("session")));
  Json body = DeletedResource(receipt.session.id(), "agent.session.deleted");
  return JsonResponse(body);
}

HttpApi::Answer HttpApi::ListTurns(const ApiCall& call) {
  const PageQuery query = CAIRN_HTTP_TRY(PageOf(call));
  const std::string& session = call.parameters.at("session");
  CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, session));
  const auto page = CAIRN_HTTP_TRY(ToRuled(services_.registry.ListTurns(
      call.org, session,
      {.limit = query.limit, .after = query.after, .ascending = query.ascending})));
  std::vector<Json> data;
  for (const auto& turn : page.items) data.push_back(TurnResource(turn));
  return JsonResponse(ListResource(std::move(data), page.has_more));
}

HttpApi::Answer HttpApi::StartTurn(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  BodyFields fields(CAIRN_HTTP_TRY(ParseBody(call.request)));
  CAIRN_HTTP_TRY(fields.Finish());
  const auto created = CAIRN_HTTP_TRY(services_.registry.StartTurn(
      call.org, call.parameters.at("session"), IdempotencyOf(call, "turn.start")));
  return JsonResponse(TurnResource(created.record), created.replayed ? 200 : 201);
}

std::expected<catalog::Turn, HttpError> HttpApi::TurnOfSession(const ApiCall& call) {
  auto turn = CAIRN_HTTP_TRY(services_.registry.GetTurn(call.org, call.parameters.at("turn")));
  if (turn.session() != call.parameters.at("session")) return std::unexpected(NotFoundError());
  return turn;
}

HttpApi::Answer HttpApi::GetTurn(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  const auto session =
      CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, call.parameters.at("session")));
  const auto turn = CAIRN_HTTP_TRY(TurnOfSession(call));
  const auto report = CAIRN_HTTP_TRY(services_.publisher.Report(call.org, turn.id()));
  return JsonResponse(TurnReportResource(report, session.output_directory()));
}

HttpApi::Answer HttpApi::CompleteTurn(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  BodyFields fields(CAIRN_HTTP_TRY(ParseBody(call.request)));
  CAIRN_HTTP_TRY(fields.Finish());
  const auto session =
      CAIRN_HTTP_TRY(services_.registry.GetSession(call.org, call.parameters.at("session")));
  const auto turn = CAIRN_HTTP_TRY(TurnOfSession(call));
  const auto report = CAIRN_HTTP_TRY(services_.publisher.CompleteTurn(call.org, turn.id()));
  return JsonResponse(TurnReportResource(report, session.output_directory()));
}

HttpApi::Answer HttpApi::EndTurn(const ApiCall& call, catalog::TurnStatus status) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  BodyFields fields(CAIRN_HTTP_TRY(ParseBody(call.request)));
  const std::string reason = status == catalog::TURN_FAILED ? fields.Text("reason") : std::string();
  CAIRN_HTTP_TRY(fields.Finish());
  const auto turn = CAIRN_HTTP_TRY(TurnOfSession(call));
  return JsonResponse(TurnResource(
      CAIRN_HTTP_TRY(services_.registry.EndTurn(call.org, turn.id(), status, reason))));
}

HttpApi::Answer HttpApi::FailTurn(const ApiCall& call) {
  return EndTurn(call, catalog::TURN_FAILED);
}
HttpApi::Answer HttpApi::CancelTurn(const ApiCall& call) {
  return EndTurn(call, catalog::TURN_CANCELLED);
}

}  // namespace cairn
