// Settling: once a turn's Point is sealed, its Artifacts get a tree of their own.
//
// Steps: block session -> copy the published inodes' entries (attributes, inline data, extents:
// references, not bytes) from the point's tree into a new one -> FsRoot -> Sync -> SHA-256 of each
// file, read through the new tree -> one catalog transaction {Turn.publication_root set, Turn.point
// cleared, digests}. The transaction is skipped when the turn is gone by then. Until it, readers
// use the Point; after it, nothing of the turn refers to the Point.
#include <openssl/evp.h>

#include <map>

#include "artifacts/publisher.h"
#include "catalog/keys.h"
#include "catalog/records.h"
#include "store/base/log.h"
#include "volume/fs_root.h"

namespace cairn {

namespace {

Result<std::string> Sha256Of(const FsView& view, InodeNumber ino) {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> ctx(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (ctx == nullptr || EVP_DigestInit_ex(ctx.get(), EVP_sha256(), nullptr) != 1) {
    return Err(ErrorCode::kInternal, "SHA-256 is not available");
  }
  std::string buffer(1 << 20, '\0');
  for (uint64_t offset = 0;;) {
    const size_t got = CAIRN_TRY(view.Read(ino, offset, buffer));
    if (got == 0) break;
    EVP_DigestUpdate(ctx.get(), buffer.data(), got);
    offset += got;
  }
  std::string digest(32, '\0');
  EVP_DigestFinal_ex(ctx.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return digest;
}

bool SamePoint(const catalog::Point& a, const catalog::Point& b) {
  return a.volume() == b.volume() && a.generation() == b.generation();
}

}  // namespace

Status Publisher::SettleTurn(const std::string& org, const std::string& session,
                             const std::string& turn_id) {
  const std::string key = keys::Turn(org, turn_id);
  const auto turn = CAIRN_TRY(GetRecord<catalog::Turn>(catalog_, key));
  if (!turn || !turn->has_point() || !turn->publication_root().empty()) return {};
  const auto point = CAIRN_TRY(GetRecord<catalog::PointRecord>(
      catalog_, keys::Point(turn->point().volume(), turn->point().generation())));
  if (!point) return Err(ErrorCode::kDataLoss, "turn " + turn_id + " has no frozen state");
  if (point->root().empty()) return {};

  std::map<InodeNumber, std::string> digests;  // of the published inodes
  std::vector<catalog::Artifact> artifacts;
  CAIRN_TRY(ScanRecords<catalog::Artifact>(
      catalog_, keys::Below("artifact", org, session),
      [&](std::string_view, const catalog::Artifact& artifact) {
        if (artifact.turn() == turn_id && artifact.deleted_ms() == 0) {
          artifacts.push_back(artifact);
          digests[artifact.ino()];
        }
        return true;
      }));

  const Id128 realm = CAIRN_TRY(RealmOf(org));
  const std::unique_ptr<WriteSession> write = CAIRN_TRY(store_.BeginWrite(realm));
  const BlockRef source_ref = CAIRN_TRY(BlockRef::Decode(point->root()));
  const FsRoot source = CAIRN_TRY(LoadFsRoot(store_, realm, source_ref));
  const TreeReader from(store_, nodes_, realm, source.tree);
  std::vector<TreeUpdate> updates;
  for (const auto& [ino, digest] : digests) {
    const std::string prefix = KeyPrefix(ino);
    const std::string end = PrefixEnd(prefix);
    const auto cursor = CAIRN_TRY(from.Seek(prefix));
    while (cursor->valid() && cursor->key() < end) {
      const ParsedKey parsed = CAIRN_TRY(ParseKey(cursor->key()));
      if (parsed.kind != KeyKind::kXattr)
        updates.push_back({std::string(cursor->key()), cursor->entry()});
      CAIRN_TRY(cursor->Next());
    }
  }
  const TreeReader empty(store_, nodes_, realm, TreeRoot{});
  FsRoot root;
  root.volume = source.volume;
  root.generation = source.generation;
  root.hash_seed = source.hash_seed;
  root.next_ino = source.next_ino;
  root.sealed_at = clock_.Now();
  root.tree = CAIRN_TRY(MergeTree(empty, *write, updates, CountEntry, server_epoch_));
  const BlockRef root_ref =
      CAIRN_TRY(write->Put(BlockKind::kFsRoot, root.Encode(), Compression::kBackground));
  CAIRN_TRY(write->Sync());

  const FsView view(
      TreeLayer(store_, std::make_shared<TreeReader>(store_, nodes_, realm, root.tree),
                root.generation),
      root.hash_seed);
  for (auto& [ino, digest] : digests) digest = CAIRN_TRY(Sha256Of(view, ino));

  return catalog_.Run([&](CatalogTransaction& txn) -> Status {
    auto current = CAIRN_TRY(GetRecord<catalog::Turn>(txn, key));
    if (!current || !current->has_point() || !SamePoint(current->point(), turn->point())) return {};
    current->set_publication_root(root_ref.Encode());
    current->clear_point();
    PutRecord(txn, key, *current);
    for (const catalog::Artifact& artifact : artifacts) {
      const std::string artifact_key = keys::Artifact(org, session, artifact.id());
      auto record = CAIRN_TRY(GetRecord<catalog::Artifact>(txn, artifact_key));
      if (!record || record->deleted_ms() != 0) continue;
      record->set_sha256(digests[record->ino()]);
      PutRecord(txn, artifact_key, *record);
    }
    return {};
  });
}

Status Publisher::SettleAll(const catalog::Point* point) {
  std::vector<catalog::Turn> unsettled;
  CAIRN_TRY(ScanRecords<catalog::Turn>(
      catalog_, keys::Below("turn"), [&](std::string_view, const catalog::Turn& turn) {
        if (turn.has_point() && (point == nullptr || SamePoint(turn.point(), *point)))
          unsettled.push_back(turn);
        return true;
      }));
  Status first;
  for (const catalog::Turn& turn : unsettled) {
    const Status settled = SettleTurn(turn.org(), turn.session(), turn.id());
    if (settled) continue;
    LogError("settle_failed", {{"turn", turn.id()}, {"error", settled.error().ToString()}});
    if (first) first = settled;
  }
  return first;
}

}  // namespace cairn
