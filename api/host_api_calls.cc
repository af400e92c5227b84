// Calls of the host protocol within one organization. Each is a registry or service call and a view
// of its answer.
#include <fmt/format.h>

#include <algorithm>

#include "api/control.h"
#include "api/host_api.h"
#include "api/host_path.h"
#include "api/host_views.h"
#include "api/tree_transfer.h"
#include "catalog/ids.h"
#include "catalog/operations.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxChunkBytes = 8u << 20;

host::HostResponse DoneWith(const std::string& id, const std::string& state,
                            const std::vector<std::string>& held = {}) {
  host::HostResponse response;
  response.mutable_done()->set_id(id);
  response.mutable_done()->set_state(state);
  for (const std::string& other : held) response.mutable_done()->add_held(other);
  return response;
}

constexpr size_t kMaxNameBytes =
    256;  // of what people call things; files have a limit of their own

Status CheckName(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("the name has {} bytes: at most {} are kept", name.size(), kMaxNameBytes));
}

// A key that is dead from the start is a mistake: seconds instead of milliseconds, mostly.
Status CheckExpiry(int64_t expires_ms, int64_t now_ms) {
  if (expires_ms == 0 || expires_ms > now_ms) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("the expiry {} is past: give milliseconds since 1970, it is {} now",
                         expires_ms, now_ms));
}

}  // namespace

HostApi::Answer HostApi::CallFor(const std::string& org, const host::HostRequest& request) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kKeyCreate: {
      CAIRN_TRY(CheckName(request.key_create().name()));
      CAIRN_TRY(CheckExpiry(request.key_create().expires_ms(), services_.clock.NowMs()));
      const NewApiKey key = CAIRN_TRY(services_.registry.CreateApiKey(
          org, request.key_create().name(), request.key_create().expires_ms()));
      *response.mutable_key() = ToView(key.record);
      response.mutable_key()->set_secret(key.secret);
      return response;
    }
    case Call::kKeyList: {
      const auto all = CAIRN_TRY(services_.registry.ListApiKeys(org));
      response.mutable_keys();
      for (const auto& key : all) *response.mutable_keys()->add_data() = ToView(key);
      return response;
    }
    case Call::kKeyRevoke:
      return DoneWith(
          CAIRN_TRY(services_.registry.RevokeApiKey(org, request.key_revoke().id())).id(),
          "revoked");
    case Call::kEnvCreate:
    case Call::kEnvList:
    case Call::kEnvShow:
    case Call::kEnvDelete:
    case Call::kEnvImport:
    case Call::kEnvExport:
    case Call::kMount:
      return EnvCall(org, request);
    case Call::kSessionCreate:
    case Call::kSessionShow:
    case Call::kSessionDelete:
    case Call::kSessionList:
    case Call::kTurnStart:
    case Call::kTurnEnd:
    case Call::kTurnShow:
      return SessionCall(org, request);
    case Call::kArtifactList:
    case Call::kArtifactRead:
    case Call::kArtifactDelete:
      return ArtifactCall(org, request);
    case Call::kSnapshotCreate:
    case Call::kSnapshotList:
    case Call::kSnapshotShow:
    case Call::kSnapshotDelete:
    case Call::kFork:
    case Call::kPause:
    case Call::kResume:
      return SnapshotCall(org, request);
    case Call::kOperationShow:
      *response.mutable_operation() = cairn::ToView(CAIRN_TRY(
          GetOperation(services_.registry.catalog(), org, request.operation_show().id())));
      return response;
    default:
      return std::unexpected(Refusal(ErrorCode::kInvalidArgument, "unsupported_call",
                                     "this daemon does not know the call"));
  }
}

Ruled<host::EnvironmentInfo> HostApi::DescribeEnvironment(const std::string& org,
                                                          const catalog::Environment& env) {
  host::EnvironmentInfo view = cairn::ToView(env);
  const auto sessions = CAIRN_TRY(ActiveSessions(services_, org, env.id()));
  for (const std::string& session : sessions) view.add_sessions(session);
  // A deleted one has neither.
  if (const auto dir = services_.volumes.MountedAt(org, env.id())) view.set_mounted_at(*dir);
  return view;
}

