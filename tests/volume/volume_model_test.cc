// Random operations on a volume and on PosixModel side by side: every errno, every attribute, every
// byte must agree, through reopening, freezing and sealing, under several configurations. Frozen
// layers are compared with the model of their moment, later and after their seal.
//
// CAIRN_MODEL_SEED and CAIRN_MODEL_OPS replace the seeds and the number of operations of each
// configuration.
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "store/base/random.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/posix_model.h"
#include "tests/support/temp_dir.h"
#include "tests/volume/model_compare.h"
#include "tests/volume/volume_world.h"

namespace cairn {
namespace {

struct Config {
  const char* name;
  uint64_t seed;
  uint64_t ops;
  uint64_t small_payload_limit_bytes;
  uint64_t journal_chunk_bytes;
  bool seals;
  bool power_cuts = false;
  uint64_t quota_bytes = 0;
  uint64_t quota_inodes = 0;
};

void PrintTo(const Config& config, std::ostream* out) { *out << config.name; }

constexpr size_t kMaxNodes = 70;
constexpr uint64_t kOpsBetweenComparisons = 150;
constexpr size_t kMaxUnsyncedStates = 60;

class ModelRun {
 public:
  ModelRun(const Config& config, uint64_t seed)
      : config_(config), world_(Tweaks(config)), random_(seed), model_(world_.clock.Now()) {
    if (config.power_cuts) world_.fs = &faulty_;
  }

  void Run(uint64_t ops) {
    ASSERT_TRUE(world_.Open());
    ASSERT_TRUE(volume().Sync());  // a new volume's root directory is as volatile as all else
    BecameDurable();
    for (op_ = 0; op_ < ops; ++op_) {
      model_.SetTime(world_.clock.Advance(1 + random_.Below(1000000007)));
      Step();
      if (config_.power_cuts) RememberState();
      if (op_ % kOpsBetweenComparisons == 0) CompareLive();
      if (testing::Test::HasFailure()) {
        for (const std::string& line : log_) GTEST_LOG_(INFO) << line;
        return;
      }
    }
    CompareLive();
    CompareFrozen();
  }

 private:
  struct Frozen {
    std::shared_ptr<const Layer> layer;
    PosixModel model;
  };
  struct Handle {
    InodeNumber ino;
    bool writable;
  };

  static VolumeOptions Tweaks(const Config& config) {
    VolumeOptions options;
    options.head.small_payload_limit_bytes = config.small_payload_limit_bytes;
    options.head.journal_chunk_bytes = config.journal_chunk_bytes;
    options.quota_bytes = config.quota_bytes;
    options.quota_inodes = config.quota_inodes;
    return options;
  }

  Volume& volume() { return *world_.volume; }

  // ---- choices ----
  InodeNumber Pick(bool want_dir) {
    if (random_.OneIn(100)) return 1000000 + random_.Below(10);
    std::vector<InodeNumber> fit;
    for (const auto& [ino, node] : model_.nodes()) {
      if (node.is_dir() == want_dir) fit.push_back(ino);
    }
    if (fit.empty()) return kRootInode;
    return fit[random_.Below(fit.size())];
  }
  InodeNumber PickDir() { return Pick(!random_.OneIn(40)); }
  InodeNumber PickFile() { return Pick(random_.OneIn(40)); }
  InodeNumber PickAny() { return Pick(random_.OneIn(3)); }
  PosixModel::Name PickName() { return {PickDir(), "n" + std::to_string(random_.Below(8))}; }
  // A name that exists, most of the time.
  PosixModel::Name PickExisting() {
    const PosixModel::Name any = PickName();
    const PosixModel::Node* dir = model_.Find(any.dir);
    if (!dir || dir->names.empty() || random_.OneIn(10)) return any;
    auto it = dir->names.begin();
    std::advance(it, random_.Below(dir->names.size()));
    return {any.dir, it->first};
  }
  uint64_t PickOffset() {
    constexpr uint64_t kEdges[] = {0,    100,   2047,  2048,  2049,  4095,   4096,   4097,
                                   8192, 65535, 65536, 65537, 69632, 131071, 131072, 196608};
    if (random_.OneIn(200)) return (uint64_t{1} << 36) + random_.Below(10000);
    if (random_.OneIn(3)) return random_.Below(220000);
    if (random_.OneIn(2)) return random_.Below(3000);
    return kEdges[random_.Below(std::size(kEdges))];
  }
  uint64_t PickLength() {
    constexpr uint64_t kEdges[] = {1, 10, 511, 512, 2047, 2048, 2049, 4096, 5000, 65536, 70000};
    if (random_.OneIn(40)) return 1 + random_.Below(200000);
    if (random_.OneIn(2)) return 1 + random_.Below(3000);
    return kEdges[random_.Below(std::size(kEdges))];
  }
  // Without zero bytes: a sealer may turn pages of zeros into holes.
  std::string Data(uint64_t length) {
    std::string data = random_.Bytes(length);
    for (char& c : data) {
      if (c == 0) c = 1;
    }
    return data;
  }
  PosixModel::Who PickWho() {
    world_.ctx.uid = static_cast<uint32_t>(random_.Below(3));
    world_.ctx.gid = static_cast<uint32_t>(random_.Below(3));
    return {world_.ctx.uid, world_.ctx.gid};
  }

