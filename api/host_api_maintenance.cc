// Calls of the host protocol that act on the whole store: organizations, base images, reaper,
// collector, check, numbers. And umount, which finds its organization by the mount.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "api/control.h"
#include "api/host_api.h"
#include "api/host_frame.h"
#include "api/host_views.h"
#include "api/tree_transfer.h"
#include "catalog/ids.h"
#include "catalog/records.h"

namespace cairn {
namespace {

constexpr size_t kMaxDamages = 10000;
constexpr size_t kMaxPlanItems = 50000;

}  // namespace

host::HostResponse HostApi::Handle(const host::HostRequest& request) {
  Answer answer = Dispatch(request);
  if (answer) return *std::move(answer);
  host::HostResponse response;
  *response.mutable_error() = ToCallError(answer.error());
  return response;
}

HostApi::Answer HostApi::Dispatch(const host::HostRequest& request) {
  bool handled = true;
  Answer answer = Maintain(request, &handled);
  if (handled) return answer;
  const std::string org = CAIRN_TRY(ResolveOrganization(services_, request.org()));
  return CallFor(org, request);
}

HostApi::Answer HostApi::Maintain(const host::HostRequest& request, bool* handled) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kOrgCreate:
      if (request.org_create().name().empty()) {
        return Err(ErrorCode::kInvalidArgument, "the organization's name is empty: give it one");
      }
      *response.mutable_organization() =
          ToView(CAIRN_TRY(CreateOrganization(services_, request.org_create().name())));
      return response;
    case Call::kOrgList: {
      const auto organizations = CAIRN_TRY(services_.registry.ListOrganizations());
      response.mutable_organizations();
      for (const auto& organization : organizations)
        *response.mutable_organizations()->add_data() = ToView(organization);
      return response;
    }
    case Call::kOrgShow:
      *response.mutable_organization() =
          ToView(CAIRN_TRY(services_.registry.GetOrganization(request.org_show().id())));
      return response;
    case Call::kOrgDelete: {
      const auto& call = request.org_delete();
      if (call.confirm() != call.id())
        return Err(ErrorCode::kInvalidArgument,
                   "the confirmation is not the organization's id: --confirm ORG");
      const auto deleted = CAIRN_TRY(DeleteOrganization(services_, call.id(), call.force()));
      response.mutable_done()->set_id(deleted.id());
      response.mutable_done()->set_state("deleted");
      return response;
    }
    case Call::kOrgRotateKey: {
      host::KeyRotation& rotation = *response.mutable_key_rotation();
      rotation.set_id(request.org_rotate_key().id());
      rotation.set_key_id(CAIRN_TRY(services_.rotate_key(request.org_rotate_key().id())));
      rotation.set_state("rotated");
      return response;
    }
    case Call::kKeyRotateMaster: {
      const auto& call = request.key_rotate_master();
      const auto outcome =
          CAIRN_TRY(call.finish() ? services_.master_rotation.Finish()
                                  : services_.master_rotation.Rotate(call.new_key_path()));
      response.mutable_key_rotation()->set_id("master");
      response.mutable_key_rotation()->set_state(
          outcome == MasterRotation::Outcome::kRotated ? "rotated" : "pending");
      return response;
    }
    case Call::kBaseImport:
    case Call::kBaseList:
    case Call::kBaseShow:
    case Call::kBaseDelete:
      return BaseCall(request);
    case Call::kUmount:
      return Unmount(request.org(), request.umount());
    case Call::kReap: {
      const int64_t now_ms = services_.clock.NowMs();
      const ReapPlan plan = CAIRN_TRY(services_.reaper.Plan(now_ms));
      host::ReapInfo& info = *response.mutable_reap();
      if (request.reap().dry_run()) {
        // What goes comes first, so that a shortened plan shows it.
        ReapPlan shown{.items = {}, .scanned = plan.scanned};
        for (const bool condemned : {true, false}) {
          for (const PlanItem& item : plan.items) {
            if (item.condemned == condemned && shown.items.size() < kMaxPlanItems)
              shown.items.push_back(item);
          }
        }
        info = ToView(shown);
        info.set_dry_run(true);
        info.set_removed(static_cast<uint64_t>(
            std::count_if(plan.items.begin(), plan.items.end(),
                          [](const PlanItem& item) { return item.condemned; })));
        info.set_kept(plan.items.size() - info.removed());
        return response;
      }
      CAIRN_TRY(services_.removal.Resume());
      const ReapReport report = CAIRN_TRY(services_.reaper.Execute(plan, now_ms));
      for (const auto& [object_class, count] : plan.scanned)
        (*info.mutable_scanned())[object_class] = count;
      info.set_removed(report.removed);
      info.set_kept(report.kept);
      info.set_failed(report.failed);
      for (const std::string& failure : report.failures) info.add_failures(failure);
      return response;
    }
    case Call::kCollect: {
      const CollectOptions options{.now = request.collect().now(),
                                   .dry_run = request.collect().dry_run()};
      // What was deleted in a mount is garbage only once it is sealed.
      if (options.now && !options.dry_run) {
        IgnoreError(services_.volumes.SealEverything(),
                    "it is logged, and what is not sealed is kept");
      }
      *response.mutable_collect() = ToView(CAIRN_TRY(services_.collector.Collect(options)));
      response.mutable_collect()->set_dry_run(options.dry_run);
      return response;
    }
    case Call::kCheck:
      *response.mutable_check() =
          ToView(CAIRN_TRY(services_.check(request.check().rebuild_index())), kMaxDamages);
      return response;
    case Call::kCheckProgress:
      *response.mutable_check_progress() = ToView(services_.check_progress());
      return response;
    case Call::kScrub:
      *response.mutable_scrub() = ToView(
          CAIRN_TRY(services_.scrub(request.scrub().action(), request.scrub().rate_bytes())));
      return response;
    case Call::kMakeBackup: {
      const auto report =
          CAIRN_TRY(services_.backup({.destination = request.make_backup().destination(),
                                      .with_master_key = request.make_backup().with_master_key()}));
      host::BackupInfo& info = *response.mutable_backup();
      info.set_path(report.path);
      info.set_files(report.files);
      info.set_total_bytes(report.bytes);
      info.set_packs_copied(report.packs_copied);
      info.set_packs_linked(report.packs_linked);
      info.set_packs_kept(report.packs_kept);
      info.set_copied_bytes(report.copied_bytes);
      return response;
    }
    case Call::kStats:
      return Stats();
    case Call::kPing:
      response.mutable_pong()->set_version(kHostProtocolVersion);
      response.mutable_pong()->set_program_version(services_.stats().version());
      response.mutable_pong()->set_pid(static_cast<uint64_t>(::getpid()));
      if (services_.describe) services_.describe(*response.mutable_pong());
      return response;
    case Call::kUpgrade:
      *response.mutable_upgrade() = CAIRN_TRY(services_.upgrade(request.upgrade()));
      return response;
    default:
      *handled = false;
      return response;
  }
}

