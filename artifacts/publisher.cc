// Publication and reading of Artifacts.
//
// Steps of a completion: operation-free: barrier and freeze (journals durable) -> walk of the
// output directory in the frozen view -> one catalog transaction {PointRecord, Turn completed, its
// Artifacts}. A crash before it leaves the turn running and nothing visible; the retry makes the
// same Artifact ids (they are derived from turn and path), after it the retry returns what is
// there.
//
// Artifact id = first 16 bytes of HMAC-SHA-256(realm address key, "artifact id" || turn || path):
// 128 bits that nobody without the key can guess.
#include "artifacts/publisher.h"

#include <algorithm>

#include "catalog/ids.h"
#include "catalog/keys.h"
#include "catalog/records.h"
#include "catalog/refusal.h"
#include "catalog/turns.h"
#include "volume/fs_root.h"

namespace cairn {

namespace {

// Derived ids and lookup keys live in the address space of data blocks under a prefix that no block
// has.
Result<Address> Derive(KeyRing& keys, const Id128& realm, std::string_view purpose,
                       std::string_view turn, std::string_view path) {
  std::string text(purpose);
  text += '\0';
  text += turn;
  text += '\0';
  text += path;
  return keys.AddressOf(realm, BlockKind::kData, text);
}

}  // namespace

Publisher::Publisher(Catalog& catalog, BlockStore& store, NodeCache& nodes, KeyRing& keys,
                     VolumeManager& volumes, Clock& clock, const PublicationLimits& limits,
                     uint64_t server_epoch)
    : catalog_(catalog),
      store_(store),
      nodes_(nodes),
      keys_(keys),
      volumes_(volumes),
      clock_(clock),
      limits_(limits),
      server_epoch_(server_epoch) {}

Result<Id128> Publisher::RealmOf(const std::string& org) {
  const auto record =
      CAIRN_TRY(GetRecord<catalog::Organization>(catalog_, keys::Organization(org)));
  if (!record) return Err(ErrorCode::kNotFound, "no organization " + org);
  return Id128::FromView(record->realm());
}

Result<TurnReport> Publisher::CompleteTurn(const std::string& org, const std::string& turn_id) {
  const catalog::Turn before = CAIRN_TRY(FindTurn(catalog_, org, turn_id));
  if (before.status() == catalog::TURN_COMPLETED) return MakeReport(before);
  if (before.status() != catalog::TURN_RUNNING) {
    return Refuse(refusals::kTurnEnded,
                  "turn " + turn_id + " has ended already: only a running turn can be completed");
  }
  const auto session =
      CAIRN_TRY(GetRecord<catalog::Session>(catalog_, keys::Session(org, before.session())));
  if (!session || session->deleted_ms() != 0) {
    return Err(ErrorCode::kNotFound, "no session " + before.session());
  }
  const auto env =
      CAIRN_TRY(GetRecord<catalog::Environment>(catalog_, keys::Environment(org, session->env())));
  if (!env) return Err(ErrorCode::kNotFound, "no environment " + session->env());
  const Id128 realm = CAIRN_TRY(RealmOf(org));

  catalog::Turn after;
  auto finish = [&](CatalogTransaction& txn, const OutputWalk& walk, const catalog::Point* point,
                    uint32_t rollback_epoch) -> Status {
    after = CAIRN_TRY(FindTurn(txn, org, turn_id));
    if (after.status() == catalog::TURN_COMPLETED) return {};  // a racing completion won
    const int64_t now_ms = clock_.NowMs();
    after.clear_skipped();
    after.set_published(true);
    after.set_artifact_count(walk.files.size());
    uint64_t bytes = 0;
    for (const OutputFile& file : walk.files) {
      bytes += file.inode.size_bytes;
      catalog::Artifact artifact;
      const Address id = CAIRN_TRY(Derive(keys_, realm, "artifact id", turn_id, file.path));
      artifact.set_id(std::string(kArtifactPrefix) + HexEncode(id.view().substr(0, 16)));
      artifact.set_org(org);
      artifact.set_session(before.session());
      artifact.set_turn(turn_id);
      artifact.set_env(session->env());
      artifact.set_env_rollback_epoch(rollback_epoch);
      artifact.set_ino(file.ino);
      artifact.set_size_bytes(file.inode.size_bytes);
      artifact.set_mode(file.inode.mode);
      artifact.set_mtime_s(file.inode.mtime.seconds);
      artifact.set_mtime_ns(file.inode.mtime.nanoseconds);
      artifact.set_sealed_path(CAIRN_TRY(keys_.Seal(realm, file.path, artifact.id())));
      artifact.set_path_hmac(std::string(
          CAIRN_TRY(Derive(keys_, realm, "artifact path", before.session(), file.path)).view()));
      artifact.set_created_ms(now_ms);
      PutNewArtifact(txn, artifact);
    }
    after.set_artifact_bytes(bytes);
    for (const SkippedPath& skipped : walk.skipped) {
      catalog::SkippedFile* record = after.add_skipped();
      record->set_sealed_path(CAIRN_TRY(keys_.Seal(realm, skipped.path, turn_id)));
      record->set_reason(skipped.reason);
    }
    if (point != nullptr && !walk.files.empty()) *after.mutable_point() = *point;
    return EndTurnRecord(txn, after, catalog::TURN_COMPLETED, "", now_ms);
  };

  if (env->volume().empty()) {  // never used: nothing to publish, and nothing is allocated for that
    CAIRN_TRY(catalog_.Run(
        [&](CatalogTransaction& txn) { return finish(txn, OutputWalk{}, nullptr, 0); }));
    return MakeReport(after);
  }
  constexpr uint64_t kPublicationBytes = 1 << 20;  // a generation of journals and the records
  CAIRN_TRY(volumes_.RoomToRetain("a publication", kPublicationBytes));
  std::optional<OutputWalk> walk;
  CAIRN_TRY(volumes_.Freeze(
      org, session->env(),
      [&](CatalogTransaction& txn, const catalog::PointRecord& point,
          const FsView& view) -> Status {
        if (!walk)
          walk = CAIRN_TRY(WalkOutputDirectory(view, session->output_directory(), limits_));
        const auto now =
            CAIRN_TRY(GetRecord<catalog::Environment>(txn, keys::Environment(org, session->env())));
        if (!now || now->state() == catalog::ENV_DELETING || now->state() == catalog::ENV_DELETED) {
          return Refuse(refusals::kEnvironmentDeleted,
                        "the environment was deleted before the turn completed");
        }
        const auto volume =
            CAIRN_TRY(GetRecord<catalog::Volume>(txn, keys::Volume(point.point().volume())));
        return finish(txn, *walk, &point.point(), volume ? volume->rollback_epoch() : 0);
      }));
  return MakeReport(after);
}

Result<catalog::Turn> Publisher::EndTurn(const std::string& org, const std::string& turn_id,
                                         catalog::TurnStatus status, const std::string& failure) {
  catalog::Turn turn;
  CAIRN_TRY(catalog_.Run([&](CatalogTransaction& txn) -> Status {
    turn = CAIRN_TRY(FindTurn(txn, org, turn_id));
    if (turn.status() == status) return {};
    return EndTurnRecord(txn, turn, status, failure, clock_.NowMs());
  }));
  return turn;
}

Result<TurnReport> Publisher::Report(const std::string& org, const std::string& turn_id) {
  return MakeReport(CAIRN_TRY(FindTurn(catalog_, org, turn_id)));
}

Result<TurnReport> Publisher::MakeReport(const catalog::Turn& turn) {
  TurnReport report;
  report.turn = turn;
  const Id128 realm = CAIRN_TRY(RealmOf(turn.org()));
  for (const catalog::SkippedFile& skipped : turn.skipped()) {
    report.skipped.push_back(
        {CAIRN_TRY(keys_.Open(realm, skipped.sealed_path(), turn.id())), skipped.reason()});
  }
  report.published = CAIRN_TRY(TurnArtifacts(turn));
  return report;
}

Result<ArtifactInfo> Publisher::Reveal(const catalog::Artifact& record) {
  const Id128 realm = CAIRN_TRY(RealmOf(record.org()));
  return ArtifactInfo{record, CAIRN_TRY(keys_.Open(realm, record.sealed_path(), record.id()))};
}

Result<std::vector<ArtifactInfo>> Publisher::TurnArtifacts(const catalog::Turn& turn) {
  std::vector<ArtifactInfo> all = CAIRN_TRY(List(turn.org(), turn.session()));
  std::erase_if(all, [&](const ArtifactInfo& info) { return info.record.turn() != turn.id(); });
  return all;
}

Result<std::vector<ArtifactInfo>> Publisher::List(const std::string& org,
                                                  const std::string& session) {
  const auto record = CAIRN_TRY(GetRecord<catalog::Session>(catalog_, keys::Session(org, session)));
  if (!record || record->deleted_ms() != 0)
    return Err(ErrorCode::kNotFound, "no session " + session);
  std::vector<catalog::Artifact> records;
  CAIRN_TRY(
      ScanRecords<catalog::Artifact>(catalog_, keys::Below("artifact", org, session),
                                     [&](std::string_view, const catalog::Artifact& artifact) {
                                       if (artifact.deleted_ms() == 0) records.push_back(artifact);
                                       return true;
                                     }));
  std::vector<ArtifactInfo> infos;
  infos.reserve(records.size());
  for (const catalog::Artifact& artifact : records) infos.push_back(CAIRN_TRY(Reveal(artifact)));
  std::sort(infos.begin(), infos.end(), [](const ArtifactInfo& a, const ArtifactInfo& b) {
    return std::pair(a.record.created_ms(), std::string_view(a.path)) <
           std::pair(b.record.created_ms(), std::string_view(b.path));
  });
  return infos;
}

Result<ArtifactInfo> Publisher::Get(const std::string& org, const std::string& session,
                                    const std::string& artifact) {
  const auto owner = CAIRN_TRY(GetRecord<catalog::Session>(catalog_, keys::Session(org, session)));
  const auto record =
      CAIRN_TRY(GetRecord<catalog::Artifact>(catalog_, keys::Artifact(org, session, artifact)));
  if (!owner || owner->deleted_ms() != 0 || !record || record->deleted_ms() != 0) {
    return Err(ErrorCode::kNotFound, "no artifact " + artifact);
  }
  return Reveal(*record);
}

Result<FsView> Publisher::ViewOfTurn(const catalog::Turn& turn) {
  if (turn.publication_root().empty()) return volumes_.ViewOf(turn.point());
  const Id128 realm = CAIRN_TRY(RealmOf(turn.org()));
  const BlockRef ref = CAIRN_TRY(BlockRef::Decode(turn.publication_root()));
  const FsRoot root = CAIRN_TRY(LoadFsRoot(store_, realm, ref));
  return FsView(TreeLayer(store_, std::make_shared<TreeReader>(store_, nodes_, realm, root.tree),
                          root.generation),
                root.hash_seed);
}

Result<std::unique_ptr<ArtifactReader>> Publisher::Open(const std::string& org,
                                                        const std::string& session,
                                                        const std::string& artifact) {
  ArtifactInfo info = CAIRN_TRY(Get(org, session, artifact));
  for (int attempt = 0;; ++attempt) {
    const catalog::Turn turn = CAIRN_TRY(FindTurn(catalog_, org, info.record.turn()));
    auto view = ViewOfTurn(turn);
    if (view) return std::make_unique<ArtifactReader>(std::move(info), std::move(*view));
    // The turn may have settled between the two reads: its point went away.
    if (view.error().code() != ErrorCode::kNotFound || attempt == 3)
      return std::unexpected(view.error());
  }
}

Status Publisher::Delete(const std::string& org, const std::string& session,
                         const std::string& artifact) {
  return catalog_.Run([&](CatalogTransaction& txn) -> Status {
    return DeleteArtifactRecord(txn, org, session, artifact, clock_.NowMs());
  });
}

}  // namespace cairn