  // ---- one operation ----
  void Log(std::string line) {
    log_.push_back(std::to_string(op_) + ": " + std::move(line));
    if (log_.size() > 25) log_.pop_front();
  }
  template <typename T>
  void Expect(const Result<T>& result, int model_errno, std::string what) {
    Log(what + " -> " + std::to_string(model_errno));
    EXPECT_EQ(ErrnoOf(result), model_errno)
        << what << " at operation " << op_ << (result ? "" : ": " + result.error().ToString());
  }
  // True when a quota forbids what the model would allow.
  bool NoSpace(int64_t inodes, int64_t bytes) {
    const uint64_t total = model_.TotalBytes();
    if (inodes > 0 && config_.quota_inodes > 0 &&
        model_.nodes().size() + static_cast<uint64_t>(inodes) > config_.quota_inodes) {
      return true;
    }
    return bytes > 0 && config_.quota_bytes > 0 &&
           total + static_cast<uint64_t>(bytes) > config_.quota_bytes;
  }
  // What the model says unless there is no space for it: then ENOSPC, and the model stays as it
  // was.
  template <typename Apply>
  int OnModel(Apply apply) {
    if (config_.quota_bytes == 0 && config_.quota_inodes == 0) return apply(model_);
    PosixModel after = model_;
    const int error = apply(after);
    const int64_t inodes =
        static_cast<int64_t>(after.nodes().size()) - static_cast<int64_t>(model_.nodes().size());
    const int64_t bytes =
        static_cast<int64_t>(after.TotalBytes()) - static_cast<int64_t>(model_.TotalBytes());
    if (error == 0 && NoSpace(inodes, bytes)) return ENOSPC;
    model_ = std::move(after);
    return error;
  }

  void Step() {
    const bool full = model_.nodes().size() > kMaxNodes;
    switch (random_.Below(full ? 24 : 30)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return StepWrite();
      case 5:
      case 6:
        return StepTruncate();
      case 7:
      case 8:
        return StepAllocate();
      case 9:
        return StepRead();
      case 10:
      case 11:
        return StepRemove();
      case 12:
      case 13:
        return StepRename();
      case 14:
        return StepOpen();
      case 15:
      case 16:
        return StepRelease();
      case 17:
        return StepSetAttr();
      case 18:
      case 19:
        return StepXattr();
      case 20:
        return StepLife();
      case 21:
        return StepLink();
      case 22:
      case 23:
        return full ? StepRemove() : StepMake();
      case 24:
        return StepUnnamed();
      default:
        return StepMake();
    }
  }

