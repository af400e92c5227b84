// Import of a base image: as an import into an Environment (volume_import.cc), over an empty tree
// of the base realm, and with the image's record in the place of a volume's.
//
// A commit whose outcome is not known (the catalog failed in the middle of it) is asked about by
// the removal: it takes incomplete records only.
#include "snapshot/base_images.h"

#include <sys/stat.h>

#include "catalog/ids.h"
#include "snapshot/import_internal.h"
#include "store/base/log.h"
#include "store/base/random.h"
#include "volume/sealer.h"
#include "volume/staged_head.h"

namespace cairn {

namespace {

// The first use of an Environment makes these where they are missing, and must not find a file.
Status CheckWorkspace(Volume& volume) {
  InodeNumber dir = kRootInode;
  for (const char* name : {"workspace", "outputs"}) {
    const auto found = volume.Lookup(dir, name);
    if (!found && found.error().code() == ErrorCode::kNotFound) return {};
    const NamedInode there = CAIRN_TRY(found);
    if (!S_ISDIR(there.inode.mode)) {
      return Err(ErrorCode::kInvalidArgument,
                 "/workspace and /workspace/outputs of a base image are directories, if they are "
                 "there");
    }
    dir = there.ino;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BaseImages>> BaseImages::Open(const BaseImagesOptions& options,
                                                     Registry& registry, LocalBlockStore& store,
                                                     NodeCache& nodes, Clock& clock) {
  const size_t removed = CAIRN_TRY(registry.RemoveIncompleteBaseImages());
  if (removed > 0) LogWarning("base_import_interrupted", {{"removed", removed}});
  return std::unique_ptr<BaseImages>(new BaseImages(options, registry, store, nodes, clock));
}

Status BaseImages::Fill(catalog::BaseImage& image, const std::function<Status(Volume&)>& fill) {
  const auto id = Id128::FromHex(image.id().substr(kBaseImagePrefix.size()));
  if (!id) return Err(ErrorCode::kInternal, "a base image's id is none: " + image.id());
  image.set_hash_seed(BigEndian64(RandomBytes(8)));
  StagedHeadOptions staged;
  staged.realm = BaseRealm();
  staged.base = TreeLayer(
      store_, std::make_shared<const TreeReader>(store_, nodes_, BaseRealm(), TreeRoot{}), 0);
  staged.state.next_ino = kFirstFreeInode;
  staged.slice_records = options_.slice_records;
  staged.begin_session = [this] {
    return store_.BeginBaseWrite({.use = SpaceUse::kRetaining, .what = "a base image"});
  };
  const auto publish = [&](const Layer& slice, WriteSession& session,
                           const HeadState& state) -> Result<std::shared_ptr<const TreeReader>> {
    SealOptions seal;
    seal.volume = *id;
    seal.realm = BaseRealm();
    seal.hash_seed = image.hash_seed();
    seal.next_ino = state.next_ino;
    if (!image.root().empty()) seal.parent = CAIRN_TRY(BlockRef::Decode(image.root()));
    seal.epoch = options_.epoch;
    seal.tree = kImportNodes;
    seal.now = clock_.Now();
    const SealResult sealed = CAIRN_TRY(SealLayer(store_, nodes_, session, slice, seal));
    image.set_root(sealed.root.Encode());
    image.set_next_ino(state.next_ino);
    image.set_inodes(sealed.record.tree.counters.inodes);
    image.set_bytes(sealed.record.tree.counters.logical_bytes);
    CAIRN_TRY(registry_.UpdateBaseImage(image));
    return sealed.tree;
  };
  auto head = StagedHead::Create(store_, staged, publish, [this]() -> Status {
    if (imports_end_) return Err(ErrorCode::kUnavailable, "the server is stopping");
    return {};
  });
  StagedHead& filled = *head;
  VolumeOptions options;
  options.head.volume = *id;
  options.hash_seed = image.hash_seed();
  InstantClock instant(clock_);
  const auto volume = CAIRN_TRY(Volume::OpenOn(std::move(head), instant, options));
  CAIRN_TRY(fill(*volume));
  CAIRN_TRY(CheckWorkspace(*volume));
  CAIRN_TRY(filled.Finish());
  image.set_complete(true);
  return registry_.UpdateBaseImage(image);
}

Result<catalog::BaseImage> BaseImages::Import(const std::string& name,
                                              const std::function<Status(Volume&)>& fill) {
  if (importing_.exchange(true)) {
    return Err(ErrorCode::kUnavailable,
               "a base image is being imported: try again when that has ended");
  }
  struct Alone {
    std::atomic<bool>& importing;
    ~Alone() { importing = false; }
  } const alone{importing_};
  catalog::BaseImage image = CAIRN_TRY(registry_.BeginBaseImage(name));
  const Status filled = Fill(image, fill);
  if (!filled) {
    if (const auto removed = registry_.RemoveIncompleteBaseImages(); !removed) {
      LogWarning("base_import_not_removed",
                 {{"base", image.id()}, {"error", removed.error().ToString()}});
    }
    return std::unexpected(filled.error());
  }
  LogInfo("base_imported",
          {{"base", image.id()}, {"inodes", image.inodes()}, {"bytes", image.bytes()}});
  return image;
}

}  // namespace cairn
