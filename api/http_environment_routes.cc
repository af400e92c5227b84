// Environments over HTTP. A deletion names the id twice: in the path and as ?confirm=.
#include <fmt/format.h>

#include "api/control.h"
#include "api/http_api.h"

namespace cairn {

HttpApi::Answer HttpApi::ListEnvironments(const ApiCall& call) {
  const PageQuery query = CAIRN_HTTP_TRY(PageOf(call, {"type"}));
  const auto page = CAIRN_HTTP_TRY(ToRuled(services_.registry.ListEnvironments(
      call.org, {.limit = query.limit, .after = query.after, .ascending = query.ascending})));
  std::vector<Json> data;
  for (const auto& env : page.items) {
    const auto sessions = CAIRN_HTTP_TRY(ActiveSessions(services_, call.org, env.id()));
    data.push_back(EnvironmentResource(env, sessions, services_.clock.NowMs()));
  }
  return JsonResponse(ListResource(std::move(data), page.has_more));
}

HttpApi::Answer HttpApi::CreateEnvironment(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  BodyFields fields(CAIRN_HTTP_TRY(ParseBody(call.request)));
  // The SDK's form puts the type inside.
  const Json inner = fields.Take("environment");
  if (!inner.is_null()) {
    if (!inner.is_object())
      return std::unexpected(InvalidRequest("environment must be an object.", "environment"));
    BodyFields inner_fields(inner, "environment.");
    if (inner_fields.Text("type") != "openai_hosted")
      return std::unexpected(
          InvalidRequest("environment.type must be openai_hosted.", "environment.type"));
    CAIRN_HTTP_TRY(inner_fields.Finish());
  }
  EnvironmentSpec spec;
  spec.name = fields.Text("name", 256);
  spec.workspace_uid = static_cast<uint32_t>(fields.Number("workspace_uid", 0xfffffffe));
  spec.workspace_gid = static_cast<uint32_t>(fields.Number("workspace_gid", 0xfffffffe));
  spec.quota_bytes = fields.Number("quota_bytes", uint64_t{1} << 62);
  spec.quota_inodes = fields.Number("quota_inodes", uint64_t{1} << 62);
  spec.base = fields.Text("base", 256);
  CAIRN_HTTP_TRY(fields.Finish());
  const auto created = CAIRN_HTTP_TRY(services_.registry.CreateEnvironment(
      call.org, spec, IdempotencyOf(call, "environment.create")));
  return JsonResponse(EnvironmentResource(created.record, {}, services_.clock.NowMs()),
                      created.replayed ? 200 : 201);
}

HttpApi::Answer HttpApi::GetEnvironment(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call));
  const auto env = CAIRN_HTTP_TRY(
      services_.registry.GetEnvironment(call.org, call.parameters.at("environment")));
  const auto sessions = CAIRN_HTTP_TRY(ActiveSessions(services_, call.org, env.id()));
  return JsonResponse(EnvironmentResource(env, sessions, services_.clock.NowMs()));
}

HttpApi::Answer HttpApi::RemoveEnvironment(const ApiCall& call) {
  CAIRN_HTTP_TRY(RequireNoQuery(call, {"confirm"}));
  const std::string& id = call.parameters.at("environment");
  const auto confirm = call.query.find("confirm");
  if (confirm == call.query.end() || confirm->second != id) {
    return std::unexpected(InvalidRequest(
        "Confirm the deletion by giving the Environment's id again: ?confirm=ID.", "confirm"));
  }
  const auto receipt = CAIRN_HTTP_TRY(DeleteEnvironment(services_, call.org, id));
  Json body = DeletedResource(id, "agent.environment.deleted");
  body["held_snapshot_ids"] = receipt.held_snapshots;
  return JsonResponse(body);
}

}  // namespace cairn
