// BaseImages: fills the base realm. An operator imports a file tree as a named, immutable image,
// and Environments of every organization start from it (Registry::CreateEnvironment), by reference.
//
//   BeginBaseImage (name taken, incomplete) -> slices: blocks, packs synced, record {root so far}
//   -> record {complete}
//
// Invariants
//   1. Nobody starts from an image that is not complete, and a complete one never changes.
//   2. From the first block of a slice to the commit of its root a write session lives; between two
//   slices the incomplete record is the root of what is there. So no collection takes any of it.
//   3. An import that ended in any other way than success leaves no record: it is removed by the
//   import itself, else by the next one or the next start. Its blocks are garbage then.
//
// This class and nothing else begins sessions of the base realm.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "catalog/registry.h"
#include "store/base/clock.h"
#include "store/local_block_store.h"
#include "store/node_cache.h"
#include "volume/volume.h"

namespace cairn {

struct BaseImagesOptions {
  uint64_t epoch = 0;               // open epoch of the data directory, stamped into nodes
  uint64_t slice_records = 100000;  // an import publishes after so many
};

// Thread-safe.
class BaseImages {
 public:
  // Removes what an earlier life left incomplete.
  static Result<std::unique_ptr<BaseImages>> Open(const BaseImagesOptions& options,
                                                  Registry& registry, LocalBlockStore& store,
                                                  NodeCache& nodes, Clock& clock);

  // `fill` writes to a Volume that only it sees; what it wrote is the image, durable on return.
  // Blocks as long as `fill` does, one import at a time. When `fill` fails its error is returned
  // and there is no image. Unavailable: another import runs, the server stops. InvalidArgument: the
  // name; /workspace in the tree is no directory. AlreadyExists: the name is taken. Exhausted: no
  // space.
  Result<catalog::BaseImage> Import(const std::string& name,
                                    const std::function<Status(Volume&)>& fill);
  // From now on an import, also one that runs, ends at its next batch: Unavailable.
  void EndImports() { imports_end_ = true; }

 private:
  BaseImages(const BaseImagesOptions& options, Registry& registry, LocalBlockStore& store,
             NodeCache& nodes, Clock& clock)
      : options_(options), registry_(registry), store_(store), nodes_(nodes), clock_(clock) {}
  Status Fill(catalog::BaseImage& image, const std::function<Status(Volume&)>& fill);

  const BaseImagesOptions options_;
  Registry& registry_;
  LocalBlockStore& store_;
  NodeCache& nodes_;
  Clock& clock_;
  std::atomic<bool> importing_ = false;
  std::atomic<bool> imports_end_ = false;
};

}  // namespace cairn
