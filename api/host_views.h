// Records as the host protocol shows them: without keys, sealed values and storage addresses.
#pragma once

#include <string>
#include <vector>

#include "api/host.pb.h"
#include "api/tree_transfer.h"
#include "artifacts/publisher.h"
#include "catalog/records.pb.h"
#include "catalog/refusal.h"
#include "gc/check.h"
#include "gc/collector.h"
#include "gc/reaper.h"
#include "gc/scrub.h"
#include "volume/volume.h"

namespace cairn {

host::OrganizationInfo ToView(const catalog::Organization& organization);
host::ApiKeyInfo ToView(const catalog::ApiKey& key);
// Lists are full in one case only: what else is known of an Environment is added by the caller.
host::EnvironmentInfo ToView(const catalog::Environment& env);
host::VolumeInfo ToView(const VolumeStatus& status);
host::TransferReport ToView(const TransferCounts& counts);
host::BaseImageInfo ToView(const catalog::BaseImage& image);
host::SessionInfo ToView(const catalog::Session& session);
host::TurnInfo ToView(const TurnReport& report);
host::TurnInfo ToView(const catalog::Turn& turn);
host::ArtifactView ToView(const ArtifactInfo& artifact);
host::SnapshotInfo ToView(const catalog::Snapshot& snapshot);
host::OperationInfo ToView(const catalog::Operation& operation);
host::CollectInfo ToView(const CollectReport& report);
// At most `max_damages` of them; the count of the others is in the message.
host::CheckInfo ToView(const CheckReport& report, size_t max_damages);
host::ReapInfo ToView(const ReapPlan& plan);
host::CheckProgressInfo ToView(const CheckProgress& progress);
host::ScrubInfo ToView(const ScrubReport& report);

host::CallError ToCallError(const Refusal& refusal);

// "pending", "ready", ...; "private", "standalone", "shared"; "in_progress", "completed", ...;
// "local", ...
std::string StateName(catalog::EnvironmentState state);
std::string LifetimeName(catalog::Lifetime lifetime);
std::string TurnStatusName(catalog::TurnStatus status);
std::string DurabilityName(catalog::Durability durability);
std::string ScrubStateName(ScrubReport::State state);

}  // namespace cairn
