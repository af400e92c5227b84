// The verbs of the cairn command, each declared once (cmd/verb.h). Host paths are made absolute
// here, because the daemon has another working directory.
#include "cmd/cairn_commands.h"

#include <limits.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>

#include "cmd/verb.h"

namespace cairn {
namespace {

using google::protobuf::Message;

const Columns kOrganizationColumns = {"id", "name", "created_ms", "deleted"};
const Columns kKeyColumns = {"id", "name", "created_ms", "expires_ms", "revoked"};
const Columns kEnvironmentColumns = {"id",       "name",       "state",     "lifetime",
                                     "sessions", "mounted_at", "created_ms"};
const Columns kBaseImageColumns = {"name", "state", "inodes", "logical_bytes", "created_ms", "id"};
const Columns kSessionColumns = {"id", "status", "env", "active_turn", "created_ms"};
const Columns kArtifactColumns = {"id", "size_bytes", "turn", "path", "created_ms"};
const Columns kSnapshotColumns = {"id", "name", "env", "durability", "has_memory", "created_ms"};

void AddOrganizations(CLI::App& app, CommandContext& context) {
  CLI::App* org = Group(app, "org", "organizations");
  {
    Request r = NewRequest();
    CLI::App* verb = org->add_subcommand("create", "make an organization, with keys of its own");
    Argument(verb, "NAME", r, r->mutable_org_create()->mutable_name(), "its name");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_org_list();
    Sends(org->add_subcommand("list", "all organizations"), context, r,
          Table(kOrganizationColumns));
  }
  {
    Request r = NewRequest();
    CLI::App* verb = org->add_subcommand("show", "one organization");
    Argument(verb, "ORG", r, r->mutable_org_show()->mutable_id(), "org_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = org->add_subcommand(
        "delete", "destroy an organization's keys: nothing of it can be read again");
    Argument(verb, "ORG", r, r->mutable_org_delete()->mutable_id(), "org_...");
    Text(verb, "--confirm", r, r->mutable_org_delete()->mutable_confirm(), "the same id again")
        ->required();
    Flag(
        verb, "--force", r, [](host::HostRequest& q) { q.mutable_org_delete()->set_force(true); },
        "although its Environments are mounted: unmounts them");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = org->add_subcommand(
        "rotate-key",
        "wrap what is written from now on by a new version of the organization's key");
    Argument(verb, "ORG", r, r->mutable_org_rotate_key()->mutable_id(), "org_...");
    Sends(verb, context, r, Record());
  }
  CLI::App* key = Group(app, "key", "API keys of an organization, and the master key");
  {
    Request r = NewRequest();
    r->mutable_key_create();
    CLI::App* verb =
        key->add_subcommand("create", "make an API key; its secret is shown this once");
    Text(verb, "--name", r, r->mutable_key_create()->mutable_name(), "what it is for");
    Number(
        verb, "--expires-ms", r,
        [](host::HostRequest& q, uint64_t v) {
          q.mutable_key_create()->set_expires_ms(static_cast<int64_t>(v));
        },
        "milliseconds since 1970; never when left out");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_key_list();
    Sends(key->add_subcommand("list", "API keys, without their secrets"), context, r,
          Table(kKeyColumns));
  }
  {
    Request r = NewRequest();
    CLI::App* verb = key->add_subcommand("revoke", "end an API key at once");
    Argument(verb, "KEY", r, r->mutable_key_revoke()->mutable_id(), "key_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_key_rotate_master();
    CLI::App* verb = key->add_subcommand(
        "rotate-master", "another master key for the whole data directory; no data is rewritten");
    CLI::Option* file = verb->add_option_function<std::string>(
        "--new-key", PathInto(r, call->mutable_new_key_path()),
        "file with the new key, when its source is yours to change; else the daemon makes one");
    Flag(
        verb, "--finish", r,
        [](host::HostRequest& q) { q.mutable_key_rotate_master()->set_finish(true); },
        "end a pending rotation: the key's source gives the new one now")
        ->excludes(file);
    Sends(verb, context, r, Record());
  }
}

void AddEnvironments(CLI::App& app, CommandContext& context) {
  CLI::App* env = Group(app, "env", "Environments");
  {
    Request r = NewRequest();
    auto* call = r->mutable_env_create();
    CLI::App* verb =
        env->add_subcommand("create", "make a standalone Environment; space is taken at first use");
    Text(verb, "--name", r, call->mutable_name(), "its name");
    Number(
        verb, "--uid", r,
        [](host::HostRequest& q, uint64_t v) {
          q.mutable_env_create()->set_workspace_uid(static_cast<uint32_t>(v));
        },
        "owner of /workspace (0)")
        ->check(CLI::Range(uint64_t{0}, uint64_t{0xfffffffe}));
    Number(
        verb, "--gid", r,
        [](host::HostRequest& q, uint64_t v) {
          q.mutable_env_create()->set_workspace_gid(static_cast<uint32_t>(v));
        },
        "group of /workspace (0)")
        ->check(CLI::Range(uint64_t{0}, uint64_t{0xfffffffe}));
    Number(
        verb, "--quota-bytes", r,
        [](host::HostRequest& q, uint64_t v) { q.mutable_env_create()->set_quota_bytes(v); },
        "0: none");
    Number(
        verb, "--quota-inodes", r,
        [](host::HostRequest& q, uint64_t v) { q.mutable_env_create()->set_quota_inodes(v); },
        "0: none");
    Text(verb, "--base", r, call->mutable_base(), "name of a base image that its files start as");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_env_list();
    Sends(env->add_subcommand("list", "all Environments"), context, r, Table(kEnvironmentColumns));
  }
  {
    Request r = NewRequest();
    CLI::App* verb = env->add_subcommand("show", "one Environment");
    Argument(verb, "ENV", r, r->mutable_env_show()->mutable_id(), "env_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = env->add_subcommand("delete", "delete an Environment and its snapshots");
    Argument(verb, "ENV", r, r->mutable_env_delete()->mutable_id(), "env_...");
    Text(verb, "--confirm", r, r->mutable_env_delete()->mutable_confirm(), "the same id again")
        ->required();
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_env_import();
    CLI::App* verb = env->add_subcommand(
        "import", "copy a host directory into an Environment that is not mounted");
    Argument(verb, "ENV", r, call->mutable_env(), "env_...");
    PathArgument(verb, "DIR", r, call->mutable_source(), "host directory: its contents are copied");
    call->set_path("/workspace");
    Text(verb, "--path", r, call->mutable_path(), "directory inside the Environment (/workspace)");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_env_export();
    CLI::App* verb = env->add_subcommand(
        "export", "copy the files of an Environment or a snapshot to a host directory");
    Argument(verb, "SOURCE", r, call->mutable_env(), "env_... or snap_...");
    PathArgument(verb, "DIR", r, call->mutable_target(), "host directory: made, or empty");
    call->set_path("/");
    Text(verb, "--path", r, call->mutable_path(), "directory inside the Environment (/)");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_mount();
    CLI::App* verb = app.add_subcommand("mount", "mount an Environment's filesystem");
    Argument(verb, "ENV", r, call->mutable_env(), "env_...");
    PathArgument(verb, "DIR", r, call->mutable_dir(), "an existing directory");
    Flag(
        verb, "--suid", r, [](host::HostRequest& q) { q.mutable_mount()->set_suid(true); },
        "honour setuid bits");
    Flag(
        verb, "--dev", r, [](host::HostRequest& q) { q.mutable_mount()->set_dev(true); },
        "honour device files");
    Flag(
        verb, "--ro", r, [](host::HostRequest& q) { q.mutable_mount()->set_read_only(true); },
        "read-only");
    Flag(
        verb, "--no-writeback", r,
        [](host::HostRequest& q) { q.mutable_mount()->set_no_writeback(true); },
        "no writeback cache in the kernel");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = app.add_subcommand("umount", "unmount an Environment");
    verb->add_option_function<std::string>(
            "TARGET",
            [r](const std::string& value) {
              r->mutable_umount()->set_target(value.starts_with("env_") &&
                                                      value.find('/') == std::string::npos
                                                  ? value
                                                  : AbsolutePath(value));
            },
            "env_..., or the directory it is mounted at")
        ->required();
    Flag(
        verb, "--force", r, [](host::HostRequest& q) { q.mutable_umount()->set_force(true); },
        "detach it although it is in use");
    Sends(verb, context, r, Record());
  }
}

void AddBaseImages(CLI::App& app, CommandContext& context) {
  CLI::App* base =
      Group(app, "base", "base images, which Environments of every organization may start from");
  {
    Request r = NewRequest();
    auto* call = r->mutable_base_import();
    CLI::App* verb = base->add_subcommand("import", "make a host directory a base image");
    PathArgument(verb, "DIR", r, call->mutable_source(), "host directory: its contents are copied");
    Text(verb, "--name", r, call->mutable_name(), "its name, which no other has")->required();
    Sends(verb, context, r, [](const Message& message) {
      PrintRecord(message);
      PrintRecord(static_cast<const host::BaseImageInfo&>(message).transfer());
      return kExitOk;
    });
  }
  {
    Request r = NewRequest();
    r->mutable_base_list();
    Sends(base->add_subcommand("list", "all base images"), context, r, Table(kBaseImageColumns));
  }
  {
    Request r = NewRequest();
    CLI::App* verb = base->add_subcommand("show", "one base image");
    Argument(verb, "NAME", r, r->mutable_base_show()->mutable_name(), "its name");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = base->add_subcommand(
        "delete", "delete a base image; Environments that started from it go on");
    Argument(verb, "NAME", r, r->mutable_base_delete()->mutable_name(), "its name");
    Sends(verb, context, r, Record());
  }
}

// A turn with what it published and skipped.
ExitCode ShowTurn(const Message& message) {
  PrintRecord(message);
  const auto& turn = static_cast<const host::TurnInfo&>(message);
  if (turn.published_size() > 0) PrintTable(message, "published", {"id", "size_bytes", "path"});
  if (turn.skipped_size() > 0) PrintTable(message, "skipped", {"reason", "path"});
  return kExitOk;
}

void AddSessions(CLI::App& app, CommandContext& context) {
  CLI::App* session = Group(app, "session", "Sessions");
  {
    Request r = NewRequest();
    auto* call = r->mutable_session_create();
    CLI::App* verb = session->add_subcommand(
        "create", "make a Session, with an Environment of its own or attached to one");
    Text(verb, "--env", r, call->mutable_env(),
         "attach to this Environment: it becomes shared for ever");
    Pairs(verb, "--metadata", r, call->mutable_metadata(), "NAME=VALUE");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_session_list();
    Sends(session->add_subcommand("list", "all Sessions"), context, r, Table(kSessionColumns));
  }
  {
    Request r = NewRequest();
    CLI::App* verb = session->add_subcommand("show", "one Session");
    Argument(verb, "SESSION", r, r->mutable_session_show()->mutable_id(), "sess_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = session->add_subcommand(
        "delete", "delete a Session, its Artifacts and its private Environment");
    Argument(verb, "SESSION", r, r->mutable_session_delete()->mutable_id(), "sess_...");
    Sends(verb, context, r, Record());
  }
  CLI::App* turn = Group(app, "turn", "Turns of a Session");
  {
    Request r = NewRequest();
    CLI::App* verb = turn->add_subcommand("start", "begin a Turn");
    Argument(verb, "SESSION", r, r->mutable_turn_start()->mutable_session(), "sess_...");
    Sends(verb, context, r, ShowTurn);
  }
  const std::tuple<const char*, host::TurnOutcome, const char*> kEnds[] = {
      {"complete", host::COMPLETED, "end a Turn and publish its Artifacts"},
      {"fail", host::FAILED, "end a Turn without publishing"},
      {"cancel", host::CANCELLED, "cancel a Turn: nothing is published"},
  };
  for (const auto& [name, outcome, help] : kEnds) {
    Request r = NewRequest();
    CLI::App* verb = turn->add_subcommand(name, help);
    Argument(verb, "TURN", r, r->mutable_turn_end()->mutable_turn(), "turn_...");
    r->mutable_turn_end()->set_outcome(outcome);
    if (outcome == host::FAILED)
      Text(verb, "--reason", r, r->mutable_turn_end()->mutable_failure(), "why it failed");
    Sends(verb, context, r, ShowTurn);
  }
  {
    Request r = NewRequest();
    CLI::App* verb = turn->add_subcommand("show", "one Turn with what it published and skipped");
    Argument(verb, "TURN", r, r->mutable_turn_show()->mutable_turn(), "turn_...");
    Sends(verb, context, r, ShowTurn);
  }
  CLI::App* artifact = Group(app, "artifact", "Artifacts that Turns published");
  {
    Request r = NewRequest();
    CLI::App* verb = artifact->add_subcommand("list", "Artifacts of a Session");
    Argument(verb, "SESSION", r, r->mutable_artifact_list()->mutable_session(), "sess_...");
    Sends(verb, context, r, Table(kArtifactColumns));
  }
  {
    struct Arguments {
      std::string artifact, session, output;
    };
    auto arguments = std::make_shared<Arguments>();
    CLI::App* verb = artifact->add_subcommand("get", "download an Artifact");
    verb->add_option("ARTIFACT", arguments->artifact, "art_...")->required();
    verb->add_option("--session", arguments->session, "its Session, when known");
    verb->add_option("-o,--output", arguments->output, "file to write; - for standard output")
        ->required();
    verb->callback([&context, arguments] {
      context.action = [arguments](CommandContext& ctx, HostClient& client) {
        return DownloadArtifact(ctx, client, arguments->session, arguments->artifact,
                                arguments->output);
      };
    });
  }
  {
    Request r = NewRequest();
    CLI::App* verb = artifact->add_subcommand("delete", "delete an Artifact");
    Argument(verb, "ARTIFACT", r, r->mutable_artifact_delete()->mutable_artifact(), "art_...");
    Text(verb, "--session", r, r->mutable_artifact_delete()->mutable_session(),
         "its Session, when known");
    Sends(verb, context, r, Record());
  }
}

constexpr const char* kOwnOperation =
    "an id of your own, op_ and 32 hex digits: the same call with it again is done once, and "
    "'operation show' says whether it was";

void AddSnapshots(CLI::App& app, CommandContext& context) {
  CLI::App* snapshot = Group(app, "snapshot", "snapshots");
  {
    Request r = NewRequest();
    auto* call = r->mutable_snapshot_create();
    CLI::App* verb =
        snapshot->add_subcommand("create", "snapshot an Environment's disk as it is now");
    Argument(verb, "ENV", r, call->mutable_env(), "env_...");
    Text(verb, "--name", r, call->mutable_name(), "its name");
    Pairs(verb, "--label", r, call->mutable_labels(), "NAME=VALUE");
    Text(verb, "--operation", r, call->mutable_operation(), kOwnOperation);
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_snapshot_list();
    CLI::App* verb = snapshot->add_subcommand("list", "snapshots of all Environments or of one");
    Text(verb, "--env", r, r->mutable_snapshot_list()->mutable_env(), "env_...");
    Sends(verb, context, r, Table(kSnapshotColumns));
  }
  {
    Request r = NewRequest();
    CLI::App* verb = snapshot->add_subcommand("show", "one snapshot");
    Argument(verb, "SNAPSHOT", r, r->mutable_snapshot_show()->mutable_id(), "snap_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    CLI::App* verb = snapshot->add_subcommand("delete", "delete a snapshot");
    Argument(verb, "SNAPSHOT", r, r->mutable_snapshot_delete()->mutable_id(), "snap_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_fork();
    CLI::App* verb =
        app.add_subcommand("fork", "make a new Environment from an Environment or a snapshot");
    Argument(verb, "SOURCE", r, call->mutable_source(), "env_... or snap_...");
    Text(verb, "--name", r, call->mutable_name(), "name of the new one");
    Flag(
        verb, "--memory", r, [](host::HostRequest& q) { q.mutable_fork()->set_with_memory(true); },
        "with the snapshot's memory: the fork starts suspended");
    Text(verb, "--operation", r, call->mutable_operation(), kOwnOperation);
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_pause();
    CLI::App* verb =
        app.add_subcommand("pause", "store a stopped VM's memory and state together with the disk");
    Argument(verb, "ENV", r, call->mutable_env(), "env_...");
    verb->add_option_function<std::string>("--memory", PathInto(r, call->mutable_memory_path()),
                                           "file with the guest's RAM")
        ->required();
    verb->add_option_function<std::string>("--vmstate", PathInto(r, call->mutable_vmstate_path()),
                                           "file with the device state")
        ->required();
    Text(verb, "--name", r, call->mutable_name(), "name of the snapshot");
    Text(verb, "--vmm-version", r, call->mutable_vmm_version(),
         "recorded; a resume elsewhere can be refused by it");
    Text(verb, "--machine-type", r, call->mutable_machine_type(), "recorded, too");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_resume();
    CLI::App* verb =
        app.add_subcommand("resume", "give back the newest pause: memory, state and the same disk");
    Argument(verb, "ENV", r, call->mutable_env(), "env_...");
    verb->add_option_function<std::string>("--memory", PathInto(r, call->mutable_memory_path()),
                                           "file to write the RAM to");
    verb->add_option_function<std::string>("--vmstate", PathInto(r, call->mutable_vmstate_path()),
                                           "file to write the device state to");
    CLI::Option* older =
        Text(verb, "--snapshot", r, call->mutable_snapshot(), "another pause than the newest");
    Flag(
        verb, "--allow-older", r,
        [](host::HostRequest& q) { q.mutable_resume()->set_allow_older(true); },
        "yes, an older one")
        ->needs(older);
    Flag(
        verb, "--disk-only", r,
        [](host::HostRequest& q) { q.mutable_resume()->set_disk_only(true); },
        "cold boot: leave the memory alone");
    Sends(verb, context, r, Record());
  }
}

void AddMaintenance(CLI::App& app, CommandContext& context) {
  CLI::App* operation = Group(app, "operation", "long operations");
  {
    Request r = NewRequest();
    CLI::App* verb = operation->add_subcommand("show", "phase and result of an operation");
    Argument(verb, "OPERATION", r, r->mutable_operation_show()->mutable_id(), "op_...");
    Sends(verb, context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_reap();
    CLI::App* verb = app.add_subcommand("reap", "remove what the lifetime rules condemn");
    Flag(
        verb, "--dry-run", r, [](host::HostRequest& q) { q.mutable_reap()->set_dry_run(true); },
        "print the plan: each object and its rule");
    Sends(
        verb, context, r,
        [](const Message& message) {
          const auto& report = static_cast<const host::ReapInfo&>(message);
          if (report.dry_run())
            PrintTable(message, "items", {"object_class", "id", "condemned", "rule"});
          PrintRecord(message);
          return kExitOk;
        },
        [](const host::HostResponse& response) {
          return response.reap().failed() > 0 ? kExitFailed : kExitOk;
        });
  }
  {
    Request r = NewRequest();
    r->mutable_collect();
    CLI::App* verb = app.add_subcommand("gc", "free blocks that no root reaches");
    Flag(
        verb, "--now", r, [](host::HostRequest& q) { q.mutable_collect()->set_now(true); },
        "do not wait for thresholds nor keep packs in the trash");
    Flag(
        verb, "--dry-run", r, [](host::HostRequest& q) { q.mutable_collect()->set_dry_run(true); },
        "only count");
    Sends(verb, context, r, Record());
  }
  {
    auto rebuild = std::make_shared<bool>(false);
    CLI::App* verb = app.add_subcommand(
        "check", "verify everything stored; exit code 5 when something is damaged");
    verb->add_flag("--rebuild-index", *rebuild, "rebuild the index from the packs first");
    verb->callback([&context, rebuild] {
      context.action = [rebuild](CommandContext& ctx, HostClient& client) {
        return Check(ctx, client, *rebuild);
      };
    });
  }
  {
    auto arguments = std::make_shared<ScrubArguments>();
    CLI::App* verb = app.add_subcommand(
        "scrub", "verify every stored block in the background, or go on where it was stopped");
    CLI::Option* rate =
        verb->add_option("--rate-mb", arguments->rate_mb, "megabytes to read a second (20)")
            ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}));
    CLI::Option* wait = verb->add_flag(
        "--wait", arguments->wait, "return when it has ended; exit code 5 when it found damage");
    CLI::Option* status =
        verb->add_flag("--status", arguments->status, "show the one that runs, or the last result");
    CLI::Option* stop = verb->add_flag("--stop", arguments->stop, "stop the one that runs");
    status->excludes(rate)->excludes(wait)->excludes(stop);
    stop->excludes(rate)->excludes(wait);
    verb->callback([&context, arguments] {
      context.action = [arguments](CommandContext& ctx, HostClient& client) {
        return Scrub(ctx, client, *arguments);
      };
    });
  }
  {
    Request r = NewRequest();
    auto* call = r->mutable_make_backup();
    CLI::App* verb = app.add_subcommand(
        "backup", "copy the whole data directory, while it is served, into DEST/TIME");
    PathArgument(verb, "DEST", r, call->mutable_destination(),
                 "directory that holds backups and nothing else; made when it is absent");
    CLI::Option* with_key = Flag(
        verb, "--with-master-key", r,
        [](host::HostRequest& q) { q.mutable_make_backup()->set_with_master_key(true); },
        "put the master key in, too: who has the backup reads everything");
    auto verify = std::make_shared<bool>(false);
    verb->add_flag("--verify", *verify,
                   "make none: read the newest one in DEST (or the one that DEST is) and compare "
                   "every file's SHA-256; needs no daemon")
        ->excludes(with_key);
    verb->callback([&context, r, verify, send = Sending(context, r, Record())] {
      if (!*verify) return send();
      context.local_action = [r](CommandContext& ctx) {
        return VerifyBackupSet(ctx, r->make_backup().destination());
      };
    });
  }
  {
    const auto arguments = std::make_shared<UpgradeArguments>();
    CLI::App* verb = app.add_subcommand(
        "upgrade",
        "the server's program on disk in place of the one that runs; mounts and calls wait");
    verb->add_option("--ready-timeout", arguments->ready_timeout_s,
                     "seconds after which the one that runs now is started again")
        ->capture_default_str()
        ->check(CLI::Range(uint64_t{1}, uint64_t{3600}));
    verb->add_flag("--keeper", arguments->keeper, "the keeper's program, not the server's");
    verb->callback([&context, arguments] {
      context.action = [arguments](CommandContext& ctx, HostClient& client) {
        return Upgrade(ctx, client, *arguments);
      };
    });
  }
  {
    Request r = NewRequest();
    r->mutable_stats();
    Sends(app.add_subcommand("stats", "what is stored, in numbers"), context, r, Record());
  }
  {
    Request r = NewRequest();
    r->mutable_ping();
    Sends(app.add_subcommand("ping", "is the daemon there"), context, r, Record());
  }
}

}  // namespace

void AddCommands(CLI::App& app, CommandContext& context) {
  AddOrganizations(app, context);
  AddEnvironments(app, context);
  AddBaseImages(app, context);
  AddSessions(app, context);
  AddSnapshots(app, context);
  AddMaintenance(app, context);
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  if (error) return path;
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  char resolved[PATH_MAX];
  if (absolute.has_filename() && ::realpath(absolute.parent_path().c_str(), resolved) != nullptr) {
    absolute = std::filesystem::path(resolved) / absolute.filename();
  }
  return absolute.string();
}

}  // namespace cairn
