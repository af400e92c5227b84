// Random transactions against a model of maps and byte arrays: the head reads like the model at
// once, after a kill, after a power loss (a prefix of the records that holds all that were synced),
// across freezes and seals.
#include <cstdlib>
#include <iostream>

#include "tests/volume/head_fixture.h"
#include "tests/volume/sim_disk.h"
#include "volume/journal_format.h"

namespace cairn {
namespace {

constexpr uint64_t kFileBytes = 300000;  // files of the model end here
constexpr InodeNumber kFiles = 4;

struct Model {
  std::map<std::string, std::string> entries;
  std::map<InodeNumber, std::string> files;
  uint64_t commits = 0;  // also under CounterKey()
};

std::string CounterKey() { return AttributesKey(1); }

class HeadModelTest : public HeadTest, public testing::WithParamInterface<uint64_t> {
 protected:
  HeadModelTest() : random_(Seed()) {
    fs_ = &disk_;
    options_.dir = "/v";
    options_.journal_chunk_bytes = random_.OneIn(2) ? 32 << 10 : 1 << 20;
    options_.small_payload_limit_bytes = random_.OneIn(2) ? 5000 : 32 << 10;
    for (InodeNumber ino = 10; ino < 10 + kFiles; ino++) {
      now_.files[ino] = std::string(kFileBytes, '\0');
    }
    frozen_models_[0] = now_;
  }
  static uint64_t Seed() {
    const char* given = getenv("CAIRN_SEED");
    return given != nullptr ? strtoull(given, nullptr, 10) : GetParam();
  }

  std::string RandomKey() {
    const InodeNumber ino = 2 + random_.Below(20);
    switch (random_.Below(3)) {
      case 0:
        return AttributesKey(ino);
      case 1:
        return DirentKey(ino, (3 + random_.Below(20)) << 8);
      default:
        return XattrKey(ino, "user." + std::to_string(random_.Below(5)));
    }
  }

  void CommitRandom() {
    Transaction t;
    std::vector<std::string> alive;
    alive.reserve(8);
    for (uint64_t n = 1 + random_.Below(5); n > 0; n--) {
      const InodeNumber ino = 10 + random_.Below(kFiles);
      std::string& file = now_.files[ino];
      const uint64_t offset = random_.OneIn(3) ? random_.Below(kFileBytes / kPageBytes) * kPageBytes
                                               : random_.Below(kFileBytes);
      switch (random_.Below(6)) {
        case 0:
        case 1: {
          const std::string key = RandomKey();
          const std::string value = random_.Bytes(random_.Below(200));
          t.Put(key, Entry{value, {}});
          now_.entries[key] = value;
          break;
        }
        case 2: {
          const std::string key = RandomKey();
          t.Delete(key);
          now_.entries.erase(key);
          break;
        }
        case 3: {
          const bool to_the_end = random_.OneIn(4);
          const uint64_t length = to_the_end ? ~uint64_t{0} : random_.Below(100000);
          t.PutHole(ino, offset, length);
          const uint64_t n_bytes = std::min(length, kFileBytes - offset);
          file.replace(offset, n_bytes, n_bytes, '\0');
          break;
        }
        default: {
          const uint64_t limit = random_.OneIn(4) ? 200000 : 6000;
          const uint64_t n_bytes = std::min(random_.Below(limit), kFileBytes - offset);
          alive.push_back(random_.Bytes(n_bytes));
          t.PutData(ino, offset, alive.back());
          file.replace(offset, n_bytes, alive.back());
          break;
        }
      }
    }
    now_.commits++;
    now_.entries[CounterKey()] = std::to_string(now_.commits);
    t.Put(CounterKey(), Entry{now_.entries[CounterKey()], {}});
    ASSERT_TRUE(head_->Commit(std::move(t)));
    since_sync_.push_back(now_);
  }

  void ExpectLike(const Model& model, const Layer& layer) {
    std::map<std::string, std::string> found;
    ASSERT_TRUE(layer.Scan({}, {}, [&](std::string_view key, const Entry& entry) {
      found[std::string(key)] = entry.payload;
      return true;
    }));
    ASSERT_EQ(found, model.entries);
    for (int i = 0; i < 5; i++) {
      const std::string key = RandomKey();
      const auto it = model.entries.find(key);
      ASSERT_EQ(GetPayload(layer, key), it == model.entries.end() ? "(absent)" : it->second);
    }
    for (const auto& [ino, file] : model.files) {
      ASSERT_TRUE(ReadFile(layer, ino, 0, kFileBytes) == file) << "file " << ino;
      const uint64_t offset = random_.Below(kFileBytes);
      const uint64_t length = random_.Below(kFileBytes - offset);
      ASSERT_TRUE(ReadFile(layer, ino, offset, length) == file.substr(offset, length));
    }
  }