HostApi::Answer HostApi::EnvCall(const std::string& org, const host::HostRequest& request) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kEnvCreate: {
      const auto& call = request.env_create();
      CAIRN_TRY(CheckName(call.name()));
      EnvironmentSpec spec;
      spec.name = call.name();
      spec.workspace_uid = call.workspace_uid();
      spec.workspace_gid = call.workspace_gid();
      spec.quota_bytes = call.quota_bytes();
      spec.quota_inodes = call.quota_inodes();
      spec.base = call.base();
      const auto created = CAIRN_TRY(services_.registry.CreateEnvironment(org, spec));
      *response.mutable_environment() = cairn::ToView(created.record);
      return response;
    }
    case Call::kEnvList: {
      const auto all = CAIRN_TRY(AllEnvironments(services_, org));
      response.mutable_environments();
      for (const auto& env : all)
        *response.mutable_environments()->add_data() = CAIRN_TRY(DescribeEnvironment(org, env));
      return response;
    }
    case Call::kEnvShow: {
      const auto env =
          CAIRN_TRY(services_.registry.GetEnvironment(org, request.env_show().id(), true));
      *response.mutable_environment() = CAIRN_TRY(DescribeEnvironment(org, env));
      // Only where there is a volume: asking must not be a first use.
      if (!env.volume().empty() &&
          (env.state() == catalog::ENV_READY || env.state() == catalog::ENV_SUSPENDED)) {
        if (const auto status = services_.volumes.StatusOf(org, env.id()))
          *response.mutable_environment()->mutable_volume() = cairn::ToView(*status);
      }
      return response;
    }
    case Call::kEnvDelete: {
      const auto& call = request.env_delete();
      if (call.confirm() != call.id())
        return Err(ErrorCode::kInvalidArgument,
                   "the confirmation is not the Environment's id: --confirm ENV");
      const auto receipt = CAIRN_TRY(DeleteEnvironment(services_, org, call.id()));
      return DoneWith(call.id(), "deleted", receipt.held_snapshots);
    }
    case Call::kEnvImport: {
      const auto& call = request.env_import();
      CAIRN_TRY(CheckHostPath(call.source()));
      CAIRN_TRY(services_.volumes.Import(org, call.env(), [&](Volume& volume) -> Status {
        *response.mutable_transfer() =
            cairn::ToView(CAIRN_TRY(ImportTree(call.source(), volume, call.path())));
        return {};
      }));
      return response;
    }
    case Call::kEnvExport: {
      const auto& call = request.env_export();
      CAIRN_TRY(CheckHostPath(call.target()));
      const FsView view = CAIRN_TRY(ViewOfSource(org, call.env()));
      *response.mutable_transfer() =
          cairn::ToView(CAIRN_TRY(ExportTree(view, call.path(), call.target())));
      return response;
    }
    case Call::kMount: {
      const auto& call = request.mount();
      if (!call.dir().starts_with('/'))
        return Err(ErrorCode::kInvalidArgument, "the mount's directory must be an absolute path");
      const MountOptions options{.allow_suid = call.suid(),
                                 .allow_dev = call.dev(),
                                 .read_only = call.read_only(),
                                 .writeback_cache = !call.no_writeback()};
      CAIRN_TRY(services_.volumes.Mount(org, call.env(), call.dir(), options));
      response.mutable_mount()->set_env(call.env());
      response.mutable_mount()->set_dir(call.dir());
      response.mutable_mount()->set_mounted(true);
      return response;
    }
    default:
      return Err(ErrorCode::kInternal, "not a call on an Environment");
  }
}

Status HostApi::CheckHostPath(const std::string& path) {
  CAIRN_TRY(RefuseFusePath(path));
  return RefuseDataDirectory(path, services_.data_dir);
}

Result<FsView> HostApi::ViewOfSource(const std::string& org, const std::string& source) {
  if (!IsId(source, kSnapshotPrefix)) return services_.volumes.ViewNow(org, source);
  const auto snapshot = CAIRN_TRY(services_.snapshots.Get(org, source));
  return services_.volumes.ViewOf(snapshot.point());
}

