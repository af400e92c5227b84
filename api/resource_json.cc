// Resources. What Cairn does not have (agents, usage, vaults) is null or empty, so that typed
// clients read it.
#include "api/resource_json.h"

#include "api/utf8.h"
#include "catalog/lifetime_rules.h"
#include "store/base/hex.h"

namespace cairn {
namespace {

int64_t Seconds(int64_t ms) { return ms / 1000; }
Json SecondsOrNull(int64_t ms) { return ms == 0 ? Json() : Json(Seconds(ms)); }

std::string AbsolutePath(const std::string& directory, const std::string& path) {
  std::string absolute = directory;
  if (!absolute.ends_with('/')) absolute += '/';
  return ToUtf8(absolute + path);
}

}  // namespace

Json ArtifactResource(const ArtifactInfo& artifact, const std::string& output_directory) {
  const catalog::Artifact& record = artifact.record;
  return {{"id", record.id()},
          {"object", "agent.session.artifact"},
          {"created_at", Seconds(record.created_ms())},
          {"environment_id", record.env()},
          {"path", AbsolutePath(output_directory, artifact.path)},
          {"session_id", record.session()},
          {"size_bytes", record.size_bytes()},
          {"turn_id", record.turn()},
          {"sha256", record.sha256().empty() ? Json() : Json(HexEncode(record.sha256()))},
          {"digest_state", record.sha256().empty() ? "pending" : "ready"}};
}

Json SessionResource(const catalog::Session& session) {
  Json metadata = Json::object();
  for (const auto& [name, value] : session.metadata()) metadata[ToUtf8(name)] = ToUtf8(value);
  const bool failed = !session.error_code().empty();
  return {{"id", session.id()},
          {"object", "agent.session"},
          {"agent", nullptr},
          {"created_at", Seconds(session.created_ms())},
          {"environment",
           {{"type", "openai_hosted"},
            {"id", session.env()},
            {"inline", session.inline_environment()}}},
          {"error", failed ? Json(session.error_code()) : Json()},
          {"last_active_at", Seconds(session.updated_ms())},
          {"metadata", std::move(metadata)},
          {"required_actions", Json::array()},
          {"status", failed                          ? "failed"
                     : session.active_turn().empty() ? "idle"
                                                     : "in_progress"},
          {"usage", nullptr},
          {"vault_ids", Json::array()},
          {"output_directory", ToUtf8(session.output_directory())},
          {"active_turn_id", session.active_turn().empty() ? Json() : Json(session.active_turn())}};
}

Json TurnResource(const catalog::Turn& turn) {
  static constexpr const char* kStatus[] = {"in_progress", "completed", "failed", "cancelled"};
  const bool failed = turn.status() == catalog::TURN_FAILED;
  return {{"id", turn.id()},
          {"object", "agent.session.turn"},
          {"agent_id", ""},
          {"completed_at", SecondsOrNull(turn.ended_ms())},
          {"created_at", Seconds(turn.created_ms())},
          {"error",
           failed ? Json{{"code", "internal_error"}, {"message", ToUtf8(turn.failure())}} : Json()},
          {"session_id", turn.session()},
          {"started_at", Seconds(turn.created_ms())},
          {"status", kStatus[turn.status()]},
          {"subagent_id", nullptr},
          {"usage", nullptr},
          {"environment_id", turn.env()},
          {"artifact_count", turn.artifact_count()},
          {"artifact_bytes", turn.artifact_bytes()}};
}

Json TurnReportResource(const TurnReport& report, const std::string& output_directory) {
  Json turn = TurnResource(report.turn);
  Json published = Json::array();
  for (const ArtifactInfo& artifact : report.published)
    published.push_back(ArtifactResource(artifact, output_directory));
  Json skipped = Json::array();
  for (const SkippedPath& path : report.skipped) {
    skipped.push_back(
        {{"path", AbsolutePath(output_directory, path.path)}, {"reason", path.reason}});
  }
  turn["published"] = std::move(published);
  turn["skipped"] = std::move(skipped);
  return turn;
}

Json EnvironmentResource(const catalog::Environment& env, const std::vector<std::string>& sessions,
                         int64_t now_ms) {
  static constexpr const char* kLifetime[] = {"private", "standalone", "shared"};
  return {{"id", env.id()},
          {"object", "agent.environment"},
          {"files", Json::array()},
          {"plugins", Json::array()},
          {"skills", Json::array()},
          {"status", rules::WireStatus(env, now_ms)},
          {"type", "openai_hosted"},
          {"name", ToUtf8(env.name())},
          {"created_at", Seconds(env.created_ms())},
          {"lifetime", kLifetime[env.lifetime()]},
          {"session_ids", sessions},
          {"base", env.base_image_name().empty() ? Json() : Json(ToUtf8(env.base_image_name()))},
          {"quota_bytes", env.quota_bytes()},
          {"quota_inodes", env.quota_inodes()}};
}

Json DeletedResource(const std::string& id, const std::string& object) {
  return {{"id", id}, {"object", object}, {"deleted", true}};
}

Json ListResource(std::vector<Json> data, bool has_more) {
  const Json first = data.empty() ? Json() : data.front()["id"];
  const Json last = data.empty() ? Json() : data.back()["id"];
  return {{"object", "list"},
          {"data", std::move(data)},
          {"first_id", first},
          {"last_id", last},
          {"has_more", has_more}};
}

}  // namespace cairn
