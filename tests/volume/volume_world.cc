// The life of one volume in a test, with the steps that the daemon takes around it: open over the
// last sealed root, seal oldest first, remember the root before FinishSeal.
#include "tests/volume/volume_world.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "store/base/check.h"
#include "volume/sealer.h"

namespace cairn {
namespace {

Id128 TestId(uint8_t n) {
  Id128 id;
  id.bytes.fill(n);
  return id;
}

}  // namespace

VolumeWorld::VolumeWorld() : VolumeWorld(VolumeOptions{}) {}

VolumeWorld::VolumeWorld(const VolumeOptions& tweaks) : dir(temp_.path()), options(tweaks) {
  options.head.volume = TestId(7);
  options.head.realm = TestId(9);
  options.head.dir = dir + "/volume";
  options.hash_seed = 42;
  keys.Add(options.head.realm, TestRealmKeys(1));
}

Status VolumeWorld::Open(bool read_only) {
  options.head.base =
      TreeLayer(store, std::make_shared<TreeReader>(store, cache, options.head.realm, base_),
                options.head.sealed_through_generation);
  options.read_only = read_only;
  volume = CAIRN_TRY(Volume::Open(*fs, keys, store, clock, options));
  options.head.base.reset();
  return {};
}

Status VolumeWorld::SealOldest() {
  const auto unsealed = volume->head().unsealed();
  if (unsealed.empty()) return {};
  const std::shared_ptr<const Layer> layer = unsealed.front();
  const auto session = CAIRN_TRY(store.BeginWrite(options.head.realm));
  SealOptions seal;
  seal.volume = options.head.volume;
  seal.realm = options.head.realm;
  seal.hash_seed = options.hash_seed;
  seal.next_ino = volume->head().state().next_ino;
  seal.parent = root_;
  seal.epoch = layer->generation();
  seal.now = clock.Now();
  const SealResult sealed = CAIRN_TRY(SealLayer(store, cache, *session, *layer, seal));
  root_ = sealed.root;
  base_ = sealed.record.tree;
  options.head.sealed_through_generation = layer->generation();
  options.head.next_ino = seal.next_ino;
  options.head.base_inodes = base_.counters.inodes;
  options.head.base_bytes = base_.counters.logical_bytes;
  return volume->head().FinishSeal(layer->generation(), sealed.tree);
}

InodeNumber VolumeWorld::Dir(InodeNumber parent, std::string_view name, uint32_t mode) {
  const auto made = volume->MakeDir(ctx, parent, name, mode);
  CAIRN_CHECK(made.has_value());
  return made->ino;
}

InodeNumber VolumeWorld::File(InodeNumber parent, std::string_view name,
                              std::string_view contents) {
  const auto made = volume->MakeNode(ctx, parent, name, 0100644, 0);
  CAIRN_CHECK(made.has_value());
  if (!contents.empty()) {
    CAIRN_CHECK(volume->Write(ctx, made->ino, 0, contents, false).has_value());
  }
  return made->ino;
}

std::string VolumeWorld::Contents(InodeNumber ino) {
  std::string out(Attributes(ino).size_bytes, '?');
  const auto n = volume->Read(ino, 0, out);
  CAIRN_CHECK(n.has_value() && *n == out.size());
  return out;
}

Inode VolumeWorld::Attributes(InodeNumber ino) {
  const auto inode = volume->GetAttributes(ino);
  CAIRN_CHECK(inode.has_value());
  return *inode;
}

}  // namespace cairn
