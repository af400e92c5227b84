// JSON of the HTTP API's resources. Artifacts, Sessions, turns and lists have the fields of the
// OpenAI Agents API; docs/API.md lists what Cairn adds. Times are seconds since 1970. No host path,
// storage address or secret is ever in them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "artifacts/publisher.h"
#include "catalog/records.pb.h"

namespace cairn {

using Json = nlohmann::ordered_json;

// `output_directory` is the Session's: the resource shows the absolute path inside the Environment.
Json ArtifactResource(const ArtifactInfo& artifact, const std::string& output_directory);
Json SessionResource(const catalog::Session& session);
Json TurnResource(const catalog::Turn& turn);
// As TurnResource, with what the turn published and skipped.
Json TurnReportResource(const TurnReport& report, const std::string& output_directory);
Json EnvironmentResource(const catalog::Environment& env, const std::vector<std::string>& sessions,
                         int64_t now_ms);
// {"id", "object": `object`, "deleted": true}
Json DeletedResource(const std::string& id, const std::string& object);
// A page of resources that have an "id".
Json ListResource(std::vector<Json> data, bool has_more);

}  // namespace cairn
