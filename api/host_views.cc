// Field by field, so that a field added to a record is not shown by accident. Names of enums come
// from their descriptor: the words after the prefix, in lower case (ENV_READY -> "ready").
#include "api/host_views.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstring>

#include "api/utf8.h"
#include "store/base/hex.h"

namespace cairn {
namespace {

// The HTTP API's word for a turn that has not ended, and for a Session that has one.
constexpr std::string_view kInProgress = "in_progress";

std::string NameAfter(std::string_view prefix, const std::string& name) {
  std::string text = name.substr(prefix.size());
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

}  // namespace

std::string StateName(catalog::EnvironmentState state) {
  return NameAfter("ENV_", catalog::EnvironmentState_Name(state));
}
std::string LifetimeName(catalog::Lifetime lifetime) {
  return NameAfter("LIFETIME_", catalog::Lifetime_Name(lifetime));
}
std::string TurnStatusName(catalog::TurnStatus status) {
  if (status == catalog::TURN_RUNNING) return std::string(kInProgress);
  return NameAfter("TURN_", catalog::TurnStatus_Name(status));
}
std::string DurabilityName(catalog::Durability durability) {
  return NameAfter("DURABILITY_", catalog::Durability_Name(durability));
}

host::OrganizationInfo ToView(const catalog::Organization& organization) {
  host::OrganizationInfo view;
  view.set_id(organization.id());
  view.set_name(organization.name());
  view.set_created_ms(organization.created_ms());
  view.set_deleted(organization.deleted_ms() != 0);
  return view;
}

host::ApiKeyInfo ToView(const catalog::ApiKey& key) {
  host::ApiKeyInfo view;
  view.set_id(key.id());
  view.set_name(key.name());
  view.set_created_ms(key.created_ms());
  view.set_expires_ms(key.expires_ms());
  view.set_revoked(key.revoked());
  return view;
}

host::EnvironmentInfo ToView(const catalog::Environment& env) {
  host::EnvironmentInfo view;
  view.set_id(env.id());
  view.set_name(env.name());
  view.set_state(StateName(env.state()));
  view.set_lifetime(LifetimeName(env.lifetime()));
  view.set_creator_session(env.creator_session());
  view.set_suspended_snapshot(env.suspended_snapshot());
  view.set_forked_from(env.forked_from_snapshot().empty() ? env.forked_from_env()
                                                          : env.forked_from_snapshot());
  view.set_failure(env.failure());
  view.set_workspace_uid(env.workspace_uid());
  view.set_workspace_gid(env.workspace_gid());
  view.set_quota_bytes(env.quota_bytes());
  view.set_quota_inodes(env.quota_inodes());
  view.set_created_ms(env.created_ms());
  view.set_deleted_ms(env.deleted_ms());
  view.set_restore_count(env.restore_count());
  view.set_base_image(env.base_image());
  view.set_base_image_name(env.base_image_name());
  return view;
}

host::BaseImageInfo ToView(const catalog::BaseImage& image) {
  host::BaseImageInfo view;
  view.set_id(image.id());
  view.set_name(image.name());
  view.set_state(image.complete() ? "ready" : "importing");
  view.set_inodes(image.inodes());
  view.set_logical_bytes(image.bytes());
  view.set_created_ms(image.created_ms());
  return view;
}

host::TransferReport ToView(const TransferCounts& counts) {
  host::TransferReport view;
  view.set_directories(counts.directories);
  view.set_files(counts.files);
  view.set_links(counts.links);
  view.set_special(counts.special);
  view.set_bytes(counts.bytes);
  view.set_skipped_xattrs(counts.skipped_xattrs);
  return view;
}

host::VolumeInfo ToView(const VolumeStatus& status) {
  host::VolumeInfo view;
  view.set_inodes(status.inodes);
  view.set_logical_bytes(status.logical_bytes);
  view.set_unsealed_records(status.unsealed_records);
  view.set_unsealed_bytes(status.unsealed_bytes);
  view.set_unsealed_generations(status.unsealed_generations);
  view.set_open_handles(status.open_handles);
  view.set_read_only(status.read_only);
  return view;
}

host::SessionInfo ToView(const catalog::Session& session) {
  host::SessionInfo view;
  view.set_id(session.id());
  view.set_env(session.env());
  view.set_inline_environment(session.inline_environment());
  view.set_status(session.active_turn().empty() ? session.status() : std::string(kInProgress));
  view.set_output_directory(session.output_directory());
  view.set_active_turn(session.active_turn());
  view.set_created_ms(session.created_ms());
  view.set_updated_ms(session.updated_ms());
  view.set_deleted_ms(session.deleted_ms());
  view.set_error_code(session.error_code());
  *view.mutable_metadata() = session.metadata();
  return view;
}

host::TurnInfo ToView(const catalog::Turn& turn) {
  host::TurnInfo view;
  view.set_id(turn.id());
  view.set_session(turn.session());
  view.set_env(turn.env());
  view.set_status(TurnStatusName(turn.status()));
  view.set_created_ms(turn.created_ms());
  view.set_ended_ms(turn.ended_ms());
  view.set_artifact_count(turn.artifact_count());
  view.set_artifact_bytes(turn.artifact_bytes());
  view.set_failure(turn.failure());
  return view;
}

host::TurnInfo ToView(const TurnReport& report) {
  host::TurnInfo view = ToView(report.turn);
  for (const ArtifactInfo& artifact : report.published) *view.add_published() = ToView(artifact);
  for (const SkippedPath& skipped : report.skipped) {
    auto& entry = *view.add_skipped();
    entry.set_path(skipped.path);
    entry.set_reason(skipped.reason);
  }
  return view;
}

host::ArtifactView ToView(const ArtifactInfo& artifact) {
  host::ArtifactView view;
  view.set_id(artifact.record.id());
  view.set_session(artifact.record.session());
  view.set_turn(artifact.record.turn());
  view.set_env(artifact.record.env());
  view.set_path(artifact.path);
  view.set_size_bytes(artifact.record.size_bytes());
  view.set_sha256(HexEncode(artifact.record.sha256()));
  view.set_created_ms(artifact.record.created_ms());
  return view;
}

host::SnapshotInfo ToView(const catalog::Snapshot& snapshot) {
  host::SnapshotInfo view;
  view.set_id(snapshot.id());
  view.set_env(snapshot.env());
  view.set_name(snapshot.name());
  view.set_durability(DurabilityName(snapshot.durability()));
  view.set_has_memory(!snapshot.memory_image().empty());
  view.set_from_pause(snapshot.from_pause());
  view.set_memory_bytes(snapshot.memory_bytes());
  view.set_vmstate_bytes(snapshot.vmstate_bytes());
  view.set_vmm_driver(snapshot.vmm().driver());
  view.set_parent(snapshot.parent());
  view.set_restore_count(snapshot.restore_count());
  view.set_pinned(snapshot.pinned());
  view.set_may_contain_secrets(snapshot.may_contain_secrets());
  view.set_created_ms(snapshot.created_ms());
  view.set_deleted_ms(snapshot.deleted_ms());
  view.set_operation(snapshot.operation());
  *view.mutable_labels() = snapshot.labels();
  view.set_generation(snapshot.point().generation());
  return view;
}

host::OperationInfo ToView(const catalog::Operation& operation) {
  host::OperationInfo view;
  view.set_id(operation.id());
  view.set_kind(operation.kind());
  view.set_target(operation.target());
  view.set_phase(operation.phase());
  view.set_result(operation.result());
  view.set_error_code(operation.error_code());
  view.set_error_message(operation.error_message());
  view.set_created_ms(operation.created_ms());
  view.set_ended_ms(operation.ended_ms());
  return view;
}

host::CollectInfo ToView(const CollectReport& report) {
  host::CollectInfo view;
  view.set_marked_blocks(report.marked_blocks);
  view.set_live_bytes(report.live_bytes);
  view.set_garbage_blocks(report.garbage_blocks);
  view.set_garbage_bytes(report.garbage_bytes);
  view.set_packs_scanned(report.packs_scanned);
  view.set_packs_rewritten(report.packs_rewritten);
  view.set_packs_removed(report.packs_removed);
  view.set_packs_without_room(report.packs_without_room);
  view.set_freed_bytes(report.freed_bytes);
  view.set_trash_bytes(report.trash_bytes);
  view.set_packs_damaged(report.packs_damaged);
  return view;
}

host::CheckInfo ToView(const CheckReport& report, size_t max_damages) {
  host::CheckInfo view;
  const size_t shown = std::min(max_damages, report.damages.size());
  for (size_t i = 0; i < shown; ++i) {
    const Damage& damage = report.damages[i];
    auto& entry = *view.add_damages();
    entry.set_structure(damage.structure);
    entry.set_where(ToUtf8(damage.where));
    entry.set_what(ToUtf8(damage.what));
    for (const std::string& owner : damage.owners) entry.add_owners(ToUtf8(owner));
  }
  view.set_damages_left_off(report.damages.size() - shown);
  view.set_records(report.records);
  view.set_roots(report.roots);
  view.set_blocks(report.blocks);
  view.set_packs(report.packs);
  view.set_journals(report.journals);
  view.set_bytes(report.bytes);
  view.set_live_bytes(report.live_bytes);
  view.set_garbage_bytes(report.garbage_bytes);
  if (report.index.packs_total > 0) {
    auto& index = *view.mutable_index();
    index.set_packs(report.index.packs);
    index.set_packs_total(report.index.packs_total);
    index.set_blocks(report.index.blocks);
    for (const auto& left_out : report.index.left_out) {
      auto& entry = *index.add_left_out();
      entry.set_where(ToUtf8(left_out.where));
      entry.set_why(ToUtf8(left_out.why));
    }
  }
  return view;
}

host::CheckProgressInfo ToView(const CheckProgress& progress) {
  host::CheckProgressInfo view;
  view.set_phase(progress.phase);
  view.set_done(progress.done);
  view.set_total(progress.total);
  view.set_blocks(progress.blocks);
  return view;
}

std::string ScrubStateName(ScrubReport::State state) {
  switch (state) {
    case ScrubReport::State::kNever:
      return "never";
    case ScrubReport::State::kRunning:
      return "running";
    case ScrubReport::State::kStopped:
      return "stopped";
    case ScrubReport::State::kFinished:
      return "finished";
  }
  return "";
}

host::ScrubInfo ToView(const ScrubReport& report) {
  host::ScrubInfo view;
  const catalog::ScrubPass& pass = report.pass;
  view.set_state(ScrubStateName(report.state));
  view.set_pass(pass.number());
  view.set_started_ms(pass.started_ms());
  view.set_ended_ms(pass.ended_ms());
  view.set_rate_bytes(report.rate_bytes);
  view.set_packs(pass.packs());
  view.set_packs_total(report.pack_count);
  view.set_blocks(pass.blocks());
  view.set_bytes(pass.bytes());
  view.set_damaged_blocks(pass.damaged_blocks());
  view.set_damaged_garbage(pass.damaged_garbage());
  view.set_unverified_packs(pass.unverified_packs());
  for (const ScrubReport::Finding& finding : report.findings) {
    auto& entry = *view.add_findings();
    entry.set_where(ToUtf8(finding.where));
    entry.set_what(ToUtf8(finding.what));
    for (const std::string& owner : finding.owners) entry.add_owners(ToUtf8(owner));
    entry.set_resolved(finding.resolved);
  }
  view.set_findings_left_off(pass.findings_left_off());
  view.set_owners_known(report.owners_known);
  view.set_last_pass(report.last.number());
  view.set_last_ended_ms(report.last.ended_ms());
  view.set_last_bytes(report.last.bytes());
  view.set_last_damaged_blocks(report.last.damaged_blocks());
  view.set_quarantined_blocks(report.quarantine.blocks);
  view.set_quarantined_packs(report.quarantine.packs);
  return view;
}

host::ReapInfo ToView(const ReapPlan& plan) {
  host::ReapInfo view;
  for (const PlanItem& item : plan.items) {
    auto& entry = *view.add_items();
    entry.set_object_class(item.object_class);
    entry.set_id(item.id);
    entry.set_condemned(item.condemned);
    entry.set_rule(item.rule);
  }
  for (const auto& [object_class, count] : plan.scanned)
    (*view.mutable_scanned())[object_class] = count;
  return view;
}

host::CallError ToCallError(const Refusal& refusal) {
  host::CallError error;
  error.set_code(std::string(ErrorCodeName(refusal.error().code())));
  error.set_reason(ToUtf8(refusal.code()));
  std::string message = refusal.message().empty()
                            ? std::string(ErrorCodeName(refusal.error().code()))
                            : refusal.message();
  // The reason, for those texts that name only what was tried.
  if (refusal.error().sys_errno() != 0) {
    const std::string reason = std::strerror(refusal.error().sys_errno());
    if (message.find(reason) == std::string::npos) message += ": " + reason;
  }
  error.set_message(ToUtf8(message));
  for (const std::string& id : refusal.blocking()) error.add_blocking(ToUtf8(id));
  return error;
}

}  // namespace cairn