  void StepMake() {
    const PosixModel::Who who = PickWho();
    const PosixModel::Name at = PickName();
    const uint64_t kind = random_.Below(10);
    const std::string target = Data(1 + random_.Below(300));
    const uint32_t mode =
        static_cast<uint32_t>(random_.Below(01000)) | (random_.OneIn(4) ? 02000 : 0);
    Result<NamedInode> made = Err(ErrorCode::kInternal);
    std::string what = "make ";
    uint32_t type = S_IFREG;
    bool opened = false;
    if (kind < 3) {
      type = S_IFDIR;
      made = volume().MakeDir(world_.ctx, at.dir, at.name, mode);
    } else if (kind < 4) {
      type = S_IFLNK;
      made = volume().Symlink(world_.ctx, at.dir, at.name, target);
    } else if (kind < 5) {
      constexpr uint32_t kTypes[] = {S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};
      type = kTypes[random_.Below(4)];
      made = volume().MakeNode(world_.ctx, at.dir, at.name, type | mode, 0x107);
    } else if (kind < 7) {
      opened = true;
      made = volume().Create(world_.ctx, at.dir, at.name, mode, true);
    } else {
      made = volume().MakeNode(world_.ctx, at.dir, at.name, S_IFREG | mode, 5);
    }
    const InodeNumber ino = made ? made->ino : kNoInode;
    const uint64_t rdev = type == S_IFCHR || type == S_IFBLK ? 0x107 : 0;
    const int error = OnModel([&](PosixModel& model) {
      if (type == S_IFLNK) return model.Symlink(who, at, target, ino);
      return model.Make(who, at, type | mode, rdev, ino);
    });
    if (made && error == 0 && opened) {
      model_.Open(ino);
      handles_.push_back({ino, true});
    }
    Expect(made, error, what + std::to_string(type) + " " + Text(at) + " = " + std::to_string(ino));
    Check(ino);
    Check(at.dir);
  }

  void StepUnnamed() {
    const PosixModel::Who who = PickWho();
    const InodeNumber dir = PickDir();
    const auto made = volume().CreateUnnamed(world_.ctx, dir, 0640);
    const InodeNumber ino = made ? made->ino : kNoInode;
    const int error =
        OnModel([&](PosixModel& model) { return model.MakeUnnamed(who, dir, 0640, ino); });
    if (made) handles_.push_back({ino, true});
    Expect(made, error, "tmpfile in " + std::to_string(dir));
    Check(ino);
  }

  void StepLink() {
    const InodeNumber ino = PickFile();
    const PosixModel::Name at = PickName();
    const auto linked = volume().Link(world_.ctx, ino, at.dir, at.name);
    Expect(linked, model_.Link(ino, at), "link " + std::to_string(ino) + " " + Text(at));
    Check(ino);
    Check(at.dir);
  }

  void StepRemove() {
    const PosixModel::Name at = PickExisting();
    if (random_.OneIn(3)) {
      Expect(volume().RemoveDir(world_.ctx, at.dir, at.name), model_.RemoveDir(at),
             "rmdir " + Text(at));
    } else {
      Expect(volume().Unlink(world_.ctx, at.dir, at.name), model_.Unlink(at), "unlink " + Text(at));
    }
    Check(at.dir);
  }

  void StepRename() {
    constexpr uint32_t kFlags[] = {0,
                                   0,
                                   0,
                                   RENAME_NOREPLACE,
                                   RENAME_EXCHANGE,
                                   RENAME_WHITEOUT,
                                   RENAME_EXCHANGE | RENAME_NOREPLACE};
    const PosixModel::Who who = PickWho();
    const PosixModel::Name from = PickExisting();
    PosixModel::Name to = random_.OneIn(2) ? PickExisting() : PickName();
    if (random_.OneIn(3)) to.dir = from.dir;
    const uint32_t flags = kFlags[random_.Below(std::size(kFlags))];
    const auto renamed = volume().Rename(world_.ctx, from.dir, from.name, to.dir, to.name, flags);
    InodeNumber whiteout = kNoInode;
    if (renamed && (flags & RENAME_WHITEOUT)) {
      whiteout = volume().Lookup(from.dir, from.name).value().ino;
    }
    const int error =
        OnModel([&](PosixModel& model) { return model.Rename(who, from, to, flags, whiteout); });
    Expect(renamed, error, "rename " + Text(from) + " " + Text(to) + " " + std::to_string(flags));
    Check(from.dir);
    Check(to.dir);
    const PosixModel::Node* dir = model_.Find(to.dir);
    if (dir && dir->names.contains(to.name)) Check(dir->names.at(to.name));
  }

