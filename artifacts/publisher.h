// Publication at a turn's end and reading of what was published.
//
// complete: barrier -> freeze -> walk the output directory in the frozen view -> one catalog
// transaction {Turn completed, all its Artifacts}. No file byte is copied: an Artifact reads from
// the turn's Point, and once that is sealed a small tree with the published files alone
// (Turn.publication_root) takes its place, so that the rest of the Environment's state is not kept
// alive by it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "artifacts/output_walk.h"
#include "catalog/catalog.h"
#include "catalog/records.pb.h"
#include "snapshot/volume_manager.h"
#include "store/key_ring.h"

namespace cairn {

// An Artifact with its path in the clear (never logged).
struct ArtifactInfo {
  catalog::Artifact record;
  std::string path;
};

struct TurnReport {
  catalog::Turn turn;
  std::vector<ArtifactInfo> published;
  std::vector<SkippedPath> skipped;
};

// Open for reading; keeps its view alive: a deletion does not cut a download short. Thread-safe.
class ArtifactReader {
 public:
  ArtifactReader(ArtifactInfo info, FsView view) : info_(std::move(info)), view_(std::move(view)) {}
  const ArtifactInfo& info() const { return info_; }
  // As FsView::Read; DataLoss rather than wrong bytes.
  Result<size_t> Read(uint64_t offset, std::span<char> out) const {
    return view_.Read(info_.record.ino(), offset, out);
  }

 private:
  ArtifactInfo info_;
  FsView view_;
};

// Thread-safe. All ids are checked against `org`.
class Publisher {
 public:
  Publisher(Catalog& catalog, BlockStore& store, NodeCache& nodes, KeyRing& keys,
            VolumeManager& volumes, Clock& clock, const PublicationLimits& limits,
            uint64_t server_epoch);

  // Ends the turn as completed and publishes. Repeating it on a completed turn returns the same
  // report (same Artifact ids). FailedPrecondition: the turn failed or was cancelled, the
  // Environment is being deleted.
  Result<TurnReport> CompleteTurn(const std::string& org, const std::string& turn);
  // Ends it without publishing.
  Result<catalog::Turn> EndTurn(const std::string& org, const std::string& turn,
                                catalog::TurnStatus status, const std::string& failure);
  Result<TurnReport> Report(const std::string& org, const std::string& turn);

  // Live Artifacts of a session, oldest first (creation order, then path).
  Result<std::vector<ArtifactInfo>> List(const std::string& org, const std::string& session);
  Result<ArtifactInfo> Get(const std::string& org, const std::string& session,
                           const std::string& artifact);
  Result<std::unique_ptr<ArtifactReader>> Open(const std::string& org, const std::string& session,
                                               const std::string& artifact);
  Status Delete(const std::string& org, const std::string& session, const std::string& artifact);

  // Moves a turn's Artifacts from its sealed Point to a tree of their own and computes their
  // SHA-256. Idempotent; nothing to do while the point is unsealed. O(bytes published), in the
  // background.
  Status SettleTurn(const std::string& org, const std::string& session, const std::string& turn);
  // All turns that still read from their Point (those of `point` only, if given). For the sealer's
  // callback and for the start.
  Status SettleAll(const catalog::Point* point);

 private:
  Result<std::vector<ArtifactInfo>> TurnArtifacts(const catalog::Turn& turn);
  Result<TurnReport> MakeReport(const catalog::Turn& turn);
  Result<ArtifactInfo> Reveal(const catalog::Artifact& record);
  Result<FsView> ViewOfTurn(const catalog::Turn& turn);
  Result<Id128> RealmOf(const std::string& org);

  Catalog& catalog_;
  BlockStore& store_;
  NodeCache& nodes_;
  KeyRing& keys_;
  VolumeManager& volumes_;
  Clock& clock_;
  PublicationLimits limits_;
  uint64_t server_epoch_;
};

}  // namespace cairn