HostApi::Answer HostApi::SessionCall(const std::string& org, const host::HostRequest& request) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kSessionCreate: {
      SessionSpec spec;
      spec.attach_to = request.session_create().env();
      for (const auto& [name, value] : request.session_create().metadata())
        spec.metadata[name] = value;
      const auto created = CAIRN_TRY(services_.registry.CreateSession(org, spec));
      *response.mutable_session() = cairn::ToView(created.record);
      return response;
    }
    case Call::kSessionShow:
      *response.mutable_session() =
          cairn::ToView(CAIRN_TRY(services_.registry.GetSession(org, request.session_show().id())));
      return response;
    case Call::kSessionList: {
      const auto all = CAIRN_TRY(AllSessions(services_, org));
      response.mutable_sessions();
      for (const auto& session : all)
        *response.mutable_sessions()->add_data() = cairn::ToView(session);
      return response;
    }
    case Call::kSessionDelete: {
      CAIRN_TRY(DeleteSession(services_, org, request.session_delete().id()));
      return DoneWith(request.session_delete().id(), "deleted");
    }
    case Call::kTurnStart:
      *response.mutable_turn() = cairn::ToView(
          CAIRN_TRY(services_.registry.StartTurn(org, request.turn_start().session())).record);
      return response;
    case Call::kTurnEnd: {
      const auto& call = request.turn_end();
      if (call.outcome() == host::COMPLETED) {
        *response.mutable_turn() =
            cairn::ToView(CAIRN_TRY(services_.publisher.CompleteTurn(org, call.turn())));
      } else {
        const auto status =
            call.outcome() == host::FAILED ? catalog::TURN_FAILED : catalog::TURN_CANCELLED;
        *response.mutable_turn() = cairn::ToView(
            CAIRN_TRY(services_.registry.EndTurn(org, call.turn(), status, call.failure())));
      }
      return response;
    }
    case Call::kTurnShow:
      *response.mutable_turn() =
          cairn::ToView(CAIRN_TRY(services_.publisher.Report(org, request.turn_show().turn())));
      return response;
    default:
      return Err(ErrorCode::kInternal, "not a call on a Session");
  }
}

HostApi::Answer HostApi::ArtifactCall(const std::string& org, const host::HostRequest& request) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kArtifactList: {
      CAIRN_TRY(services_.registry.GetSession(org, request.artifact_list().session()));
      const auto all = CAIRN_TRY(services_.publisher.List(org, request.artifact_list().session()));
      response.mutable_artifacts();
      for (const auto& artifact : all)
        *response.mutable_artifacts()->add_data() = cairn::ToView(artifact);
      return response;
    }
    case Call::kArtifactRead:
      return ReadArtifact(org, request.artifact_read());
    case Call::kArtifactDelete: {
      const auto& call = request.artifact_delete();
      const std::string session =
          call.session().empty() ? CAIRN_TRY(SessionOfArtifact(services_, org, call.artifact()))
                                 : call.session();
      CAIRN_TRY(services_.publisher.Delete(org, session, call.artifact()));
      return DoneWith(call.artifact(), "deleted");
    }
    default:
      return Err(ErrorCode::kInternal, "not a call on an Artifact");
  }
}

HostApi::Answer HostApi::ReadArtifact(const std::string& org, const host::ArtifactRead& call) {
  const std::string session = call.session().empty()
                                  ? CAIRN_TRY(SessionOfArtifact(services_, org, call.artifact()))
                                  : call.session();
  const auto reader = CAIRN_TRY(services_.publisher.Open(org, session, call.artifact()));
  const uint64_t size = reader->info().record.size_bytes();
  if (call.offset() > size)
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the offset is beyond the Artifact's {} bytes", size));
  host::HostResponse response;
  host::ArtifactChunk& chunk = *response.mutable_chunk();
  *chunk.mutable_artifact() = cairn::ToView(reader->info());
  const uint64_t length = std::min({call.length_bytes(), kMaxChunkBytes, size - call.offset()});
  std::string& data = *chunk.mutable_data();
  data.resize(length);
  size_t done = 0;
  while (done < data.size()) {
    const size_t got =
        CAIRN_TRY(reader->Read(call.offset() + done, {data.data() + done, data.size() - done}));
    if (got == 0)
      return Err(ErrorCode::kDataLoss,
                 fmt::format("{} is shorter than its record says", call.artifact()));
    done += got;
  }
  chunk.set_end(call.offset() + length == size);
  return response;
}