  void StepOpen() {
    const InodeNumber ino = PickAny();
    const PosixModel::Node* node = model_.Find(ino);
    const bool writable = node && S_ISREG(node->mode) && random_.OneIn(2);
    Expect(volume().OpenInode(world_.ctx, ino, writable), model_.Open(ino),
           "open " + std::to_string(ino));
    if (model_.Find(ino)) handles_.push_back({ino, writable});
  }

  void StepRelease() {
    if (handles_.empty()) return;
    const size_t at = random_.Below(handles_.size());
    const Handle handle = handles_[at];
    handles_.erase(handles_.begin() + static_cast<ptrdiff_t>(at));
    Expect(volume().ReleaseInode(world_.ctx, handle.ino, handle.writable),
           model_.Release(handle.ino), "release " + std::to_string(handle.ino));
    Check(handle.ino);
  }

  void StepWrite() {
    const InodeNumber ino = PickFile();
    uint64_t offset = PickOffset();
    const PosixModel::Node* node = model_.Find(ino);
    if (node && random_.OneIn(3)) offset = node->size;  // append
    if (offset > kMaxFileBytes / 2) offset = 0;
    const std::string data = Data(PickLength());
    const auto written = volume().Write(world_.ctx, ino, offset, data, false);
    const int error = OnModel([&](PosixModel& model) { return model.Write(ino, offset, data); });
    Expect(written, error,
           "write " + std::to_string(ino) + " at " + std::to_string(offset) + "+" +
               std::to_string(data.size()));
    EXPECT_EQ(written.value_or(data.size()), data.size());
    Check(ino);
  }

  void StepTruncate() {
    const InodeNumber ino = PickFile();
    const PosixModel::Node* node = model_.Find(ino);
    uint64_t size = PickOffset();
    if (node && node->size > 0 && random_.OneIn(2)) size = random_.Below(node->size + 1);
    if (random_.OneIn(6)) size = 0;
    SetAttributes attributes;
    attributes.size_bytes = size;
    const auto set = volume().SetAttr(world_.ctx, ino, attributes);
    const int error = OnModel([&](PosixModel& model) { return model.Truncate(ino, size); });
    Expect(set, error, "truncate " + std::to_string(ino) + " to " + std::to_string(size));
    Check(ino);
  }

