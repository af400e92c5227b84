// Snapshots, forks, pause and resume: records that pair one disk Point with at most one memory
// image, always in one transaction.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/records.pb.h"
#include "catalog/refusal.h"
#include "snapshot/volume_manager.h"
#include "store/block_store.h"

namespace cairn {

struct PauseRequest {
  std::string memory_path;   // host file: the guest's RAM (any size, sparse). The VMM is stopped.
  std::string vmstate_path;  // host file: device state
  catalog::VmmPins vmm;      // driver "external" when empty
  std::string name;
};

struct ResumeRequest {
  std::string memory_path;  // written: byte-identical to what pause read; empty: not wanted
  std::string vmstate_path;
  std::string snapshot;  // empty: the newest committed pause. Anything else needs allow_older.
  bool allow_older = false;
  bool disk_only = false;  // explicit cold boot: the memory image is left alone
};

struct ResumeResult {
  catalog::Snapshot snapshot;
  std::string vm_generation_id;  // 32 hex digits, fresh
  uint64_t restore_count = 0;
  int64_t host_time_ms = 0;
};

// Thread-safe. All ids are checked against `org`: foreign and missing are the same NotFound.
class SnapshotService {
 public:
  SnapshotService(Catalog& catalog, BlockStore& store, KeyRing& keys, FileSystem& fs,
                  VolumeManager& volumes, Clock& clock, uint64_t server_epoch);

  // Barrier, freeze, record. O(1). With an `operation` of the caller's own (catalog/operations.h),
  // here and in Fork, the same call again gives what the first one made.
  Result<catalog::Snapshot> Create(const std::string& org, const std::string& env,
                                   const std::string& name,
                                   const std::map<std::string, std::string>& labels,
                                   const std::string& operation = {});
  Result<std::vector<catalog::Snapshot>> List(const std::string& org,
                                              const std::string& env);  // env empty: all
  Result<catalog::Snapshot> Get(const std::string& org, const std::string& id);
  // Tombstone; refused (FailedPrecondition) while it is the one a suspended Environment resumes
  // from, or pinned. Repeating gives the same answer.
  Ruled<void> Delete(const std::string& org, const std::string& id);

  // `source` is an Environment (barrier and freeze first) or a snapshot. The fork is a standalone
  // Environment with its own identity. A fork of a snapshot with memory starts suspended if
  // `with_memory`, else disk only.
  Result<catalog::Environment> Fork(const std::string& org, const std::string& source,
                                    const std::string& name, bool with_memory,
                                    const std::string& operation = {});

  // barrier -> freeze -> capture -> one commit: snapshot record + Environment suspended. On any
  // error the Environment stays as it was.
  Result<catalog::Snapshot> Pause(const std::string& org, const std::string& env,
                                  const PauseRequest& request);
  // Writes the files (tmp + rename, digest verified), then one commit: Environment ready. On any
  // error it stays suspended and the snapshot untouched.
  Result<ResumeResult> Resume(const std::string& org, const std::string& env,
                              const ResumeRequest& request);

 private:
  catalog::Snapshot NewSnapshot(const std::string& org, const std::string& env,
                                const std::string& name);
  Status FillVolumeFields(CatalogTransaction& txn, const catalog::Environment& env,
                          catalog::Snapshot& snapshot);
  Result<catalog::Snapshot> WithDurability(catalog::Snapshot snapshot);
  Status EndFailedOperation(const std::string& org, const std::string& operation,
                            const Error& error);

  Catalog& catalog_;
  BlockStore& store_;
  KeyRing& keys_;
  FileSystem& fs_;
  VolumeManager& volumes_;
  Clock& clock_;
  uint64_t server_epoch_;
};

}  // namespace cairn