HostApi::Answer HostApi::BaseCall(const host::HostRequest& request) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kBaseImport: {
      const auto& call = request.base_import();
      CAIRN_TRY(CheckHostPath(call.source()));
      TransferCounts counts;
      const auto image =
          CAIRN_TRY(services_.base_images.Import(call.name(), [&](Volume& volume) -> Status {
            counts = CAIRN_TRY(ImportTree(call.source(), volume, "/"));
            return {};
          }));
      *response.mutable_base_image() = ToView(image);
      *response.mutable_base_image()->mutable_transfer() = ToView(counts);
      return response;
    }
    case Call::kBaseList: {
      const auto all = CAIRN_TRY(services_.registry.ListBaseImages());
      response.mutable_base_images();
      for (const auto& image : all) *response.mutable_base_images()->add_data() = ToView(image);
      return response;
    }
    case Call::kBaseShow:
      *response.mutable_base_image() =
          ToView(CAIRN_TRY(services_.registry.GetBaseImage(request.base_show().name())));
      return response;
    case Call::kBaseDelete: {
      const auto deleted =
          CAIRN_TRY(services_.registry.DeleteBaseImage(request.base_delete().name()));
      response.mutable_done()->set_id(deleted.id());
      response.mutable_done()->set_state("deleted");
      return response;
    }
    default:
      return Err(ErrorCode::kInternal, "not a call on base images");
  }
}

HostApi::Answer HostApi::Stats() {
  host::HostResponse response;
  host::StatsInfo& info = *response.mutable_stats();
  info = services_.stats();
  const auto organizations = CAIRN_TRY(services_.registry.ListOrganizations());
  info.set_organizations(organizations.size());
  uint64_t environments = 0, sessions = 0, snapshots = 0;
  for (const auto& organization : organizations) {
    environments += CAIRN_TRY(AllEnvironments(services_, organization.id())).size();
    sessions += CAIRN_TRY(AllSessions(services_, organization.id())).size();
    snapshots += CAIRN_TRY(services_.snapshots.List(organization.id(), {})).size();
  }
  info.set_environments(environments);
  info.set_sessions(sessions);
  info.set_snapshots(snapshots);
  info.set_mounts(services_.mounts().size());
  return response;
}

HostApi::Answer HostApi::Unmount(const std::string& requested_org, const host::Umount& call) {
  std::string org, env, dir;
  if (call.target().starts_with('/')) {
    for (const LiveMount& mount : services_.mounts()) {
      if (mount.dir != call.target()) continue;
      const auto volume = CAIRN_TRY(GetRecord<catalog::Volume>(services_.registry.catalog(),
                                                               keys::Volume(mount.volume.view())));
      if (!volume)
        return Err(ErrorCode::kDataLoss,
                   fmt::format("the volume that is mounted at {} has no record", call.target()));
      org = volume->org();
      env = volume->env();
      dir = mount.dir;
    }
    if (env.empty() || (!requested_org.empty() && requested_org != org)) {
      return Err(ErrorCode::kNotFound,
                 fmt::format("no Environment is mounted at {}", call.target()));
    }
  } else {
    org = CAIRN_TRY(ResolveOrganization(services_, requested_org));
    env = call.target();
    dir = CAIRN_TRY(services_.volumes.MountedAt(org, env));
  }
  CAIRN_TRY(services_.volumes.Unmount(org, env, call.force()));
  host::HostResponse response;
  response.mutable_mount()->set_env(env);
  response.mutable_mount()->set_dir(dir);
  response.mutable_mount()->set_mounted(false);
  return response;
}

}  // namespace cairn