  void StepAllocate() {
    constexpr int kModes[] = {0,
                              FALLOC_FL_KEEP_SIZE,
                              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              FALLOC_FL_ZERO_RANGE,
                              FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
    const InodeNumber ino = PickFile();
    const uint64_t offset = PickOffset();
    const uint64_t length = PickLength();
    const int mode = kModes[random_.Below(std::size(kModes))];
    const PosixModel::Node* node = model_.Find(ino);
    const auto set = volume().Allocate(world_.ctx, ino, offset, length, mode);
    int error = 0;
    if (node && S_ISREG(node->mode) && (mode & FALLOC_FL_KEEP_SIZE) &&
        !(mode & FALLOC_FL_PUNCH_HOLE) && offset + length > node->size &&
        NoSpace(0, static_cast<int64_t>(offset + length - node->size))) {
      error = ENOSPC;
    } else {
      error = OnModel([&](PosixModel& model) { return model.Allocate(ino, offset, length, mode); });
    }
    Expect(set, error,
           "allocate " + std::to_string(ino) + " mode " + std::to_string(mode) + " at " +
               std::to_string(offset) + "+" + std::to_string(length));
    Check(ino);
  }

  void StepRead() {
    const InodeNumber ino = PickFile();
    const uint64_t offset = PickOffset();
    std::string out(PickLength(), '?');
    const auto n = volume().Read(ino, offset, out);
    const PosixModel::Node* node = model_.Find(ino);
    const int error = !node ? ENOENT : node->is_dir() ? EISDIR : S_ISREG(node->mode) ? 0 : EINVAL;
    Expect(n, error, "read " + std::to_string(ino));
    if (!n || error != 0) return;
    EXPECT_TRUE(out.substr(0, *n) == node->Read(offset, out.size()));
  }

  void StepSetAttr() {
    const InodeNumber ino = PickAny();
    SetAttributes attributes;
    int error = 0;
    const uint64_t kind = random_.Below(3);
    if (kind == 0) {
      const PosixModel::Node* node = model_.Find(ino);
      if (node && S_ISLNK(node->mode)) return;
      attributes.mode = static_cast<uint32_t>(random_.Below(010000));
      error = model_.Chmod(ino, *attributes.mode);
    } else if (kind == 1) {
      const PosixModel::Who who = PickWho();
      attributes.uid = who.uid;
      attributes.gid = who.gid;
      attributes.kill_privileges = random_.OneIn(2);
      error = model_.Chown(ino, who, attributes.kill_privileges);
    } else {
      PosixModel::Times times;
      times.set_atime = random_.OneIn(2);
      times.set_mtime = true;
      times.atime = {static_cast<int64_t>(random_.Below(1 << 30)) - (1 << 29), 999999999};
      times.mtime = {static_cast<int64_t>(random_.Below(1 << 30)), 1};
      if (times.set_atime) attributes.atime = times.atime;
      attributes.mtime = times.mtime;
      error = model_.SetTimes(ino, times);
    }
    Expect(volume().SetAttr(world_.ctx, ino, attributes), error,
           "setattr " + std::to_string(kind) + " " + std::to_string(ino));
    Check(ino);
  }

  void StepXattr() {
    constexpr const char* kNames[] = {"user.a", "user.b", "trusted.c", "security.capability"};
    const InodeNumber ino = PickAny();
    const std::string name = kNames[random_.Below(4)];
    if (random_.OneIn(3)) {
      Expect(volume().RemoveXattr(world_.ctx, ino, name), model_.RemoveXattr(ino, name),
             "removexattr " + std::to_string(ino));
    } else {
      const std::string value =
          Data(random_.OneIn(8) ? random_.Below(kMaxXattrBytes + 1) : random_.Below(100));
      constexpr int kFlags[] = {0, 0, XATTR_CREATE, XATTR_REPLACE};
      const int flags = kFlags[random_.Below(4)];
      Expect(volume().SetXattr(world_.ctx, ino, name, value, flags),
             model_.SetXattr(ino, name, value, flags), "setxattr " + std::to_string(ino));
    }
    Check(ino);
  }

  void StepLife() {
    const uint64_t kind = random_.Below(24);
    if (kind < 3) {
      Log("sync");
      EXPECT_TRUE(volume().Sync());
      BecameDurable();
    } else if (kind < 6) {
      Log("freeze");
      if (volume().head().unsealed().size() >= 6) return;
      const auto frozen = volume().Freeze();
      ASSERT_TRUE(frozen);
      BecameDurable();
      if (frozen_.size() < 4) frozen_.push_back({*frozen, model_});
    } else if (kind < 9 && config_.seals) {
      Log("seal");
      const Status sealed = world_.SealOldest();
      EXPECT_TRUE(sealed) << sealed.error().ToString();
      sealed_ = true;
      CompareFrozen();
    } else if (kind < 11) {
      if (volume().head().unsealed().size() > 12) return;  // never sealed: each opening replays all
      Log("reopen");
      CompareFrozen();  // what they read from goes with the head
      frozen_.clear();
      handles_.clear();
      const Status opened = world_.Reopen();
      ASSERT_TRUE(opened) << opened.error().ToString();
      model_.CloseAll();
      BecameDurable();
      CompareLive();
    } else if (kind < 16 && config_.power_cuts) {
      CutPower();
    }
  }

  // ---- power cuts ----
  void BecameDurable() { states_.assign(1, model_); }
  void RememberState() {
    states_.push_back(model_);
    if (states_.size() > kMaxUnsyncedStates) {
      EXPECT_TRUE(volume().Sync());
      BecameDurable();
    }
  }
  // What is there afterwards is the state after some operation since the last sync: each of them
  // all or nothing, in order.
  void CutPower() {
    Log("power cut");
    frozen_.clear();
    handles_.clear();
    faulty_.PowerCut(random_);
    world_.Close();
    const Status opened = world_.Open();
    ASSERT_TRUE(opened) << opened.error().ToString();
    for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
      state->CloseAll();
      if (state->nodes().size() != volume().GetStatus().inodes) continue;
      if (!HasSameAttributes(volume().View(), *state)) continue;
      model_ = *state;
      BecameDurable();
      CompareLive();
      return;
    }
    ADD_FAILURE() << "after a power cut at operation " << op_ << ": none of the last "
                  << states_.size() << " states";
  }