  void Synced() {
    since_sync_.clear();
    synced_ = now_;
  }

  // The tree that a seal of `model` would give.
  TreeRoot BuildTree(const Model& model) {
    auto session = *store_.BeginWrite(realm_);
    std::map<std::string, Entry> all;
    for (const auto& [key, value] : model.entries) all[key] = Entry{value, {}};
    for (const auto& [ino, file] : model.files) {
      for (uint64_t at = 0; at < file.size(); at += kGridBytes) {
        const std::string window = file.substr(at, kGridBytes);
        const size_t first = window.find_first_not_of('\0');
        if (first == std::string::npos) continue;
        const size_t last = window.find_last_not_of('\0');
        const BlockRef ref = *session->Put(BlockKind::kData, window, Compression::kFast);
        std::string payload;
        ByteWriter(payload).U32(static_cast<uint32_t>(last - first + 1));
        ByteWriter(payload).U32(static_cast<uint32_t>(first));
        all[ExtentKey(ino, at + first)] = Entry{payload, {ref}};
      }
    }
    std::vector<TreeUpdate> updates;
    for (auto& [key, entry] : all) updates.push_back({key, entry});
    const auto root = MergeTree(
        *EmptyTree(), *session, updates,
        [](std::string_view, const Entry&) { return TreeCounters{}; }, 1);
    EXPECT_TRUE(root);
    return *root;
  }

  void SealOldest() {
    if (head_->unsealed().empty()) return;
    const auto layer = head_->unsealed()[0];
    const uint64_t generation = layer->generation();
    const Model& model = frozen_models_.at(generation);
    ASSERT_NO_FATAL_FAILURE(ExpectLike(model, *layer));
    const auto tree = Tree(BuildTree(model));
    ASSERT_TRUE(head_->FinishSeal(generation, tree));
    ASSERT_NO_FATAL_FAILURE(ExpectLike(model, *layer));  // now read from the tree
    options_.sealed_through_generation = generation;
    options_.base = TreeLayer(store_, tree, generation);
  }

  // Opens again; what is there must be the model after `synced_` or one of the commits since.
  void ReopenAfterCrash(bool everything) {
    MustReopen();
    const std::string counter = GetPayload(*head_->current(), CounterKey());
    const uint64_t commits = counter == "(absent)" ? 0 : std::stoull(counter);
    ASSERT_GE(commits, synced_.commits);
    ASSERT_LE(commits, now_.commits);
    if (everything) {
      ASSERT_EQ(commits, now_.commits);
    }
    now_ = commits == synced_.commits ? synced_ : since_sync_[commits - synced_.commits - 1];
    Synced();  // recovery makes durable what it found
    for (const auto& layer : head_->unsealed()) {
      if (frozen_models_.count(layer->generation()) == 0) {
        frozen_models_[layer->generation()] = now_;
      }
    }
  }

  SimDisk disk_;
  SeededRandom random_;
  Model now_;
  Model synced_ = now_;
  std::vector<Model> since_sync_;            // after each commit since the last sync
  std::map<uint64_t, Model> frozen_models_;  // by generation
};

TEST_P(HeadModelTest, HeadReadsLikeTheModel) {
  std::cout << "seed " << Seed() << "\n";
  synced_ = now_;
  MustReopen();
  for (int step = 0; step < 150; step++) {
    switch (random_.Below(24)) {
      case 0:
        ASSERT_TRUE(head_->Sync());
        Synced();
        break;
      case 1: {
        const auto frozen = head_->Freeze();
        ASSERT_TRUE(frozen);
        frozen_models_[(*frozen)->generation()] = now_;
        Synced();
        break;
      }
      case 2:
        ASSERT_NO_FATAL_FAILURE(SealOldest());
        break;
      case 3:  // the process dies: the kernel keeps what was written
        ASSERT_NO_FATAL_FAILURE(ReopenAfterCrash(true));
        break;
      case 4:
        head_.reset();
        options_.base =
            TreeLayer(store_, options_.base->base_tree(), options_.sealed_through_generation);
        disk_.LosePower(random_);
        ASSERT_NO_FATAL_FAILURE(ReopenAfterCrash(false));
        break;
      default:
        ASSERT_NO_FATAL_FAILURE(CommitRandom());
        break;
    }
    if (random_.OneIn(6)) {
      ASSERT_NO_FATAL_FAILURE(ExpectLike(now_, *head_->current())) << "step " << step;
    }
  }
  for (const auto& layer : head_->unsealed()) {
    ASSERT_NO_FATAL_FAILURE(ExpectLike(frozen_models_.at(layer->generation()), *layer));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectLike(now_, *head_->current()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, HeadModelTest, testing::Range(uint64_t{1}, uint64_t{31}));

}  // namespace
}  // namespace cairn