HostApi::Answer HostApi::SnapshotCall(const std::string& org, const host::HostRequest& request) {
  using Call = host::HostRequest;
  host::HostResponse response;
  switch (request.call_case()) {
    case Call::kSnapshotCreate: {
      const auto& call = request.snapshot_create();
      CAIRN_TRY(CheckName(call.name()));
      std::map<std::string, std::string> labels;
      for (const auto& [name, value] : call.labels()) labels[name] = value;
      *response.mutable_snapshot() = cairn::ToView(CAIRN_TRY(
          services_.snapshots.Create(org, call.env(), call.name(), labels, call.operation())));
      return response;
    }
    case Call::kSnapshotList: {
      const auto all = CAIRN_TRY(services_.snapshots.List(org, request.snapshot_list().env()));
      response.mutable_snapshots();
      for (const auto& snapshot : all)
        *response.mutable_snapshots()->add_data() = cairn::ToView(snapshot);
      return response;
    }
    case Call::kSnapshotShow:
      *response.mutable_snapshot() =
          cairn::ToView(CAIRN_TRY(services_.snapshots.Get(org, request.snapshot_show().id())));
      return response;
    case Call::kSnapshotDelete:
      CAIRN_TRY(services_.snapshots.Delete(org, request.snapshot_delete().id()));
      return DoneWith(request.snapshot_delete().id(), "deleted");
    case Call::kFork: {
      const auto& call = request.fork();
      CAIRN_TRY(CheckName(call.name()));
      *response.mutable_environment() = cairn::ToView(CAIRN_TRY(services_.snapshots.Fork(
          org, call.source(), call.name(), call.with_memory(), call.operation())));
      return response;
    }
    case Call::kPause: {
      const auto& call = request.pause();
      CAIRN_TRY(CheckName(call.name()));
      CAIRN_TRY(CheckHostPath(call.memory_path()));
      CAIRN_TRY(CheckHostPath(call.vmstate_path()));
      PauseRequest pause{.memory_path = call.memory_path(),
                         .vmstate_path = call.vmstate_path(),
                         .vmm = {},
                         .name = call.name()};
      pause.vmm.set_driver("external");
      pause.vmm.set_version(call.vmm_version());
      pause.vmm.set_machine_type(call.machine_type());
      *response.mutable_snapshot() =
          cairn::ToView(CAIRN_TRY(services_.snapshots.Pause(org, call.env(), pause)));
      return response;
    }
    case Call::kResume: {
      const auto& call = request.resume();
      for (const std::string& path : {call.memory_path(), call.vmstate_path()}) {
        if (!path.empty()) CAIRN_TRY(CheckHostPath(path));
      }
      const ResumeRequest resume{.memory_path = call.memory_path(),
                                 .vmstate_path = call.vmstate_path(),
                                 .snapshot = call.snapshot(),
                                 .allow_older = call.allow_older(),
                                 .disk_only = call.disk_only()};
      const ResumeResult result = CAIRN_TRY(services_.snapshots.Resume(org, call.env(), resume));
      host::ResumeInfo& info = *response.mutable_resumed();
      *info.mutable_snapshot() = cairn::ToView(result.snapshot);
      info.set_vm_generation_id(result.vm_generation_id);
      info.set_restore_count(result.restore_count);
      info.set_host_time_ms(result.host_time_ms);
      return response;
    }
    default:
      return Err(ErrorCode::kInternal, "not a call on a snapshot");
  }
}

}  // namespace cairn