  // ---- comparison ----
  static std::string Text(const PosixModel::Name& at) {
    return std::to_string(at.dir) + "/" + at.name;
  }

  void Check(InodeNumber ino) {
    const PosixModel::Node* node = model_.Find(ino);
    if (!node) {
      EXPECT_EQ(ErrnoOf(volume().GetAttributes(ino)), ENOENT) << ino;
      return;
    }
    SCOPED_TRACE(testing::Message() << "inode " << ino << " after operation " << op_);
    CompareAttributes(volume().View(), ino, *node, !sealed_);
  }

  void CompareLive() {
    SCOPED_TRACE(testing::Message() << "live, at operation " << op_);
    CompareWithModel(volume().View(), model_, !sealed_);
    const VolumeStatus status = volume().GetStatus();
    EXPECT_EQ(status.inodes, model_.nodes().size());
    EXPECT_EQ(status.logical_bytes, model_.TotalBytes());
    EXPECT_EQ(status.open_handles, handles_.size());
  }

  void CompareFrozen() {
    for (const Frozen& frozen : frozen_) {
      SCOPED_TRACE(testing::Message() << "frozen layer, at operation " << op_);
      CompareWithModel(FsView(frozen.layer, volume().hash_seed()), frozen.model, !sealed_);
    }
    if (frozen_.size() > 2) frozen_.erase(frozen_.begin());
  }

  const Config& config_;
  TempDir scratch_;
  FaultyFileSystem faulty_{scratch_.path()};
  VolumeWorld world_;
  SeededRandom random_;
  PosixModel model_;
  std::vector<Handle> handles_;
  std::vector<Frozen> frozen_;
  std::deque<PosixModel> states_;  // the last durable one and all since (with power cuts)
  std::deque<std::string> log_;
  uint64_t op_ = 0;
  bool sealed_ = false;
};

class VolumeModelTest : public testing::TestWithParam<Config> {};

TEST_P(VolumeModelTest, EveryAnswerAgrees) {
  const Config& config = GetParam();
  const char* seed = std::getenv("CAIRN_MODEL_SEED");
  const char* ops = std::getenv("CAIRN_MODEL_OPS");
  const uint64_t used_seed = seed ? std::strtoull(seed, nullptr, 10) : config.seed;
  const uint64_t used_ops = ops ? std::strtoull(ops, nullptr, 10) : config.ops;
  std::printf("CAIRN_MODEL_SEED=%lu CAIRN_MODEL_OPS=%lu\n", static_cast<unsigned long>(used_seed),
              static_cast<unsigned long>(used_ops));
  ModelRun(config, used_seed).Run(used_ops);
}

constexpr uint64_t kDefaultPayload = 32 * 1024;
constexpr uint64_t kDefaultChunk = 1 << 20;

INSTANTIATE_TEST_SUITE_P(
    Configurations, VolumeModelTest,
    testing::Values(Config{"Default", 1, 12000, kDefaultPayload, kDefaultChunk, true},
                    Config{"NeverSealed", 2, 6000, kDefaultPayload, kDefaultChunk, false},
                    Config{"EverythingInTheSideLog", 3, 4000, 1, kDefaultChunk, true},
                    Config{"TinyJournalChunk", 4, 4000, 1000, 8192, true},
                    Config{"TightQuota", 5, 3000, kDefaultPayload, kDefaultChunk, true, false,
                           600000, 25},
                    Config{"PowerCuts", 6, 2500, 1000, 65536, true, true}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace cairn
